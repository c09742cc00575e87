"""How far the journal is behind its intake, and the records of `membership`, as the broker holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aiokafka import TopicPartition

from ops.chaos.promises import Change
from streams.core.events import BatchCommitted, Entry
from streams.fence.port import Positions
from streams.runtime.kafka import bounds, consumer
from streams.runtime.records import Undecodable
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

REQUEST_S: Final = 10.0


def covered(entries: Sequence[Entry]) -> Positions:
    """What one partition's journal says of its intake."""
    for entry in reversed(entries):
        if isinstance(batch := entry.event, BatchCommitted):
            return Positions(batch.turns, batch.frames, batch.membership)
    return Positions()


async def waiting(settings: Settings, journal: Mapping[int, Sequence[Entry]]) -> Mapping[int, int]:
    """Turns that lie in each partition's intake without an outcome: each has one in the batch that covers it."""
    topics = Topics(settings.namespace)
    reader = consumer(settings.kafka, REQUEST_S)
    await reader.start()
    try:
        kept = await bounds(reader, [TopicPartition(topics.turns, number) for number in journal], REQUEST_S)
    finally:
        await reader.stop()
    return {name.partition: ends.end - covered(journal[name.partition]).turns for name, ends in kept.items()}


async def changes(settings: Settings, partition: int) -> Sequence[Change]:
    """What `membership` holds for one partition, but for what cannot be decoded."""
    topics = Topics(settings.namespace)
    codec = open_codec(settings.schema_registry, topics)
    name = TopicPartition(topics.membership, partition)
    reader = consumer(settings.kafka, REQUEST_S)
    found: list[Change] = []
    await reader.start()
    try:
        kept = (await bounds(reader, [name], REQUEST_S))[name]
        reader.assign([name])
        reader.seek(name, kept.start)
        while await reader.position(name) < kept.end:
            for record in (await reader.getmany(name, timeout_ms=200)).get(name, ()):
                try:
                    found.append(Change(record.offset, codec.decode_membership(record, 0)))
                except Undecodable:
                    continue  # the audit looks after those
    finally:
        await reader.stop()
    return found
