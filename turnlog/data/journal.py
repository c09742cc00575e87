"""An async reader of the journal for those outside: committed records, in order, none missing, decoded."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypedDict, Unpack

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from aiokafka.partitioner import murmur2

from turnlog.data.arrow import events_table
from turnlog.data.decoding import CannotDecode, Decoder, Registry, event_name
from turnlog.data.events import Entry
from turnlog.data.fold import Fold
from turnlog.data.tables import arrow, chosen

READ_COMMITTED: Final = "read_committed"
FETCH_RECORDS: Final = 4_000
FETCH_BYTES: Final = 4 << 20
POLL_MS: Final = 500
LOOK_EVERY_MS: Final = 20
"""Of markers, and of what was aborted, a reader sees nothing but that its position has moved."""
SILENCE_S: Final = 10.0
"""A broker that sends nothing for so long, though there is more, has a problem."""
CLOCKS_MS: Final = 10_000
"""How far the clocks of workers and broker may be apart before an event of `since` is looked for in vain."""
POSITIVE: Final = 0x7FFF_FFFF

Moment = datetime | timedelta
"""A point of time, or how long ago: a `datetime` without a zone is UTC."""


class JournalUnavailable(Exception):
    """The journal cannot be read; the message says what is the matter."""


class MissingRecords(JournalUnavailable):
    """Records that were once there are gone, or a number is not the next one: nothing is skipped in silence."""


def topic_of(namespace: str) -> str:
    """The journal's topic in a deployment of that namespace; "": one that has none."""
    return f"{namespace}.conversations" if namespace else "conversations"


@dataclass(frozen=True, slots=True)
class Record:
    """One committed record of the journal."""

    partition: int
    offset: int
    """Where to go on after it: `offset + 1`. Offsets have gaps; `entry.lsn` has none."""
    headers: Mapping[str, bytes]
    """`type`, `owner`, `channel`, `ref`, `traceparent`, where they are."""
    entry: Entry


