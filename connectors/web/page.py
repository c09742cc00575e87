"""Serves the pages, `/chat/` for people and `/console/` for operators, and the files that they are made of, as they lie
beside this module."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_MEDIA_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

# Scripts and connections are this gateway's alone; pictures and sounds may be anybody's, for messages link to them.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src http: https: data:; "
    "media-src http: https:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
# An operator's token lies in the console: nothing is loaded from elsewhere, and nobody may frame it.
_CONSOLE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "cache-control": "no-cache",  # the ETag tells: an upgraded gateway serves its own page at once
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class File(msgspec.Struct, frozen=True):
    """One file of a page."""

    content: bytes
    media_type: str
    etag: str


class Site(msgspec.Struct, frozen=True):
    """A page: where it is served, and the folder beside this module that its files lie in."""

    path: str
    folder: str
    policy: str


CHAT: Final = Site("/chat", "static", _POLICY)
CONSOLE: Final = Site("/console", "console", _CONSOLE_POLICY)


def files(site: Site = CHAT) -> dict[str, File]:
    """All files of a page by name, read once; `index.html` is the page itself."""
    found = {}
    for entry in resources.files(__package__).joinpath(site.folder).iterdir():
        suffix = f".{entry.name.rpartition('.')[2]}"
        if suffix in _MEDIA_TYPES:
            content = entry.read_bytes()
            found[entry.name] = File(content, _MEDIA_TYPES[suffix], f'"{sha256(content).hexdigest()[:32]}"')
    return found


def routes(site: Site) -> list[Route]:
    """A page's routes. They need nothing of the gateway: the page itself says whether it can connect."""
    served = files(site)

    async def file(request: Request) -> Response:
        found = served.get(request.path_params.get("name", "index.html"))
        if found is None:
            return Response("there is no such file of this page\n", 404, media_type="text/plain")
        headers = _HEADERS | {"content-security-policy": site.policy, "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, headers=headers, media_type=found.media_type)

    async def folder(_: Request) -> Response:
        return RedirectResponse(f"{site.path}/", 308)

    return [
        Route(site.path, folder, methods=["GET"]),
        Route(f"{site.path}/", file, methods=["GET"]),
        Route(f"{site.path}/{{name}}", file, methods=["GET"]),
    ]
