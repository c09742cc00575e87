"""What a sequencer asks of Kafka, as Protocols, and aiokafka's side of them; no other part of the runtime touches it.

Three rules are kept here and nowhere else: every consumer is `read_committed` and never resets an offset by itself;
every wait for a broker has a limit; a producer is thrown away without waiting for the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, OffsetOutOfRangeError, ProducerFenced

from streams.fence.port import Fenced, Positions
from streams.topics import Topics

log = structlog.get_logger(__name__)

Headers = Sequence[tuple[str, bytes]]
# aiokafka's compiled record builder takes a list and nothing else.
NewHeaders = list[tuple[str, bytes]]

# The broker's default `max.message.bytes` is 1 MiB + 12; a record batch of at most 1 MiB passes it.
BATCH_BYTES = 1 << 20
# A request may carry one batch and its framing; a dead letter carries a whole intake record and what was wrong with it.
REQUEST_BYTES = 2 * BATCH_BYTES
# A fetch of a backlog holds some batches' worth of one topic (about 12,000 turns): 14 % less work a record than 1 MiB,
# measured, for at most 3 * 4 MiB in memory a partition.
FETCH_BYTES = 4 * BATCH_BYTES
RETRY_BACKOFF_MS = 50


class Doubt(Exception):
    """The outcome of a request is not known: throw the producer away and rebuild the state from the journal."""


class KafkaUnavailable(Exception):
    """Kafka cannot be asked now, and nothing was left half done."""


class Unrecoverable(Exception):
    """What is stored does not fit together, so that going on would lose or repeat something: an operator must look."""


class Record(Protocol):
    """An intake or journal record, as the consumer gives it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Polled(msgspec.Struct, frozen=True, gc=False):
    """What one look at the intake brought. `read`: the next offset to read of each topic, past control records too."""

    turns: Sequence[Record]
    frames: Sequence[Record]
    membership: Sequence[Record]
    read: Positions

    def __len__(self) -> int:
        return len(self.turns) + len(self.frames) + len(self.membership)


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """First offset kept and next offset to be written of a topic's partition."""

    start: int
    end: int


class IntakeSource(Protocol):
    """The three intake topics of one partition."""

    async def open(self, positions: Positions) -> None:
        """Start reading at `positions`; `Unrecoverable` when one of them is outside its topic."""

    async def poll(self, limit: int, wait_ms: int, *, membership: bool) -> Polled:
        """At most `limit` records, waiting up to `wait_ms` for the first. `membership` False: not of that topic.

        Membership goes first: of what it held when this was opened all is given before anything of the other two, so
        that no backlog of turns is decided without the channels and members that were there before it.
        """

    async def ends(self) -> Positions:
        """The end of each topic now, as far as it may be read."""

    async def close(self) -> None: ...


class JournalReader(Protocol):
    """The journal of one partition, read committed."""

    async def open(self, offset: int) -> None:
        """Start reading at `offset`; `Unrecoverable` when it lies outside the journal."""

    async def read(self) -> tuple[Sequence[Record], int]:
        """Some records, maybe none, and the position after them (which passes control records and aborted ones)."""

    async def high_watermark(self) -> int:
        """The end of the journal now, whatever lies in it."""

    async def close(self) -> None: ...


class RecordBatch(Protocol):
    """Records on their way into one append."""

    def add(self, key: bytes | None, value: bytes, headers: NewHeaders) -> bool:
        """False: it is full, and the record is not in it."""


class JournalProducer(Protocol):
    """A transactional producer: one writer epoch of one partition. After any error only `discard` may be called."""

    async def start(self) -> None:
        """InitProducerId: the last holder's open transaction is aborted, its next request is refused."""

    def new_batch(self) -> RecordBatch: ...

    async def begin(self) -> None: ...

    async def append(self, batch: RecordBatch) -> int:
        """Write the batch and wait until the broker has it. Returns the offset after its last record."""

    async def commit(self) -> None: ...

    async def discard(self) -> None:
        """Throw it away, whatever it is doing, without waiting for the broker."""


