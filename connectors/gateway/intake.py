"""Writing to the intake topics: idempotent, at least once, in order for each key.

A producer of which one send's outcome is not known is thrown away, since its numbering of a partition may have a hole
that the broker then refuses for ever. What it had queued still ends, one way or the other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from connectors.gateway.ports import Headers, Unavailable, Written
from connectors.gateway.traces import Traces
from streams.core.commands import Command
from streams.runtime.codec import INTAKE_OF, Codec
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Signal
from streams.settings import Settings
from streams.topics import Topics
from streams.tracing import Span

log = structlog.get_logger(__name__)

# Records on their way to the brokers, over all connections; beyond, senders are told to come back.
IN_FLIGHT_MAX = 5_000
# Record batches of one request; the broker's own default limit.
BATCH_BYTES = 256 * 1024
REQUEST_BYTES = 1024 * 1024
# A person's turn is written at once. What an agent says comes in bursts (read, started, answer, finished): a burst in
# one request is decided in one transaction, which costs everybody a fraction of four.
FRAMES_LINGER_MS = 4


class _Lane:
    """One producer at a time. Records of different lanes have no order between them, as their topics have none."""

    def __init__(self, settings: Settings, linger_ms: int) -> None:
        self._settings = settings
        self._linger_ms = linger_ms
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._ended: set[asyncio.Task[None]] = set()

    async def current(self) -> AIOKafkaProducer:
        """The producer, started; raises `Unavailable`."""
        if self._producer is not None:
            return self._producer
        async with self._starting:
            if self._producer is None:
                self._producer = await self._started()
            return self._producer

    def throw_away(self, producer: AIOKafkaProducer, error: BaseException) -> None:
        """The outcome of a send of this producer is not known: the next one is written by another."""
        if self._producer is not producer:
            return
        log.warning("the intake's producer is replaced: the outcome of a send is not known", error=repr(error))
        self._producer = None
        task = asyncio.get_running_loop().create_task(self._stop(producer))
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)

    async def close(self) -> None:
        """Write what is queued, then disconnect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._stop(producer)
        if self._ended:
            await asyncio.wait(self._ended)

    async def _started(self) -> AIOKafkaProducer:
        timeout_ms = self._settings.request_timeout_ms
        producer = AIOKafkaProducer(
            bootstrap_servers=self._settings.kafka,
            client_id="turnlog-gateway",
            enable_idempotence=True,
            acks="all",
            linger_ms=self._linger_ms,
            max_batch_size=BATCH_BYTES,
            max_request_size=REQUEST_BYTES,
            request_timeout_ms=timeout_ms,
            retry_backoff_ms=50,
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await producer.start()
        except BaseException as error:
            await self._stop(producer)
            if not isinstance(error, KafkaError | TimeoutError):
                raise
            raise Unavailable(f"Kafka does not answer: {type(error).__name__}") from error
        return producer

    async def _stop(self, producer: AIOKafkaProducer) -> None:
        try:
            await producer.stop()
        except (KafkaError, TimeoutError) as error:
            log.info("a producer ended with an error", error=repr(error))


class KafkaIntake:
    """`Intake` on Kafka."""

    def __init__(
        self, settings: Settings, topics: Topics, codec: Codec, partitions: int, traces: Traces | None = None
    ) -> None:
        """`traces`: where sends are told of; None: nowhere."""
        self._traces = traces
        self._settings = settings
        self._topics = topics
        self._codec = codec
        self._turns = _Lane(settings, linger_ms=0)
        self._others = _Lane(settings, linger_ms=FRAMES_LINGER_MS)
        self._in_flight = 0
        self.partitions = partitions

    async def start(self) -> None:
        """Connect; raises `Unavailable`."""
        await self._turns.current()
        await self._others.current()

    async def close(self) -> None:
        """Write what is queued, then disconnect."""
        await self._turns.close()
        await self._others.close()

    async def send(
        self, command: Command | Signal, *, partition: int | None = None, headers: Headers = ()
    ) -> asyncio.Future[Written]:
        """See `Intake`."""
        if self._in_flight >= IN_FLIGHT_MAX:
            raise Unavailable(f"{IN_FLIGHT_MAX} records are on their way to Kafka already")
        conversation_id: str | None = getattr(command, "conversation_id", None)
        key = None
        if conversation_id is not None:
            key = conversation_id.encode()
            partition = partition_of(conversation_id, self.partitions)
        kind = INTAKE_OF[type(command)]
        value = self._codec.encode_command(command)
        lane = self._turns if kind == "turns" else self._others
        span: Span | None = None
        if self._traces is not None and conversation_id is not None:
            span, headers = self._traces.sending(command, conversation_id, headers)
        producer = await lane.current()
        self._in_flight += 1
        try:
            async with asyncio.timeout(self._settings.request_timeout_ms / 1000):
                topic = self._topics.of_schema(kind)
                sent = await producer.send(topic, value, key=key, partition=partition, headers=list(headers))
        except BaseException as error:
            self._in_flight -= 1  # also when whoever sends has gone while it waited for room
            if not isinstance(error, KafkaError | TimeoutError):
                raise
            lane.throw_away(producer, error)
            raise Unavailable(f"Kafka does not take records: {type(error).__name__}") from error
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

        def done(future: asyncio.Future[Any]) -> None:
            self._in_flight -= 1
            if span is not None:
                span.end()
            error = _settle(written, future)
            if error is not None:
                lane.throw_away(producer, error)

        sent.add_done_callback(done)
        return written


def _settle(written: asyncio.Future[Written], sent: asyncio.Future[Any]) -> BaseException | None:
    """Pass on what became of a send; its error, if it has one."""
    error: BaseException | None = asyncio.CancelledError() if sent.cancelled() else sent.exception()
    if written.done():
        return error  # whoever waited has gone
    if error is None:
        metadata = sent.result()
        written.set_result(Written(metadata.partition, metadata.offset))
    else:
        written.set_exception(Unavailable(f"Kafka did not confirm the record: {type(error).__name__}"))
        written.exception()  # senders that need no outcome do not ask
    return error
