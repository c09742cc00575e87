"""The proxy passes bytes and frames as they are, and does to them what it is told, no more."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ops.chaos.proxy import END_TXN, METADATA, KafkaProxy, Mishap, TcpProxy, Way, running
from tests.support.waiting import until

PRODUCE = 0
SOON_S = 0.15
"""Long enough for bytes that are not held to arrive; what is to be shown is that these are."""

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def request(api: int, correlation: int, body: bytes = b"") -> bytes:
    return framed(struct.pack(">hhi", api, 1, correlation) + body)


def answer(correlation: int, body: bytes = b"") -> bytes:
    return framed(struct.pack(">i", correlation) + body)


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


async def frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


class Broker:
    """Answers each request with its correlation id and what it listens on; keeps what it got."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                content = await frame(reader)
                self.got.append(content)
                where = b"\x00\x09127.0.0.1" + struct.pack(">i", self.port)
                writer.write(answer(struct.unpack_from(">i", content, 4)[0], where))
        except asyncio.IncompleteReadError:
            writer.close()

    def __contains__(self, correlation: int) -> bool:
        return any(struct.unpack_from(">i", content, 4)[0] == correlation for content in self.got)


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[Broker, KafkaProxy]]:
    there = Broker()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    there.port = server.sockets[0].getsockname()[1]
    proxy = KafkaProxy("127.0.0.1", there.port)
    async with running(proxy):
        yield there, proxy
    server.close()


@asynccontextmanager
async def client(proxy: TcpProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def is_silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), SOON_S)
    except TimeoutError:
        return True
    return False


async def test_frames_pass_as_they_are_and_a_broker_is_named_by_the_proxys_port() -> None:
    async with broker() as (there, proxy), client(proxy) as (reader, writer):
        writer.write(request(PRODUCE, 1, b"payload" * 10_000))
        assert (await frame(reader))[:4] == struct.pack(">i", 1)
        assert there.got == [request(PRODUCE, 1, b"payload" * 10_000)[4:]]
        writer.write(request(METADATA, 2))
        assert (await frame(reader)).endswith(b"127.0.0.1" + struct.pack(">i", proxy.port))


async def test_only_answers_that_name_brokers_are_rewritten() -> None:
    async with broker() as (there, proxy), client(proxy) as (reader, writer):
        writer.write(request(PRODUCE, 1))
        assert (await frame(reader)).endswith(struct.pack(">i", there.port))


async def test_frames_that_come_in_pieces_are_put_together() -> None:
    async with broker() as (there, proxy), client(proxy) as (reader, writer):
        for byte in request(PRODUCE, 1, b"abc"):
            writer.write(bytes([byte]))
            await writer.drain()
        await frame(reader)
        assert there.got == [request(PRODUCE, 1, b"abc")[4:]]


@pytest.mark.parametrize("way", Way)
async def test_what_is_held_waits_and_arrives_when_it_is_let_go(way: Way) -> None:
    async with broker() as (there, proxy), client(proxy) as (reader, writer):
        writer.write(request(PRODUCE, 1))
        await frame(reader)
        proxy.hold(way)
        writer.write(request(PRODUCE, 2))
        assert await is_silent(reader)
        assert (2 in there) == (way is Way.RECEIVING)
        proxy.release()
        assert (await frame(reader))[:4] == struct.pack(">i", 2)


async def test_a_reset_ends_the_connections_that_there_are_and_no_later_one() -> None:
    async with broker() as (_, proxy):
        async with client(proxy) as (reader, writer):
            writer.write(request(PRODUCE, 1))
            await frame(reader)
            proxy.reset()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await frame(reader)
        async with client(proxy) as (reader, writer):
            writer.write(request(PRODUCE, 2))
            assert (await frame(reader))[:4] == struct.pack(">i", 2)


async def test_a_lost_answer_is_of_the_next_such_request_only_and_the_broker_did_it() -> None:
    async with broker() as (there, proxy):
        waiting = proxy.arm(END_TXN, Mishap.ANSWER_LOST)
        async with client(proxy) as (reader, writer):
            writer.write(request(PRODUCE, 1))
            await frame(reader)
            assert not waiting.happened.is_set()
            writer.write(request(END_TXN, 2))
            await waiting.happened.wait()
            writer.write(request(PRODUCE, 3))
            await until(lambda: 3 in there)
            assert await is_silent(reader)
        async with client(proxy) as (reader, writer):
            writer.write(request(END_TXN, 4))
            assert (await frame(reader))[:4] == struct.pack(">i", 4)


async def test_a_late_request_reaches_the_broker_though_its_sender_is_gone() -> None:
    async with broker() as (there, proxy):
        waiting = proxy.arm(END_TXN, Mishap.REQUEST_LATE, SOON_S)
        async with client(proxy) as (_, writer):
            writer.write(request(END_TXN, 1))
            await waiting.happened.wait()
            assert 1 not in there
        await until(lambda: 1 in there)


async def test_a_late_answer_comes_late() -> None:
    async with broker() as (there, proxy), client(proxy) as (reader, writer):
        proxy.arm(END_TXN, Mishap.ANSWER_LATE, 2 * SOON_S)
        writer.write(request(END_TXN, 1))
        assert await is_silent(reader)
        assert 1 in there
        assert (await frame(reader))[:4] == struct.pack(">i", 1)


async def test_what_is_disarmed_does_not_happen() -> None:
    async with broker() as (_, proxy), client(proxy) as (reader, writer):
        proxy.disarm(proxy.arm(END_TXN, Mishap.ANSWER_LOST))
        writer.write(request(END_TXN, 1))
        assert (await frame(reader))[:4] == struct.pack(">i", 1)


async def test_a_server_that_is_away_ends_the_connection() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    proxy = TcpProxy("127.0.0.1", port)
    async with running(proxy), client(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_a_proxy_that_leads_elsewhere_ends_what_there_was_and_takes_the_next_there() -> None:
    async with broker() as (former, proxy), broker() as (present, _):
        async with client(proxy) as (reader, writer):
            writer.write(request(PRODUCE, 1))
            await frame(reader)
            proxy.lead_to("127.0.0.1", present.port)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await frame(reader)
        async with client(proxy) as (reader, writer):
            writer.write(request(PRODUCE, 2))
            await frame(reader)
        assert 1 in former
        assert 2 not in former
        assert 2 in present
        assert proxy.target_port == present.port


async def test_a_proxy_listens_and_dials_with_the_sockets_it_is_given() -> None:
    there = Broker()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    listening, dialled = socket.create_server(("127.0.0.1", 0)), socket.socket()
    dialled.setblocking(False)  # noqa: FBT003 -- the standard library's
    proxy = TcpProxy("127.0.0.1", port, listens=lambda: listening, dials=lambda: dialled)
    async with running(proxy):
        assert (proxy.host, proxy.port) == listening.getsockname()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(request(PRODUCE, 1))
        await frame(reader)
        assert dialled.fileno() != -1
        writer.close()
    server.close()
    await server.wait_closed()
    assert dialled.fileno() == -1
