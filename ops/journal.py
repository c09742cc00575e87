"""Following one partition's journal, for people: what happened in a conversation, and what happens now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from aiokafka import TopicPartition

from ops.provision import connected_admin
from streams.core.events import Entry
from streams.runtime.kafka import bounds, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics, verify

REQUEST_LIMIT_S: Final = 10.0
POLL_MS: Final = 500


async def entries_of(
    settings: Settings, partition: int, *, follow: bool, caught_up: Callable[[], None] | None = None
) -> AsyncIterator[Entry]:
    """The committed entries of `partition`, from the first that is kept to the last there is now.

    `follow`: goes on as more are committed, without end. `caught_up` is called once all that there is now was given.
    Raises `Undecodable`, and what Kafka's client raises.
    """
    topics = Topics(settings.namespace)
    codec = open_codec(settings.schema_registry, topics)
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    name = TopicPartition(topics.conversations, partition)
    await reader.start()
    try:
        kept = (await bounds(reader, [name], REQUEST_LIMIT_S))[name]
        reader.assign([name])
        reader.seek(name, kept.start)
        position = kept.start
        while follow or position < kept.end:
            if caught_up is not None and position >= kept.end:
                caught_up()
                caught_up = None
            for record in (await reader.getmany(name, timeout_ms=POLL_MS)).get(name, ()):
                if follow or record.offset < kept.end:
                    yield codec.decode_entry(record.value)
            position = await reader.position(name)
    finally:
        await reader.stop()


async def partition_count(settings: Settings) -> int:
    """Partitions of the deployment's topics; `TopicsError` when it has none."""
    async with connected_admin(settings.kafka) as admin:
        return await verify(admin, Topics(settings.namespace))
