"""A Kafka cluster as the runtime sees it: logs, last stable offsets, and a coordinator that speaks the first protocol
of transactions, with its hazard.

EndTxn names no transaction: it ends whichever is open under that id and epoch when it *arrives*. One that is late, or
was sent twice, ends the half of the next. Produce is verified with the coordinator (KIP-890, as a 4.x broker does for
old clients), so that a late record of an ended epoch is refused; an idempotent producer's repeat is stored once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from random import Random

from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)

from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.topics import Topics
from tests.simulation.loop import SimLoop
from tests.simulation.network import Reply, Reset, Server

START_MS = 1_700_000_000_000
NewRecord = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
Name = tuple[str, int]
"""Topic and partition."""


class Fate(Enum):
    """What became of the transaction that a record is in."""

    COMMITTED = auto()
    OPEN = auto()
    ABORTED = auto()
    MARKER = auto()


class LogRecord:
    """As a consumer gets it, and its fate."""

    __slots__ = ("fate", "headers", "key", "offset", "partition", "timestamp", "topic", "value", "written_at")

    def __init__(self, where: Name, offset: int, timestamp: int, written_at: float, new: NewRecord, fate: Fate) -> None:
        self.topic, self.partition = where
        self.offset, self.timestamp = offset, timestamp
        self.written_at = written_at
        """True time, which no broker's clock disturbs."""
        self.key, self.value, self.headers = new
        self.fate = fate


@dataclass(slots=True)
class Log:
    """One partition of one topic."""

    records: list[LogRecord] = field(default_factory=list)
    stable_end: int = 0
    """The last stable offset."""
    producers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Per producer: its epoch, the last sequence, and the offset that it got."""
    open: dict[str, list[LogRecord]] = field(default_factory=dict)
    """Per producer, the records of its open transaction."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Fetches that wait for more."""

    @property
    def end(self) -> int:
        return len(self.records)


@dataclass(slots=True)
class Transactional:
    """The coordinator's state of one transactional id."""

    epoch: int = -1
    ongoing: bool = False
    last: bool | None = None
    """How the last one ended; a repeat of that is answered as done."""
    partitions: dict[Name, None] = field(default_factory=dict)
    """That the ongoing one was added to."""
    count: int = 0
    """Of its transactions, so that a time-out knows its own."""


