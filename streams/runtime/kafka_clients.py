"""The Protocols of `kafka` on aiokafka: producer of the journal, intake, reader of the journal, outbox.

A producer is thrown away without waiting for the broker; whatever it was doing is settled by its successor's start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, OffsetOutOfRangeError, ProducerFenced

from streams.fence.port import Fenced, Positions
from streams.runtime.kafka import (
    BATCH_BYTES,
    REQUEST_BYTES,
    RETRY_BACKOFF_MS,
    Doubt,
    KafkaEnds,
    KafkaUnavailable,
    NewHeaders,
    Polled,
    ProducerIdentity,
    Record,
    RecordBatch,
    Unrecoverable,
    asked,
    consumer,
    is_stray,
    require_inside,
)
from streams.topics import Topics

log = structlog.get_logger(__name__)

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
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        *,
        transactional_id: str,
        timeout_ms: int,
        limit_s: float,
        near: KafkaEnds | None = None,
    ) -> None:
        """`near`: knows the brokers already; see `KafkaEnds.acquaint`."""
        self._near = near
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
        end_once(self._producer)

    async def start(self) -> None:
        if self._near is not None:
            await self._near.acquaint(self._producer.client, self._topic)
        await self._bounded(self._producer.start())

    @property
    def identity(self) -> ProducerIdentity:
        # aiokafka shows it nowhere else.
        manager = self._producer._txn_manager
        return ProducerIdentity(manager.producer_id, manager.producer_epoch)

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
        except asyncio.CancelledError as error:
            if is_stray():
                raise translated(error) from error
            raise


def end_once(producer: AIOKafkaProducer) -> None:
    """Have `producer` send each EndTxn once, and end with an error when no answer says what became of it.

    By itself aiokafka sends it again when its connection breaks. The first one, if it was only late, then ends whatever
    is open when it arrives: of the next transaction as many batches as have been written by then.
    """
    sender, manager = producer._sender, producer._txn_manager
    send = sender._do_txn_commit

    async def send_once(result: Any) -> None:
        await send(result)
        if manager.needs_transaction_commit() is not None:
            manager.fatal_error(KafkaError("EndTxn was not answered, or not now"))

    sender._do_txn_commit = send_once


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
    unread = _futures(producer)
    producer._message_accumulator.fail_all(Doubt("the producer was thrown away"))
    try:
        async with asyncio.timeout(limit_s):
            await producer.client.close()
            await producer.stop()
    except Exception:
        log.debug("producer ended with an error while being thrown away", exc_info=True)
    except asyncio.CancelledError:
        if not is_stray():
            raise
    for future in unread:
        if future.done() and not future.cancelled():
            future.exception()  # known already, from the request that failed; unread, it would be logged as lost


def _futures(producer: AIOKafkaProducer) -> list[asyncio.Future[Any]]:
    """What still waits in the producer: the transaction's end, and each batch."""
    accumulator, transactions = producer._message_accumulator, producer._txn_manager
    batches = [*accumulator._pending_batches, *chain.from_iterable(accumulator._batches.values())]
    waiting = [future for batch in batches for future in (batch.future, batch._drain_waiter)]
    if transactions is not None and (end := transactions.wait_for_transaction_end()) is not None:
        waiting.append(end)
    return waiting


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
        except asyncio.CancelledError as error:
            if is_stray():
                raise KafkaUnavailable("cannot read the intake: the connection was closed") from error
            raise
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

    async def open(self, offset: int) -> None:
        self._consumer = await self._readers.take()
        self._good = False
        kept = await self._ends.bounds([self._name])
        require_inside(self._name, offset, kept[self._name])
        self._begin_at = offset
        self._good = True

    async def read(self) -> tuple[Sequence[Record], int]:
        self._good = False
        if self._begin_at is not None:
            # Not before: it would fetch, and find nothing, for as long as others are still asked.
            self._consumer.assign([self._name])
            self._consumer.seek(self._name, self._begin_at)
            self._begin_at = None
        try:
            found = await self._consumer.getmany(timeout_ms=READ_WAIT_MS)
        except OffsetOutOfRangeError as error:
            raise Unrecoverable(f"the journal was cut off while it was replayed: {error}") from error
        except KafkaError as error:
            raise KafkaUnavailable(f"cannot read the journal: {type(error).__name__}: {error}") from error
        except asyncio.CancelledError as error:
            if is_stray():
                raise KafkaUnavailable("cannot read the journal: the connection was closed") from error
            raise
        position = int(await self._consumer.position(self._name))
        self._good = True
        return found.get(self._name, ()), position

    async def high_watermark(self) -> int:
        return (await self._ends.high([self._name]))[self._name]

    async def stable_end(self) -> int:
        return (await self._ends.stable([self._name]))[self._name]

    async def close(self) -> None:
        if self._consumer is not None:
            used, self._consumer = self._consumer, None
            await self._readers.give_back(used, good=self._good)


class KafkaOutbox:
    """`Outbox` on one idempotent producer of the process, which is replaced once it has failed for good."""

    def __init__(self, bootstrap: str, limit_s: float) -> None:
        self._bootstrap = bootstrap
        self._limit_s = limit_s
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> int:
        """See `Outbox`; `value` None: the tombstone of `key`. Raises `KafkaUnavailable`."""
        producer = await self._started()
        try:
            async with asyncio.timeout(self._limit_s):
                sent = await producer.send_and_wait(topic, value, key, partition=partition, headers=headers)
                return int(sent.timestamp)
        except (KafkaError, TimeoutError, AssertionError, Doubt) as error:
            # Doubt: another caller's error had the producer thrown away.
            await self._give_up(producer)
            raise KafkaUnavailable(f"cannot write to {topic}: {type(error).__name__}: {error}") from error
        except asyncio.CancelledError as error:
            if not is_stray():
                raise
            await self._give_up(producer)
            raise KafkaUnavailable(f"cannot write to {topic}: the connection was closed") from error

    async def _give_up(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            await discard(producer)

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