class Outbox(Protocol):
    """Plain writes outside transactions: ticks and dead letters."""

    async def send(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, headers: NewHeaders | None = None
    ) -> int:
        """Returns when the broker has the record: its append time, ms since the epoch."""


def translated(error: BaseException) -> BaseException:
    """A producer's error in the runtime's words. A fenced one's sign is certain; all else leaves the outcome open."""
    if isinstance(error, ProducerFenced | InvalidProducerEpoch):
        return Fenced(f"Kafka refused the producer: {error or type(error).__name__}")
    cause = error.__cause__
    if isinstance(cause, ProducerFenced | InvalidProducerEpoch):
        return translated(cause)
    return Doubt(f"{type(error).__name__}: {error}")


class KafkaJournalProducer:
    """`JournalProducer` on aiokafka. Every request has `limit_s`; aiokafka by itself would retry for ever."""

    def __init__(
        self, bootstrap: str, topic: str, partition: int, *, transactional_id: str, timeout_ms: int, limit_s: float
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._limit_s = limit_s
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            acks="all",
            linger_ms=0,
            max_batch_size=BATCH_BYTES,
            max_request_size=REQUEST_BYTES,
            request_timeout_ms=int(limit_s * 1000),
            retry_backoff_ms=RETRY_BACKOFF_MS,
        )

    async def start(self) -> None:
        await self._bounded(self._producer.start())

    def new_batch(self) -> KafkaBatch:
        return KafkaBatch(self._producer.create_batch())

    async def begin(self) -> None:
        await self._bounded(self._producer.begin_transaction())

    async def append(self, batch: RecordBatch) -> int:
        if not isinstance(batch, KafkaBatch):
            raise TypeError("a batch of another producer")
        end: int = await self._bounded(self._append(batch.builder))
        return end

    async def _append(self, builder: Any) -> int:
        builder.close()
        count = builder.record_count()
        sent = await self._producer.send_batch(builder, self._topic, partition=self._partition)
        metadata = await sent
        return int(metadata.offset) + int(count)

    async def commit(self) -> None:
        await self._bounded(self._producer.commit_transaction())

    async def discard(self) -> None:
        await discard(self._producer)

    async def _bounded(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(self._limit_s):
                return await request
        except (KafkaError, TimeoutError, AssertionError) as error:
            # aiokafka asserts its transaction states: a failed sender shows as an AssertionError in the next call.
            raise translated(error) from error


class KafkaBatch:
    """`RecordBatch` on aiokafka's builder."""

    __slots__ = ("_append", "builder")

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._append = builder.append

    def add(self, key: bytes | None, value: bytes, headers: NewHeaders) -> bool:
        return self._append(timestamp=None, key=key, value=value, headers=headers) is not None


async def discard(producer: AIOKafkaProducer, limit_s: float = 1.0) -> None:
    """Close `producer` without flushing. `stop()` alone would wait for the broker to take what is still buffered.

    aiokafka has no such call: the accumulator is told that everything failed, the connections are cut, and `stop` then
    has nothing left to wait for. What it still reports concerns records that were given up already.
    """
    transaction = producer._txn_manager and producer._txn_manager.wait_for_transaction_end()
    producer._message_accumulator.fail_all(Doubt("the producer was thrown away"))
    await producer.client.close()
    try:
        async with asyncio.timeout(limit_s):
            await producer.stop()
    except Exception:
        log.debug("producer ended with an error while being thrown away", exc_info=True)
    if transaction is not None and transaction.done() and not transaction.cancelled():
        transaction.exception()  # known already, from the request that failed; unread, it would be logged as lost


def consumer(bootstrap: str, limit_s: float, *, isolation: str = "read_committed", wait_ms: int = 500) -> Any:
    """A consumer without a group that resets no offset by itself."""
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation,
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_wait_ms=wait_ms,
        request_timeout_ms=int(limit_s * 1000),
        retry_backoff_ms=RETRY_BACKOFF_MS,
    )


async def asked(request: Any, limit_s: float) -> Any:
    """Await a consumer's request within the limit; its errors become `KafkaUnavailable`."""
    try:
        async with asyncio.timeout(limit_s):
            return await request
    except (KafkaError, TimeoutError, OSError) as error:
        raise KafkaUnavailable(f"Kafka did not answer: {type(error).__name__}: {error}") from error


