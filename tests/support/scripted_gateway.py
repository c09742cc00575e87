"""A gateway that does what the test says, over real sockets on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

Json = dict[str, Any]
PATIENCE_S = 5.0
"""How long the script waits for a frame that must come; only a failing test waits it out."""


class Peer:
    """The other end of one connection, after its hello."""

    def __init__(self, socket: ServerConnection, hello: Json) -> None:
        self.socket = socket
        self.hello = hello
        self.token = socket.request.headers.get("Authorization", "") if socket.request else ""

    async def welcome(self, **data: Any) -> None:
        await self.send({"type": "welcome", "data": {"protocol": "converger/1", "connectionId": "c", **data}})

    async def send(self, frame: Json) -> None:
        await self.socket.send(json.dumps(frame))

    async def say(self, conversation: str, frame: Json) -> None:
        await self.send({"conversationId": conversation, "frame": frame})

    async def turn(self, conversation: str, text: str, *, seq: int | None, epoch: int | None = 1, **more: Any) -> None:
        """A person's text; `seq` None: given again, the number stays in its id and run."""
        number = more.pop("number", seq)
        frame: Json = {"type": "text", "id": f"turn-{number}", "from": "user", "data": {"text": text}, "timestamp": 1}
        if seq is not None:
            frame["seq"] = seq
        if epoch is not None:
            frame |= {"run": f"{conversation}/{number}/agents", "runEpoch": epoch}
        await self.say(conversation, frame | more)

    async def ack(self, conversation: str, frame: Json, *, seq: int, **more: Any) -> None:
        ack = {"type": "ack", "clientId": frame["clientId"], "id": f"m-{seq}", "seq": seq, "timestamp": 1}
        await self.say(conversation, ack | more)

    async def receive(self) -> Json:
        """The next frame, whatever it is."""
        async with asyncio.timeout(PATIENCE_S):
            frame: Json = json.loads(await self.socket.recv())
            return frame

    async def inner(self, conversation: str) -> Json:
        """The next frame, which must be in `conversation`."""
        envelope = await self.receive()
        assert envelope.get("conversationId") == conversation, envelope
        frame: Json = envelope["frame"]
        return frame

    async def until(self, conversation: str, **wanted: Any) -> Json:
        """The next frame of `conversation` that has these values; frames before it are passed over."""
        while True:
            frame = await self.inner(conversation)
            if all(frame.get(name) == value for name, value in wanted.items()):
                return frame

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self.socket.close(code, reason)

    async def closed(self) -> int | None:
        """Read to the end; the close code."""
        async with asyncio.timeout(PATIENCE_S):
            await self.socket.wait_closed()
        return self.socket.close_code


class ScriptedGateway:
    """Listens; each connection that said hello waits in line for the test to take it."""

    def __init__(self) -> None:
        self.url = ""
        self._line: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(self) -> Peer:
        """The next connection, its hello read, not yet welcomed."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._line.get()

    async def welcomed(self, **data: Any) -> Peer:
        """The next connection, welcomed."""
        peer = await self.accept()
        await peer.welcome(**data)
        return peer

    async def handle(self, socket: ServerConnection) -> None:
        hello = json.loads(await socket.recv())
        self._line.put_nowait(Peer(socket, hello))
        await socket.wait_closed()


@asynccontextmanager
async def scripted_gateway() -> AsyncIterator[ScriptedGateway]:
    """One that listens on a free port until the block ends."""
    gateway = ScriptedGateway()
    async with serve(gateway.handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        gateway.url = f"http://127.0.0.1:{port}"
        yield gateway
