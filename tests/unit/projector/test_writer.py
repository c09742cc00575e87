"""The projector's loop against hand-written fakes: failures, gaps, races and stalls, on a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest
from aiokafka.errors import KafkaConnectionError, OffsetOutOfRangeError
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from streams.core.events import Entry
from streams.fence.port import Fenced, FenceUnavailable
from streams.projector.metrics import ProjectorMetrics
from streams.projector.order import JournalRecord
from streams.projector.rows import Rows
from streams.projector.store import Position
from streams.projector.writer import PENDING_MAX, PENDING_MAX_BYTES, STALLED_RETRY_S, ProjectionWriter
from streams.runtime.codec import Codec
from tests.support.story import long_story

CODEC = Codec()
ENTRIES = long_story().entries
RECORDS = [JournalRecord(0, entry.lsn * 2, CODEC.encode_entry(entry)) for entry in ENTRIES]
END = RECORDS[-1].offset + 2


class FakeStore:
    """Keeps the position and the lsns that were written; `failures` are raised by the next calls, one each."""

    def __init__(self) -> None:
        self.at = Position(0, 0)
        self.lsns: list[int] = []
        self.batches = 0
        self.failures: list[Exception] = []
        self.answers_lost = 0
        """Writes that take effect though the caller gets an error."""

    def fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    async def positions(self, partitions: Collection[int]) -> Mapping[int, Position]:
        self.fail()
        return dict.fromkeys(partitions, self.at)

    async def write(self, partition: int, after: Position, rows: Rows, upto: Position) -> None:
        await asyncio.sleep(0)
        self.fail()
        if self.at.lsn != after.lsn:
            raise Fenced("another was faster")
        self.lsns += range(after.lsn + 1, upto.lsn + 1)
        self.batches += 1
        self.at = upto
        if self.answers_lost:
            self.answers_lost -= 1
            raise FenceUnavailable("the answer was lost")


class FakeJournal:
    """A partition's records; chunks of three."""

    def __init__(self, records: Sequence[JournalRecord] = RECORDS) -> None:
        self.records = list(records)
        self.first, self.end = 0, END
        self.reads: list[tuple[int, int]] = []
        self.failures: list[Exception] = []

    async def bounds(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        if self.failures:
            raise self.failures.pop(0)
        return dict.fromkeys(partitions, (self.first, self.end))

    async def read(self, partition: int, start: int, until: int) -> AsyncIterator[Sequence[JournalRecord]]:
        self.reads.append((start, until))
        wanted = [record for record in self.records if start <= record.offset < until]
        for at in range(0, len(wanted), 3):
            if self.failures:
                raise self.failures.pop(0)
            yield wanted[at : at + 3]


class Bench:
    """A writer on fakes, and a clock that moves when somebody sleeps on it or the test says so."""

    def __init__(self, *, linger_s: float = 0) -> None:
        self.store = FakeStore()
        self.journal = FakeJournal()
        self.metrics = ProjectorMetrics()
        self.now = 0.0
        self.slept: list[float] = []
        self.writer = ProjectionWriter(
            self.store,
            self.journal,
            CODEC.decode_entry,
            self.metrics,
            clock=lambda: self.now,
            sleep=self.sleep,
            linger_s=linger_s,
        )

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def deliver(self, records: Sequence[JournalRecord]) -> None:
        for record in records:
            await self.writer.put(record)
        await self.settle()

    async def settle(self) -> None:
        """Let the loop do all that it can do now."""
        for _ in range(200):
            await asyncio.sleep(0)

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"turnlog_projector_{name}")


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    loop = asyncio.create_task(bench.writer.run())
    try:
        yield
    finally:
        assert not loop.done(), loop.exception()
        loop.cancel()
        await asyncio.wait({loop})


def all_lsns() -> list[int]:
    return [entry.lsn for entry in ENTRIES]


async def test_what_is_delivered_in_order_is_written_once() -> None:
    bench = Bench()
    async with running(bench):
        assert await bench.writer.assigned([0]) == {0: 0}
        await bench.deliver(RECORDS)
        await bench.deliver(RECORDS)
    assert bench.store.lsns == all_lsns()
    assert bench.journal.reads == []
    assert bench.writer.health() == (True, {"stalled": {}, "waits_for": ""})
    assert bench.metric("entries_total") == len(ENTRIES)


