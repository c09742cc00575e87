"""Takes the journal in order and writes the read model: nothing twice, nothing left out, nothing raised.

Each partition is in one of three states:

```
              position read, what was missed read again
   UNKNOWN ───────────────────────────────────────────────▶ FOLLOWING ◀─┐ lsn + 1: written
      ▲  ▲                                                   │    │ │   │ a gap: read again from the stored offset
      │  └────────────── another projector was faster ───────┘    │ └───┘
      │ after a pause                                             │ the journal has a gap, or is another one
      └────────────────────────── STALLED ◀───────────────────────┘
```

Whoever delivers records here (faust) may lose, repeat or reorder them at a rebalance: only the stored position counts.
It is compared every few seconds, for a database that was restored may be behind what was written.
Two projectors that both believe to have a partition do no harm: a write moves the position from the lsn that it
follows, so the slower one writes nothing and looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from time import monotonic, perf_counter
from typing import Any, TypeVar

import psycopg
import structlog
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from streams.core.erasure import RETENTION
from streams.core.events import ConversationErased, Entry
from streams.fence.connection import reason_of
from streams.fence.port import Fenced, FenceUnavailable
from streams.projector.journal import Journal
from streams.projector.metrics import ProjectorMetrics
from streams.projector.order import Cut, JournalRecord, Stop, cut
from streams.projector.rows import Rows
from streams.projector.store import Position, ProjectionStore
from streams.tracing import OFF, Span, Tracer

log = structlog.get_logger(__name__)

# What waits becomes one batch: its JSON must stay far below the 1 GiB that PostgreSQL takes as one value.
PENDING_MAX = 4_000
PENDING_MAX_BYTES = 16 << 20
# A batch costs like 20 records: one that would follow another so soon gathers records first, unless there are plenty.
# Nobody waits for the read model: gateways show what is newer from memory.
LINGER_S = 0.05
PLENTY = 500
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 5.0
STALLED_RETRY_S = 10.0
# A database that was restored, or a standby that took over, may lack what was written last, and does not say so: what
# is written next would find out, but a partition may have nothing more to write for long.
COMPARE_EVERY_S = 5.0

# A server that does not answer now; it is waited for.
UNAVAILABLE = (FenceUnavailable, KafkaError, OSError)

T = TypeVar("T")
_partition = attrgetter("partition")


class PartitionState(StrEnum):
    """Where a partition is; see the module's diagram."""

    UNKNOWN = "unknown"
    FOLLOWING = "following"
    STALLED = "stalled"


TRANSITIONS: Mapping[PartitionState, frozenset[PartitionState]] = {
    PartitionState.UNKNOWN: frozenset({PartitionState.FOLLOWING, PartitionState.STALLED}),
    PartitionState.FOLLOWING: frozenset({PartitionState.UNKNOWN, PartitionState.STALLED}),
    PartitionState.STALLED: frozenset({PartitionState.UNKNOWN}),
}


class Stalled(Exception):
    """The journal does not continue what the read model holds; the message says how."""


class Followed:
    """One assigned partition. An assignment makes a new one: what still works on the old one changes nothing here."""

    __slots__ = ("partition", "position", "retry_at", "state", "why")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.state = PartitionState.UNKNOWN
        self.position = Position(0, 0)
        self.retry_at = 0.0
        """When a partition that is not followed is looked at again, on the writer's clock, s."""
        self.why = ""
        """Why it is stalled."""

    def become(self, state: PartitionState) -> None:
        """Change the state. Raises `RuntimeError` for a transition that the table does not have."""
        if state is not self.state:
            if state not in TRANSITIONS[self.state]:
                raise RuntimeError(f"partition {self.partition} cannot go from {self.state} to {state}")
            self.state = state


