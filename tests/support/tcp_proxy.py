"""A TCP proxy that can freeze what a client sends, let it go on later, or cut the connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK = 65_536


class TcpProxy:
    """Listens on `port` of 127.0.0.1 and forwards to a server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._held = asyncio.Event()
        self._freeze_at: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def freeze(self) -> None:
        """What clients send from now on waits here."""
        self._flowing.clear()

    def freeze_at(self, marker: bytes) -> None:
        """Freeze when a client sends `marker`: that piece and all after it wait here."""
        self._freeze_at = marker

    async def held(self) -> None:
        """Returns once something that a client sent waits here."""
        await self._held.wait()

    def thaw(self) -> None:
        """Everything that waits goes on its way."""
        self._freeze_at = None
        self._flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        for source, sink, holds in ((reader, upstream_writer, True), (upstream_reader, writer, False)):
            task = asyncio.create_task(self._pump(source, sink, holds=holds))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, holds: bool) -> None:
        try:
            while chunk := await source.read(CHUNK):
                if holds:
                    if self._freeze_at is not None and self._freeze_at in chunk:
                        self._flowing.clear()
                    if not self._flowing.is_set():
                        self._held.set()
                        await self._flowing.wait()
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            return
        finally:
            sink.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(host: str, port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(host, port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
