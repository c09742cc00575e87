"""The Protocols of `kafka` that read, on aiokafka: intake, reader of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from streams.fence.port import Positions
from streams.runtime.kafka import (
    KafkaEnds,
    KafkaUnavailable,
    Polled,
    Record,
    Unrecoverable,
    asked,
    consumer,
    is_stray,
    require_inside,
)
from streams.topics import Topics

# The three intakes are fetched together or not at all: while records of one wait to be taken, the others are not
# fetched for so long either. By aiokafka's own 0.1 s a writer that is busy for longer would get a turn whose channel,
# known before it, is still to be fetched. It is a limit, because membership is left untaken once too much is held back.
ONE_FETCH_S = 2.0
# What a journal ends with is a marker, of which a reader sees nothing but that its position has moved: it looks often.
READ_WAIT_MS = 5
# A replay's reader is passed on to the next one; what it still waits for at the end of its last journal holds that up.
FETCH_WAIT_MS = 5
# As many partitions as are opened at the same time (`ports.OPENED_AT_ONCE`); each connection costs the broker a little.
READERS_KEPT = 8


@contextmanager
def _failures_of(read: str) -> Iterator[None]:
    """What aiokafka raises while the intake, or the journal, is read, as what it means."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise Unrecoverable(f"the {read} was cut off while it was read: {error}") from error
    except KafkaError as error:
        raise KafkaUnavailable(f"cannot read the {read}: {type(error).__name__}: {error}") from error
    except asyncio.CancelledError as error:
        if is_stray():
            raise KafkaUnavailable(f"cannot read the {read}: the connection was closed") from error
        raise


class KafkaIntake:
    """`IntakeSource` on aiokafka: one consumer a partition, so that a slow or stopped partition delays no other.

    Ends are asked for on another connection: on this one, a broker answers that only after the fetch before it.
    """

    def __init__(
        self,
        bootstrap: str,
        ends: KafkaEnds,
        topics: Topics,
        partition: int,
        limit_s: float,
        *,
        near: KafkaEnds | None = None,
    ) -> None:
        """`near`: knows the brokers already; see `KafkaEnds.acquaint`."""
        self._near = near
        self._bootstrap = bootstrap
        self._ends = ends
        self._limit_s = limit_s
        self._turns = TopicPartition(topics.turns, partition)
        self._frames = TopicPartition(topics.frames, partition)
        self._membership = TopicPartition(topics.membership, partition)
        self._all = (self._turns, self._frames, self._membership)
        self._first = 0
        """Where `membership` ended when this was opened."""
        self._consumer: Any = None

    async def open(self, positions: Positions) -> None:
        wanted = dict(zip(self._all, (positions.turns, positions.frames, positions.membership), strict=True))
        kept = await self._ends.readable(self._all)
        for name, position in wanted.items():
            require_inside(name, position, kept[name])
        self._consumer = consumer(self._bootstrap, self._limit_s)
        if self._near is not None:
            await self._near.acquaint(self._consumer._client, *(name.topic for name in self._all))
        await asked(self._consumer.start(), self._limit_s)
        # aiokafka has no setting for it.
        self._consumer._fetcher._prefetch_backoff = ONE_FETCH_S
        self._consumer.assign(self._all)
        for name, position in wanted.items():
            self._consumer.seek(name, position)
        self._first = kept[self._membership].end

    async def poll(self, limit: int, wait_ms: int, *, membership: bool) -> Polled:
        with _failures_of("intake"):
            changes = await self._changes(limit, wait_ms) if membership else ()
            if not membership:
                found = await self._keyed(limit, wait_ms)
            elif await self._position(self._membership) < self._first:
                found = {}
            elif changes:
                found = await self._keyed(limit - len(changes), 0) if len(changes) < limit else {}
            else:
                found = await self._consumer.getmany(timeout_ms=wait_ms, max_records=limit)
                changes = found.get(self._membership, ())
        read = Positions(*[await self._position(name) for name in self._all])
        return Polled(found.get(self._turns, ()), found.get(self._frames, ()), changes, read)

    async def _changes(self, limit: int, wait_ms: int) -> Sequence[Record]:
        behind = await self._position(self._membership) < self._first
        found = await self._consumer.getmany(self._membership, timeout_ms=wait_ms if behind else 0, max_records=limit)
        changes: Sequence[Record] = found.get(self._membership, ())
        return changes

    async def _keyed(self, limit: int, wait_ms: int) -> Mapping[TopicPartition, Sequence[Record]]:
        found: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
            self._turns, self._frames, timeout_ms=wait_ms, max_records=limit
        )
        return found

    async def _position(self, name: TopicPartition) -> int:
        return int(await self._consumer.position(name))

    async def ends(self) -> Positions:
        ends = await self._ends.stable(self._all)
        return Positions(ends[self._turns], ends[self._frames], ends[self._membership])

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None


class KafkaReaders:
    """Consumers for replays, kept from one to the next.

    Connecting one takes longer than most replays, and a takeover replays dozens of partitions at once.
    """

    def __init__(self, bootstrap: str, limit_s: float, *, kept: int = READERS_KEPT) -> None:
        """`kept`: at most so many wait for the next replay."""
        self._bootstrap = bootstrap
        self._limit_s = limit_s
        self._kept = kept
        self._idle: list[Any] = []

    async def take(self) -> Any:
        """A consumer that reads nothing yet. Raises `KafkaUnavailable`."""
        if self._idle:
            return self._idle.pop()
        # Waiting for more at the end of the journal is of no use: what is missing then is only a marker on its way.
        fresh = consumer(self._bootstrap, self._limit_s, wait_ms=FETCH_WAIT_MS)
        try:
            await asked(fresh.start(), self._limit_s)
        except BaseException:
            await fresh.stop()
            raise
        return fresh

    async def give_back(self, used: Any, *, good: bool) -> None:
        """It is needed no more. `good`: all that was asked of it was answered; else it is not used again."""
        if not good or len(self._idle) >= self._kept:
            await used.stop()
            return
        used.pause(*used.assignment())  # it would go on fetching; the next assignment begins unpaused
        self._idle.append(used)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().stop()


class KafkaJournalReader:
    """`JournalReader` on aiokafka."""

    def __init__(self, readers: KafkaReaders, ends: KafkaEnds, topic: str, partition: int) -> None:
        self._name = TopicPartition(topic, partition)
        self._ends = ends
        self._readers = readers
        self._consumer: Any = None
        self._begin_at: int | None = None
        """Where the first read begins."""
        self._good = True

    async def open(self, offset: int) -> int:
        self._consumer = await self._readers.take()
        self._good = False
        kept = (await self._ends.bounds([self._name]))[self._name]
        require_inside(self._name, offset, kept)
        self._begin_at = offset
        self._good = True
        return kept.end

    async def read(self) -> tuple[Sequence[Record], int]:
        self._good = False
        if self._begin_at is not None:
            # Not before: it would fetch, and find nothing, for as long as others are still asked.
            self._consumer.assign([self._name])
            self._consumer.seek(self._name, self._begin_at)
            self._begin_at = None
        with _failures_of("journal"):
            found = await self._consumer.getmany(timeout_ms=READ_WAIT_MS)
        position = int(await self._consumer.position(self._name))
        self._good = True
        return found.get(self._name, ()), position

    async def stable_end(self) -> int:
        return (await self._ends.stable([self._name]))[self._name]

    async def close(self) -> None:
        if self._consumer is not None:
            used, self._consumer = self._consumer, None
            await self._readers.give_back(used, good=self._good)
