"""The journal's tail: every committed entry of every partition, in order, as soon as it is committed.

It begins a window before the end, so that the newest entries are in memory when the gateway gets ready, and it is
caught up once its position has reached the ends that it saw at its start (a position, since the last offsets of a log
with transactions are markers that no reader is given).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from connectors.gateway.ports import Unavailable
from connectors.gateway.traces import Traces, contexts_of
from connectors.gateway.words import Words, insisted
from streams.core.events import Entry
from streams.runtime.codec import Codec, Undecodable
from streams.settings import Settings

log = structlog.get_logger(__name__)

# Offsets that the window reaches back at first; where it holds no entry (all markers), ten times more.
WINDOW = 2_000
WINDOW_FACTOR = 10
POLL_MS = 200
RETRY_S = 0.5
RETRY_MAX_S = 5.0
SCAN_IDLE_S = 5.0
CATCH_UP_S = 2.0
CATCH_UP_POLL_S = 0.005

Apply = Callable[[int, Sequence[Entry]], None]


class BrokenJournal(Exception):
    """The journal does not read as one: a gap in `lsn`, or it was cut off or made anew under its reader."""


def consumer(settings: Settings) -> AIOKafkaConsumer:
    """A reader of committed records only, that never resets an offset by itself."""
    return AIOKafkaConsumer(
        bootstrap_servers=settings.kafka,
        client_id="turnlog-gateway",
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
        # The broker answers as soon as there is one record; the wait is only how long an empty answer takes.
        fetch_min_bytes=1,
        fetch_max_wait_ms=500,
        request_timeout_ms=settings.request_timeout_ms,
        retry_backoff_ms=50,
    )


class Tail:
    """Follows all partitions. `apply` gets each partition's entries in order, each once."""

    def __init__(self, settings: Settings, topic: str, codec: Codec, words: Words, partitions: int) -> None:
        self._words = words
        self._settings = settings
        self._codec = codec
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.apply: Apply = lambda _partition, _entries: None
        self.on_garbage: Callable[[], None] = lambda: None
        self.traces: Traces | None = None
        """Where deliveries are told of; None: nowhere."""
        self._positions: dict[TopicPartition, int] = {}
        self._lsns: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] | None = None
        self._reader: AIOKafkaConsumer | None = None
        self.caught_up = asyncio.Event()

    async def run(self) -> None:
        """Follow for ever; Kafka may go away and come back. Raises `BrokenJournal`."""
        delay = RETRY_S
        while True:
            reader = consumer(self._settings)
            try:
                await reader.start()
                reader.assign(self._partitions)
                await self._seek(reader)
                self._reader = reader
                delay = RETRY_S
                while True:
                    await self._poll(reader)
            except OffsetOutOfRangeError as error:
                raise BrokenJournal(f"the journal was cut off or made anew while it was read: {error}") from error
            except (KafkaError, TimeoutError, OSError) as error:
                log.warning("the journal cannot be read; trying again", error=repr(error), in_s=delay)
            finally:
                self._reader = None
                await reader.stop()
            await asyncio.sleep(delay)
            delay = min(delay * 2, RETRY_MAX_S)

    async def catch_up(self, partition: int) -> None:
        """See `history.Horizon`."""
        reader, wanted = self._reader, self._partitions[partition]
        if reader is None:
            raise Unavailable("the journal cannot be read now")
        try:
            async with asyncio.timeout(CATCH_UP_S):
                end = (await reader.end_offsets([wanted]))[wanted]
                while await reader.position(wanted) < end:  # noqa: ASYNC110 -- the consumer tells of no progress
                    await asyncio.sleep(CATCH_UP_POLL_S)
        except (KafkaError, TimeoutError, OSError) as error:
            raise Unavailable(f"the journal cannot be read to its end now: {type(error).__name__}") from error

    async def reach(self) -> None:
        """See `gateway.TailPort`. The tail's own client asks: it is the one that must not have lost the brokers."""
        reader = self._reader
        if reader is None:
            raise Unavailable("the journal cannot be read")
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await reader.end_offsets(self._partitions)
        except (KafkaError, TimeoutError, OSError) as error:
            raise Unavailable(f"Kafka does not answer: {type(error).__name__}") from error

    async def _seek(self, reader: AIOKafkaConsumer) -> None:
        if not self._positions:
            begins: Mapping[TopicPartition, int] = await reader.beginning_offsets(self._partitions)
            self._ends = dict(await reader.end_offsets(self._partitions))
            window = WINDOW
            self._positions = {p: max(begins[p], self._ends[p] - window) for p in self._partitions}
        for partition, offset in self._positions.items():
            reader.seek(partition, offset)

    async def _poll(self, reader: AIOKafkaConsumer) -> None:
        batches: Mapping[TopicPartition, Sequence[Any]] = await reader.getmany(timeout_ms=POLL_MS)
        for partition, records in batches.items():
            found = [self._entry(partition, record) for record in records]
            entries = [entry for entry in found if entry is not None]
            opened = await insisted(self._words, entries)
            self._positions[partition] = records[-1].offset + 1
            # Begun before anybody is told: what is given to agents carries the context on.
            spans = [] if self.traces is None else self.traces.delivering(entries, contexts_of(records, found))
            self.apply(partition.partition, opened)
            for span in spans:
                span.end()
        if self._ends is not None:
            await self._look_caught_up(reader)

    async def _look_caught_up(self, reader: AIOKafkaConsumer) -> None:
        ends = self._ends or {}
        behind = []
        for partition, end in ends.items():
            position = await reader.position(partition)
            if position < end:
                behind.append(partition)
            elif partition not in self._lsns and end > 0:
                await self._look_further_back(reader, partition, end)
                behind.append(partition)
        if not behind:
            self._ends = None
            self.caught_up.set()

    async def _look_further_back(self, reader: AIOKafkaConsumer, partition: TopicPartition, end: int) -> None:
        """A window without any entry says nothing of the partition's lsn: a larger one is read."""
        begin = (await reader.beginning_offsets([partition]))[partition]
        started = self._positions[partition]
        if started <= begin:
            self._lsns[partition] = 0  # the partition holds no entry at all
            return
        offset = max(begin, end - (end - started) * WINDOW_FACTOR)
        self._positions[partition] = offset
        reader.seek(partition, offset)

    def _entry(self, partition: TopicPartition, record: Any) -> Entry | None:
        try:
            entry = self._codec.decode_entry(record.value)
        except Undecodable as error:
            # No sequencer wrote it: an entry that is missing shows as a gap. One stray writer must not stop everybody.
            log.warning(
                "a record of the journal is no entry",
                partition=partition.partition,
                origin=_origin(record),
                reason=error.reason,
            )
            self.on_garbage()
            return None
        last = self._lsns.get(partition, 0)
        if last and entry.lsn != last + 1:
            raise BrokenJournal(f"{_origin(record)}: lsn {entry.lsn} follows lsn {last}")
        self._lsns[partition] = entry.lsn
        return entry


