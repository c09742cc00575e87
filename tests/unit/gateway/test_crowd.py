"""The bench's idle sockets, against a gateway on fakes: they are welcomed, stay, and tell when they are ended."""

from __future__ import annotations

import asyncio

import pytest

from ops.bench.crowd import PING, PONG, crowd, frame, opened
from ops.bench.sequencer import BenchFailed
from tests.support.gateway_world import Served
from tests.support.waiting import until


async def test_a_crowd_is_welcomed_stays_and_tells_whom_the_gateway_ended(served: Served) -> None:
    conversation, token = await served.conversation()
    async with crowd(served.url, [(conversation, token)] * 4) as lost:
        assert len(served.gateway._connections) == 4
        assert (await served.say(conversation, token, "x" * 35_000)).status_code == 201
        assert lost() == 0
        next(iter(served.gateway._connections)).end(1012, "restart")
        await until(lambda: lost() == 1)
    await until(lambda: not served.gateway._connections)


async def test_a_crowd_that_is_not_let_in_says_why(served: Served) -> None:
    conversation, _ = await served.conversation()
    with pytest.raises(BenchFailed, match="unauthorized"):
        async with crowd(served.url, [(conversation, "no-token")]):
            pass


async def test_who_is_refused_says_why(served: Served) -> None:
    conversation, _ = await served.conversation()
    with pytest.raises(ConnectionError, match="unauthorized"):
        await opened(served.url, "", (conversation, "no-token"), lambda: None, asyncio.Semaphore(1))


def test_frames_are_masked_with_zeros() -> None:
    assert frame(PONG, b"ab") == bytes([0x80 | PONG, 0x82, 0, 0, 0, 0]) + b"ab"
    assert PING == 9
