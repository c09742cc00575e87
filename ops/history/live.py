"""The history that Kafka has: read committed, in large fetches, one consumer a read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from ops.history.decoding import decode_chunk
from ops.history.port import HistoryUnavailable, Missing, Range, Recorded
from ops.provision import connected_admin
from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.runtime.kafka import KafkaEnds, asked, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics, identities, verify

CHUNK_RECORDS: Final = 4_000
REQUEST_LIMIT_S: Final = 10.0
LOOK_EVERY_MS: Final = 20
"""Of markers, and of what was aborted, a reader sees nothing but that its position has moved."""
SILENCE_S: Final = 10.0
"""A broker that sends nothing for so long, though there is more, has a problem."""


class LiveHistory:
    """`History` on Kafka. Open it with `live_history`."""

    def __init__(
        self, kafka: str, topic: str, *, identity: str, partitions: int, codec: Codec, ends: KafkaEnds
    ) -> None:
        self._kafka = kafka
        self.topic = topic
        self._identity = identity
        self._partitions = partitions
        self.codec = codec
        self._ends = ends

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def partitions(self) -> int:
        return self._partitions

    async def bounds(self, partition: int) -> Range:
        """See `History`."""
        name = self._name(partition)
        kept = (await self._ends.readable([name]))[name]
        return Range(kept.start, kept.end)

    async def missing(self, partition: int) -> Sequence[Range]:
        """See `History`."""
        start = (await self.bounds(partition)).start
        return [Range(0, start)] if start else []

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        """See `History`. What Kafka deletes while it is read is missing from there on."""
        kept = await self.bounds(partition)
        end = kept.end if end is None else min(end, kept.end)
        if start >= end:
            return
        if start < kept.start:
            raise Missing(partition, Range(start, min(end, kept.start)))
        name = self._name(partition)
        async with self._reader(name, start) as reader:
            position, moved_at = start, time.monotonic()
            while position < end:
                try:
                    found = await reader.getmany(name, timeout_ms=LOOK_EVERY_MS, max_records=CHUNK_RECORDS)
                except OffsetOutOfRangeError:
                    raise Missing(partition, Range(position, (await self.bounds(partition)).start)) from None
                chunk = found.get(name, ())
                after = await reader.position(name)
                if after != position:
                    position, moved_at = after, time.monotonic()
                elif time.monotonic() - moved_at > SILENCE_S:
                    raise HistoryUnavailable(f"{self.topic}[{partition}]: nothing comes after offset {position}")
                if chunk and chunk[-1].offset >= end:
                    chunk = [record for record in chunk if record.offset < end]
                if chunk:
                    yield [Recorded(r.offset, r.timestamp, r.key, r.value, r.headers) for r in chunk]
                    moved_at = time.monotonic()  # what was done with them is no silence of the broker's

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """See `History`."""
        name = self._name(partition)
        async with self._reader(name, None) as reader:
            found = (await asked(reader.offsets_for_times({name: timestamp_ms}), REQUEST_LIMIT_S))[name]
        return None if found is None else int(found.offset)

    def decode(self, recorded: Recorded) -> Entry:
        """See `History`."""
        return self.codec.decode_entry(recorded.value)

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        """See `History`."""
        return decode_chunk(self.codec, chunk)

    def _name(self, partition: int) -> TopicPartition:
        if not 0 <= partition < self._partitions:
            raise HistoryUnavailable(f"there is no partition {partition}: they are 0 to {self._partitions - 1}")
        return TopicPartition(self.topic, partition)

    @asynccontextmanager
    async def _reader(self, name: TopicPartition, start: int | None) -> AsyncIterator[Any]:
        reader = consumer(self._kafka, REQUEST_LIMIT_S)
        try:
            await reader.start()
            reader.assign([name])
            if start is not None:
                reader.seek(name, start)
            yield reader
        finally:
            await reader.stop()


@asynccontextmanager
async def live_history(settings: Settings) -> AsyncIterator[LiveHistory]:
    """The history that Kafka has, for as long as the block runs.

    Raises `KafkaUnavailable`, `TopicsError`, and `RegistryUnavailable` where there is a registry.
    """
    topics = Topics(settings.namespace)
    async with connected_admin(settings.kafka) as admin:
        partitions = await verify(admin, topics)
        identity = (await identities(admin, topics))[topics.conversations]
    ends = KafkaEnds(settings.kafka, REQUEST_LIMIT_S)
    try:
        codec = open_codec(settings.schema_registry, topics)
        yield LiveHistory(
            settings.kafka, topics.conversations, identity=identity, partitions=partitions, codec=codec, ends=ends
        )
    finally:
        await ends.close()
