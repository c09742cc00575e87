"""A worker process: the real balancer, sequencers and heartbeat on simulated clients."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import TopicPartition

from streams.fence.port import FenceUnavailable, Lease
from streams.runtime.balancer import Balancer
from streams.runtime.commit import DeadLetters
from streams.runtime.kafka import KafkaEnds, Stability, closed
from streams.runtime.kafka_producers import KafkaJournalProducer, KafkaOutbox
from streams.runtime.kafka_readers import KafkaIntake, KafkaJournalReader, KafkaReaders
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.ports import Limits, Ports
from streams.runtime.watch import Reach, Watch
from tests.simulation.clients import SimTransactions
from tests.simulation.database import SimCheckpoints, SimHeartbeat, SimLeases
from tests.simulation.place import Place

LIMIT_S = 2.0
"""Of a request to Kafka."""
DRAIN_S = 4.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What of a worker's settings a seed decides, besides `Limits`."""

    lease_ttl_ms: int
    lease_heartbeat_ms: int


class Worker:
    """One process, from its start to its end. `alive` until it was killed or has drained."""

    def __init__(self, place: Place, name: str, limits: Limits, settings: WorkerSettings) -> None:
        self.name = name
        self.process = place.loop.process(name)
        self.heart = place.loop.process(f"{name}'s heart")
        self.alive = True
        self.leases = SimLeases(place.database, name, settings.lease_ttl_ms)
        self._place = place
        self._limits = limits
        self._settings = settings
        self._stop = asyncio.Event()
        self._balancer: Balancer | None = None
        place.loop.spawn(self.process, self._run())

    @property
    def staying(self) -> bool:
        """Alive, and not asked to stop."""
        return self.alive and not self._stop.is_set()

    def stop(self) -> None:
        """SIGTERM."""
        self._stop.set()

    def kill(self) -> None:
        """SIGKILL. Its sockets are closed, and with its session goes the lock."""
        if not self.alive:
            return
        self.alive = False
        for process in (self.process, self.heart):
            self._place.loop.kill(process)
        self._place.loop.later(0.002, self.leases.kill)

    def pause(self) -> None:
        """SIGSTOP."""
        for process in (self.process, self.heart):
            self._place.loop.pause(process)

    def resume(self) -> None:
        """SIGCONT."""
        for process in (self.process, self.heart):
            self._place.loop.resume(process)

    @property
    def partitions(self) -> list[str]:
        """What it says that it runs, for the trace."""
        held = {} if self._balancer is None else self._balancer.sequencers
        return [f"{partition}:{sequencer.phase}" for partition, sequencer in sorted(held.items())]

    async def _run(self) -> None:
        place = self._place
        heartbeat = SimHeartbeat(
            place.database,
            self.name,
            ttl_ms=self._settings.lease_ttl_ms,
            every_ms=self._settings.lease_heartbeat_ms,
            progress=lambda: self.process.steps,
            on_lost=self._lost,
        )
        try:
            await self.leases.open()
        except FenceUnavailable:
            self._place.trace("cannot start: Postgres does not answer")
            self.kill()
            return
        ports, outbox, ends = self._ports(heartbeat)
        reach = self._reach()
        self._balancer = balancer = Balancer(ports, lambda: reach.cut_off_s, drain_s=DRAIN_S)
        watch = self._watch(ports, ends, balancer)
        place.loop.spawn(self.heart, heartbeat.beat())
        for service in (watch, reach, balancer):
            await service.start()
        await self._stop.wait()
        try:
            await self.leases.set_draining()
        except FenceUnavailable:
            place.trace("cannot say that it drains")
        for service in (balancer, reach, watch):
            await service.stop()
        await heartbeat.stop()
        await closed(self.leases, outbox, ends)
        place.trace("drained")
        self.kill()

    def _ports(self, heartbeat: SimHeartbeat) -> tuple[Ports, Any, Any]:
        place, topics = self._place, self._place.cluster.topics
        outbox, ends = KafkaOutbox("", LIMIT_S), KafkaEnds("", LIMIT_S)
        readers = KafkaReaders("", LIMIT_S, kept=0)
        ports = Ports(
            worker=self.name,
            partitions=place.partitions,
            membership_topic=topics.membership,
            limits=self._limits,
            leases=self.leases,
            checkpoints=SimCheckpoints(place.database),
            codec=place.codec,
            outbox=outbox,
            dead_letters=DeadLetters(outbox, place.codec, topics.dead_letters),
            new_producer=self._new_producer,
            new_reader=lambda partition: KafkaJournalReader(readers, ends, topics.conversations, partition),
            new_intake=partial(_new_intake, ends, topics),
            transactions=SimTransactions(place.network, place.cluster, LIMIT_S),
            keeper=heartbeat,
            metrics=WorkerMetrics(),
        )
        return ports, outbox, ends

    def _new_producer(self, partition: int) -> KafkaJournalProducer:
        topics = self._place.cluster.topics
        return KafkaJournalProducer(
            "",
            topics.conversations,
            partition,
            transactional_id=topics.transactional_id(partition),
            timeout_ms=5_000,
            limit_s=LIMIT_S,
        )

    def _reach(self) -> Reach:
        place, topics = self._place, self._place.cluster.topics
        written = [
            TopicPartition(topic, number)
            for topic in (topics.membership, topics.conversations)
            for number in range(place.partitions)
        ]
        return Reach(KafkaEnds("", LIMIT_S), written, limit_s=LIMIT_S)

    def _watch(self, ports: Ports, ends: KafkaEnds, balancer: Balancer) -> Watch:
        topic = self._place.cluster.topics.conversations
        return Watch(
            Stability(ends, (topic,)),
            {topic: ports.transactions},
            ports.metrics,
            lambda: sorted(balancer.sequencers),
            lambda _, partition: balancer.held_back(partition),
        )

    def _lost(self, lease: Lease, why: str) -> None:
        if self._balancer is not None:
            self._balancer.lost(lease, why)


def _new_intake(ends: KafkaEnds, topics: Any, partition: int) -> KafkaIntake:
    return KafkaIntake("", ends, topics, partition, LIMIT_S)