class Selection(TypedDict, total=False):
    """Which records are read; see `Journal.chunks`."""

    start: Mapping[int, int] | None
    since: Moment | None
    until: Moment | None
    conversation: str | None
    seq: int
    events: Collection[str | type] | None
    partitions: Iterable[int] | None
    follow: bool


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which records are given, out of those that are read."""

    conversation: str | None
    events: frozenset[str] | None
    seq: int
    since_ms: int | None
    until_ms: int | None

    @property
    def everything(self) -> bool:
        """Whether each record is decoded, so that a missing one shows."""
        return self.conversation is None and self.events is None

    def may_be(self, record: Any) -> bool:
        """Whether a record can be one, as far as its key and headers say: it is not decoded for nothing."""
        if self.conversation is not None and record.key != self.conversation.encode():
            return False
        if self.events is None:
            return True
        kind = next((value for name, value in record.headers if name == "type"), None)
        return kind is None or kind.decode() in self.events

    def takes(self, entry: Entry) -> bool:
        return (
            (self.conversation is None or entry.event.conversation_id == self.conversation)
            and (self.events is None or event_name(entry.event) in self.events)
            and (self.seq == 0 or entry.event.seq >= self.seq)
            and (self.since_ms is None or entry.timestamp >= self.since_ms)
            and (self.until_ms is None or entry.timestamp < self.until_ms)
        )


class Journal:
    """A deployment's journal, for as long as the `async with` block runs. Any task may read from it; each read has a
    position of its own.

    `kafka`: bootstrap address. `namespace`: the deployment's, if it has one. `registry`: the address of its Confluent
    schema registry, if it has one. `options`: further ones for aiokafka's consumer (`security_protocol`, …); none that
    would read what is not committed.
    """

    def __init__(self, kafka: str, *, namespace: str = "", registry: str | None = None, **options: Any) -> None:
        forbidden = {"isolation_level", "auto_offset_reset", "group_id", "enable_auto_commit"} & options.keys()
        if forbidden:
            raise ValueError(f"not an option of a journal's reader: {', '.join(sorted(forbidden))}")
        self._kafka = kafka
        self._options = options
        self.topic = topic_of(namespace)
        self._decoder = Decoder(None if registry is None else Registry(registry))
        self._partitions: list[TopicPartition] = []

    async def __aenter__(self) -> Self:
        consumer = await self._started()
        try:
            # Asked as such, so that a broker makes no topic of that name for us.
            known = await consumer._client.fetch_all_metadata()
            numbers = known.partitions_for_topic(self.topic)
        finally:
            await consumer.stop()
        if not numbers:
            raise JournalUnavailable(f"there is no topic {self.topic} on {self._kafka}: `namespace` names another one")
        self._partitions = [TopicPartition(self.topic, number) for number in sorted(numbers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Each read closes its own connection when it ends."""

    @property
    def partitions(self) -> int:
        """How many the journal has."""
        return len(self._partitions)

    def partition_of(self, conversation: str) -> int:
        """Where a conversation lies: Kafka's default for keyed records, murmur2 of the key."""
        return int((murmur2(conversation.encode()) & POSITIVE) % self.partitions)

    async def missing(self) -> Mapping[int, int]:
        """Partition to how many offsets at its beginning are gone from Kafka; none: everything is there."""
        consumer = await self._started()
        try:
            starts = await consumer.beginning_offsets(self._partitions)
        finally:
            await consumer.stop()
        return {where.partition: start for where, start in starts.items() if start}

    async def records(self, **selection: Unpack[Selection]) -> AsyncGenerator[Record, None]:
        """Committed records, one by one; `selection` as for `chunks`."""
        async for chunk in self.chunks(**selection):
            for record in chunk:
                yield record

    async def chunks(
        self,
        *,
        start: Mapping[int, int] | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        conversation: str | None = None,
        seq: int = 0,
        events: Collection[str | type] | None = None,
        partitions: Iterable[int] | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Record], None]:
        """Committed records in chunks, each of one partition and in its order; ends at what is committed now.

        `start`: partition to the offset to go on from; those not named begin where `since` says, else at the journal's
        beginning, all of it. `since`, `until`: by the broker's time of the events (`timestamp`), the second without
        it. `conversation`: its records only; with `seq`, those numbered from there on. `events`: their names or
        classes. `follow`: goes on as more are committed, without end.

        Raises `MissingRecords` where records are gone (read from `start` beyond them, to accept that), and
        `JournalUnavailable`, `CannotDecode`.
        """
        places = self._chosen(conversation, partitions)
        wanted = _Wanted(
            conversation,
            None if events is None else frozenset(kind if isinstance(kind, str) else kind.__name__ for kind in events),
            seq,
            None if since is None else _ms(since),
            None if until is None else _ms(until),
        )
        latest: dict[int, int] = {}
        consumer = await self._started()
        try:
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            await self._seek(consumer, ends, start or {}, since)
            async for where, found in self._fetched(consumer, ends, follow=follow):
                chunk = self._decoded(where, found, wanted, latest)
                if chunk:
                    yield chunk
        except KafkaError as error:
            raise JournalUnavailable(f"{self.topic}: {type(error).__name__}: {error}") from error
        finally:
            await consumer.stop()

    async def batches(self, **selection: Unpack[Selection]) -> AsyncGenerator[pa.Table, None]:
        """Events as Arrow tables, a row an event, its fields as JSON; `selection` as for `chunks`."""
        async for chunk in self.chunks(**selection):
            yield events_table(chunk)

    async def tables(self, *names: str, follow: bool = False) -> AsyncGenerator[Mapping[str, pa.Table], None]:
        """The tables `names` (none: all) as Arrow, in increments, none empty: their rows together are the tables, each
        once.

        From the journal's beginning, for a row tells of what came before it; see `turnlog.data.tables`.
        """
        tables = chosen(names)
        folds = {number: Fold(number) for number in range(self.partitions)}
        async for chunk in self.chunks(follow=follow):
            fold = folds[chunk[0].partition]
            for record in chunk:
                fold.take(record.offset, record.entry)
            rows = fold.drain()
            increment = {table.name: arrow(table, rows[table.name]) for table in tables if rows[table.name]}
            if increment:
                yield increment

    def _chosen(self, conversation: str | None, partitions: Iterable[int] | None) -> list[TopicPartition]:
        numbers = None if partitions is None else set(partitions)
        if conversation is not None:
            home = self.partition_of(conversation)
            numbers = {home} if numbers is None else numbers & {home}
        places = [where for where in self._partitions if numbers is None or where.partition in numbers]
        if not places:
            raise ValueError(f"no such partition: {self.topic} has 0 to {self.partitions - 1}")
        return places

    async def _started(self) -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._kafka,
            group_id=None,
            enable_auto_commit=False,
            # A position that is not there any more is said, not moved.
            auto_offset_reset="none",
            # Without it a reader is shown events of writers that lost their partition.
            isolation_level=READ_COMMITTED,
            max_partition_fetch_bytes=FETCH_BYTES,
            **self._options,
        )
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            await consumer.stop()
            raise JournalUnavailable(f"no Kafka answers at {self._kafka}: {error}") from error
        return consumer

    async def _seek(
        self, consumer: Any, ends: Mapping[TopicPartition, int], start: Mapping[int, int], since: Moment | None
    ) -> None:
        kept = await consumer.beginning_offsets(list(ends))
        timely: Mapping[TopicPartition, Any] = {}
        if since is not None:
            # Records bear the time of the worker that wrote them, by its clock; what lies before is left out later.
            timely = await consumer.offsets_for_times(dict.fromkeys(ends, _ms(since) - CLOCKS_MS))
        for where, end in ends.items():
            if where.partition in start:
                position = start[where.partition]
            elif since is not None:
                found = timely.get(where)
                position = end if found is None else found.offset
            else:
                position = 0
            if position < kept[where]:
                raise MissingRecords(
                    f"{self.topic}[{where.partition}]: offsets {position} to {kept[where] - 1} are gone from Kafka: "
                    "read them from an archive, or start behind them"
                )
            consumer.seek(where, position)

    async def _fetched(
        self, consumer: Any, ends: Mapping[TopicPartition, int], *, follow: bool
    ) -> AsyncIterator[tuple[TopicPartition, list[Any]]]:
        before: list[int] = []
        moved_at = time.monotonic()
        while True:
            behind = list(ends)
            if not follow:
                # The last offset may be a transaction's marker, which nobody is given: the position tells.
                behind = [where for where in ends if await consumer.position(where) < ends[where]]
                if not behind:
                    return
                positions = [await consumer.position(where) for where in behind]
                if positions != before:
                    before, moved_at = positions, time.monotonic()
                elif time.monotonic() - moved_at > SILENCE_S:
                    raise JournalUnavailable(f"{self.topic}: nothing comes, though there is more")
            try:
                found = await consumer.getmany(
                    *behind, timeout_ms=POLL_MS if follow else LOOK_EVERY_MS, max_records=FETCH_RECORDS
                )
            except OffsetOutOfRangeError as error:
                raise MissingRecords(f"{self.topic}: records were deleted while they were read: {error}") from error
            for where, records in found.items():
                inside = records if follow else [record for record in records if record.offset < ends[where]]
                if inside:
                    yield where, inside

    def _decoded(
        self, where: TopicPartition, found: list[Any], wanted: _Wanted, latest: dict[int, int]
    ) -> list[Record]:
        """Those of the records that are wanted. `latest`: the last lsn of each partition, kept from call to call."""
        chunk = []
        for record in found:
            if not wanted.may_be(record):
                continue
            try:
                entry = self._decoder.entry(record.value)
            except CannotDecode as error:
                raise CannotDecode(f"{self.topic}/{where.partition}/{record.offset}: {error}") from error
            if wanted.everything:
                before = latest.get(where.partition)
                if before is not None and entry.lsn != before + 1:
                    raise MissingRecords(
                        f"{self.topic}[{where.partition}]: offset {record.offset} has lsn {entry.lsn}, where "
                        f"{before + 1} is next"
                    )
                latest[where.partition] = entry.lsn
            if wanted.takes(entry):
                chunk.append(Record(where.partition, record.offset, dict(record.headers), entry))
        return chunk


def _ms(moment: Moment) -> int:
    if isinstance(moment, timedelta):
        moment = datetime.now(UTC) - moment
    elif moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