async def bounds(reader: Any, partitions: Iterable[TopicPartition], limit_s: float) -> Mapping[TopicPartition, Bounds]:
    """Start and end of each of `partitions`; the end is the last stable offset for a `read_committed` reader."""
    wanted = list(partitions)
    starts = await asked(reader.beginning_offsets(wanted), limit_s)
    ends = await asked(reader.end_offsets(wanted), limit_s)
    return {tp: Bounds(starts[tp], ends[tp]) for tp in wanted}


def require_inside(name: TopicPartition, position: int, kept: Bounds) -> None:
    """Raise `Unrecoverable` unless reading can go on at `position`."""
    if position < kept.start:
        raise Unrecoverable(
            f"{name.topic}[{name.partition}]: the next offset to read is {position}, but the topic starts at "
            f"{kept.start}: {kept.start - position} records are gone"
        )
    if position > kept.end:
        raise Unrecoverable(
            f"{name.topic}[{name.partition}]: the next offset to read is {position}, but the topic ends at {kept.end}: "
            "it was cut off or made anew"
        )


class KafkaIntake:
    """`IntakeSource` on aiokafka: one consumer a partition, so that a slow or stopped partition delays no other."""

    def __init__(self, bootstrap: str, topics: Topics, partition: int, limit_s: float) -> None:
        self._bootstrap = bootstrap
        self._limit_s = limit_s
        self._turns = TopicPartition(topics.turns, partition)
        self._frames = TopicPartition(topics.frames, partition)
        self._membership = TopicPartition(topics.membership, partition)
        self._all = (self._turns, self._frames, self._membership)
        self._first = 0
        """Where `membership` ended when this was opened."""
        self._consumer: Any = None

    async def open(self, positions: Positions) -> None:
        self._consumer = consumer(self._bootstrap, self._limit_s)
        await asked(self._consumer.start(), self._limit_s)
        wanted = dict(zip(self._all, (positions.turns, positions.frames, positions.membership), strict=True))
        kept = await bounds(self._consumer, self._all, self._limit_s)
        for name, position in wanted.items():
            require_inside(name, position, kept[name])
        self._consumer.assign(self._all)
        for name, position in wanted.items():
            self._consumer.seek(name, position)
        self._first = kept[self._membership].end

    async def poll(self, limit: int, wait_ms: int, *, membership: bool) -> Polled:
        try:
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
        except OffsetOutOfRangeError as error:
            raise Unrecoverable(f"the intake was cut off while it was read: {error}") from error
        except KafkaError as error:
            raise KafkaUnavailable(f"cannot read the intake: {type(error).__name__}: {error}") from error
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
        ends = await asked(self._consumer.end_offsets(self._all), self._limit_s)
        return Positions(ends[self._turns], ends[self._frames], ends[self._membership])

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None


class KafkaJournalReader:
    """`JournalReader` on aiokafka."""

    def __init__(self, bootstrap: str, topic: str, partition: int, limit_s: float) -> None:
        self._name = TopicPartition(topic, partition)
        self._limit_s = limit_s
        # Waiting for more at the end of the journal is of no use: what is missing then is only a marker on its way.
        self._committed = consumer(bootstrap, limit_s, wait_ms=50)
        self._uncommitted = consumer(bootstrap, limit_s, isolation="read_uncommitted")

    async def open(self, offset: int) -> None:
        await asked(asyncio.gather(self._committed.start(), self._uncommitted.start()), self._limit_s)
        kept = await bounds(self._uncommitted, [self._name], self._limit_s)
        require_inside(self._name, offset, kept[self._name])
        self._committed.assign([self._name])
        self._committed.seek(self._name, offset)

    async def read(self) -> tuple[Sequence[Record], int]:
        try:
            found = await self._committed.getmany(timeout_ms=50)
        except OffsetOutOfRangeError as error:
            raise Unrecoverable(f"the journal was cut off while it was replayed: {error}") from error
        except KafkaError as error:
            raise KafkaUnavailable(f"cannot read the journal: {type(error).__name__}: {error}") from error
        return found.get(self._name, ()), await self._committed.position(self._name)

    async def high_watermark(self) -> int:
        ends = await asked(self._uncommitted.end_offsets([self._name]), self._limit_s)
        return int(ends[self._name])

    async def close(self) -> None:
        await self._committed.stop()
        await self._uncommitted.stop()