class ProjectionWriter:
    """The loop of one projector process: `put` brings records, `run` writes them until it is cancelled.

    clock, sleep: seconds of a monotonic clock, and waiting on it. linger_s: how long records are gathered.
    """

    def __init__(
        self,
        store: ProjectionStore,
        journal: Journal,
        decode: Callable[[bytes | None], Entry],
        metrics: ProjectorMetrics,
        *,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        linger_s: float = LINGER_S,
        tracer: Tracer = OFF,
    ) -> None:
        self._linger_s = linger_s
        self._wrote_at = -linger_s
        self._compared_at = clock()
        self._store = store
        self._journal = journal
        self._decode = decode
        self._metrics = metrics
        self._tracer = tracer
        self._clock = clock
        self._sleep = sleep
        self._partitions: dict[int, Followed] = {}
        self._pending: list[JournalRecord] = []
        self._pending_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._waits_for = ""
        self._show_health()

    # -------------------------------------------------------------------------------------------- from outside
    async def put(self, record: JournalRecord) -> None:
        """Take a record; waits while too many are pending, so that a slow database slows the reader down."""
        while len(self._pending) >= PENDING_MAX or self._pending_bytes >= PENDING_MAX_BYTES:
            self._room.clear()
            await self._room.wait()
        self._pending.append(record)
        self._pending_bytes += len(record.value or b"")
        self._arrived.set()

    async def assigned(self, partitions: Collection[int]) -> Mapping[int, int]:
        """These partitions are this process's from now on, and no others. Returns the offset to read each from.

        A partition whose position cannot be had now is left out; `run` looks for it, and reads what was missed.
        """
        self._partitions = {partition: Followed(partition) for partition in partitions}
        followed = list(self._partitions.values())
        self._arrived.set()
        try:
            positions = await self._store.positions(partitions)
            bounds = await self._journal.bounds(sorted(partitions))
        except UNAVAILABLE as error:
            self._unavailable(error)
            return {}
        starts: dict[int, int] = {}
        for each in followed:
            try:
                self._start(each, positions[each.partition], bounds[each.partition])
            except Stalled as error:
                self._stall(each, str(error))
            else:
                starts[each.partition] = each.position.journal_offset
        self._show_health()
        return starts

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether all is well, and what is not, for `/healthz`."""
        stalled = {str(each.partition): each.why for each in self._partitions.values() if each.why}
        return not stalled and not self._waits_for, {"stalled": stalled, "waits_for": self._waits_for}

    @property
    def following(self) -> Sequence[int]:
        """The partitions that this process writes the read model of now."""
        return [each.partition for each in self._partitions.values() if each.state is PartitionState.FOLLOWING]

    async def run(self) -> None:
        """Write what comes, for ever. Raises nothing but what is a mistake in this program."""
        while True:
            await self._wait_for_work()
            await self._compare()
            records, self._pending, self._pending_bytes = self._pending, [], 0
            self._room.set()
            for followed in self._due():
                await self._attend(followed, [])
            # Stable: the records of a partition stay in the order in which they came.
            for partition, group in groupby(sorted(records, key=_partition), _partition):
                if partition in self._partitions:
                    await self._attend(self._partitions[partition], list(group))
            self._wrote_at = self._clock()

    async def _compare(self) -> None:
        """Whether the read model is where this writer left it; what is not is looked at again."""
        following = [each for each in self._partitions.values() if each.state is PartitionState.FOLLOWING]
        if self._clock() < self._compared_at + COMPARE_EVERY_S:
            return
        self._compared_at = self._clock()
        try:
            stored = await self._store.positions([each.partition for each in following]) if following else {}
        except UNAVAILABLE as error:
            self._unavailable(error)
            return
        self._answered()
        for each in following:
            at = stored[each.partition]
            if at != each.position and self._partitions.get(each.partition) is each:
                log.info("projector_set_back", partition=each.partition, lsn=at.lsn, was_at=each.position.lsn)
                each.become(PartitionState.UNKNOWN)

    # -------------------------------------------------------------------------------------------- one partition
    async def _attend(self, followed: Followed, records: Sequence[JournalRecord]) -> None:
        # Whatever is logged of it says of which partition it speaks: PostgreSQL that does not answer, too.
        with structlog.contextvars.bound_contextvars(partition=followed.partition):
            await self._attended(followed, records)

    async def _attended(self, followed: Followed, records: Sequence[JournalRecord]) -> None:
        while self._partitions.get(followed.partition) is followed:
            try:
                if followed.state is PartitionState.STALLED and not records:
                    followed.become(PartitionState.UNKNOWN)
                if followed.state is PartitionState.UNKNOWN:
                    await self._recover(followed)
                if followed.state is PartitionState.FOLLOWING:
                    await self._follow(followed, records)
                return
            except Fenced as error:
                log.info("projector_overtaken", partition=followed.partition, reason=str(error))
                followed.become(PartitionState.UNKNOWN)
            except (Stalled, psycopg.Error) as error:
                self._stall(followed, reason_of(error))
                return

    async def _recover(self, followed: Followed) -> None:
        """Find the stored position, and read what lies between it and the journal's end."""
        partition = followed.partition
        positions = await self._insist(lambda: self._store.positions([partition]))
        bounds = await self._insist(lambda: self._journal.bounds([partition]))
        self._start(followed, positions[partition], bounds[partition])
        self._show_health()
        await self._read_again(followed, bounds[partition][1])

    def _start(self, followed: Followed, position: Position, bounds: tuple[int, int]) -> None:
        first, end = bounds
        followed.position = position
        if position.journal_offset < first:
            raise Stalled(
                f"the read model needs the journal from offset {position.journal_offset} on, which begins at {first}: "
                "history is missing; restore the journal, or the read model from a backup"
            )
        if position.journal_offset > end:
            raise Stalled(
                f"the read model has read up to offset {position.journal_offset}, the journal ends at {end}: it is not "
                "the journal that the read model was built from; empty the read model's tables to build it anew"
            )
        followed.why = ""
        followed.become(PartitionState.FOLLOWING)

    async def _follow(self, followed: Followed, records: Sequence[JournalRecord]) -> None:
        while records:
            taken = cut(followed.position, records, self._decode)
            await self._write(followed, taken, records)
            if taken.at is None:
                return
            if taken.stop is Stop.GAP:
                await self._read_again(followed, taken.at.offset)
            if taken.stop is Stop.FOREIGN or followed.position.lsn + 1 < taken.lsn:
                raise _stalled_at(followed, taken)
            records = records[records.index(taken.at) :]

    async def _read_again(self, followed: Followed, until: int) -> None:
        """Take the records between the stored offset and `until` from the journal itself."""
        if followed.position.journal_offset >= until:
            return
        self._metrics.rereads.inc()

        async def read() -> None:
            # Restarts where it got to: the position moves with each write.
            start = followed.position.journal_offset
            try:
                async for records in self._journal.read(followed.partition, start, until):
                    taken = cut(followed.position, records, self._decode)
                    await self._write(followed, taken, records)
                    if taken.at is not None:
                        raise _stalled_at(followed, taken)
            except OffsetOutOfRangeError as error:
                raise Stalled(f"the journal does not have offset {start} any more") from error

        await self._insist(read)

    async def _write(self, followed: Followed, taken: Cut, records: Sequence[JournalRecord]) -> None:
        for record, reason in taken.garbage:
            self._metrics.garbage.inc()
            log.error("journal_garbage", partition=record.partition, offset=record.offset, reason=reason)
        if not taken.entries:
            return
        rows, after = Rows(taken.entries), followed.position
        spans = self._begin_spans(after, taken, records) if self._tracer.on else ()
        began = perf_counter()
        await self._insist(lambda: self._store.write(followed.partition, after, rows, taken.upto))
        self._metrics.write_seconds.observe(perf_counter() - began)
        self._metrics.entries.inc(len(taken.entries))
        if rows.erased:
            self._metrics.retention_erased.inc(_by_retention(taken.entries))
        self._metrics.lsn.labels(followed.partition).set(taken.upto.lsn)
        followed.position = taken.upto
        for span in spans:
            span.end()

    def _begin_spans(self, after: Position, taken: Cut, records: Sequence[JournalRecord]) -> Sequence[Span]:
        """One for each record of the batch that carries a trace. Of what is not written in the end nothing is told."""
        written = range(after.journal_offset, taken.upto.journal_offset)
        return [
            self._tracer.begin("turnlog.project", record.traceparent, partition=record.partition, offset=record.offset)
            for record in records
            if record.traceparent is not None and record.offset in written
        ]

    # ------------------------------------------------------------------------------------------- waiting, health
    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the server answers. What was written though no answer came is found out by its position."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                answer = await ask()
            except UNAVAILABLE as error:
                self._unavailable(error)
                await self._sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_S)
            else:
                self._answered()
                return answer

    async def _wait_for_work(self) -> None:
        idle = [each.retry_at for each in self._partitions.values() if each.state is not PartitionState.FOLLOWING]
        if not self._pending:
            self._arrived.clear()
            until = min([self._compared_at + COMPARE_EVERY_S, *idle])
            try:
                async with asyncio.timeout(max(0.0, until - self._clock())):
                    await self._arrived.wait()
            except TimeoutError:
                return
        if self._clock() - self._wrote_at < self._linger_s and len(self._pending) < PLENTY:
            await self._sleep(self._linger_s)

    def _due(self) -> Sequence[Followed]:
        now = self._clock()
        waiting = [each for each in self._partitions.values() if each.state is not PartitionState.FOLLOWING]
        return [each for each in waiting if each.retry_at <= now]

    def _stall(self, followed: Followed, why: str) -> None:
        log.error("projector_stalled", partition=followed.partition, reason=why, again_in_s=STALLED_RETRY_S)
        followed.become(PartitionState.STALLED)
        followed.why = why
        followed.retry_at = self._clock() + STALLED_RETRY_S
        self._show_health()

    def _answered(self) -> None:
        if self._waits_for:
            self._waits_for = ""
            self._show_health()

    def _unavailable(self, error: Exception) -> None:
        self._metrics.unavailable.inc()
        log.warning("projector_waits", reason=str(error))
        self._waits_for = str(error) or type(error).__name__
        self._show_health()

    def _show_health(self) -> None:
        self._metrics.stalled.set(sum(bool(each.why) for each in self._partitions.values()))
        self._metrics.healthy.set(self.health()[0])


def _by_retention(entries: Sequence[Entry]) -> int:
    return sum(isinstance(each.event, ConversationErased) and each.event.by == RETENTION for each in entries)


def _stalled_at(followed: Followed, taken: Cut) -> Stalled:
    offset = taken.at.offset if taken.at is not None else 0
    if taken.stop is Stop.FOREIGN:
        return Stalled(
            f"lsn {taken.lsn} at offset {offset} is not of the journal that the read model was built from, which is at "
            f"lsn {followed.position.lsn}, offset {followed.position.journal_offset}; empty the read model's tables to "
            "build it anew"
        )
    return Stalled(f"the journal has lsn {taken.lsn} at offset {offset} after lsn {followed.position.lsn}: a gap")
