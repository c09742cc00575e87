"""Serves the chat page: `/chat/` and the files that it is made of, as they lie beside this module."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PATH: Final = "/chat"

_MEDIA_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

# Scripts and connections are this gateway's alone; pictures and sounds may be anybody's, for messages link to them.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src http: https: data:; "
    "media-src http: https:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
_HEADERS: Final = {
    "cache-control": "no-cache",  # the ETag tells: an upgraded gateway serves its own page at once
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class File(msgspec.Struct, frozen=True):
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


def files() -> dict[str, File]:
    """All files of the page by name, read once; `index.html` is the page itself."""
    found = {}
    for entry in resources.files(__package__).joinpath("static").iterdir():
        suffix = f".{entry.name.rpartition('.')[2]}"
        if suffix in _MEDIA_TYPES:
            content = entry.read_bytes()
            found[entry.name] = File(content, _MEDIA_TYPES[suffix], f'"{sha256(content).hexdigest()[:32]}"')
    return found


def routes() -> list[Route]:
    """The page's routes. They need nothing of the gateway: the page itself says whether it can connect."""
    served = files()

    async def file(request: Request) -> Response:
        found = served.get(request.path_params.get("name", "index.html"))
        if found is None:
            return Response("there is no such file of the chat page\n", 404, media_type="text/plain")
        headers = _HEADERS | {"etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media_type)

    async def folder(_: Request) -> Response:
        return RedirectResponse(f"{PATH}/", 308)

    return [
        Route(PATH, folder, methods=["GET"]),
        Route(f"{PATH}/", file, methods=["GET"]),
        Route(f"{PATH}/{{name}}", file, methods=["GET"]),
    ]
