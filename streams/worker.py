"""The process of sequencers, and the only place where it is wired.

    Worker
     ├── Health      /metrics, /healthz, /readyz on a thread of its own
     ├── Heart       renews leases on a thread of its own, as long as this loop makes progress
     ├── Watch       looks for topics whose last stable offset stays behind their end
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
from aiokafka.admin import AIOKafkaAdminClient
from mode import Service

from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.clock import monotonic_s
from streams.fence.heartbeat import Heartbeat
from streams.fence.lease import PostgresLeases
from streams.fence.migrate import verify as verify_tables
from streams.fence.port import FenceUnavailable, HeldBy, Lease
from streams.logs import configure_logs
from streams.runtime.balance import View, moves
from streams.runtime.commit import DeadLetters
from streams.runtime.health import HealthServer
from streams.runtime.kafka import KafkaEnds, KafkaUnavailable, Stability, closed
from streams.runtime.kafka_clients import KafkaIntake, KafkaJournalProducer, KafkaJournalReader, KafkaOutbox
from streams.runtime.kafka_transactions import KafkaTransactions
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.partition import PartitionState, Sequencer
from streams.runtime.ports import Limits, Ports
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics
from streams.topics import verify as verify_topics

log = structlog.get_logger(__name__)

OnReady = Callable[[Mapping[str, Any]], None]

# How often the lease table is looked at: with the claim itself it is most of a takeover's time.
BALANCE_EVERY_S = 0.25
# The heartbeat wants to see this loop move; several steps fit into its shortest period.
PROGRESS_EVERY_S = 0.1
# A partition whose clock stands still for so long, whatever the reason, makes the worker not ready.
NOT_RUNNING_MAX_S = 30.0
WATCH_EVERY_S = 5.0
# A transaction of ours is open for milliseconds, and ended by the broker after `transaction_timeout_ms` at the latest.
UNSTABLE_MAX_S = 30.0
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


class Watch(Service):
    """Measures how long each topic's last stable offset has been behind its end: an open transaction stalls readers.

    One that stands in the journal for long is reported by name: nobody but the partition's worker should write there.
    """

    mundane_level = "debug"

    def __init__(
        self,
        stability: Stability,
        transactions: Mapping[str, KafkaTransactions],
        metrics: WorkerMetrics,
        held: Callable[[], list[int]],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._stability = stability
        self._transactions = transactions
        self._metrics = metrics
        self._held = held

    @Service.task
    async def _look(self) -> None:
        while not self.should_stop:
            await asyncio.sleep(WATCH_EVERY_S)
            for (topic, partition), seconds in (await self._stability.behind(self._held())).items():
                self._metrics.unstable.labels(topic, str(partition)).set(seconds)
                if seconds > UNSTABLE_MAX_S:
                    await self._report(topic, partition, seconds)

    async def _report(self, topic: str, partition: int, seconds: float) -> None:
        try:
            found = await self._transactions[topic].unfinished(partition)
        except KafkaUnavailable as error:
            log.info("cannot look at open transactions", topic=topic, partition=partition, error=str(error))
            return
        log.error(
            "an open transaction holds readers back: see `turnlog transaction list`",
            topic=topic,
            partition=partition,
            for_s=round(seconds),
            open=[str(one) for one in found],
        )


class Balancer(Service):
    """Keeps this worker's share of the partitions running."""

    mundane_level = "debug"

    def __init__(self, ports: Ports, *, drain_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequencers: dict[int, Sequencer] = {}
        self.settled = asyncio.Event()
        """Set once the first claims of this worker run, or could not be made."""
        self._ports = ports
        self._drain_s = drain_s
        self._leaving: dict[int, asyncio.Future[None]] = {}
        self._looked = False

    def lost(self, lease: Lease, why: str) -> None:
        """The heartbeat's message."""
        sequencer = self.sequencers.get(lease.partition)
        if sequencer is not None:
            sequencer.lose(lease, why)

    @Service.task
    async def _balance(self) -> None:
        while not self.should_stop:
            try:
                await self._step()
            except FenceUnavailable as error:
                log.warning("cannot look at the lease table", error=str(error))
            await self.sleep(BALANCE_EVERY_S)

    async def _step(self) -> None:
        for partition, sequencer in list(self.sequencers.items()):
            if sequencer.over and partition not in self._leaving:
                await self._forget(partition)
        leases = self._ports.leases
        workers, table = await leases.workers(), await leases.table()
        mine, leaving = frozenset(self.sequencers), frozenset(self._leaving)
        plan = moves(View(self._ports.worker, mine, leaving, workers, table, self._ports.partitions))
        for partition in plan.hand_back:
            log.info("handing back", partition=partition)
            self._leaving[partition] = self.add_future(self._forget(partition))
        await asyncio.gather(*map(self._claim, plan.claim))
        self._looked = True
        self._ports.metrics.leases.set(len(self.sequencers))
        if all(sequencer.phase is not PartitionState.OPENING for sequencer in self.sequencers.values()):
            self.settled.set()

    async def _claim(self, partition: int) -> None:
        asked_at = monotonic_s()
        claimed = await self._ports.leases.claim(partition)
        if isinstance(claimed, HeldBy) or self.should_stop:
            return
        self._ports.keeper.watch(claimed, asked_at)
        sequencer = Sequencer(claimed, self._ports, drain_s=self._drain_s, beacon=self.beacon)
        self.sequencers[partition] = sequencer
        await self.add_runtime_dependency(sequencer)

    async def _forget(self, partition: int) -> None:
        await self.remove_dependency(self.sequencers[partition])
        del self.sequencers[partition]
        self._leaving.pop(partition, None)

    async def on_stop(self) -> None:
        """All partitions drain at the same time; mode by itself would stop them one after the other."""
        stops = [sequencer.stop() for sequencer in list(self.sequencers.values())]
        await asyncio.gather(*stops, *self._leaving.values())


class Worker(Service):
    """One worker process. `id` is new at each start, so that nothing of an earlier one can be mistaken for its."""

    mundane_level = "debug"

    def __init__(self, settings: Settings, partitions: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.id = f"wk-{secrets.token_hex(6)}"
        self.url = ""
        self._settings = settings
        self._topics = topics = Topics(settings.namespace)
        limit_s = settings.request_timeout_ms / 1000
        self._outbox, self._ends = KafkaOutbox(settings.kafka, limit_s), KafkaEnds(settings.kafka, limit_s)
        watched = (topics.turns, topics.frames, topics.membership, topics.conversations)
        self._transactions = {topic: KafkaTransactions(settings.kafka, topic, limit_s) for topic in watched}
        self._leases = PostgresLeases(settings.postgres, self.id, ttl_ms=settings.lease_ttl_ms)
        self._checkpoints = PostgresCheckpoints(settings.postgres)
        codec, metrics = open_codec(settings.schema_registry, topics), WorkerMetrics()
        self._heart = Heart(settings, self.id, self._lost, beacon=self.beacon)
        ports = Ports(
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
            ),
            new_reader=lambda partition: KafkaJournalReader(
                settings.kafka, self._ends, topics.conversations, partition, limit_s
            ),
            new_intake=lambda partition: KafkaIntake(settings.kafka, topics, partition, limit_s),
            transactions=self._transactions[topics.conversations],
            keeper=self._heart.heartbeat,
            metrics=metrics,
        )
        drain_s = max(settings.drain_budget_ms / 1000 - STOP_MARGIN_S, 0.0)
        self.balancer = Balancer(ports, drain_s=drain_s, beacon=self.beacon)
        self._health = HealthServer(metrics.registry, healthy=self._healthy, ready=self._ready)
        stability = Stability(self._ends, watched)
        self._watch = Watch(
            stability, self._transactions, metrics, lambda: sorted(self.balancer.sequencers), beacon=self.beacon
        )

    def on_init_dependencies(self) -> list[Service]:
        return [self._heart, self._watch, self.balancer]

    async def on_start(self) -> None:
        """The advisory lock and the worker's row come before anything can be claimed."""
        self.url = self._health.start(self._settings.host, self._settings.metrics_port)
        await self._leases.open()
        log.info("worker started", worker=self.id, metrics=f"{self.url}/metrics", settings=self._settings.redacted())

    async def on_stop(self) -> None:
        """From here on this worker counts for no share."""
        try:
            await self._leases.set_draining()
        except FenceUnavailable as error:
            log.warning("cannot mark this worker as draining", error=str(error))

    async def on_shutdown(self) -> None:
        self._health.stop()
        await closed(self._leases, self._checkpoints, self._outbox, self._ends, *self._transactions.values())
        log.info("worker stopped", worker=self.id)

    async def until_crashed(self) -> None:
        """Returns when an error that nothing handles has reached this tree."""
        await self._crashed.wait()

    def _lost(self, lease: Lease, why: str) -> None:
        self.balancer.lost(lease, why)

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
        return good, {"id": self.id, "partitions": shown}


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
    """Run one worker until SIGTERM or SIGINT; a second one ends it without draining.

    `on_ready` gets {id, pid, metrics} once its first partitions run. Raises `TopicsError`, `SchemaMismatch` or what
    Kafka's and Postgres's clients raise when they cannot be reached at the start.
    """
    import uvloop  # noqa: PLC0415 -- not to be had on Windows, where only this function cannot run

    configure_logs(settings.log_format)
    verify_tables(settings.postgres)
    uvloop.run(serve(settings, on_ready=on_ready))


async def serve(settings: Settings, *, on_ready: OnReady) -> None:
    """`run`, in the running event loop."""
    partitions = await _verified_partitions(settings)
    worker = Worker(settings, partitions)
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


async def _first(*waits: Any) -> None:
    """Wait for the first of these; an error of it is raised, the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


async def _verified_partitions(settings: Settings) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka, request_timeout_ms=settings.request_timeout_ms)
    await admin.start()
    try:
        return await verify_topics(admin, Topics(settings.namespace))
    finally:
        await admin.close()
