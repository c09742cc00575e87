"""How scripted gateways and people reach the log: a pen for the intake, a tail of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka.errors import KafkaError

from streams.core.commands import Command
from streams.core.events import Entry
from streams.runtime.codec import INTAKE_OF
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Signal
from tests.simulation.clients import SimProducer
from tests.simulation.loop import current
from tests.simulation.network import CALM
from tests.simulation.place import Place

WRITE_LIMIT_S = 2.0
CUT_OFF_S = 0.25
"""A reader that is cut off looks again so much later."""


class Unwritten(Exception):
    """The intake may or may not have it."""


class Pen:
    """Writes to the intake, at least once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._producer = SimProducer(place.network, place.cluster)

    async def write(self, message: Command | Signal, partition: int | None = None) -> tuple[int, int]:
        """Partition and offset. Raises `Unwritten` when nobody answers in time."""
        place = self._place
        topics, conversation = place.cluster.topics, getattr(message, "conversation_id", None)
        where = partition_of(conversation, place.partitions) if conversation is not None else partition
        assert where is not None
        topic = getattr(topics, INTAKE_OF[type(message)])
        key = None if conversation is None else conversation.encode()
        producer = self._producer
        try:
            async with asyncio.timeout(WRITE_LIMIT_S):
                written = await producer.send_and_wait(topic, place.codec.encode_command(message), key, partition=where)
        except (TimeoutError, KafkaError) as error:
            self._producer = SimProducer(place.network, place.cluster)
            raise Unwritten(str(error)) from error
        return where, written.offset


class Tail:
    """Hands each committed entry on, in order, soon after it was committed; an entry that comes twice, or too late, is
    a broken promise."""

    def __init__(self, place: Place, see: Callable[[int, Entry], None]) -> None:
        self._place = place
        self._see = see
        self._positions = dict.fromkeys(range(place.partitions), 0)
        self._news = asyncio.Event()
        self._random = place.branch()
        self._reader = current().name

    def told(self) -> None:
        """From outside: there is more."""
        place = self._place
        link = place.network.links.get((self._reader, place.cluster.server.name), CALM)
        pace = link.slow * place.network.paces.get(place.cluster.server.name, 1.0)
        if link.lose_requests or link.lose_answers:
            place.loop.later(CUT_OFF_S, self.told)
        else:
            place.loop.later(0.001 + self._random.random() * 0.004 * pace, self._news.set)

    async def follow(self) -> None:
        while True:
            for partition in self._positions:
                entries = self._place.journal(partition)
                for _, entry in entries[self._positions[partition] :]:
                    self._positions[partition] += 1
                    number = self._positions[partition]
                    if entry.lsn != number:
                        self._place.broken(f"a reader of partition {partition} got lsn {entry.lsn} as number {number}")
                    self._see(partition, entry)
            await self._news.wait()
            self._news.clear()
