"""An HTTP server that answers as the test says, over real sockets on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back. `body`: JSON, or bytes as they are; None: the connection is cut without a word."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


CUT = Answer(body=None)


class ScriptedHttp:
    """Answers requests in the order of `answers`, and keeps what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: deque[Answer] = deque()
        self.asked: list[Asked] = []
        self.failures: list[Exception] = []
        """What went wrong here: a request that is none, or one more than there are answers."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except ConnectionError:
            return  # a client that has seen enough goes away in the middle of an answer
        except Exception as failure:  # noqa: BLE001 -- asyncio would only log it: `scripted_http` raises it
            self.failures.append(failure)
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request; whether the connection goes on."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
            return False
        request, *lines = head.strip().split("\r\n")
        method, path, _ = request.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append(Asked(method, path, headers, json.loads(raw) if raw else None))
        answer = self.answers.popleft()
        if answer.body is None:
            writer.transport.abort()
            return False
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        fields = {"Content-Length": str(len(body)), **answer.headers}
        lines_out = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {answer.status} X\r\n{lines_out}\r\n".encode() + body)
        await writer.drain()
        return True


@asynccontextmanager
async def scripted_http(*answers: Answer) -> AsyncIterator[ScriptedHttp]:
    """One that listens on a free port until the block ends. Raises what went wrong in it, unless the block did."""
    scripted = ScriptedHttp()
    scripted.answers.extend(answers)
    server = await asyncio.start_server(scripted.handle, "127.0.0.1", 0)
    async with server:
        scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield scripted
        server.close()
    if scripted.failures:
        raise ExceptionGroup("the scripted server failed", scripted.failures)
