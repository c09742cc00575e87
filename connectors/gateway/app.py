"""The gateway process: the only place where its parts meet Kafka, Postgres, signals and a port."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from connectors.gateway.directory import PostgresStore
from connectors.gateway.gateway import Gateway
from connectors.gateway.intake import KafkaIntake
from connectors.gateway.journal_pages import KafkaPages
from connectors.gateway.live_topic import LiveTopic
from connectors.gateway.read_model import PostgresReadModel
from connectors.gateway.server import Front, listen, server, until_listening
from connectors.gateway.tail import Scan, Tail
from connectors.gateway.traces import Traces
from connectors.gateway.words import OpenedWords, SealingIntake
from streams.deployment import Awaited, joined
from streams.logs import Places, configure_logs
from streams.runtime.registry import open_codec
from streams.sealing.wiring import ProcessKeys
from streams.settings import Settings
from streams.topics import Topics
from streams.tracing import open_tracer

log = structlog.get_logger(__name__)

OnReady = Callable[[Mapping[str, Any]], None]


def run(settings: Settings, *, host: str, port: int, on_ready: OnReady) -> None:
    """Run one gateway until SIGTERM or SIGINT, which drain it; a second one ends it at once.

    `on_ready` gets {id, pid, url} once the journal's tail is caught up. Raises `OSError` for a port that is taken,
    what `streams.deployment.joined` raises, and `Unavailable` when Kafka or Postgres cannot be reached just after it.
    """
    import uvloop  # noqa: PLC0415 -- not to be had on Windows, where only this function cannot run

    places = Places()
    configure_logs(settings.log_format, places)
    uvloop.run(serve(settings, host=host, port=port, on_ready=on_ready, places=places))


async def serve(settings: Settings, *, host: str, port: int, on_ready: OnReady, places: Places) -> None:
    """`run`, in the running event loop. `places`: is told how many partitions there are."""
    asked, urgent = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (urgent if asked.is_set() else asked).set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, on_signal)
    listener = listen(host, port)
    try:
        await Process(settings, asked, urgent, places).run(listener, host, on_ready)
    finally:
        listener.close()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)


class Process:
    """One gateway's life, from its ports to its last word."""

    def __init__(self, settings: Settings, asked: asyncio.Event, urgent: asyncio.Event, places: Places) -> None:
        self._settings = settings
        self._places = places
        self._asked = asked
        self._urgent = urgent
        self._topics = Topics(settings.namespace)
        self._codec = open_codec(settings.schema_registry, self._topics)
        self._awaited = Awaited()
        self._tracer = open_tracer(settings, "turnlog-gateway")
        self._traces = Traces(self._tracer) if self._tracer.on else None
        self._front = Front(self._awaited.page)
        self._web = server(self._front)

    async def run(self, listener: Any, host: str, on_ready: OnReady) -> None:
        """Start, serve, drain. An error of any part ends it all."""
        serving = asyncio.create_task(self._web.serve(sockets=[listener]), name="web")
        try:
            joining = asyncio.create_task(joined(self._settings, self._awaited))
            await self._until(joining, self._asked.wait(), [serving])
            if joining.done():
                self._places.partitions = joining.result().partitions
                await self._serve(self._places.partitions, serving, _url(listener, host), on_ready)
        finally:
            await self._end([serving])
            await self._tracer.close()
        log.info("gateway stopped")

    async def _serve(self, partitions: int, serving: asyncio.Task[Any], url: str, on_ready: OnReady) -> None:
        kafka = KafkaIntake(self._settings, self._topics, self._codec, partitions, self._traces)
        keys = ProcessKeys(self._settings)
        intake = SealingIntake(kafka, keys.ring) if self._settings.seal else kafka
        words = OpenedWords(keys.ring)
        read_model = PostgresReadModel(self._settings.postgres, words)
        store = PostgresStore(self._settings)
        journal = self._topics.conversations
        scan = Scan(self._settings, journal, self._codec, words)
        pages = KafkaPages(self._settings, journal, self._codec, words)
        try:
            await kafka.start()
            tail = Tail(self._settings, journal, self._codec, words, partitions)
            live = LiveTopic(self._settings, self._topics.live, self._codec, partitions)
            gateway = Gateway(
                self._settings,
                intake=intake,
                read_model=read_model,
                scan=scan,
                pages=pages,
                horizon=tail,
                store=store,
                live=live,
            )
            live.heard, live.on_lost = gateway.live.heard, gateway.metrics.live_lost.inc
            tail.apply, tail.on_garbage = gateway.hub.apply, gateway.metrics.garbage.inc
            if self._traces is not None:
                tail.traces = self._traces
                self._traces.mine, self._traces.concerned = gateway.membership.is_mine, gateway.hub.concerned
                gateway.carried = self._traces.carried
            await gateway.directory.start()
            self._front.open(gateway)
            parts = [
                serving,
                asyncio.create_task(gateway.run(), name="gateway"),
                asyncio.create_task(tail.run(), name="tail"),
                asyncio.create_task(live.run(), name="live topic"),
            ]
            try:
                await self._until(tail.caught_up.wait(), self._asked.wait(), parts)
                if not self._asked.is_set():
                    await until_listening(self._web)
                    self._ready(gateway, url, on_ready)
                    await self._until(self._asked.wait(), None, parts)
                log.info("gateway draining")
                await self._until(gateway.drain(), self._urgent.wait(), parts)
            finally:
                await self._end(parts)
        finally:
            await kafka.close()
            await read_model.close()
            await store.close()
            await keys.close()

    async def _end(self, parts: Sequence[asyncio.Task[Any]]) -> None:
        self._web.should_exit = True
        self._web.force_exit = True
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)

    def _ready(self, gateway: Gateway, url: str, on_ready: OnReady) -> None:
        gateway.ready()
        identity = gateway.membership.incarnation
        log.info("gateway started", gateway=identity, url=url, settings=self._settings.chosen())
        on_ready({"id": identity, "pid": os.getpid(), "url": url})

    async def _until(self, wanted: Any, other: Any, parts: list[asyncio.Task[Any]]) -> None:
        """Wait for `wanted` or `other`; the end of a part, which is never meant to end by itself, is raised."""
        waits = [asyncio.ensure_future(wait) for wait in (wanted, other) if wait is not None]
        done, _ = await asyncio.wait([*waits, *parts], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            if wait not in done:
                wait.cancel()
        await asyncio.gather(*(wait for wait in waits if wait not in done), return_exceptions=True)
        for task in done:
            task.result()
        ended = [task.get_name() for task in parts if task in done]
        if ended:
            raise RuntimeError(f"the gateway's {', '.join(ended)} ended by itself")


def _url(listener: Any, host: str) -> str:
    port: int = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
