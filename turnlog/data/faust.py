"""The journal as a topic of a faust app. Needs the extra `faust`.

    from turnlog.data.faust import JournalApp, journal_topic, records

    app = JournalApp("greeter", broker="kafka://localhost:9092")

    @app.agent(journal_topic(app))
    async def greet(stream):
        async for record in records(stream):
            ...

faust itself reads what is not committed, unless it is in its own exactly-once mode, which fences other writers; and it
drops a record that cannot be decoded with a line in the log. Here it reads committed records only, or does not start,
and a record that cannot be decoded, or is missing, ends the process: it is read again by the next one.

faust gives records at least once: after a restart, or a rebalance, some come again. `(record.partition,
record.entry.lsn)` is the same then. An agent that raises loses the record that it was at: catch what passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import faust
from faust.transport.drivers import aiokafka as driver

from turnlog.data.decoding import CannotDecode, Decoder, Registry
from turnlog.data.journal import READ_COMMITTED, MissingRecords, Record, topic_of

LEVEL: Final = 1
"""The number of `read_committed` in Kafka's protocol."""


class UncommittedReads(RuntimeError):
    """The app would be shown records that were never committed."""


class _CommittedThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = READ_COMMITTED  # read when the consumer starts; faust has no setting for it
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        level = self._ensure_consumer()._fetcher._isolation_level
        if level != LEVEL:
            raise UncommittedReads(f"aiokafka's fetcher has isolation level {level}: this release of faust is unknown")


class _CommittedConsumer(driver.Consumer):
    def _new_consumer_thread(self) -> _CommittedThread:
        return _CommittedThread(self, loop=self.loop, beacon=self.beacon)


class CommittedTransport(driver.Transport):
    """faust's Kafka driver, reading committed records only."""

    Consumer = _CommittedConsumer


class JournalWorker(faust.Worker):
    """faust's worker, which leaves stdout to the app: it would put every printed line into its log."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "redirect_stdouts": False})


class JournalApp(faust.App):
    """A faust app that may read the journal: an ordinary one, with another driver."""

    def __init__(self, id: str, **options: Any) -> None:  # noqa: A002 -- faust's own name for it
        options.setdefault("consumer_auto_offset_reset", "earliest")
        options.setdefault("topic_disable_leader", True)
        options.setdefault("topic_allow_declare", False)  # the journal is the deployment's to make
        options.setdefault("Worker", JournalWorker)
        options.setdefault("web_enabled", False)
        super().__init__(id, **options)

    def _new_transport(self) -> CommittedTransport:
        return CommittedTransport(self.conf.broker_consumer, self)


def journal_topic(app: faust.App, *, namespace: str = "") -> Any:
    """The journal of the deployment of that namespace, for `@app.agent`. Raises `UncommittedReads` for any other app
    than a `JournalApp`."""
    if not isinstance(app, JournalApp):
        raise UncommittedReads(f"{type(app).__name__} reads what is not committed: make the app a JournalApp")
    return app.topic(
        topic_of(namespace),
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        internal=False,
    )


async def records(stream: Any, *, registry: str | None = None) -> AsyncIterator[Record]:
    """The journal's records out of an agent's stream, decoded. `registry`: the deployment's schema registry.

    What cannot be decoded, or follows a record that never came, ends the app, and is not acknowledged.
    """
    decoder = Decoder(None if registry is None else Registry(registry))
    latest: dict[int, int] = {}
    generation = None
    async for event in stream.events():
        message = event.message
        if message.generation_id != generation:
            # A rebalance: of what came before, another worker may have read on, and this one again.
            latest, generation = {}, message.generation_id
        where = f"{message.topic}/{message.partition}/{message.offset}"
        try:
            entry = decoder.entry(message.value)
            before = latest.get(message.partition)
            if before is not None and entry.lsn > before + 1:
                raise MissingRecords(f"its lsn is {entry.lsn}, where {before + 1} is next")
        except (CannotDecode, MissingRecords) as error:
            await stream.app.crash(type(error)(f"{where}: {error}"))
            # Going on, or raising, would acknowledge it.
            await asyncio.Event().wait()
        latest[message.partition] = max(entry.lsn, before or 0)
        yield Record(message.partition, message.offset, dict(message.headers or {}), entry)
