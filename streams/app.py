"""The faust app: the projector, an agent that reads the journal and keeps the read model in Postgres; and on a schedule
the canary, which tries the fences, and the retention, which looks for what channels keep no longer.

    TURNLOG_KAFKA=… TURNLOG_POSTGRES=… faust -A streams.app worker

Start as many as there are partitions: faust's group shares them. faust only delivers; the position of each partition
is kept in Postgres with the rows (`streams/projector`), so an agent that runs twice, late, or in two processes at once
does no harm. With `TURNLOG_READY=json` it prints a ready line on stdout, as every other process of Turnlog can.
This module is the only wiring of the process.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from signal import Signals
from typing import Any, cast

import faust
import structlog
from faust.app.base import BootStrategy
from yarl import URL

from streams.core.commands import EraseIdle
from streams.deployment import joined
from streams.fence.port import FenceUnavailable
from streams.logs import configure_logs
from streams.projector.driver import CommittedTransport
from streams.projector.journal import KafkaJournal
from streams.projector.metrics import ProjectorMetrics
from streams.projector.order import JournalRecord
from streams.projector.retention import IdleConversations, Retention
from streams.projector.store import PostgresProjection
from streams.projector.writer import ProjectionWriter
from streams.runtime.canary import CouldNotCheck
from streams.runtime.canary import run as run_canary
from streams.runtime.codec import Codec
from streams.runtime.health import HealthServer
from streams.runtime.kafka import KafkaUnavailable
from streams.runtime.kafka_producers import KafkaOutbox
from streams.runtime.registry import open_codec
from streams.sealing.copies import KeyTopic
from streams.sealing.store import CopiesUnavailable, Shredder
from streams.settings import Settings, load_settings
from streams.topics import Topics
from streams.tracing import Tracer, open_tracer, traceparent_in

log = structlog.get_logger(__name__)

READY_VARIABLE = "TURNLOG_READY"
SESSION_TIMEOUT_S = 10.0
HEARTBEAT_S = 1.0
# A record has at most 384 KiB: what faust holds in front of the writer stays below 200 MB at the very worst.
BUFFERED_RECORDS = 500
SHRED_EVERY_S = 1.0
"""Between two looks at which keys were destroyed; one indexed question of Postgres each."""
STOP_WITHIN_S = 8.0
"""Seconds from the signal to the end of the process, however faust's own end goes; supervisors wait ten or more."""

OnReady = Callable[[Mapping[str, Any]], None]


class WithoutWeb(BootStrategy):
    """faust's own web server would take a fixed port; the health server is this process's page."""

    enable_web = False