def _origin(record: Any) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


class Scan:
    """`JournalScan` on Kafka: a reader of its own for each call. Meant for the rare case that nothing else has it."""

    def __init__(self, settings: Settings, topic: str, codec: Codec, words: Words) -> None:
        self._words = words
        self._settings = settings
        self._topic = topic
        self._codec = codec

    async def read(self, partition: int, from_offset: int, below_lsn: int) -> AsyncIterator[Entry]:
        """See `history.JournalScan`. Raises `Unavailable`."""
        reader = consumer(self._settings)
        target = TopicPartition(self._topic, partition)
        try:
            async with asyncio.timeout(SCAN_IDLE_S):
                await reader.start()
            reader.assign([target])
            begin = (await reader.beginning_offsets([target]))[target]
            end = (await reader.end_offsets([target]))[target]
            reader.seek(target, max(begin, from_offset))
            while await reader.position(target) < end:
                batches = await reader.getmany(target, timeout_ms=int(SCAN_IDLE_S * 1000))
                for entry in await self._words.entries(self._decoded(batches.get(target, ()))):
                    if entry.lsn >= below_lsn:
                        return
                    yield entry
        except (KafkaError, TimeoutError, OSError) as error:
            raise Unavailable(f"the journal cannot be read: {type(error).__name__}") from error
        finally:
            await reader.stop()

    def _decoded(self, records: Sequence[Any]) -> list[Entry]:
        entries = []
        for record in records:
            try:
                entries.append(self._codec.decode_entry(record.value))
            except Undecodable:
                continue  # told by the tail already
        return entries
