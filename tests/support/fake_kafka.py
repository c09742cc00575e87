"""Kafka in memory: logs with transactions, markers and producer epochs, behind the runtime's own Protocols.

It keeps what the runtime relies on and a real broker does (the contract suite runs on both): records of an open or
aborted transaction are never read, markers take an offset, a producer's start aborts its predecessor's transaction and
fences it. Faults are scripted: the next call of a step fails, before or after it took effect.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from aiokafka import TopicPartition

from streams.fence.port import Fenced, Positions
from streams.runtime.hanging import OpenTransaction, Outcome
from streams.runtime.kafka import (
    REQUEST_BYTES,
    Doubt,
    KafkaUnavailable,
    NewHeaders,
    Polled,
    ProducerIdentity,
    Record,
    RecordBatch,
    require_inside,
)
from streams.runtime.kafka import Bounds as KafkaBounds
from streams.topics import Topics

MAX_BATCH_BYTES = 1 << 20
START_MS = 1_700_000_000_000


class Fate(Enum):
    """What became of the transaction that a record is in."""

    COMMITTED = auto()
    OPEN = auto()
    ABORTED = auto()


@dataclass(slots=True)
class FakeRecord:
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    fate: Fate = Fate.COMMITTED
    marker: bool = False


@dataclass(slots=True)
class Log:
    """One partition of one topic. `start`: records before it are gone."""

    records: list[FakeRecord] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def stable_end(self) -> int:
        return next((r.offset for r in self.records if r.fate is Fate.OPEN), self.end)


@dataclass(slots=True)
class Fault:
    """A call of `step` raises `error`: before it did anything, or after it did all. `skip` calls go well first."""

    step: str
    error: BaseException
    when: Literal["before", "after"] = "before"
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Hanging:
    """A transaction that the coordinator has forgotten and the partition has not."""

    known: OpenTransaction
    records: list[FakeRecord]


class FakeKafka:
    """A cluster. `now_ms` is the broker's clock; every append moves it by one millisecond."""

    def __init__(self, topics: Topics | None = None) -> None:
        self.topics = topics or Topics()
        self.now_ms = START_MS
        self.logs: dict[tuple[str, int], Log] = defaultdict(Log)
        self.epochs: dict[str, int] = defaultdict(int)
        self.open: dict[str, list[FakeRecord]] = defaultdict(list)
        self.hanging: dict[int, Hanging] = {}
        """By partition of the journal: a transaction whose marker was left out."""
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        """Every step of every producer and outbox, in order."""
        self.before_step: Callable[[str], None] = lambda step: None

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: tuple[tuple[str, bytes], ...] = (),
        fate: Fate = Fate.COMMITTED,
        marker: bool = False,
    ) -> FakeRecord:
        log = self.logs[topic, partition]
        self.now_ms += 1
        record = FakeRecord(topic, partition, log.end, self.now_ms, key, value, headers, fate, marker)
        log.records.append(record)
        return record

    def finish(self, transactional_id: str, fate: Fate) -> None:
        """End the open transaction of this id, with a marker in each partition that it wrote to. What of the same
        producer has no marker before it gets this one."""
        written = self.open.pop(transactional_id, [])
        for partition in {record.partition for record in written if record.partition in self.hanging}:
            if self.hanging[partition].known.producer_id == producer_id_of(partition):
                written = [*self.hanging.pop(partition).records, *written]
        for record in written:
            record.fate = fate
        for topic, partition in {(record.topic, record.partition) for record in written}:
            self.append(topic, partition, None, None, marker=True)

    def lose_marker(self, partition: int, producer_id: int | None = None) -> None:
        """The coordinator takes the partition's open transaction for ended, and writes no marker. `producer_id`: of
        another producer than the partition's own."""
        records = self.open.pop(self.topics.transactional_id(partition))
        self.hanging[partition] = Hanging(self.transaction(partition, records, producer_id), records)

    def lose_last_marker(self, partition: int) -> None:
        """The broker comes back without the journal's last marker, which it had written."""
        log = self.logs[self.topics.conversations, partition]
        assert log.records.pop().marker
        start = max((r.offset for r in log.records if r.marker), default=-1) + 1
        for record in log.records[start:]:
            record.fate = Fate.OPEN
        self.hanging[partition] = Hanging(self.transaction(partition, log.records[start:]), log.records[start:])

    def transaction(self, partition: int, records: list[FakeRecord], producer_id: int | None = None) -> OpenTransaction:
        """What the partition's leader knows of the transaction that these records are in."""
        return OpenTransaction(
            producer_id_of(partition) if producer_id is None else producer_id,
            self.epochs[self.topics.transactional_id(partition)],
            records[0].offset,
            records[-1].timestamp,
            coordinator_epoch=0,
        )

    def readable(self, topic: str, partition: int) -> list[FakeRecord]:
        """What a read_committed reader gets."""
        log = self.logs[topic, partition]
        return [r for r in log.records[: log.stable_end] if r.fate is Fate.COMMITTED and not r.marker]

    def fail(self, step: str, error: BaseException, when: Literal["before", "after"] = "before", skip: int = 0) -> None:
        self.faults.append(Fault(step, error, when, skip))

    async def step(self, name: str, effect: Callable[[], int]) -> int:
        """Run a step under its scripted fault, if there is one."""
        await asyncio.sleep(0)
        self.calls.append(name)
        self.before_step(name)
        fault = next((f for f in self.faults if f.step == name), None)
        if fault is None:
            return effect()
        if fault.skip:
            fault.skip -= 1
            return effect()
        self.faults.remove(fault)
        if fault.when == "after":
            effect()
        raise fault.error

    # ------------------------------------------------------------------------------------------------- the ports
    def producer(self, partition: int) -> FakeProducer:
        return FakeProducer(self, partition)

    def reader(self, partition: int) -> FakeReader:
        return FakeReader(self, partition)

    def intake(self, partition: int) -> FakeIntake:
        return FakeIntake(self, partition)

    def transactions(self) -> FakeTransactions:
        return FakeTransactions(self)


