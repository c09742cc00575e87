"""An end user on the public package `converger`, driven over stdin. Runs in the clients' own environment.

    SECRET=… [API_KEY=…] python user.py URL

One request a line, `{"call": name, "with": {…}}`; one answer a line, `{"value": …}` or `{"error": {kind, code, …}}`.
Calls are the methods of the package's client API, those of its tenant API as `tenant.<name>`, and of its socket
`connect`, `send`, `message`, `frame`, `typing`, `read`, `refresh`, `receive`, `watermark` and `cut`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from converger import ApiError, AsyncConverger, ConnectionClosed, ProtocolError  # type: ignore[import-not-found]

PATIENCE_S = 20.0


class Sockets:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._sockets: dict[str, Any] = {}

    async def connect(self, name: str, token: str, conversation_id: str | None = None, watermark: int = 0) -> Any:
        socket = self._client.socket(token, conversation_id=conversation_id, watermark=watermark)
        self._sockets[name] = socket
        await socket.connect()
        return socket.welcome

    async def send(self, name: str, text: str, client_id: str | None = None) -> Any:
        ack = await self._sockets[name].send_text(text, client_id=client_id, timeout=PATIENCE_S)
        return ack.model_dump(mode="json", by_alias=True)

    async def message(self, name: str, kind: str, data: dict[str, Any], **more: Any) -> Any:
        ack = await self._sockets[name].send_message(kind, data, timeout=PATIENCE_S, **more)
        return ack.model_dump(mode="json", by_alias=True)

    async def typing(self, name: str, is_typing: bool) -> None:
        await self._sockets[name].typing(is_typing)

    async def read(self, name: str) -> None:
        await self._sockets[name].read()

    async def frame(self, name: str, frame: dict[str, Any]) -> None:
        """One that the package has no method for."""
        await self._sockets[name]._send_raw(frame)

    async def refresh(self, name: str, token: str) -> None:
        await self._sockets[name].refresh(token)

    async def receive(self, name: str, *, persistent: bool = True) -> Any:
        while True:
            frame = await asyncio.wait_for(self._sockets[name].recv(), PATIENCE_S)
            if not persistent or "seq" in frame:
                return frame

    async def watermark(self, name: str) -> Any:
        return self._sockets[name].watermark

    async def cut(self, name: str) -> None:
        """The network goes away under the client; it does not know."""
        self._sockets[name]._ws.transport.abort()


async def answer(client: Any, sockets: Sockets, request: dict[str, Any]) -> dict[str, Any]:
    name = request["call"]
    place = sockets if hasattr(sockets, name) else client.client_api
    if name.startswith("tenant."):
        place, name = client.tenant_api, name.removeprefix("tenant.")
    try:
        value = await getattr(place, name)(**request["with"])
    except ApiError as error:
        return {"error": {"kind": "api", "code": error.code, "status": error.status, "retry_after": error.retry_after}}
    except ProtocolError as error:
        return {"error": {"kind": "protocol", "code": error.code}}
    except ConnectionClosed as error:
        return {"error": {"kind": "closed", "code": error.code}}
    except TimeoutError:
        return {"error": {"kind": "timeout", "code": None}}
    return {"value": value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value}


async def main() -> None:
    loop = asyncio.get_running_loop()
    secrets = {"channel_secret": os.environ["SECRET"], "api_key": os.environ.get("API_KEY")}
    async with AsyncConverger(sys.argv[1], **secrets) as client:
        sockets = Sockets(client)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            sys.stdout.write(json.dumps(await answer(client, sockets, json.loads(line))) + "\n")
            sys.stdout.flush()


asyncio.run(main())
