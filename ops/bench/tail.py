"""The journal of a whole deployment as it is committed, for benches that time how long something takes to get there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition

from ops.journal import REQUEST_LIMIT_S
from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.runtime.kafka import bounds, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

POLL_MS: Final = 50

Match = Callable[[Entry], bool]


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry, and when it was seen (`time.perf_counter`)."""

    at: float
    entry: Entry


class Tail:
    """Follows every partition from its present end on, read committed."""

    def __init__(self, reader: Any, codec: Codec) -> None:
        self._reader = reader
        self._codec = codec
        self._expected: dict[str | None, list[tuple[Match, asyncio.Future[Seen]]]] = {}
        self._task = asyncio.create_task(self._follow(), name="bench tail")

    def expect(self, conversation_id: str | None, match: Match) -> asyncio.Future[Seen]:
        """The next entry of this conversation that matches; None: of no conversation."""
        future: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._expected.setdefault(conversation_id, []).append((match, future))
        return future

    async def _follow(self) -> None:
        while True:
            fetched = await self._reader.getmany(timeout_ms=POLL_MS)
            at = time.perf_counter()
            for records in fetched.values():
                for record in records:
                    self._see(self._codec.decode_entry(record.value), at)

    def _see(self, entry: Entry, at: float) -> None:
        expected = self._expected.get(entry.event.conversation_id)
        if expected is None:
            return
        waiting = [each for each in expected if not each[1].done()]
        for match, future in waiting:
            if match(entry):
                future.set_result(Seen(at, entry))
        self._expected[entry.event.conversation_id] = waiting

    async def gathered(self, futures: Sequence[asyncio.Future[Seen]], limit_s: float) -> int:
        """Wait for all of them, at most `limit_s`; how many did not come. An error of the tail itself is raised."""
        deadline = time.perf_counter() + limit_s
        while missing := [future for future in futures if not future.done()]:
            waits: set[asyncio.Future[Any]] = {missing[0], self._task}
            left_s = deadline - time.perf_counter()
            await asyncio.wait(waits, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                self._task.result()
            if left_s <= 0:
                break
        return len(missing)

    async def close(self) -> None:
        """Stop following."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._reader.stop()


@asynccontextmanager
async def tail_of(settings: Settings, partitions: int) -> AsyncIterator[Tail]:
    """A tail of the deployment's journal, from what is committed now."""
    topics = Topics(settings.namespace)
    names = [TopicPartition(topics.conversations, partition) for partition in range(partitions)]
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    await reader.start()
    kept = await bounds(reader, names, REQUEST_LIMIT_S)
    reader.assign(names)
    for name in names:
        reader.seek(name, kept[name].end)
    tail = Tail(reader, open_codec(settings.schema_registry, topics))
    try:
        yield tail
    finally:
        await tail.close()
