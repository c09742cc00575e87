"""What the audit reads: one partition's journal up to its end at the start, and the intake behind each batch."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from operator import attrgetter
from typing import Any, Final

from aiokafka import TopicPartition

from ops.audit.intake import Batch, Taken
from ops.history import History, Recorded
from ops.history.decoding import parts
from streams.core.commands import CommitFrame, CommitTurn
from streams.core.events import Entry
from streams.fence.port import Positions
from streams.runtime.codec import Codec
from streams.runtime.kafka import Bounds, bounds, consumer
from streams.runtime.partitioning import partition_of
from streams.runtime.records import Undecodable
from streams.runtime.registry import open_codec
from streams.runtime.signals import Tick
from streams.settings import Settings
from streams.topics import Topics

FETCH_RECORDS: Final = 250
"""As small as the journal's parts (`AT_ONCE`), for the same reason."""
REQUEST_LIMIT_S: Final = 10.0
LOOK_EVERY_MS: Final = 20
"""Of markers, and of what was aborted, a reader sees nothing but that its position has moved."""
SILENCE_S: Final = 10.0
"""A broker that sends nothing for so long, though there is more, has a problem."""
KEYS_KNOWN: Final = 65_536
"""Record keys of which it is remembered whether they belong to the partition."""

_offset = attrgetter("offset")


class CouldNotVerify(Exception):
    """The audit cannot say yes or no; the message says what is missing."""


class IntakeReader:
    """`turns`, `frames` and `membership` of one partition, read once along with the journal."""

    def __init__(self, reader: Any, topics: Topics, partition: int) -> None:
        self._reader = reader
        self.turns = TopicPartition(topics.turns, partition)
        self.frames = TopicPartition(topics.frames, partition)
        self.membership = TopicPartition(topics.membership, partition)
        names = (self.turns, self.frames, self.membership)
        self._read: dict[TopicPartition, deque[Sequence[Any]]] = {name: deque() for name in names}
        """Fetched and not given out."""
        self._fetched: dict[TopicPartition, int] = {}
        """The offset after them."""
        self._kept: dict[TopicPartition, Bounds] = {}

    async def start(self, at: Positions) -> None:
        """Begin at these positions, or where the topics begin by now."""
        self._kept = dict(await bounds(self._reader, [*self._read], REQUEST_LIMIT_S))
        self._reader.assign([*self._read])
        for name, position in zip(self._read, (at.turns, at.frames, at.membership), strict=True):
            self._fetched[name] = max(self._kept[name].start, position)
            self._reader.seek(name, self._fetched[name])

    def keeps(self, before: Positions) -> bool:
        """Whether both topics still have what comes after these positions."""
        return before.turns >= self._kept[self.turns].start and before.frames >= self._kept[self.frames].start

    def keeps_ticks(self, before: Positions) -> bool:
        """Whether `membership` still has what comes after this position."""
        return before.membership >= self._kept[self.membership].start

    async def until(self, name: TopicPartition, end: int) -> Sequence[Any]:
        """The records below offset `end` that were not given out yet."""
        moved_at = time.monotonic()
        while self._fetched[name] < end:
            found = await self._reader.getmany(name, timeout_ms=LOOK_EVERY_MS, max_records=FETCH_RECORDS)
            if records := found.get(name):
                self._read[name].append(records)
            position = await self._reader.position(name)
            if position != self._fetched[name]:
                self._fetched[name], moved_at = position, time.monotonic()
            elif time.monotonic() - moved_at > SILENCE_S:
                raise CouldNotVerify(f"{name.topic}[{name.partition}]: nothing comes after offset {position}")
        return _taken_off(self._read[name], end)


def _taken_off(chunks: deque[Sequence[Any]], end: int) -> Sequence[Any]:
    """Take the records below `end` off the front."""
    given: list[Any] = []
    while chunks and chunks[0][0].offset < end:
        chunk = chunks.popleft()
        cut = bisect_left(chunk, end, key=_offset) if chunk[-1].offset >= end else len(chunk)
        if cut < len(chunk):
            chunks.appendleft(chunk[cut:])
        if not given and cut == len(chunk):
            given = list(chunk)
        else:
            given += chunk[:cut]
    return given


