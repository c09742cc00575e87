"""The journal's records out of a faust stream: a gap is told, and what another worker read meanwhile is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from streams.core.events import Entry, WriterOpened
from streams.runtime.codec import Codec
from turnlog.data.faust import records
from turnlog.data.journal import MissingRecords

pytestmark = pytest.mark.unit

CODEC = Codec()


class Stream:
    """A stream of messages, each the lsn of its entry and the generation of the consumer group that it was fetched in.
    `app` is it itself."""

    def __init__(self, messages: Sequence[tuple[int, int]]) -> None:
        self._messages = messages
        self.app = self
        self.crashed = asyncio.Event()
        self.problem: BaseException | None = None

    async def events(self) -> AsyncIterator[Any]:
        for lsn, generation in self._messages:
            value = CODEC.encode_entry(Entry(lsn, 1, 1, 1, WriterOpened(writer_epoch=1, worker="w")))
            message = SimpleNamespace(
                topic="conversations", partition=0, offset=2 * lsn, value=value, headers=[], generation_id=generation
            )
            yield SimpleNamespace(message=message)

    async def crash(self, problem: BaseException) -> None:
        self.problem = problem
        self.crashed.set()


async def read(stream: Stream) -> list[int]:
    return [record.entry.lsn async for record in records(stream)]


async def test_what_another_worker_read_between_two_rebalances_is_not_missing() -> None:
    stream = Stream([(1, 1), (2, 1), (40, 3), (41, 3)])
    assert await read(stream) == [1, 2, 40, 41]
    assert stream.problem is None


async def test_what_comes_again_after_a_rebalance_is_given_again() -> None:
    assert await read(Stream([(1, 1), (2, 1), (2, 2), (3, 2)])) == [1, 2, 2, 3]


async def test_a_gap_ends_the_app_and_is_not_acknowledged() -> None:
    stream = Stream([(1, 1), (2, 1), (4, 1)])
    reading = asyncio.create_task(read(stream))
    await stream.crashed.wait()
    assert isinstance(stream.problem, MissingRecords)
    assert not reading.done()
    reading.cancel()
