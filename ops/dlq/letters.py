"""The topic `dead-letters`, read whole: each letter once, with what was done about it.

A letter may lie there several times (a worker writes it again when it decides its batch again): the first one counts. A
mark settles the letter of its origin; it lies in the same partition, behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from ops.provision import connected_admin
from streams.runtime.codec import Codec, DeadLetter
from streams.runtime.kafka import KafkaEnds, KafkaUnavailable, consumer
from streams.runtime.records import Settled
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics, verify

REQUEST_LIMIT_S: Final = 10.0
SILENCE_S: Final = 15.0
"""What lies there must have come within this; else somebody's transaction is open in the topic."""
REPLAYED_FROM: Final = "dead-letter"
"""Header of a record that was replayed: the origin of the letter that it was."""
OPEN: Final = "open"


@dataclass(frozen=True, slots=True)
class Letter:
    """What is known of a dead letter without its value."""

    letter: DeadLetter
    """`value` is left out."""
    at_offset: int
    """Where it lies in `dead-letters`, in the partition of its origin."""
    size: int
    """Bytes of the value that lies there; 0: it has none."""
    settled: Settled | None = None

    @property
    def status(self) -> str:
        """`open`, or what was done: `replayed`, `dropped`."""
        return OPEN if self.settled is None else self.settled.action

    @property
    def replayed_from(self) -> str | None:
        """The letter that this record was replayed from, and is refused again."""
        return next((value.decode() for name, value in self.letter.headers if name == REPLAYED_FROM and value), None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters; what is None or empty does not matter."""

    origins: Collection[str] = ()
    errors: Collection[str] = ()
    topics: Collection[str] = ()
    """Names as people write them: turns, frames, membership."""
    status: str | None = None
    since: int | None = None
    until: int | None = None
    """Append time of the record in its intake, ms since the epoch: from `since` on, before `until`."""

    def takes(self, one: Letter, names: Mapping[str, str]) -> bool:
        """Whether it is one of them. `names`: a topic's name in Kafka to its name for people."""
        letter = one.letter
        return (
            (not self.origins or letter.origin in self.origins)
            and (not self.errors or letter.error in self.errors)
            and (not self.topics or names.get(letter.topic) in self.topics)
            and (self.status is None or one.status == self.status)
            and (self.since is None or letter.at >= self.since)
            and (self.until is None or letter.at < self.until)
        )


@dataclass(slots=True)
class Post:
    """All letters there are, by origin, in the order of each partition."""

    letters: dict[str, Letter] = field(default_factory=dict)

    def take(self, letter: DeadLetter, offset: int) -> None:
        """One record of the topic."""
        known = self.letters.get(letter.origin)
        if letter.settled is not None:
            if known is not None and known.settled is None:
                self.letters[letter.origin] = Letter(known.letter, known.at_offset, known.size, letter.settled)
        elif known is None:
            size = len(letter.value or b"")
            self.letters[letter.origin] = Letter(msgspec.structs.replace(letter, value=None), offset, size)

    def counts(self) -> dict[str, int]:
        """How many there are of each status."""
        counted = Counter(one.status for one in self.letters.values())
        return {"open": 0, "replayed": 0, "dropped": 0} | dict(sorted(counted.items()))


class DeadLetterTopic:
    """Reads `dead-letters` of one deployment. Open it with `dead_letter_topic`. Raises `KafkaUnavailable`."""

    def __init__(self, settings: Settings, topics: Topics, codec: Codec, ends: KafkaEnds, partitions: int) -> None:
        self._kafka = settings.kafka
        self.topics = topics
        self.codec = codec
        self._ends = ends
        self.partitions = partitions
        self.names = {topics.turns: "turns", topics.frames: "frames", topics.membership: "membership"}

    async def post(self) -> Post:
        """All letters and marks that were there when this was asked."""
        post = Post()
        for partition in range(self.partitions):
            async for chunk in self._read(partition):
                for record in chunk:
                    post.take(self.codec.decode_dead_letter(record.value), record.offset)
        return post

    async def whole(self, chosen: Sequence[Letter]) -> AsyncIterator[tuple[Letter, DeadLetter]]:
        """Each of `chosen`, which lie in one partition in their order, with its value."""
        by_offset = {one.at_offset: one for one in chosen}
        if not by_offset:
            return
        partition = chosen[0].letter.partition
        async for chunk in self._read(partition, min(by_offset), max(by_offset) + 1):
            for record in chunk:
                if (one := by_offset.get(record.offset)) is not None:
                    yield one, self.codec.decode_dead_letter(record.value)

    async def _read(self, partition: int, start: int | None = None, end: int | None = None) -> AsyncIterator[Any]:
        """Chunks of committed records up to `end`: by default all that lies there now. A transaction that is open there
        is waited for: a settling that is under way belongs to the answer."""
        name = TopicPartition(self.topics.dead_letters, partition)
        kept = (await self._ends.bounds([name]))[name]
        start, end = kept.start if start is None else start, kept.end if end is None else end
        if start >= end:
            return
        reader = consumer(self._kafka, REQUEST_LIMIT_S)
        await reader.start()
        try:
            reader.assign([name])
            reader.seek(name, start)
            while (position := await reader.position(name)) < end:
                found = await reader.getmany(name, timeout_ms=round(SILENCE_S * 1000))
                if chunk := [record for record in found.get(name, ()) if record.offset < end]:
                    yield chunk
                elif await reader.position(name) == position:
                    raise KafkaUnavailable(
                        f"{name.topic}[{partition}] cannot be read past {position}: a transaction is open"
                    )
        finally:
            await reader.stop()


@asynccontextmanager
async def dead_letter_topic(settings: Settings) -> AsyncIterator[DeadLetterTopic]:
    """The topic, for as long as the block runs. Raises `KafkaUnavailable`, `TopicsError`."""
    topics = Topics(settings.namespace)
    async with connected_admin(settings.kafka) as admin:
        partitions = await verify(admin, topics)
    ends = KafkaEnds(settings.kafka, REQUEST_LIMIT_S)
    try:
        yield DeadLetterTopic(settings, topics, open_codec(settings.schema_registry, topics), ends, partitions)
    finally:
        await ends.close()


async def listed(settings: Settings, wanted: Wanted) -> tuple[list[Letter], dict[str, int]]:
    """The letters that are wanted, by append time, and how many there are of each status in all."""
    async with dead_letter_topic(settings) as topic:
        post = await topic.post()
        found = [one for one in post.letters.values() if wanted.takes(one, topic.names)]
    return sorted(found, key=lambda one: (one.letter.at, one.letter.origin)), post.counts()


async def shown(settings: Settings, origin: str) -> tuple[Letter, DeadLetter, Codec] | None:
    """One letter with its value; None: there is none of that origin."""
    async with dead_letter_topic(settings) as topic:
        known = (await topic.post()).letters.get(origin)
        if known is None:
            return None
        async for one, whole in topic.whole([known]):
            return one, whole, topic.codec
    raise AssertionError("a letter that was just read is gone")


def by_partition(chosen: Sequence[Letter]) -> list[list[Letter]]:
    """Those of each partition, in the order in which they lie there."""
    homes: dict[int, list[Letter]] = {}
    for one in chosen:
        homes.setdefault(one.letter.partition, []).append(one)
    return [sorted(homes[partition], key=lambda one: one.at_offset) for partition in sorted(homes)]
