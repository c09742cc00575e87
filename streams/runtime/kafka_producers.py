"""The Protocols of `kafka` that write, on aiokafka: producer of the journal, outbox.

A producer is thrown away without waiting for the broker; whatever it was doing is settled by its successor's start.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from streams.fence.port import Fenced
from streams.runtime.kafka import (
    BATCH_BYTES,
    REQUEST_BYTES,
    RETRY_BACKOFF_MS,
    Doubt,
    KafkaEnds,
    KafkaUnavailable,
    NewHeaders,
    ProducerIdentity,
    RecordBatch,
    asked,
    is_stray,
)

log = structlog.get_logger(__name__)


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
