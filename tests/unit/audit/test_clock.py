"""Invariant 12: log time is what the ticks make of it."""

from __future__ import annotations

import pytest

from ops.audit.clock import ClockFollowsTicks
from streams.core.events import BatchCommitted, Entry, Event, WriterOpened
from streams.runtime.signals import Tick

pytestmark = pytest.mark.unit

START = 1_700_000_000_000


class Partition:
    """A journal of batches that a checker is led along."""

    def __init__(self) -> None:
        self.checker = ClockFollowsTicks()
        self.problems: list[str] = []
        self._lsn = 0

    def opened(self, at: int, epoch: int = 1) -> None:
        self._seen(at, WriterOpened(writer_epoch=epoch, worker=f"wk-{epoch}"))

    def batch(self, at: int, *ticks: int, epoch: int = 1, lost: bool = False) -> None:
        """It consumed ticks of these broker times, of this epoch's writer."""
        entry = self._seen(at, BatchCommitted(turns=0, frames=0, membership=0))
        of_writer = [
            Tick(worker=f"wk-{epoch}", writer_epoch=epoch, turns_end=0, frames_end=0, timestamp=each) for each in ticks
        ]
        self.problems += self.checker.account(entry, None if lost else of_writer)

    def _seen(self, at: int, event: Event) -> Entry:
        self._lsn += 1
        entry = Entry(self._lsn, at, at, 1, event)
        self.problems += self.checker.see(entry)
        return entry


@pytest.fixture
def partition() -> Partition:
    begun = Partition()
    begun.opened(START)
    begun.batch(START, START)
    return begun


def test_12_log_time_that_moves_with_its_ticks_breaks_nothing(partition: Partition) -> None:
    partition.batch(START + 1_003, START + 1_003)
    partition.batch(START + 1_003)
    partition.batch(START + 3_000, START + 2_001, START + 3_000)
    assert partition.problems == []


def test_12_log_time_that_moves_without_a_tick_is_found(partition: Partition) -> None:
    partition.batch(START + 1_000)
    assert partition.problems == [f"log time went from {START} to {START + 1_000}; its ticks make it {START}"]


def test_12_log_time_that_stands_still_beside_its_ticks_is_found(partition: Partition) -> None:
    partition.batch(START, START + 1_000)
    assert len(partition.problems) == 1


@pytest.mark.parametrize(("jump", "moved"), [(3_600_000, 2_000), (-3_600_000, 0)])
def test_12_a_jump_of_the_brokers_clock_moves_it_by_0_to_2_s(partition: Partition, jump: int, moved: int) -> None:
    partition.batch(START + moved, START + jump)
    assert partition.problems == []
    partition.batch(START + moved + 1_000, START + jump + 1_000)
    assert partition.problems == []


def test_12_a_jump_of_the_brokers_clock_that_moved_it_whole_is_found(partition: Partition) -> None:
    partition.batch(START + 3_600_000, START + 3_600_000)
    assert len(partition.problems) == 1


def test_12_the_first_tick_of_a_writer_moves_nothing_and_those_of_others_do_not_count(partition: Partition) -> None:
    partition.opened(START, epoch=2)
    partition.batch(START, START + 1_500, epoch=2)
    partition.batch(START, START + 2_000, epoch=1)
    partition.batch(START + 1_000, START + 2_500, epoch=2)
    assert partition.problems == []
    partition.opened(START + 1_000, epoch=3)
    partition.batch(START + 1_900, START + 9_000, epoch=3)
    assert len(partition.problems) == 1, "time without a writer was counted"


def test_12_log_time_that_goes_back_is_found(partition: Partition) -> None:
    partition.batch(START + 1_000, START + 1_000)
    partition.opened(START + 999, epoch=2)
    assert partition.problems == [f"log time goes back from {START + 1_000} to {START + 999}"]


def test_12_what_is_kept_no_longer_is_not_compared_until_the_next_writer(partition: Partition) -> None:
    partition.batch(START + 5_000, lost=True)
    partition.batch(START + 7_000, START + 7_000)
    assert partition.problems == []
    partition.opened(START + 7_000, epoch=2)
    partition.batch(START + 9_000, epoch=2)
    assert len(partition.problems) == 1
