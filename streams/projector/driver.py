"""faust's Kafka driver, with two corrections: it reads committed records only, and starts where Postgres says.

faust reads uncommitted unless it is in its own exactly-once mode, which is unsafe (it re-initialises a fenced producer
and so fences the live writer); and it starts at the group's committed offsets, which run ahead of what is done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, cast

from faust.transport.drivers import aiokafka as driver
from faust.types import TP

READ_COMMITTED = "read_committed"
# The broker answers a fetch once there is so much, or after so long. Answered at every commit, the projector spent most
# of its time on fetches; nobody waits for it: gateways show what is newer from memory.
GATHER_BYTES = 64 << 10
GATHER_MS = 50


class Positioned(Protocol):
    """What the app must have: the topic that it keeps positions of, and the positions."""

    @property
    def journal_topic(self) -> str: ...

    async def start_offsets(self, partitions: Collection[int]) -> Mapping[int, int]: ...


class UncommittedReads(RuntimeError):
    """The consumer would show aborted records: a release of faust or aiokafka that this driver does not fit."""


class CommittedConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread that owns aiokafka's consumer."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Read when the consumer starts; faust has no settings for them.
        consumer._isolation_level = READ_COMMITTED
        consumer._fetch_min_bytes = GATHER_BYTES
        consumer._fetch_max_wait_ms = GATHER_MS
        return consumer

    async def on_start(self) -> None:
        """Start the consumer, and refuse to go on unless it reads committed records only."""
        await super().on_start()
        fetcher = self._ensure_consumer()._fetcher
        if fetcher._isolation_level != driver_level(READ_COMMITTED):
            raise UncommittedReads(f"aiokafka's fetcher has isolation level {fetcher._isolation_level}")


def driver_level(name: str) -> int:
    """The number of an isolation level in Kafka's protocol."""
    return {"read_uncommitted": 0, READ_COMMITTED: 1}[name]


class PositionedConsumer(driver.Consumer):
    """A consumer that seeks to the app's own positions wherever faust seeks to committed offsets."""

    def _new_consumer_thread(self) -> CommittedConsumerThread:
        return CommittedConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """faust calls it after each assignment, and when it stops the flow of records in the middle of a fetch."""
        committed: Mapping[TP, int] = await super().seek_to_committed()
        app = cast(Positioned, self.app)
        mine = {tp.partition: tp for tp in self.assignment() if tp.topic == app.journal_topic}
        starts = await app.start_offsets(mine.keys())
        positions = {mine[partition]: offset for partition, offset in starts.items()}
        if positions:
            await self._thread.seek_wait(positions)
        return {**committed, **positions}


class CommittedTransport(driver.Transport):
    """The transport of an app that is `Positioned`."""

    Consumer = PositionedConsumer