class KafkaOutbox:
    """`Outbox` on one idempotent producer of the process, which is replaced once it has failed for good."""

    def __init__(self, bootstrap: str, limit_s: float) -> None:
        self._bootstrap = bootstrap
        self._limit_s = limit_s
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def send(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, headers: NewHeaders | None = None
    ) -> int:
        producer = await self._started()
        try:
            async with asyncio.timeout(self._limit_s):
                sent = await producer.send_and_wait(topic, value, key, partition=partition, headers=headers)
                return int(sent.timestamp)
        except (KafkaError, TimeoutError, AssertionError) as error:
            if self._producer is producer:
                self._producer = None
                await discard(producer)
            raise KafkaUnavailable(f"cannot write to {topic}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await discard(producer)

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._bootstrap,
                    enable_idempotence=True,
                    linger_ms=0,
                    max_batch_size=REQUEST_BYTES,
                    max_request_size=REQUEST_BYTES,
                    request_timeout_ms=int(self._limit_s * 1000),
                    retry_backoff_ms=RETRY_BACKOFF_MS,
                )
                try:
                    await asked(producer.start(), self._limit_s)
                except KafkaUnavailable:
                    await discard(producer)
                    raise
                self._producer = producer
            return self._producer


async def closed(*things: Any) -> None:
    """Close what was opened, each whatever the others do; an error of one is reported, not passed on."""
    for thing in things:
        try:
            await thing.close()
        except Exception:
            log.warning("closing failed", of=type(thing).__name__, exc_info=True)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await thing.close()
            raise


class Stability:
    """How long a last stable offset has been behind the end of its topic: an open transaction that does not end."""

    def __init__(self, bootstrap: str, topics: Sequence[str], limit_s: float) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._limit_s = limit_s
        self._looks: tuple[Any, Any] | None = None
        self._seen: dict[TopicPartition, tuple[int, float]] = {}

    async def behind(self, partitions: Iterable[int]) -> Mapping[tuple[str, int], float]:
        """Per (topic, partition), seconds since its stable offset stands still although it is behind; 0: it is not.

        Empty when Kafka cannot be asked now.
        """
        names = [TopicPartition(topic, partition) for topic in self._topics for partition in partitions]
        if not names:
            return {}
        try:
            stable, ends = await self._look(names)
        except KafkaUnavailable as error:
            log.info("cannot look at the topics' ends", error=str(error))
            await self.close()
            return {}
        now = time.monotonic()
        return {(name.topic, name.partition): self._seconds(name, stable[name], ends[name], now) for name in names}

    async def close(self) -> None:
        if self._looks is not None:
            looks, self._looks = self._looks, None
            await asyncio.gather(*(look.stop() for look in looks))

    async def _look(self, names: list[TopicPartition]) -> tuple[Mapping[TopicPartition, int], ...]:
        if self._looks is None:
            looks = (
                consumer(self._bootstrap, self._limit_s),
                consumer(self._bootstrap, self._limit_s, isolation="read_uncommitted"),
            )
            self._looks = looks
            await asked(asyncio.gather(*(look.start() for look in looks)), self._limit_s)
        stable, end = self._looks
        # The stable offset first: what is written in between makes a topic look unstable, never the other way round.
        return await asked(stable.end_offsets(names), self._limit_s), await asked(end.end_offsets(names), self._limit_s)

    def _seconds(self, name: TopicPartition, stable: int, end: int, now: float) -> float:
        if stable >= end:
            self._seen.pop(name, None)
            return 0.0
        before, since = self._seen.get(name, (-1, now))
        if before != stable:
            since = now
        self._seen[name] = (stable, since)
        return now - since
