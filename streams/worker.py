"""The process of sequencers, and the only place where it is wired.

    Worker
     ├── Health      /metrics, /healthz, /readyz on a thread of its own
     ├── Heart       renews leases on a thread of its own, as long as this loop makes progress
     ├── Watch       looks for topics whose last stable offset stays behind their end
     ├── Reach       knows whether this worker reaches Kafka
     ├── Identity    ends the worker when a topic is not the one that it was
     └── Balancer    claims this worker's share of the partitions, hands surplus back
          └── Sequencer …   one a partition

They stop in the opposite order: partitions drain and are handed back while the heart still beats.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from aiokafka import TopicPartition
from mode import Service

from streams.deployment import Joined, joined
from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.heartbeat import Heartbeat
from streams.fence.lease import PostgresLeases
from streams.fence.port import FenceUnavailable, Lease
from streams.logs import configure_logs
from streams.runtime.balancer import Balancer
from streams.runtime.codec import Codec
from streams.runtime.commit import DeadLetters
from streams.runtime.health import HealthServer
from streams.runtime.kafka import KafkaEnds, Stability, closed
from streams.runtime.kafka_producers import KafkaJournalProducer, KafkaOutbox
from streams.runtime.kafka_readers import KafkaIntake, KafkaJournalReader, KafkaReaders
from streams.runtime.kafka_transactions import KafkaTransactions
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.partition import PartitionState
from streams.runtime.ports import Limits, Ports
from streams.runtime.registry import open_codec
from streams.runtime.watch import Identity, Reach, TopicIds, Watch
from streams.settings import Settings
from streams.topics import Topics
from streams.tracing import open_tracer

log = structlog.get_logger(__name__)

OnReady = Callable[[Mapping[str, Any]], None]

# The heartbeat wants to see this loop move; several steps fit into its shortest period.
PROGRESS_EVERY_S = 0.1
# A partition whose clock stands still for so long, whatever the reason, makes the worker not ready.
NOT_RUNNING_MAX_S = 30.0
# Of the drain budget, what is left for the process itself after its partitions have drained.
STOP_MARGIN_S = 1.0
# Python's collector looks at young objects each 700 allocations by default, which is twice a batch record; what a batch
# makes is freed by reference counts, so that a look per some ten batches is enough (measured: 0.3 µs a turn less).
GC_THRESHOLDS = (200_000, 20, 100)


class Heart(Service):
    """The lease heartbeat, and the progress counter that it watches."""

    mundane_level = "debug"

    def __init__(self, settings: Settings, worker: str, on_lost: Callable[[Lease, str], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._progress = 0
        self.heartbeat = Heartbeat(
            settings.postgres,
            worker,
            ttl_ms=settings.lease_ttl_ms,
            every_ms=settings.lease_heartbeat_ms,
            progress=lambda: self._progress,
            on_lost=on_lost,
        )

    async def on_start(self) -> None:
        self.heartbeat.start()

    @Service.task
    async def _move(self) -> None:
        while not self.should_stop:
            self._progress += 1
            await asyncio.sleep(PROGRESS_EVERY_S)

    async def on_stop(self) -> None:
        await self.heartbeat.stop()


class Worker(Service):
    """One worker process. `id` is new at each start, so that nothing of an earlier one can be mistaken for its."""

    mundane_level = "debug"

    def __init__(self, settings: Settings, deployment: Joined, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        partitions = deployment.partitions
        self.id = f"wk-{secrets.token_hex(6)}"
        self.url = ""
        self._settings = settings
        self._topics = topics = Topics(settings.namespace)
        limit_s = settings.request_timeout_ms / 1000
        self._outbox, self._ends = KafkaOutbox(settings.kafka, limit_s), KafkaEnds(settings.kafka, limit_s)
        watched = (topics.turns, topics.frames, topics.membership, topics.conversations)
        self._transactions = {topic: KafkaTransactions(settings.kafka, topic, limit_s) for topic in watched}
        self._readers = KafkaReaders(settings.kafka, limit_s)
        self._leases = PostgresLeases(settings.postgres, self.id, ttl_ms=settings.lease_ttl_ms)
        self._checkpoints = PostgresCheckpoints(settings.postgres)
        codec, metrics = open_codec(settings.schema_registry, topics), WorkerMetrics()
        self._tracer = open_tracer(settings, "turnlog-worker")
        self._heart = Heart(settings, self.id, self._lost, beacon=self.beacon)
        self._identity = Identity(TopicIds(settings.kafka, topics, limit_s), deployment.topic_ids, beacon=self.beacon)
        ports = self._ports(partitions, codec, metrics, limit_s)
        drain_s = max(settings.drain_budget_ms / 1000 - STOP_MARGIN_S, 0.0)
        written = [
            TopicPartition(topic, number)
            for topic in (topics.membership, topics.conversations)
            for number in range(partitions)
        ]
        self._reach = Reach(KafkaEnds(settings.kafka, limit_s), written, limit_s=limit_s, beacon=self.beacon)
        self.balancer = Balancer(ports, lambda: self._reach.cut_off_s, drain_s=drain_s, beacon=self.beacon)
        self._health = HealthServer(metrics.registry, healthy=self._healthy, ready=self._ready)
        stability = Stability(self._ends, watched)
        self._watch = Watch(
            stability,
            self._transactions,
            metrics,
            lambda: sorted(self.balancer.sequencers),
            self._held_back,
            beacon=self.beacon,
        )

    def _ports(self, partitions: int, codec: Codec, metrics: WorkerMetrics, limit_s: float) -> Ports:
        """What its sequencers work with."""
        settings, topics = self._settings, self._topics
        return Ports(
            worker=self.id,
            partitions=partitions,
            membership_topic=topics.membership,
            limits=limits_of(settings),
            leases=self._leases,
            checkpoints=self._checkpoints,
            codec=codec,
            outbox=self._outbox,
            dead_letters=DeadLetters(self._outbox, codec, topics.dead_letters),
            new_producer=lambda partition: KafkaJournalProducer(
                settings.kafka,
                topics.conversations,
                partition,
                transactional_id=topics.transactional_id(partition),
                timeout_ms=settings.transaction_timeout_ms,
                limit_s=limit_s,
                near=self._ends,
            ),
            new_reader=lambda partition: KafkaJournalReader(self._readers, self._ends, topics.conversations, partition),
            new_intake=lambda partition: KafkaIntake(
                settings.kafka, self._ends, topics, partition, limit_s, near=self._ends
            ),
            transactions=self._transactions[topics.conversations],
            keeper=self._heart.heartbeat,
            metrics=metrics,
            same_topics=self._identity.require,
            tracer=self._tracer,
        )

    def on_init_dependencies(self) -> list[Service]:
        return [self._heart, self._watch, self._reach, self._identity, self.balancer]

    async def on_start(self) -> None:
        """The advisory lock and the worker's row come before anything can be claimed."""
        self.url = self._health.start(self._settings.host, self._settings.metrics_port)
        await self._leases.open()
        log.info("worker started", worker=self.id, metrics=f"{self.url}/metrics", settings=self._settings.chosen())

    async def on_stop(self) -> None:
        """From here on this worker counts for no share."""
        try:
            await self._leases.set_draining()
        except FenceUnavailable as error:
            log.warning("cannot mark this worker as draining", error=str(error))

    async def on_shutdown(self) -> None:
        self._health.stop()
        await closed(
            self._leases, self._checkpoints, self._outbox, self._readers, self._ends, *self._transactions.values()
        )
        await self._tracer.close()
        log.info("worker stopped", worker=self.id)

    async def until_crashed(self) -> None:
        """Returns when an error that nothing handles has reached this tree."""
        await self._crashed.wait()

    def _lost(self, lease: Lease, why: str) -> None:
        self.balancer.lost(lease, why)

    def _held_back(self, topic: str, partition: int) -> None:
        if topic == self._topics.conversations:
            self.balancer.held_back(partition)

    def _healthy(self) -> tuple[bool, dict[str, Any]]:
        return not self.crashed, {"id": self.id}

    def _ready(self) -> tuple[bool, dict[str, Any]]:
        """Called from the health thread: reads only, of a copy of what the loop may change meanwhile."""
        now = time.monotonic()
        shown: dict[str, Any] = {}
        good = self.balancer.settled.is_set() and not self.should_stop
        for partition, sequencer in sorted(self.balancer.sequencers.copy().items()):
            phase, since = sequencer.phase, now - sequencer.since
            shown[str(partition)] = {"state": phase, "for_s": round(since, 1), "reason": sequencer.reason}
            silent = now - sequencer.ticked_at > NOT_RUNNING_MAX_S
            good = good and not silent and phase is not PartitionState.STOPPED
        dependencies = {
            name: {"ok": not error, "error": error}
            for name, error in (("kafka", self._reach.error), ("postgres", self.balancer.error))
        }
        good = good and all(dependency["ok"] for dependency in dependencies.values())
        return good, {"id": self.id, "ready": good, "dependencies": dependencies, "partitions": shown}