class ProjectorApp(faust.App):
    """An app whose consumer reads committed records only and starts at the projector's own positions."""

    BootStrategy = WithoutWeb
    settings: Settings
    topics_read: Topics
    writer: ProjectionWriter
    store: PostgresProjection
    health: HealthServer
    open_parts: tuple[Shredder, KeyTopic, IdleConversations, KafkaOutbox]
    spans: Tracer
    projector_id: str
    metrics_url: str = ""
    on_ready: OnReady | None = None

    @property
    def journal_topic(self) -> str:
        """The topic that the positions speak of."""
        return self.topics_read.conversations

    async def start_offsets(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Where to read each of these partitions from; they are this process's from now on, and no others."""
        return await self.writer.assigned(partitions)

    async def on_start(self) -> None:
        """Wait for the servers; refuse tables or topics that are not this release's. faust would wait in silence."""
        await joined(self.settings)
        self.metrics_url = self.health.start(self.settings.host, self.settings.metrics_port)
        await super().on_start()

    async def on_stop(self) -> None:
        """What is not written yet is read again by the next one: positions are in Postgres, with the rows."""
        await super().on_stop()
        await self.store.close()
        for part in self.open_parts:
            await part.close()
        await self.spans.close()
        self.health.stop()

    def on_rebalance_end(self) -> None:
        """The partitions are shared out, and this process's are at their positions."""
        super().on_rebalance_end()
        if self.on_ready is not None:
            document = {"id": self.projector_id, "pid": os.getpid(), "metrics": f"{self.metrics_url}/metrics"}
            self.on_ready(document)
            self.on_ready = None

    def _new_transport(self) -> CommittedTransport:
        return CommittedTransport(self.conf.broker_consumer, self)

    def _create_directories(self) -> None:
        """faust keeps tables in a folder under the working directory; there are none."""


class ProjectorWorker(faust.Worker):
    """faust's worker with this project's log lines, on stderr; stdout is left to the ready line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "quiet": True, "redirect_stdouts": False})
        self.spinner = None

    def _schedule_shutdown(self, signal: Signals) -> None:
        """faust waits without limit, and with its event loop blocked, for the end of the thread that owns the consumer;
        which, where the signal comes in the middle of a rebalance, waits for an answer from that loop."""
        end_within(STOP_WITHIN_S)
        super()._schedule_shutdown(signal)

    def _setup_logging(self) -> None:
        configure_logs(cast(ProjectorApp, self.app).settings.log_format)


def end_within(seconds: float, end: Callable[[int], object] = os._exit) -> threading.Timer:
    """End this process if it is still there after so many seconds: what was not written is read again by the next one,
    for positions are in Postgres, with the rows."""

    def late() -> None:
        log.warning("the projector did not stop in time; it ends as it is", seconds=seconds)
        end(0)

    timer = threading.Timer(seconds, late)
    timer.daemon = True  # who has stopped does not wait for it
    timer.start()
    return timer


def create(settings: Settings, on_ready: OnReady | None = None) -> ProjectorApp:
    """The app, wired. `on_ready` gets {id, pid, metrics} once this process has its share of the partitions."""
    topics, metrics, store = Topics(settings.namespace), ProjectorMetrics(), PostgresProjection(settings.postgres)
    tracer = open_tracer(settings, "turnlog-projector")
    journal = KafkaJournal(
        settings.kafka, topics.conversations, request_timeout_ms=settings.request_timeout_ms, traced=tracer.on
    )
    codec = open_codec(settings.schema_registry, topics)
    writer = ProjectionWriter(store, journal, codec.decode_entry, metrics, tracer=tracer)
    app = ProjectorApp(
        f"turnlog-projector-{settings.namespace or 'default'}",
        broker=[URL(f"kafka://{address}") for address in settings.kafka.split(",")],
        Worker=ProjectorWorker,
        topic_allow_declare=False,
        stream_buffer_maxsize=BUFFERED_RECORDS,
        topic_disable_leader=True,
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=HEARTBEAT_S,
    )
    app.settings, app.topics_read, app.writer, app.store, app.on_ready = settings, topics, writer, store, on_ready
    app.spans = tracer
    app.health = HealthServer(metrics.registry, healthy=writer.health, ready=writer.health)
    app.projector_id = f"pr-{secrets.token_hex(6)}"
    # No acks: positions are in Postgres. faust would keep a tree of every transaction marker for the offsets that it
    # then never commits, a quarter of this process's time (measured).
    records = app.topic(
        topics.conversations, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", acks=False
    )

    @app.agent(records, name="projector")
    async def project(stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            traceparent = traceparent_in(message.headers or ()) if tracer.on else None
            await writer.put(JournalRecord(message.partition, message.offset, message.value, traceparent))

    app.task(writer.run)
    if settings.canary_every_s:

        async def canary() -> None:
            await _run_canary(settings, metrics)

        app.timer(interval=settings.canary_every_s)(canary)
    _erase_by_the_clock(app, codec, metrics)
    return app


def _erase_by_the_clock(app: ProjectorApp, codec: Codec, metrics: ProjectorMetrics) -> None:
    """Have what channels keep no longer erased, and keys that were destroyed forgotten by their topic."""
    settings, topics = app.settings, app.topics_read
    shredder, keys = Shredder(settings.postgres), KeyTopic(settings)
    idle, outbox = IdleConversations(settings.postgres), KafkaOutbox(settings.kafka, settings.request_timeout_ms / 1000)
    app.open_parts = shredder, keys, idle, outbox

    async def shred() -> None:
        await _shred(shredder, keys)

    app.timer(interval=SHRED_EVERY_S)(shred)
    if not settings.retention_every_s:
        return

    async def ask(partition: int, command: EraseIdle) -> None:
        key = command.conversation_id.encode()
        await outbox.send(topics.turns, partition, codec.encode_command(command), key=key)

    retention = Retention(idle, ask, lambda: shredder.restore(keys), metrics)

    async def retain() -> None:
        await _retain(retention, app.writer.following)

    app.timer(interval=settings.retention_every_s)(retain)


async def _shred(shredder: Shredder, keys: KeyTopic) -> None:
    """Tell the topic of keys which were destroyed. What a server does not answer for is done the next time."""
    try:
        written = await shredder.shred(keys)
    except (FenceUnavailable, CopiesUnavailable) as error:
        log.info("destroyed keys are written to the topic of keys later", error=str(error))
        return
    if written:
        log.info("keys of erased conversations are destroyed", keys=written)


async def _retain(retention: Retention, partitions: Collection[int]) -> None:
    """One look for what is kept no longer. Whatever comes of it, the projector goes on, and looks again."""
    try:
        await retention.look(partitions)
    except (FenceUnavailable, KafkaUnavailable, CopiesUnavailable) as error:
        log.info("what is kept no longer is erased later", error=str(error))
    except Exception:
        log.exception("the look for what is kept no longer failed")


async def _run_canary(settings: Settings, metrics: ProjectorMetrics) -> None:
    """One run of the fence's canary. Whatever comes of it, the projector goes on."""
    try:
        verdict = await run_canary(settings)
    except CouldNotCheck as error:
        metrics.canary_runs.labels("unknown").inc()
        log.warning("the canary could not check the fences", error=str(error))
        return
    except Exception:
        metrics.canary_runs.labels("unknown").inc()
        log.exception("the canary failed")
        return
    metrics.canary_runs.labels("refused" if verdict.ok else "admitted").inc()
    metrics.canary_ok.set(verdict.ok)
    if not verdict.ok:
        log.error("A ZOMBIE'S WRITE WENT THROUGH", checks=[f"{check.name}: {check.found}" for check in verdict.checks])


def run(settings: Settings, *, on_ready: OnReady) -> None:
    """Run one projector until SIGTERM or SIGINT, as `faust -A streams.app worker` does; ends by `SystemExit`."""
    configure_logs(settings.log_format)
    ProjectorWorker(create(settings, on_ready)).execute_from_commandline()


def _print_ready(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": "ready", **document}) + "\n")
    sys.stdout.flush()


def __getattr__(name: str) -> ProjectorApp:
    """`streams.app.app`, which faust's command line looks for: made from the environment when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = create(load_settings(), _print_ready if os.environ.get(READY_VARIABLE) == "json" else None)
    globals()["app"] = made
    return made
