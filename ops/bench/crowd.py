"""Many people's sockets that are only there: opened and kept by processes of their own, `python -m ops.bench.crowd`.

Each speaks just enough of WebSocket for that, so that thousands cost the machine little beside the gateway that is
measured: it says hello, answers pings, says that it is there, and throws away what it is shown.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

SOCKET: Final = "/socket/converger/v1"
PROCESSES: Final = 2
AT_ONCE: Final = 32
OPEN_WITHIN_S: Final = 120.0
PING_EVERY_S: Final = 25.0
"""A gateway ends a socket from which nothing came for 60 s; its clients speak twice as often."""
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


# ------------------------------------------------------------------------------------------------- who wants a crowd
@asynccontextmanager
async def crowd(gateway: str, places: Sequence[tuple[str, str]]) -> AsyncIterator[Callable[[], int]]:
    """A socket for each (conversation, token), in processes of their own; how many of them the gateway has ended.
    Raises `BenchFailed` when one cannot be opened."""
    from ops.bench.sequencer import BenchFailed  # noqa: PLC0415 -- the crowd's own processes need nothing of that

    parts = [part for number in range(PROCESSES) if (part := list(places[number::PROCESSES]))]
    children = [await _begun(gateway, number, part) for number, part in enumerate(parts)]
    try:
        said = [json.loads(await child.stdout.readline() or b'{"error": "it ended"}') for child in children]  # type: ignore[union-attr]
        if failed := next((each["error"] for each in said if "error" in each), None):
            raise BenchFailed(f"people's sockets cannot be opened: {failed}")
        lost = [0] * len(children)
        reading = [asyncio.create_task(_count(child, lost, number)) for number, child in enumerate(children)]
        try:
            yield lambda: sum(lost)
        finally:
            for task in reading:
                task.cancel()
    finally:
        for child in children:
            if child.returncode is None:
                child.terminate()  # at once, also one that is still opening them
        await asyncio.gather(*(child.wait() for child in children))


async def _begun(gateway: str, number: int, places: Sequence[tuple[str, str]]) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ops.bench.crowd",
        gateway,
        f"127.0.0.{2 + number}" if sys.platform == "linux" else "",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None  # noqa: S101 -- it is a pipe
    child.stdin.write(json.dumps(places).encode() + b"\n")
    await child.stdin.drain()
    return child


async def _count(child: asyncio.subprocess.Process, lost: list[int], number: int) -> None:
    assert child.stdout is not None  # noqa: S101 -- it is a pipe
    async for line in child.stdout:
        lost[number] = json.loads(line)["lost"]


# ------------------------------------------------------------------------------------------------------- the process
def frame(opcode: int, payload: bytes) -> bytes:
    """A short client's frame; its mask is of zeros, which leaves the payload as it is."""
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload


class Idle(asyncio.Protocol):
    """One socket. `welcomed` is done once the gateway has welcomed it, or with what it said instead."""

    __slots__ = ("_buffer", "_hello", "_lost", "_request", "_upgraded", "transport", "welcomed")

    def __init__(self, request: bytes, hello: bytes, lost: Callable[[], None]) -> None:
        self._request = request
        self._hello = hello
        self._lost = lost
        self._buffer = bytearray()
        self._upgraded = False
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the WebSocket."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """The answer to that, then frames."""
        self._buffer += data
        if not self._upgraded:
            head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.split(b"\r\n", 1)[0]:
                self._fail(head.split(b"\r\n", 1)[0])
                return
            self._upgraded, self._buffer = True, bytearray(rest)
            self.transport.write(self._hello)
        while (found := _frame_in(self._buffer)) is not None:
            self._taken(*found)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if not self.welcomed.done():
            self._fail(repr(exc).encode())
        elif self.welcomed.exception() is None:
            self._lost()

    def _taken(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.transport.write(frame(PONG, payload))
        elif opcode == CLOSE:
            self.transport.close()
        elif not self.welcomed.done():
            if json.loads(payload)["type"] == "welcome":
                self.welcomed.set_result(None)
            else:
                self._fail(payload)

    def _fail(self, why: bytes) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(why.decode(errors="replace")))
        self.transport.close()


def _frame_in(buffer: bytearray) -> tuple[int, bytes] | None:
    """Take the first whole frame of a server out of what came; None: there is none yet."""
    if len(buffer) < 2:
        return None
    size, begins = buffer[1], 2
    if size >= 126:
        begins += 2 if size == 126 else 8
        size = int.from_bytes(buffer[2:begins])
    if len(buffer) < begins + size:
        return None
    opcode, payload = buffer[0] & 0x0F, bytes(buffer[begins : begins + size])
    del buffer[: begins + size]
    return opcode, payload


async def keep(gateway: str, source: str, places: Sequence[tuple[str, str]], say: Callable[[Any], None]) -> None:
    """Open them, say so, and keep them until standard input ends; say how many are lost, each time one more is."""
    lost = 0

    def one_lost() -> None:
        nonlocal lost
        lost += 1
        if there:
            say({"lost": lost})

    there = False
    opening = asyncio.Semaphore(AT_ONCE)
    try:
        sockets = await asyncio.gather(*(opened(gateway, source, place, one_lost, opening) for place in places))
    except (OSError, TimeoutError) as error:
        say({"error": str(error) or type(error).__name__})
        return
    say({"opened": len(sockets)})
    there = True
    if lost:
        say({"lost": lost})
    pinging = asyncio.create_task(_ping(sockets))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    there = False
    pinging.cancel()
    for each in sockets:
        each.transport.abort()


async def opened(
    gateway: str, source: str, place: tuple[str, str], lost: Callable[[], None], opening: asyncio.Semaphore
) -> Idle:
    """A socket that was welcomed. Raises `OSError` or `TimeoutError`."""
    parts, (conversation, token) = urlsplit(gateway), place
    request = (
        f"GET {SOCKET} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
        f"Sec-WebSocket-Protocol: converger.v1\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    hello = {"type": "hello", "protocol": "converger/1", "conversationId": conversation, "watermark": 0}
    said = frame(TEXT, json.dumps(hello, separators=(",", ":")).encode())
    loop = asyncio.get_running_loop()
    async with opening, asyncio.timeout(OPEN_WITHIN_S):
        _, idle = await loop.create_connection(
            lambda: Idle(request.encode(), said, lost),
            parts.hostname or "127.0.0.1",
            parts.port or 80,
            local_addr=(source, 0) if source else None,
        )
        await idle.welcomed
    return idle


async def _ping(sockets: Sequence[Idle]) -> None:
    """Spread over the whole time, as people's clients do it."""
    said = frame(TEXT, b'{"type":"ping"}')
    while True:
        for each in sockets:
            await asyncio.sleep(PING_EVERY_S / len(sockets))
            each.transport.write(said)


def main() -> None:
    """`python -m ops.bench.crowd GATEWAY SOURCE`; the places are the first line of standard input."""
    import uvloop  # noqa: PLC0415 -- not to be had everywhere; only this process needs it

    def say(document: Any) -> None:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()

    gateway, source = sys.argv[1:]
    uvloop.run(keep(gateway, source, json.loads(sys.stdin.readline()), say))


if __name__ == "__main__":
    main()
