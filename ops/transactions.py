"""Open transactions, for operators: whose they are, whether anybody will end them, and ending one.

In the journal a worker's own is open for milliseconds, and if it hangs ended by the next claim
(`streams/runtime/hanging`). What is left for an operator are those of others, who have no business in the journal or
the intake: every reader waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer

from ops.provision import connected_admin
from streams.runtime.hanging import OpenTransaction, Outcome
from streams.runtime.kafka import asked
from streams.runtime.kafka_transactions import KafkaTransactions
from streams.settings import Settings
from streams.topics import Topics
from streams.topics import verify as verify_topics


@dataclass(frozen=True, slots=True)
class Found:
    """An open transaction in a partition. `transactional_id` and `state`: None where no coordinator knows it."""

    topic: str
    partition: int
    open: OpenTransaction
    transactional_id: str | None
    state: str | None
    own: bool
    """In the journal, of the partition's own producer: a worker's."""
    hanging: bool
    """Its coordinator holds it for ended: it stays open until somebody writes the marker."""


class OpenTransactions:
    """The journal's open transactions on a running deployment. Raises `KafkaUnavailable`, `Fenced`, `Doubt`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics = Topics(settings.namespace)
        self._limit_s = settings.request_timeout_ms / 1000
        topics = self._topics
        self.topics = (topics.conversations, topics.turns, topics.frames, topics.membership)
        """Those that are read committed, by workers or by everybody."""
        self._kafka = {topic: KafkaTransactions(settings.kafka, topic, self._limit_s) for topic in self.topics}

    async def partitions(self) -> int:
        """How many partitions there are. Raises `TopicsError`."""
        async with connected_admin(self._settings.kafka) as admin:
            return await verify_topics(admin, self._topics)

    async def found(self, topic: str, partition: int) -> Sequence[Found]:
        """All that are open in that partition now."""
        return [await self._described(topic, partition, one) for one in await self._kafka[topic].unfinished(partition)]

    async def abort(self, found: Found) -> None:
        """End it: a hanging one by the marker that is missing, one that its coordinator holds by fencing its producer,
        whose start has the coordinator abort it."""
        if found.hanging or found.transactional_id is None:
            await self._kafka[found.topic].end(found.partition, found.open, found.open.producer_epoch, Outcome.ABORTED)
            return
        fencing = AIOKafkaProducer(
            bootstrap_servers=self._settings.kafka,
            transactional_id=found.transactional_id,
            request_timeout_ms=self._settings.request_timeout_ms,
        )
        try:
            await asked(fencing.start(), self._limit_s)
        finally:
            await fencing.stop()

    async def close(self) -> None:
        """Close the client."""
        for kafka in self._kafka.values():
            await kafka.close()

    async def _described(self, topic: str, partition: int, one: OpenTransaction) -> Found:
        kafka, mine = self._kafka[topic], self._topics.transactional_id(partition)
        name, own = await asyncio.gather(kafka.named(one.producer_id), kafka.coordinated(mine))
        view = None if name is None else await kafka.coordinated(name)
        return Found(
            topic,
            partition,
            one,
            name,
            view.state if view is not None else None,
            own=topic == self._topics.conversations and own is not None and own.producer_id == one.producer_id,
            hanging=view is None or not view.holds(one),
        )
