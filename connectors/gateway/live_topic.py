"""The topic `live` on Kafka: written without waiting, read from its end; what is lost on the way is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from streams.runtime.codec import Codec, Undecodable, Unencodable
from streams.runtime.live import LiveSignal, Shown
from streams.runtime.partitioning import partition_of
from streams.settings import Settings

log = structlog.get_logger(__name__)

# Signals that wait to be written, and characters of frames in them; more are dropped, oldest first: a newer one says
# more.
WAITING_MAX = 10_000
WAITING_CHARS = 8 * 1024 * 1024
LINGER_MS = 10
RETRY_S = 0.5
RETRY_MAX_S = 5.0


class LiveTopic:
    """`LivePort` on Kafka. `heard` is called with every signal, this gateway's own too."""

    def __init__(self, settings: Settings, topic: str, codec: Codec, partitions: int) -> None:
        self._settings = settings
        self._topic = topic
        self._codec = codec
        self._partitions = partitions
        self._waiting: asyncio.Queue[LiveSignal] = asyncio.Queue()
        self._chars = 0
        self.heard: Callable[[LiveSignal], None] = lambda _: None
        self.on_lost: Callable[[int], None] = lambda _: None
        """Called with how many signals were not written."""

    def publish(self, signal: LiveSignal) -> None:
        """See `LivePort`."""
        self._waiting.put_nowait(signal)
        self._chars += _chars(signal)
        while self._waiting.qsize() > WAITING_MAX or self._chars > WAITING_CHARS:
            self._chars -= _chars(self._waiting.get_nowait())
            self.on_lost(1)

    async def run(self) -> None:
        """Write and read until cancelled; Kafka may go away and come back."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(self._write))
            tasks.create_task(self._again(self._read))

    async def _again(self, work: Callable[[], Any]) -> None:
        delay = RETRY_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await work()
            except (KafkaError, TimeoutError, OSError) as error:
                log.warning("the topic `live` cannot be used; trying again", error=repr(error), in_s=delay)
            if asyncio.get_running_loop().time() - began > RETRY_MAX_S:
                delay = RETRY_S
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_MAX_S)

    async def _write(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._settings.kafka,
            client_id="turnlog-gateway-live",
            acks=1,
            linger_ms=LINGER_MS,
            request_timeout_ms=self._settings.request_timeout_ms,
        )
        try:
            await producer.start()
            while True:
                signal = await self._waiting.get()
                self._chars -= _chars(signal)
                try:
                    value = self._codec.encode_live(signal)
                except Unencodable as error:
                    log.warning("a signal cannot be written", conversation=signal.conversation_id, error=str(error))
                    continue
                key = signal.conversation_id.encode()
                partition = partition_of(signal.conversation_id, self._partitions)
                sent = await producer.send(self._topic, value, key=key, partition=partition)
                sent.add_done_callback(self._sent)
        finally:
            await producer.stop()

    def _sent(self, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            self.on_lost(1)

    async def _read(self) -> None:
        reader = AIOKafkaConsumer(
            bootstrap_servers=self._settings.kafka,
            client_id="turnlog-gateway-live",
            auto_offset_reset="latest",
            enable_auto_commit=False,
            fetch_max_wait_ms=500,
            request_timeout_ms=self._settings.request_timeout_ms,
        )
        try:
            await reader.start()
            reader.assign([TopicPartition(self._topic, number) for number in range(self._partitions)])
            async for record in reader:
                self._hear(record.value)
        finally:
            await reader.stop()

    def _hear(self, value: bytes | None) -> None:
        try:
            signal = self._codec.decode_live(value)
        except Undecodable as error:
            log.debug("a record of `live` is no signal of this release", reason=error.reason)
            return
        self.heard(signal)


def _chars(signal: LiveSignal) -> int:
    return len(signal.signal.frame) if isinstance(signal.signal, Shown) else 0
