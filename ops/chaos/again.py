"""Intake that comes once more, and in another order, as a producer without idempotence would after a lost answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition

from streams.runtime.kafka import bounds, consumer
from streams.settings import Settings
from streams.topics import Topics

MOST: Final = 20
"""Records of each topic and partition that come again."""
REQUEST_S: Final = 5.0


async def again(settings: Settings, partitions: int, rng: random.Random) -> None:
    """Write the last records of `turns`, `frames` and `membership` to their partitions again, shuffled.

    Raises what Kafka's clients raise, and waits as long as they do: the caller sets the limit.
    """
    topics = Topics(settings.namespace)
    intake = topics.turns, topics.frames, topics.membership
    names = [TopicPartition(topic, n) for topic in intake for n in range(partitions)]
    records = await _last(settings, names)
    rng.shuffle(records)
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    try:
        await producer.start()
        for record in records:
            await producer.send_and_wait(
                record.topic, record.value, record.key, partition=record.partition, headers=list(record.headers)
            )
    finally:
        await producer.stop()


async def _last(settings: Settings, names: Sequence[TopicPartition]) -> list[Any]:
    reader = consumer(settings.kafka, REQUEST_S)
    found: list[Any] = []
    try:
        await reader.start()
        kept = await bounds(reader, names, REQUEST_S)
        reader.assign(names)
        for name in names:
            reader.seek(name, max(kept[name].start, kept[name].end - MOST))
        while any([await reader.position(name) < kept[name].end for name in names]):
            for name, records in (await reader.getmany(timeout_ms=200)).items():
                found += [record for record in records if record.offset < kept[name].end]
    finally:
        await reader.stop()
    return found