def limits_of(settings: Settings) -> Limits:
    """The settings that sequencers follow."""
    return Limits(
        batch_max=settings.batch_max,
        tick_ms=settings.tick_ms,
        member_ttl_ms=settings.member_ttl_ms,
        checkpoint_every_ms=settings.checkpoint_every_ms,
        checkpoint_every_events=settings.checkpoint_every_events,
        idle_conversations_max=settings.idle_conversations_max,
    )


def run(settings: Settings, *, on_ready: OnReady) -> None:
    """Run one worker until SIGTERM or SIGINT, and drain it; a second one ends it at once with `KeyboardInterrupt`.

    `on_ready` gets {id, pid, metrics} once its first partitions run. Raises what `streams.deployment.joined` does.
    """
    import uvloop  # noqa: PLC0415 -- not to be had on Windows, where only this function cannot run

    configure_logs(settings.log_format)
    if not uvloop.run(serve(settings, on_ready=on_ready)):
        raise KeyboardInterrupt


async def serve(settings: Settings, *, on_ready: OnReady) -> bool:
    """`run`, in the running event loop; whether it was drained."""
    worker = Worker(settings, await joined(settings))
    asked, urgent = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (urgent if asked.is_set() else asked).set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, on_signal)
    try:
        await worker.start()
        await _first(worker.balancer.settled.wait(), asked.wait(), worker.until_crashed())
        if worker.balancer.settled.is_set():
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            on_ready({"id": worker.id, "pid": os.getpid(), "metrics": f"{worker.url}/metrics"})
        await _first(asked.wait(), worker.until_crashed())
        await _first(worker.stop(), urgent.wait())
    finally:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)
    if worker.crash_reason is not None:
        raise worker.crash_reason
    return not urgent.is_set()


async def _first(*waits: Any) -> None:
    """Wait for the first of these; an error of it is raised, the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
