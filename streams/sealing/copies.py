"""The topic of keys: `keys`, one partition, compacted, so that the newest record of each key is all that stays of it.

Its records: key = the data key's id; value = JSON `{"conversation", "wrapped"}` with the key, sealed by the master key,
in base64; a tombstone once the key is destroyed, after which compaction takes away what was there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from streams.runtime.kafka import KafkaUnavailable, consumer
from streams.runtime.kafka_producers import KafkaOutbox
from streams.sealing.store import RESTORE_AT_ONCE, CopiesUnavailable, WrappedKey
from streams.settings import Settings
from streams.topics import Topics

log = structlog.get_logger(__name__)


class _Copy(msgspec.Struct, frozen=True):
    conversation: str
    wrapped: bytes


_decoder: Final = msgspec.json.Decoder(_Copy)


class KeyTopic:
    """`KeyCopies` on Kafka. It connects when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._kafka = settings.kafka
        self._topic = Topics(settings.namespace).keys
        self._limit_ms = settings.request_timeout_ms
        self._outbox = KafkaOutbox(self._kafka, self._limit_ms / 1000)

    async def close(self) -> None:
        """Disconnect."""
        await self._outbox.close()

    async def put(self, keys: Sequence[WrappedKey]) -> None:
        """See `KeyCopies`. Waits for all of them: aiokafka sends what is queued at the same time as one batch."""
        try:
            await asyncio.gather(*(self._outbox.send(self._topic, 0, _value(key), key=key.id.encode()) for key in keys))
        except KafkaUnavailable as error:
            raise CopiesUnavailable(str(error)) from error

    async def all(self, seen: Callable[[Sequence[WrappedKey]], Awaitable[None]]) -> None:
        """See `KeyCopies`. Holds the whole topic's newest records: about 300 bytes a key."""
        place = TopicPartition(self._topic, 0)
        reader = consumer(self._kafka, self._limit_ms / 1000)
        newest: dict[str, WrappedKey] = {}
        try:
            async with asyncio.timeout(self._limit_ms / 1000):
                await reader.start()
                reader.assign([place])
                begin = (await reader.beginning_offsets([place]))[place]
                end = (await reader.end_offsets([place]))[place]
            reader.seek(place, begin)
            while (position := await reader.position(place)) < end:
                for record in (await reader.getmany(place, timeout_ms=self._limit_ms)).get(place, ()):
                    self._take(newest, record)
                if await reader.position(place) == position:
                    raise CopiesUnavailable(f"{self._topic} cannot be read past {position}")
        except (KafkaError, TimeoutError, OSError) as error:
            raise CopiesUnavailable(f"{self._topic} cannot be read: {type(error).__name__}") from error
        finally:
            await reader.stop()
        live = list(newest.values())
        for start in range(0, len(live), RESTORE_AT_ONCE):
            await seen(live[start : start + RESTORE_AT_ONCE])

    def _take(self, newest: dict[str, WrappedKey], record: Any) -> None:
        key_id = bytes(record.key or b"").decode("ascii", "replace")
        if record.value is None:
            newest.pop(key_id, None)
            return
        try:
            copy = _decoder.decode(record.value)
        except msgspec.DecodeError as error:
            log.warning(
                "a record of the topic of keys is none", topic=self._topic, offset=record.offset, error=str(error)
            )
            return
        newest[key_id] = WrappedKey(key_id, copy.conversation, copy.wrapped)


def _value(key: WrappedKey) -> bytes | None:
    return None if key.wrapped is None else msgspec.json.encode(_Copy(key.conversation_id, key.wrapped))
