"""The bench's idle sockets, against a gateway on fakes: they are welcomed, stay, and tell when they are ended."""

from __future__ import annotations

import asyncio

import pytest

from ops.bench.crowd import PING, PONG, TEXT, frame, opened
from tests.support.gateway_world import Served
from tests.support.waiting import until


async def test_idle_sockets_are_welcomed_and_tell_when_the_gateway_ends_them(served: Served) -> None:
    conversation, token = await served.conversation()
    lost: list[str] = []
    one_at_once = asyncio.Semaphore(1)
    sockets = [
        await opened(served.url, "", (conversation, token), lambda: lost.append("lost"), one_at_once) for _ in range(3)
    ]
    connections = list(served.gateway._connections)
    assert len(connections) == 3
    assert (await served.say(conversation, token, "x" * 35_000)).status_code == 201
    sockets[0].transport.write(frame(TEXT, b'{"type":"ping"}'))
    assert lost == []
    connections[0].end(1012, "restart")
    await until(lambda: lost == ["lost"])
    for each in sockets:
        each.transport.abort()
    await until(lambda: len(lost) == 3)


async def test_who_is_refused_says_why(served: Served) -> None:
    conversation, _ = await served.conversation()
    with pytest.raises(ConnectionError, match="unauthorized"):
        await opened(served.url, "", (conversation, "no-token"), lambda: None, asyncio.Semaphore(1))


def test_frames_are_masked_with_zeros() -> None:
    assert frame(PONG, b"ab") == bytes([0x80 | PONG, 0x82, 0, 0, 0, 0]) + b"ab"
    assert PING == 9
