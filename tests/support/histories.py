"""A history in memory, for tests: what Kafka would have, with its markers, its deletions, and people who meddle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec

from ops.history.port import History, Missing, Range, Recorded
from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.runtime.journal import headers_of
from tests.support.journals import answered, taken_over

DAY_MS = 24 * 60 * 60 * 1000
NOON = 1_764_504_000_000  # 2025-11-30 12:00 UTC


class MemoryHistory:
    """`History` in memory. `markers`: after how many records a transaction ends, whose marker takes an offset.
    `began_at`: the first record's time, each other's is a millisecond later; None: those of the entries."""

    def __init__(
        self,
        entries: Sequence[Sequence[Entry]],
        *,
        markers: int = 3,
        chunk: int = 4,
        began_at: int | None = NOON,
        identity: str = "topic-1",
    ) -> None:
        self.identity = identity
        self.codec = Codec()
        self.chunk = chunk
        self.records: list[list[Recorded]] = [[] for _ in entries]
        self.kept = [0] * len(entries)
        self.ends = [0] * len(entries)
        self._markers = markers
        for partition, mine in enumerate(entries):
            self.append(partition, mine, timestamp=began_at)
        self.read_from: list[int] = []
        """Where each read began."""

    def append(self, partition: int, entries: Iterable[Entry], *, timestamp: int | None = NOON) -> None:
        there = self.records[partition]
        for entry in entries:
            count = len(there)
            offset = count + count // self._markers
            key = None if entry.event.conversation_id is None else entry.event.conversation_id.encode()
            value = self.codec.encode_entry(entry)
            at = entry.timestamp if timestamp is None else timestamp + count
            there.append(Recorded(offset, at, key, value, tuple(headers_of(entry, None))))
            self.ends[partition] = len(there) + len(there) // self._markers

    def delete_before(self, partition: int, offset: int) -> None:
        self.kept[partition] = offset

    @property
    def partitions(self) -> int:
        return len(self.records)

    async def bounds(self, partition: int) -> Range:
        return Range(self.kept[partition], self.ends[partition])

    async def missing(self, partition: int) -> Sequence[Range]:
        return [Range(0, self.kept[partition])] if self.kept[partition] else []

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        self.read_from.append(start)
        end = (await self.bounds(partition)).end if end is None else end
        position = start
        while position < end:
            kept = self.kept[partition]
            if position < kept:
                raise Missing(partition, Range(position, min(end, kept)))
            chunk = [r for r in self.records[partition] if position <= r.offset < end][: self.chunk]
            if not chunk:
                return
            yield chunk
            position = chunk[-1].offset + 1

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        found = (r.offset for r in self.records[partition] if r.timestamp >= timestamp_ms)
        return next((offset for offset in found if offset >= self.kept[partition]), None)

    def decode(self, recorded: Recorded) -> Entry:
        return self.codec.decode_entry(recorded.value)

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        return [self.decode(recorded) for recorded in chunk]

    # ------------------------------------------------------------------------------------------------- who meddles
    def alter(self, partition: int, index: int, **changes: object) -> Recorded:
        """Change a record; the one that was there."""
        there = self.records[partition]
        before = there[index]
        there[index] = msgspec.structs.replace(before, **changes)
        return before

    def remove(self, partition: int, index: int) -> Recorded:
        return self.records[partition].pop(index)


def two_partitions(**how: Any) -> MemoryHistory:
    """Two partitions in which a turn was answered, and one was taken over."""
    return MemoryHistory([answered().entries, taken_over().entries], **how)


def one_partition(entries: Sequence[Entry], *, identity: str = "topic-1") -> MemoryHistory:
    """One partition of these entries, each written when it says."""
    return MemoryHistory([entries], markers=10, chunk=50, began_at=None, identity=identity)


class Interrupting:
    """A history whose reader dies after so many records."""

    def __init__(self, history: History, after: int) -> None:
        self._history = history
        self._left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history, name)

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        async for chunk in self._history.read(partition, start, end):
            for record in chunk:
                if not self._left:
                    raise asyncio.CancelledError
                self._left -= 1
                yield [record]


async def read_all(history: object, partition: int, start: int = 0, end: int | None = None) -> list[Recorded]:
    """All records of a `History`, in one list."""
    return [record async for chunk in history.read(partition, start, end) for record in chunk]  # type: ignore[attr-defined]