def producer_id_of(partition: int) -> int:
    """What the coordinator gives the partition's transactional id."""
    return 1_000 + partition


class FakeTransactions:
    """`Transactions`."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    async def unfinished(self, partition: int) -> list[OpenTransaction]:
        await asyncio.sleep(0)
        return [found.known for found in self._found(partition)]

    async def end(self, partition: int, of: OpenTransaction, producer_epoch: int, outcome: Outcome) -> None:
        def effect() -> int:
            if producer_epoch < self._kafka.epochs[self._kafka.topics.transactional_id(partition)]:
                raise Fenced("Kafka refused the marker: a later epoch has written since")
            for record in next(found for found in self._found(partition) if found.known == of).records:
                record.fate = Fate.COMMITTED if outcome is Outcome.COMMITTED else Fate.ABORTED
            self._kafka.hanging.pop(partition, None)
            self._kafka.open.pop(self._kafka.topics.transactional_id(partition), None)
            return self._kafka.append(self._kafka.topics.conversations, partition, None, None, marker=True).offset

        await self._kafka.step("marker", effect)

    def _found(self, partition: int) -> list[Hanging]:
        name = self._kafka.topics.transactional_id(partition)
        found = [self._kafka.hanging[partition]] if partition in self._kafka.hanging else []
        if records := self._kafka.open.get(name):
            found.append(Hanging(self._kafka.transaction(partition, records), records))
        return found

    async def close(self) -> None:
        return


class FakeBatch:
    """`RecordBatch`: some bytes of overhead a record, as Kafka has."""

    OVERHEAD = 30

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes, NewHeaders]] = []
        self.size = 0

    def add(self, key: bytes | None, value: bytes, headers: NewHeaders) -> bool:
        size = self.OVERHEAD + len(key or b"") + len(value) + sum(len(n) + len(v) for n, v in headers)
        if self.size + size > MAX_BATCH_BYTES:
            return False
        self.size += size
        self.records.append((key, value, headers))
        return True


class FakeProducer:
    """`JournalProducer`."""

    def __init__(self, kafka: FakeKafka, partition: int) -> None:
        self._kafka = kafka
        self._partition = partition
        self._id = kafka.topics.transactional_id(partition)
        self._epoch = -1
        self.discarded = False

    async def start(self) -> None:
        def effect() -> int:
            self._kafka.finish(self._id, Fate.ABORTED)
            self._kafka.epochs[self._id] += 1
            self._epoch = self._kafka.epochs[self._id]
            return 0

        await self._kafka.step("init", effect)

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(producer_id_of(self._partition), self._epoch)

    def new_batch(self) -> FakeBatch:
        return FakeBatch()

    async def begin(self) -> None:
        await self._kafka.step("begin", lambda: 0)

    async def append(self, batch: RecordBatch) -> int:
        assert isinstance(batch, FakeBatch)

        def effect() -> int:
            self._require_epoch()
            for key, value, headers in batch.records:
                topic = self._kafka.topics.conversations
                record = self._kafka.append(topic, self._partition, key, value, headers=tuple(headers), fate=Fate.OPEN)
                self._kafka.open[self._id].append(record)
            return record.offset + 1

        return await self._kafka.step("append", effect)

    async def commit(self) -> None:
        def effect() -> int:
            self._require_epoch()
            self._kafka.finish(self._id, Fate.COMMITTED)
            return 0

        await self._kafka.step("commit", effect)

    async def discard(self) -> None:
        self.discarded = True

    async def close(self) -> None:
        await self.discard()

    def _require_epoch(self) -> None:
        if self._kafka.epochs[self._id] != self._epoch:
            raise Fenced("Kafka refused the producer: another one started under its transactional id")


class FakeReader:
    """`JournalReader`. One record a read, so that whoever uses it meets every boundary."""

    def __init__(self, kafka: FakeKafka, partition: int) -> None:
        self._log = kafka.logs[kafka.topics.conversations, partition]
        self._name = TopicPartition(kafka.topics.conversations, partition)
        self._position = 0
        self.closed = False

    async def open(self, offset: int) -> int:
        require_inside(self._name, offset, KafkaBounds(self._log.start, self._log.end))
        self._position = offset
        return self._log.end

    async def read(self) -> tuple[list[Record], int]:
        await asyncio.sleep(0)
        found, self._position = _next(self._log, self._position, 1)
        return found, self._position

    async def stable_end(self) -> int:
        await asyncio.sleep(0)
        return self._log.stable_end

    async def close(self) -> None:
        self.closed = True


class FakeIntake:
    """`IntakeSource`."""

    def __init__(self, kafka: FakeKafka, partition: int) -> None:
        topics = kafka.topics
        self._names = (topics.turns, topics.frames, topics.membership)
        self._logs = [kafka.logs[name, partition] for name in self._names]
        self._partition = partition
        self._read = [0, 0, 0]
        self._first = 0
        self.unavailable = False

    async def open(self, positions: Positions) -> None:
        self._read = [positions.turns, positions.frames, positions.membership]
        self._first = self._logs[2].end
        for name, log, position in zip(self._names, self._logs, self._read, strict=True):
            require_inside(TopicPartition(name, self._partition), position, KafkaBounds(log.start, log.end))

    async def poll(self, limit: int, wait_ms: int, *, membership: bool) -> Polled:
        await asyncio.sleep(0)
        if self.unavailable:
            raise KafkaUnavailable("the fake is switched off")
        changes: list[Record] = []
        if membership:
            changes, self._read[2] = _next(self._logs[2], self._read[2], limit)
            if self._read[2] < self._first:
                return Polled((), (), changes, Positions(*self._read))
        limit -= len(changes)
        turns, self._read[0] = _next(self._logs[0], self._read[0], limit)
        frames, self._read[1] = _next(self._logs[1], self._read[1], limit - len(turns))
        return Polled(turns, frames, changes, Positions(*self._read))

    async def ends(self) -> Positions:
        return Positions(*(log.stable_end for log in self._logs))

    async def close(self) -> None:
        return


class FakeOutbox:
    """`Outbox`."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    async def send(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, headers: NewHeaders | None = None
    ) -> int:
        def effect() -> int:
            if len(value) + len(key or b"") > REQUEST_BYTES:
                raise KafkaUnavailable(f"cannot write to {topic}: the record is larger than a request")
            return self._kafka.append(topic, partition, key, value, headers=tuple(headers or ())).timestamp

        return await self._kafka.step(f"send {topic}", effect)


def _next(log: Log, position: int, limit: int) -> tuple[list[Record], int]:
    found: list[Record] = []
    while position < log.stable_end and len(found) < limit:
        record = log.records[position]
        if record.fate is Fate.COMMITTED and not record.marker:
            found.append(record)
        position += 1
    return found, position


IN_DOUBT = Doubt("scripted")