class PartitionSource:
    """One partition's journal and, where there is one, its intake. Open it with `opened`."""

    def __init__(self, history: History, intake: IntakeReader | None, codec: Codec, partition: int) -> None:
        self._history = history
        self._intake = intake
        self._codec = codec
        self._partition = partition
        self._partitions = history.partitions
        self._belongs: dict[bytes | None, bool] = {}
        self.start = 0
        """Journal offset that it begins at."""
        self.end = 0
        """Journal offset up to which the audit goes: what was committed when it started."""

    async def begin(self, position: int, covered: Positions) -> None:
        """Find the ends, and go on from `position`, before which the intake was consumed up to `covered`.

        `CouldNotVerify` when something of the journal is missing.
        """
        missing = await self._history.missing(self._partition)
        if missing:
            gone = ", ".join(str(each) for each in missing)
            raise CouldNotVerify(
                f"partition {self._partition} of the journal: offsets {gone} are not there any more, so that nothing "
                "can be said about what rests on them. An archive that has them is named with --archive; whether it is "
                "damaged, `turnlog archive verify` says"
            )
        self.start, self.end = position, (await self._history.bounds(self._partition)).end
        if self._intake is not None:
            await self._intake.start(covered)

    async def entries(self) -> AsyncIterator[tuple[int, list[Entry]]]:
        """All entries, in parts, each with the offset after it. `CouldNotVerify` for one that cannot be decoded."""
        async for chunk in self._history.read(self._partition, self.start, self.end):
            for part in parts(chunk):
                try:
                    entries = self._history.decode_all(part)
                except Undecodable:
                    entries = [self._decoded(recorded) for recorded in part]
                yield part[-1].offset + 1, entries

    def _decoded(self, recorded: Recorded) -> Entry:
        try:
            return self._history.decode(recorded)
        except Undecodable as problem:
            where = f"conversations/{self._partition}/{recorded.offset}"
            raise CouldNotVerify(f"journal record {where} cannot be decoded: {problem}") from problem

    async def taken(
        self, before: Positions, after: Positions, batch: Batch | None = None
    ) -> tuple[Taken, Taken] | None:
        """What `turns` and `frames` held between two positions; None where they are kept no longer.

        `batch`: what came of it. A record whose ref has an outcome there was decoded by who decided it.
        """
        intake = self._intake
        if intake is None or not intake.keeps(before):
            return None
        turns = await intake.until(intake.turns, after.turns)
        frames = await intake.until(intake.frames, after.frames)
        return (
            self._summary(turns, self._codec.decode_turns, batch, "turns"),
            self._summary(frames, self._codec.decode_frames, batch, "frames"),
        )

    async def ticks(self, before: Positions, after: Positions, worker: str) -> Sequence[Tick] | None:
        """The ticks of this worker that `membership` held between two positions; None where it is kept no longer."""
        intake = self._intake
        if intake is None or not intake.keeps_ticks(before):
            return None
        return self._ticks_in(await intake.until(intake.membership, after.membership), worker)

    def _ticks_in(self, records: Sequence[Any], worker: str) -> Sequence[Tick]:
        """Most records are heartbeats, which name no worker: they are not worth decoding."""
        name, found = worker.encode(), []
        for record in records:
            if name not in (record.value or b""):
                continue
            with suppress(Undecodable):
                signal = self._codec.decode_membership(record, 0)
                if isinstance(signal, Tick):
                    found.append(signal)
        return found

    def _summary(self, records: Sequence[Any], decode: Any, batch: Batch | None = None, name: str = "") -> Taken:
        topic = records[0].topic if records else ""
        if batch is None or batch.rejected or not batch.refs:
            return self._decoded_summary(topic, records, decode)
        outcomes, refs = batch.refs, self._codec.refs_of(name, records)
        strays = {key for key in {record.key for record in records} if not self._is_here(key)}
        undecodable: list[str] = []
        for index in [i for i, ref in enumerate(refs) if ref not in outcomes or (strays and records[i].key in strays)]:
            refs[index] = self._decoded_ref(records[index], decode, undecodable)
        if undecodable:
            gone = {*undecodable}
            refs = [ref for ref, record in zip(refs, records, strict=True) if _origin(record) not in gone]
        return Taken(topic, tuple(refs), tuple(undecodable))

    def _decoded_summary(self, topic: str, records: Sequence[Any], decode: Any) -> Taken:
        undecodable: list[str] = []
        refs = [(self._decoded_ref(record, decode, undecodable), _origin(record)) for record in records]
        gone = {*undecodable}
        told = [each for each in refs if each[1] not in gone]
        return Taken(topic, tuple(ref for ref, _ in told), tuple(undecodable), tuple(origin for _, origin in told))

    def _decoded_ref(self, record: Any, decode: Any, undecodable: list[str]) -> str | None:
        """Its ref; what cannot be decoded, or belongs elsewhere, is noted instead."""
        try:
            command: CommitTurn | CommitFrame = decode(record, 0)
        except Undecodable:
            undecodable.append(_origin(record))
            return None
        if partition_of(command.conversation_id, self._partitions) != self._partition:
            undecodable.append(_origin(record))
        return command.ref

    def _is_here(self, key: bytes | None) -> bool:
        """Whether a record of this key belongs to the partition."""
        here = self._belongs.get(key)
        if here is None:
            if len(self._belongs) >= KEYS_KNOWN:
                self._belongs.clear()
            try:
                here = key is not None and partition_of(key.decode(), self._partitions) == self._partition
            except UnicodeDecodeError:
                here = False
            self._belongs[key] = here
        return here


def _origin(record: Any) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


@asynccontextmanager
async def opened(history: History, settings: Settings, partition: int) -> AsyncIterator[PartitionSource]:
    """One partition's journal, and its intake in Kafka, for as long as the block runs; to begin."""
    topics = Topics(settings.namespace)
    codec = open_codec(settings.schema_registry, topics)
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    try:
        await reader.start()
        yield PartitionSource(history, IntakeReader(reader, topics, partition), codec, partition)
    finally:
        await reader.stop()
