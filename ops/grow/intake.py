"""What lies in the old generation's intake that no worker has taken: it would be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition

from streams.fence.port import Positions
from streams.runtime.codec import Codec, Undecodable
from streams.runtime.kafka import KafkaEnds, asked, consumer
from streams.runtime.registry import open_codec
from streams.runtime.signals import Heartbeat, Tick
from streams.settings import Settings
from streams.topics import Topics

REQUEST_LIMIT_S: Final = 10.0
SILENCE_MS: Final = 5_000
LOOKED_AT_MOST: Final = 1_000_000
"""Membership records of a partition that are decoded: more ticks and heartbeats than gather in days."""


async def ends_now(settings: Settings, partitions: int) -> Mapping[TopicPartition, int]:
    """Where the journal, and what people and agents write, end; membership has ticks, which come to nothing."""
    topics = Topics(settings.namespace)
    names = (topics.turns, topics.frames, topics.conversations)
    return await high(settings.kafka, [TopicPartition(name, each) for name in names for each in range(partitions)])


async def high(kafka: str, names: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """The end of each, whatever lies before it."""
    ends = KafkaEnds(kafka, REQUEST_LIMIT_S)
    try:
        return await ends.high(names)
    finally:
        await ends.close()


async def untaken(settings: Settings, covered: Mapping[int, Positions]) -> list[str]:
    """What has to be done first, a sentence each. `covered`: per partition, up to where its intake was taken."""
    topics = Topics(settings.namespace)
    codec = await asyncio.to_thread(open_codec, settings.schema_registry, topics)
    ends = KafkaEnds(settings.kafka, REQUEST_LIMIT_S)
    left = _Left(settings.kafka, topics, codec, ends)
    try:
        found = []
        for partition, positions in covered.items():
            found += [*await left.open_transaction(partition), *await left.records(partition, positions)]
        return found
    finally:
        await ends.close()


class _Left:
    def __init__(self, kafka: str, topics: Topics, codec: Codec, ends: KafkaEnds) -> None:
        self._kafka = kafka
        self._topics = topics
        self._codec = codec
        self._ends = ends

    async def open_transaction(self, partition: int) -> list[str]:
        name = TopicPartition(self._topics.conversations, partition)
        if (await self._ends.stable([name]))[name] >= (await self._ends.high([name]))[name]:
            return []
        return [f"a transaction is open in {name.topic}[{partition}]: start a worker, which ends it, and stop it again"]

    async def records(self, partition: int, taken: Positions) -> list[str]:
        found = []
        positions = (taken.turns, taken.frames, taken.membership)
        for topic, position in zip(self._topics.of_record, positions, strict=False):  # the journal is the last of them
            count = await self._count(TopicPartition(topic, partition), position)
            if count:
                found.append(
                    f"{count} records of {topic}[{partition}] were not taken yet: start a worker, without a gateway, "
                    "until its lag is 0, and stop it again"
                )
        return found

    async def _count(self, name: TopicPartition, position: int) -> int:
        """Records from `position` on that may come to something; of membership, ticks and heartbeats do not."""
        kept = (await self._ends.bounds([name]))[name]
        start = max(position, kept.start)
        left = max(0, kept.end - start)
        if not left or name.topic != self._topics.membership or left > LOOKED_AT_MOST:
            return left
        reader = consumer(self._kafka, REQUEST_LIMIT_S)
        count = 0
        try:
            await asked(reader.start(), REQUEST_LIMIT_S)
            reader.assign([name])
            reader.seek(name, start)
            while await asked(reader.position(name), REQUEST_LIMIT_S) < kept.end:
                found = await asked(reader.getmany(name, timeout_ms=SILENCE_MS), 2 * REQUEST_LIMIT_S)
                count += sum(not self._idle(record) for record in found.get(name, ()))
        finally:
            await reader.stop()
        return count

    def _idle(self, record: Any) -> bool:
        try:
            return isinstance(self._codec.decode_membership(record, 0), Tick | Heartbeat)
        except Undecodable:
            return False
