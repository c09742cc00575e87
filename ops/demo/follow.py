"""The journal as it grows, from now on, as any reader of committed events sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokafka import TopicPartition

from ops.journal import partition_count
from streams.core.events import Entry
from streams.runtime.kafka import bounds, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

WAIT_MS = 50
"""How long one poll waits for news."""


@asynccontextmanager
async def from_now(settings: Settings) -> AsyncIterator[Callable[[], AsyncIterator[Entry]]]:
    """Inside, the function given reads on for ever, starting where the journal ended on entering."""
    limit_s = settings.request_timeout_ms / 1000
    topics = Topics(settings.namespace)
    topic = topics.conversations
    reader = consumer(settings.kafka, limit_s, wait_ms=WAIT_MS)
    await reader.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(await partition_count(settings))]
        reader.assign(partitions)
        for partition, kept in (await bounds(reader, partitions, limit_s)).items():
            reader.seek(partition, kept.end)
        codec = open_codec(settings.schema_registry, topics)

        async def entries() -> AsyncIterator[Entry]:
            while True:
                for records in (await reader.getmany(timeout_ms=WAIT_MS)).values():
                    for record in records:
                        yield codec.decode_entry(record.value)

        yield entries
    finally:
        await reader.stop()
