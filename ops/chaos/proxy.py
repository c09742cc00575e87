"""TCP between one process and one server, where a network's faults are made.

`TcpProxy` passes bytes. A direction that is *held* passes nothing and loses nothing: what was sent waits, and arrives
when it is let go, as after a cut that TCP survived; `reset` ends the connections that there are, as a middlebox does.

`KafkaProxy` passes whole frames: 4 bytes of length, then in a request the API key (int16), its version (int16) and the
correlation id (int32), in an answer the correlation id (Kafka protocol guide, "Protocol Primitives" and "Common request
and response structure"). A broker tells its clients where it listens: in the answers that name brokers its port is
replaced by the proxy's. Both are 4 bytes behind the host's name, so that no version of them need be understood.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

LOOPBACK: Final = "127.0.0.1"
CHUNK: Final = 65_536
FRAME_MOST: Final = 100 * 1024 * 1024
"""Kafka's own limit on a request (`socket.request.max.bytes`)."""

METADATA, FIND_COORDINATOR, END_TXN, DESCRIBE_CLUSTER = 3, 10, 26, 60
NAMES_BROKERS: Final = frozenset({METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER})
REQUEST_HEAD: Final = struct.Struct(">hhi")
LENGTH: Final = struct.Struct(">i")


class Way(Enum):
    """A direction, seen from the process."""

    SENDING = "sending"
    RECEIVING = "receiving"


class Mishap(StrEnum):
    """What can happen to one request."""

    ANSWER_LOST = "answer lost"
    """The server does it; its answer never comes, nor anything else on that connection."""
    ANSWER_LATE = "answer late"
    REQUEST_LATE = "request late"
    """It reaches the server, later: even when the process has given it up and is gone by then."""


@dataclass(slots=True)
class Waiting:
    """A mishap that waits for its request. `happened` is set once it met one."""

    api: int
    mishap: Mishap
    seconds: float
    happened: asyncio.Event = field(default_factory=asyncio.Event)