class Cluster:
    """One broker's worth of it."""

    TRANSACTION_TIMEOUT_S = 5.0
    LATE_END_S = 0.5
    REFUSED = 0.25
    """While `refusing`, the chance of a batch of the journal to be refused for good."""

    def __init__(self, loop: SimLoop, random: Random, codec: Codec) -> None:
        self.server = Server("kafka")
        self.topics = Topics()
        self.logs: dict[Name, Log] = defaultdict(Log)
        self.clock_ms = 0
        """How far the broker's clock is off."""
        self.numbers = count(1)
        """For the names of producers without a transactional id."""
        self.batch_bytes = 1 << 20
        """Most that fits into one batch of the journal."""
        self.refusing = False
        self.breaks_at_end = False
        """While it lasts, every third EndTxn gets no answer but a broken connection, and takes effect late."""
        self.forgets_marker = False
        """The next transaction that ends leaves its markers out (decision 12)."""
        self.on_commit: Callable[[int], None] = lambda partition: None
        self.before_end: Callable[[str, str], None] = lambda transactional_id, sender: None
        self._ids: dict[str, Transactional] = defaultdict(Transactional)
        self._loop = loop
        self._random = random
        self._codec = codec
        self._entries: dict[int, list[tuple[int, Entry]]] = defaultdict(list)
        self._decoded: dict[int, int] = defaultdict(int)

    @property
    def now_ms(self) -> int:
        """The broker's clock."""
        return START_MS + int(self._loop.now * 1000) + self.clock_ms

    # --------------------------------------------------------------------------------------------------- requests
    def init_producer(self, name: str, reply: Reply) -> None:
        """InitProducerId of a transactional id."""
        state = self._ids[name]
        self._end(name, state, Fate.ABORTED)
        state.epoch += 1
        reply(state.epoch)

    def add_partitions(self, name: str, epoch: int, where: Name, reply: Reply) -> None:
        """AddPartitionsToTxn: the transaction begins."""
        state = self._ids[name]
        if state.epoch != epoch:
            reply(ProducerFenced("another one started"))
            return
        if not state.ongoing:
            state.ongoing = True
            state.count += 1
            self._loop.later(self.TRANSACTION_TIMEOUT_S, self._time_out, name, state, state.count)
        state.partitions[where] = None
        reply(None)

    def produce(
        self, name: str, epoch: int, where: Name, sequence: int, records: list[NewRecord], reply: Reply
    ) -> None:
        """Produce. `epoch` -1: idempotent only. The answer is (offset of the first, timestamp)."""
        log, fate = self.logs[where], Fate.COMMITTED
        if epoch >= 0:
            state, fate = self._ids[name], Fate.OPEN
            if state.epoch != epoch or not state.ongoing:
                reply(ProducerFenced("not the transaction's producer"))
                return
        known_epoch, last, offset = log.producers.get(name, (epoch, -1, -1))
        if known_epoch != epoch:
            last = -1
        if sequence <= last:
            reply((offset, self.now_ms))
            return
        if sequence != last + 1:
            reply(OutOfOrderSequenceNumber())
            return
        if self.refusing and epoch >= 0 and self._random.random() < self.REFUSED:
            reply(MessageSizeTooLargeError())
            return
        offset = log.end
        log.producers[name] = (epoch, sequence, offset)
        stored = [self._append(where, record, fate) for record in records]
        if fate is Fate.OPEN:
            log.open.setdefault(name, []).extend(stored)
        self._settle(where)
        reply((offset, stored[0].timestamp))

    def commit(self, name: str, epoch: int, sender: str, reply: Reply) -> None:
        """EndTxn, which `breaks_at_end` delays: its sender learns only that the connection broke."""
        if self.breaks_at_end and self._random.random() < 1 / 3:
            late = self._random.random() * self.LATE_END_S
            self._loop.later(late, self._commit, name, epoch, sender, lambda answer: None)
            reply(Reset("the connection broke"))
        else:
            self._commit(name, epoch, sender, reply)

    def _commit(self, name: str, epoch: int, sender: str, reply: Reply) -> None:
        """Of whatever is open by now. (The runtime aborts nothing by itself: the next writer does.)"""
        state = self._ids[name]
        if state.epoch != epoch:
            reply(ProducerFenced("another one started"))
        elif state.ongoing:
            self.before_end(name, sender)
            self._end(name, state, Fate.COMMITTED)
            reply(None)
        elif state.last:
            reply(None)
        else:
            reply(InvalidTxnState())

    def fetch(self, wanted: Mapping[Name, int], stable: bool, wait_s: float, reply: Reply) -> None:
        """What lies behind these offsets; when there is nothing, what comes within `wait_s`."""
        found = self._behind(wanted, stable)
        if found or wait_s <= 0:
            reply(found)
            return
        answered = False

        def answer() -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            for where in wanted:
                self.logs[where].waiting.remove(answer)
            reply(self._behind(wanted, stable))

        for where in wanted:
            self.logs[where].waiting.append(answer)
        self._loop.later(wait_s, answer)

    def ends(self, wanted: Iterable[Name], stable: bool, reply: Reply) -> None:
        """ListOffsets, latest."""
        reply({where: self.logs[where].stable_end if stable else self.logs[where].end for where in wanted})

    def unfinished(self, where: Name, reply: Reply) -> None:
        """DescribeProducers: (name, epoch, first offset) of each open transaction."""
        log = self.logs[where]
        reply([(name, log.producers[name][0], records[0].offset) for name, records in log.open.items()])

    def end_hanging(self, name: str, where: Name, epoch: int, fate: Fate, reply: Reply) -> None:
        """WriteTxnMarkers, which a leader takes without asking the coordinator."""
        log = self.logs[where]
        known, _, offset = log.producers.get(name, (-1, -1, -1))
        if known > epoch:
            reply(InvalidProducerEpoch())
            return
        log.producers[name] = (epoch, -1, offset)
        self.mark(name, where, fate)
        reply(None)

    # ----------------------------------------------------------------------------------------- what everybody sees
    def committed(self, topic: str, partition: int) -> list[LogRecord]:
        """All that a read_committed reader ever gets of it, so far."""
        log = self.logs[topic, partition]
        return [record for record in log.records[: log.stable_end] if record.fate is Fate.COMMITTED]

    def journal(self, partition: int) -> list[tuple[int, Entry]]:
        """The committed journal, decoded once, each with the offset after it."""
        log, entries = self.logs[self.topics.conversations, partition], self._entries[partition]
        for record in log.records[self._decoded[partition] : log.stable_end]:
            if record.fate is Fate.COMMITTED:
                entries.append((record.offset + 1, self._codec.decode_entry(record.value or b"")))
        self._decoded[partition] = log.stable_end
        return entries

    def write(self, where: Name, key: bytes | None, value: bytes | None) -> LogRecord:
        """Somebody else's producer writes a record."""
        record = self._append(where, (key, value, []), Fate.COMMITTED)
        self._settle(where)
        return record

    def write_again(self, record: LogRecord) -> None:
        """A producer without idempotence, or a bridge between clusters, repeats a record."""
        self.write((record.topic, record.partition), record.key, record.value)

    # ---------------------------------------------------------------------------------------------------- within
    def _append(self, where: Name, new: NewRecord, fate: Fate) -> LogRecord:
        log = self.logs[where]
        record = LogRecord(where, log.end, self.now_ms, self._loop.now, new, fate)
        log.records.append(record)
        return record

    def _behind(self, wanted: Mapping[Name, int], stable: bool) -> dict[Name, tuple[list[LogRecord], int]]:
        found = {}
        for where, offset in wanted.items():
            log = self.logs[where]
            end = log.stable_end if stable else log.end
            if offset < end:
                records = [each for each in log.records[offset:end] if each.fate is Fate.COMMITTED]
                found[where] = (records, end)
        return found

    def _end(self, name: str, state: Transactional, fate: Fate) -> None:
        if not state.ongoing:
            return
        state.ongoing, state.last = False, fate is Fate.COMMITTED
        partitions, state.partitions = state.partitions, {}
        if self.forgets_marker:
            self.forgets_marker = False
            return
        for where in partitions:
            self.mark(name, where, fate)

    def mark(self, name: str, where: Name, fate: Fate) -> None:
        """A marker: whatever the producer has open there is over."""
        for record in self.logs[where].open.pop(name, []):
            record.fate = fate
        self._append(where, (None, None, []), Fate.MARKER)
        self._settle(where)
        if fate is Fate.COMMITTED:
            self.on_commit(where[1])

    def _time_out(self, name: str, state: Transactional, count: int) -> None:
        if state.ongoing and state.count == count:
            state.epoch += 1
            self._end(name, state, Fate.ABORTED)

    def _settle(self, where: Name) -> None:
        """Move the last stable offset, and wake who waits for more."""
        log = self.logs[where]
        records, end = log.records, log.stable_end
        while end < len(records) and records[end].fate is not Fate.OPEN:
            end += 1
        if end == log.stable_end:
            return
        log.stable_end = end
        for wake in tuple(log.waiting):
            wake()