async def test_what_waits_while_one_batch_is_written_becomes_the_next() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver(RECORDS)
    assert bench.store.batches < 3


async def test_a_batch_right_after_another_gathers_records_and_a_lone_one_is_written_at_once() -> None:
    bench = Bench(linger_s=0.01)
    await bench.writer.assigned([0])
    bench.now = 5.0
    async with running(bench):
        await bench.settle()
        bench.now += 1
        bench.slept.clear()
        await bench.deliver(RECORDS[:1])
        assert (bench.store.batches, bench.slept) == (1, [])
        await bench.deliver(RECORDS[1:])
    assert (bench.store.batches, bench.slept) == (2, [0.01])
    assert bench.store.lsns == all_lsns()


async def test_an_assignment_starts_where_the_rows_are() -> None:
    bench = Bench()
    bench.store.at = Position(7, 15)
    async with running(bench):
        assert await bench.writer.assigned([0]) == {0: 15}
        await bench.deliver(RECORDS)
    assert bench.store.lsns == all_lsns()[7:]


async def test_a_gap_in_what_is_delivered_is_read_again_from_the_stored_offset() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver([*RECORDS[:4], *RECORDS[9:]])
    assert bench.store.lsns == all_lsns()
    assert bench.journal.reads == [(RECORDS[3].offset + 1, RECORDS[9].offset)]


async def test_records_in_the_wrong_order_are_written_in_the_right_one() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        for record in reversed(RECORDS):
            await bench.deliver([record])
    assert bench.store.lsns == all_lsns()


async def test_a_journal_with_a_hole_stalls_its_partition_loudly_and_is_looked_at_again() -> None:
    bench = Bench()
    bench.journal.records = [*RECORDS[:4], *RECORDS[6:]]
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver(bench.journal.records)
        good, document = bench.writer.health()
        assert not good
        assert "lsn 7 at offset 14 after lsn 4: a gap" in document["stalled"]["0"]
        assert (bench.metric("healthy"), bench.metric("stalled_partitions")) == (0, 1)
        assert bench.store.lsns == [1, 2, 3, 4]
        # The hole is filled (a restored journal): the next look finds it.
        bench.journal.records = list(RECORDS)
        bench.now += STALLED_RETRY_S
        await bench.deliver(RECORDS[-1:])
        assert bench.writer.health()[0]
    assert bench.store.lsns == all_lsns()


@pytest.mark.parametrize(
    ("first", "end", "said"), [(0, 8, "the journal ends at 8"), (40, END, "which begins at 40: history is missing")]
)
async def test_a_journal_that_cannot_be_the_one_is_refused(first: int, end: int, said: str) -> None:
    bench = Bench()
    bench.store.at = Position(10, 21)
    bench.journal.first, bench.journal.end = first, end
    async with running(bench):
        assert await bench.writer.assigned([0]) == {}
        assert said in bench.writer.health()[1]["stalled"]["0"]
        await bench.deliver(RECORDS)
    assert bench.store.lsns == []


async def test_a_journal_made_anew_under_the_same_name_is_noticed() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver(RECORDS[:9])
        await bench.deliver([JournalRecord(0, 90, RECORDS[0].value)])
        assert "not of the journal" in bench.writer.health()[1]["stalled"]["0"]