class Link:
    """One connection: two directions, which end by themselves; the connection ends with the last of them."""

    def __init__(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.client_reader, self.client_writer = client
        self.server_reader: asyncio.StreamReader
        self.server_writer: asyncio.StreamWriter
        self.in_flight: dict[int, int] = {}
        """API key of each request without an answer, by correlation id."""
        self.mute = False
        """Nothing goes to the process any more."""
        self.tasks: list[asyncio.Task[None]] = []

    def abort(self) -> None:
        """End it with a reset, both ways."""
        for task in self.tasks:
            task.cancel()
        for writer in (self.client_writer, self.server_writer):
            _reset(writer)


class TcpProxy:
    """Listens on a free port and forwards to `host:port`; use it with `running`.

    `listens`: gives the socket to listen with, in another network namespace say; None: one on 127.0.0.1. `dials`: gives
    the socket for each connection to the target, likewise.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listens: Callable[[], socket.socket] | None = None,
        dials: Callable[[], socket.socket] | None = None,
    ) -> None:
        self._target = (host, port)
        self._listening = listens
        self._dials = dials
        self._flows = {way: asyncio.Event() for way in Way}
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self.delay_s = 0.0
        """What each piece takes longer, each way."""
        self.host, self.port = LOOPBACK, 0
        self.release()

    async def start(self) -> None:
        """Listen from here on."""
        if self._listening is None:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        else:
            self._server = await asyncio.start_server(self._serve, sock=self._listening())
        self.host, self.port = self._server.sockets[0].getsockname()

    @property
    def target_port(self) -> int:
        """Where it leads to."""
        return self._target[1]

    def lead_to(self, host: str, port: int) -> None:
        """Forward new connections there from here on; those that there are end."""
        self._target = (host, port)
        self.reset()

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            self._server.close()
        tasks = [task for link in self._links for task in link.tasks]
        self.reset()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def hold(self, *ways: Way) -> None:
        """Pass nothing these ways: what is sent waits. New connections are taken, and wait too."""
        for way in ways:
            self._flows[way].clear()

    def release(self) -> None:
        """Let everything go that waits."""
        for flow in self._flows.values():
            flow.set()

    def reset(self) -> None:
        """End all connections that there are now."""
        for link in list(self._links):
            link.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link((reader, writer))
        try:
            link.server_reader, link.server_writer = await self._connected()
        except OSError:
            _reset(writer)
            return
        self._links.add(link)
        link.tasks = [
            asyncio.create_task(self._one_way(link, Way.SENDING)),
            asyncio.create_task(self._one_way(link, Way.RECEIVING)),
        ]
        await asyncio.wait(link.tasks)
        self._links.discard(link)
        for each in (link.client_writer, link.server_writer):
            each.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._dials is None:
            return await asyncio.open_connection(*self._target)
        made = self._dials()
        try:
            await asyncio.get_running_loop().sock_connect(made, self._target)
        except BaseException:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    async def _one_way(self, link: Link, way: Way) -> None:
        sending = way is Way.SENDING
        sink = link.server_writer if sending else link.client_writer
        try:
            await (self._send(link) if sending else self._receive(link))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one of the two is gone; the end below tells the other one
        finally:
            with contextlib.suppress(OSError, RuntimeError):  # it may be gone as well
                if sink.can_write_eof():
                    sink.write_eof()

    async def _send(self, link: Link) -> None:
        while chunk := await link.client_reader.read(CHUNK):
            await self._pass(link, Way.SENDING, chunk)

    async def _receive(self, link: Link) -> None:
        while chunk := await link.server_reader.read(CHUNK):
            await self._pass(link, Way.RECEIVING, chunk)

    async def _pass(self, link: Link, way: Way, data: bytes) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._flows[way].wait()
        sink = link.server_writer if way is Way.SENDING else link.client_writer
        sink.write(data)
        await sink.drain()


class KafkaProxy(TcpProxy):
    """Between one process and the broker."""

    def __init__(self, host: str, port: int, *, listens: Callable[[], socket.socket] | None = None) -> None:
        super().__init__(host, port, listens=listens)
        self._theirs = host.encode() + LENGTH.pack(port)
        self._waiting: list[Waiting] = []

    @property
    def _mine(self) -> bytes:
        """Where this proxy listens, as Kafka's answers say it, in the place of where the broker does."""
        mine = self.host.encode() + LENGTH.pack(self.port)
        if len(mine) != len(self._theirs):
            raise ValueError(f"{self.host} is not as long as the broker's name: frames would change their length")
        return mine

    def arm(self, api: int, mishap: Mishap, seconds: float = 0.0) -> Waiting:
        """Let this happen to the next request of that kind, once."""
        waiting = Waiting(api, mishap, seconds)
        self._waiting.append(waiting)
        return waiting

    def disarm(self, waiting: Waiting) -> None:
        """No longer, if it has not happened yet."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    async def _send(self, link: Link) -> None:
        while frame := await _frame(link.client_reader):
            api, _, correlation = REQUEST_HEAD.unpack_from(frame, LENGTH.size)
            link.in_flight[correlation] = api
            late = self._take(api, Mishap.REQUEST_LATE)
            if late is not None:
                await asyncio.sleep(late.seconds)
            await self._pass(link, Way.SENDING, frame)

    async def _receive(self, link: Link) -> None:
        while frame := await _frame(link.server_reader):
            (correlation,) = LENGTH.unpack_from(frame, LENGTH.size)
            api = link.in_flight.pop(correlation, -1)
            if api in NAMES_BROKERS:
                frame = frame.replace(self._theirs, self._mine)
            if self._take(api, Mishap.ANSWER_LOST) is not None:
                link.mute = True
            if link.mute:
                continue
            late = self._take(api, Mishap.ANSWER_LATE)
            if late is not None:
                await asyncio.sleep(late.seconds)
            await self._pass(link, Way.RECEIVING, frame)

    def _take(self, api: int, mishap: Mishap) -> Waiting | None:
        for waiting in self._waiting:
            if waiting.api == api and waiting.mishap is mishap:
                self._waiting.remove(waiting)
                waiting.happened.set()
                return waiting
        return None


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next whole frame with its length; empty at the end of the stream."""
    try:
        head = await reader.readexactly(LENGTH.size)
    except asyncio.IncompleteReadError as end:
        if not end.partial:
            return b""
        raise
    (length,) = LENGTH.unpack(head)
    if not 0 <= length <= FRAME_MOST:
        raise ConnectionError(f"a frame of {length} bytes is none of Kafka's")
    return head + await reader.readexactly(length)


@asynccontextmanager
async def running(*proxies: TcpProxy) -> AsyncIterator[None]:
    """All of them for as long as the block runs."""
    try:
        for proxy in proxies:
            await proxy.start()
        yield
    finally:
        for proxy in proxies:
            await proxy.close()
