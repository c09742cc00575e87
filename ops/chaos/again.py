"""Intake that comes once more, and in another order, as a producer without idempotence would after a lost answer.

Pieces of a stream without a client id are left out: nothing tells a piece from its repeat, so that each would be stored
again. That none is written twice rests on the gateways' producers, which are idempotent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition

from streams.core.commands import CommitFrame
from streams.runtime.codec import Codec
from streams.runtime.kafka import bounds, consumer
from streams.runtime.records import Undecodable
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

MOST: Final = 20
"""Records of each topic and partition that come again."""
REQUEST_S: Final = 5.0
STREAMED: Final = "genui"


async def again(settings: Settings, partitions: int, rng: random.Random) -> None:
    """Write the last records of `turns`, `frames` and `membership` to their partitions again, shuffled; see above.

    Raises what Kafka's clients raise, and waits as long as they do: the caller sets the limit.
    """
    topics = Topics(settings.namespace)
    intake = topics.turns, topics.frames, topics.membership
    names = [TopicPartition(topic, n) for topic in intake for n in range(partitions)]
    codec = open_codec(settings.schema_registry, topics)
    records = [
        each for each in await _last(settings, names) if each.topic != topics.frames or not is_piece(codec, each)
    ]
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


def is_piece(codec: Codec, record: Any) -> bool:
    """Whether it is a piece of a stream that has no key."""
    try:
        command = codec.decode_frames(record, 0)
    except Undecodable:
        return False
    return isinstance(command, CommitFrame) and command.frame.type == STREAMED and command.frame.client_id is None


async def _last(settings: Settings, names: Sequence[TopicPartition]) -> Sequence[Any]:
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