async def test_a_database_that_does_not_answer_is_waited_for_with_growing_pauses() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        bench.store.failures = [FenceUnavailable("down")] * 8
        with capture_logs(processors=[merge_contextvars]) as logged:
            await bench.deliver(RECORDS)
    assert [line["partition"] for line in logged if line["event"] == "projector_waits"] == [0] * 8
    assert bench.store.lsns == all_lsns()
    assert bench.slept[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(bench.slept) == 5.0
    assert bench.writer.health()[0]
    assert bench.metric("unavailable_total") == 8


async def test_a_write_whose_answer_was_lost_is_not_written_twice() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        bench.store.answers_lost = 1
        await bench.deliver(RECORDS[:10])
        await bench.deliver(RECORDS[10:])
    assert bench.store.lsns == all_lsns()


async def test_a_projector_that_another_overtook_looks_again_and_goes_on() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver(RECORDS[:3])
        bench.store.at = Position(12, 25)
        await bench.deliver(RECORDS[3:])
    assert bench.store.lsns == [1, 2, 3, *all_lsns()[12:]]


async def test_a_database_that_was_set_back_is_noticed_though_nothing_more_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standby that took over, or a backup, lacks the last batch; nothing is written to the partition afterwards."""
    monkeypatch.setattr("streams.projector.writer.COMPARE_EVERY_S", 0.0)
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver(RECORDS)
        bench.store.failures.append(FenceUnavailable("it fails over"))
        await bench.settle()
        bench.store.at = Position(4, RECORDS[3].offset + 1)
        del bench.store.lsns[4:]
        await bench.settle()
        assert bench.writer.health()[0]
    assert bench.store.lsns == all_lsns()
    assert bench.metric("unavailable_total") == 1


async def test_an_assignment_while_nothing_answers_catches_up_once_it_does() -> None:
    """Also when no further record is ever delivered: faust's own position may be past what was written."""
    bench = Bench()
    bench.store.failures = [FenceUnavailable("down")] * 3
    async with running(bench):
        assert await bench.writer.assigned([0]) == {}
        await bench.settle()
    assert bench.store.lsns == all_lsns()


async def test_kafka_failing_in_the_middle_of_reading_again_is_tried_again() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        bench.journal.failures = [KafkaConnectionError("gone")]
        await bench.deliver(RECORDS[20:])
    assert bench.store.lsns == all_lsns()
    assert len(bench.journal.reads) == 2


async def test_a_journal_trimmed_while_it_is_read_again_stalls_its_partition() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        bench.journal.failures = [OffsetOutOfRangeError({})]
        await bench.deliver(RECORDS[20:])
        assert "does not have offset 0 any more" in bench.writer.health()[1]["stalled"]["0"]


async def test_a_row_that_postgres_refuses_stalls_that_partition_alone_and_is_told_without_its_words() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        refusal = 'invalid input syntax for type json\nCONTEXT:  JSON data, line 1: {"text":"my number is 4711"'
        bench.store.failures = [psycopg.DataError(refusal)]
        await bench.deliver(RECORDS[:5])
        assert bench.writer.health()[1]["stalled"] == {"0": "invalid input syntax for type json"}
        bench.now += STALLED_RETRY_S
        await bench.deliver(RECORDS[5:6])
    assert bench.store.lsns == all_lsns()


async def test_records_of_a_partition_that_was_taken_away_are_dropped() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([1])
        await bench.deliver(RECORDS)
    assert bench.store.lsns == []


@pytest.mark.parametrize(
    ("count", "record"),
    [(PENDING_MAX, RECORDS[0]), (16, JournalRecord(0, 0, bytes(PENDING_MAX_BYTES // 16)))],
    ids=["many", "large"],
)
async def test_a_slow_database_slows_the_reader_down(count: int, record: JournalRecord) -> None:
    bench = Bench()
    for _ in range(count):
        await bench.writer.put(record)
    waiting = asyncio.create_task(bench.writer.put(RECORDS[0]))
    await bench.settle()
    assert not waiting.done()
    async with running(bench):
        await asyncio.wait_for(waiting, 10)


async def test_garbage_in_the_journal_is_counted_and_passed_over() -> None:
    bench = Bench()
    async with running(bench):
        await bench.writer.assigned([0])
        await bench.deliver([*RECORDS[:3], JournalRecord(0, 7, b"garbage"), *RECORDS[3:]])
    assert bench.store.lsns == all_lsns()
    assert bench.metric("garbage_records_total") == 1


def test_the_story_is_long_enough_for_these_tests() -> None:
    assert len(ENTRIES) > 30
    assert all(isinstance(entry, Entry) for entry in ENTRIES)
