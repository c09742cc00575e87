"""What the audit reads: one partition's journal up to its end at the start, and the intake behind each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import TopicPartition

from ops.audit.intake import Taken
from streams.core.commands import CommitFrame, CommitTurn
from streams.core.events import Entry
from streams.fence.port import Positions
from streams.runtime.codec import Codec
from streams.runtime.kafka import Bounds, bounds, consumer
from streams.runtime.partitioning import partition_of
from streams.runtime.records import Undecodable
from streams.topics import Topics

FETCH_RECORDS: Final = 2_000
REQUEST_LIMIT_S: Final = 10.0
SILENCE_MS: Final = 10_000
"""A broker that sends nothing for so long, though there is more, has a problem."""


class CouldNotVerify(Exception):
    """The audit cannot say yes or no; the message says what is missing."""


class PartitionSource:
    """One partition's journal and intake. Open it with `opened`."""

    def __init__(self, readers: tuple[Any, Any], codec: Codec, topics: Topics, partition: int, partitions: int) -> None:
        self._journal, self._intake = readers
        self._codec = codec
        self._partition = partition
        self._partitions = partitions
        self._name = TopicPartition(topics.conversations, partition)
        self._turns = TopicPartition(topics.turns, partition)
        self._frames = TopicPartition(topics.frames, partition)
        self._buffers: dict[TopicPartition, deque[Any]] = {self._turns: deque(), self._frames: deque()}
        self.end = 0
        """Journal offset up to which the audit goes: what was committed when it started."""
        self._kept: dict[TopicPartition, Bounds] = {}

    async def start(self) -> None:
        """Find the ends. `CouldNotVerify` when the journal does not begin at its beginning."""
        kept = (await bounds(self._journal, [self._name], REQUEST_LIMIT_S))[self._name]
        if kept.start > 0:
            raise CouldNotVerify(
                f"{self._name.topic}[{self._partition}]: offsets 0 to {kept.start - 1} are not there any more, so that "
                "nothing can be said about what rests on them"
            )
        self.end = kept.end
        self._kept = dict(await bounds(self._intake, [self._turns, self._frames], REQUEST_LIMIT_S))
        self._journal.assign([self._name])
        self._journal.seek(self._name, 0)
        self._intake.assign([self._turns, self._frames])
        for name, range_ in self._kept.items():
            self._intake.seek(name, range_.start)

    async def entries(self) -> AsyncIterator[tuple[int, list[Entry]]]:
        """All entries, in chunks, each with the offset after it. `CouldNotVerify` for one that cannot be decoded."""
        position = 0
        while position < self.end:
            found = await self._journal.getmany(self._name, timeout_ms=SILENCE_MS, max_records=FETCH_RECORDS)
            after = await self._journal.position(self._name)
            if after == position:
                raise CouldNotVerify(f"{self._name.topic}[{self._partition}]: nothing comes after offset {position}")
            position = after
            chunk = [self._decoded(record) for record in found.get(self._name, ()) if record.offset < self.end]
            if chunk:
                yield position, chunk

    def _decoded(self, record: Any) -> Entry:
        try:
            return self._codec.decode_entry(record.value)
        except Undecodable as problem:
            where = f"{record.topic}/{record.partition}/{record.offset}"
            raise CouldNotVerify(f"journal record {where} cannot be decoded: {problem}") from problem

    async def taken(self, before: Positions, after: Positions) -> tuple[Taken, Taken] | None:
        """What `turns` and `frames` held between two positions; None where they are kept no longer."""
        if before.turns < self._kept[self._turns].start or before.frames < self._kept[self._frames].start:
            return None
        turns = await self._range(self._turns, after.turns)
        frames = await self._range(self._frames, after.frames)
        return self._summary(turns, self._codec.decode_turns), self._summary(frames, self._codec.decode_frames)

    async def _range(self, name: TopicPartition, until: int) -> list[Any]:
        """The records below offset `until` that were not given out yet."""
        buffer = self._buffers[name]
        while await self._intake.position(name) < until:
            position = await self._intake.position(name)
            found = await self._intake.getmany(name, timeout_ms=SILENCE_MS, max_records=FETCH_RECORDS)
            buffer.extend(found.get(name, ()))
            if await self._intake.position(name) == position:
                raise CouldNotVerify(f"{name.topic}[{name.partition}]: nothing comes after offset {position}")
        records = []
        while buffer and buffer[0].offset < until:
            records.append(buffer.popleft())
        return records

    def _summary(self, records: list[Any], decode: Any) -> Taken:
        refs: list[str | None] = []
        origins: list[str] = []
        undecodable: list[str] = []
        for record in records:
            try:
                command: CommitTurn | CommitFrame = decode(record, 0)
            except Undecodable:
                undecodable.append(_origin(record))
                continue
            if partition_of(command.conversation_id, self._partitions) == self._partition:
                refs.append(command.ref)
                origins.append(_origin(record))
            else:
                undecodable.append(_origin(record))
        topic = records[0].topic if records else ""
        return Taken(topic, tuple(refs), tuple(undecodable), tuple(origins))


def _origin(record: Any) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


@asynccontextmanager
async def opened(
    kafka: str, codec: Codec, topics: Topics, partition: int, partitions: int
) -> AsyncIterator[PartitionSource]:
    """One partition's source for as long as the block runs, started."""
    readers = consumer(kafka, REQUEST_LIMIT_S), consumer(kafka, REQUEST_LIMIT_S)
    try:
        for reader in readers:
            await reader.start()
        source = PartitionSource(readers, codec, topics, partition, partitions)
        await source.start()
        yield source
    finally:
        for reader in readers:
            await reader.stop()
