"""What counts as a standstill, and that limits do not count it."""

from __future__ import annotations

import asyncio
import time

import pytest

from ops.chaos.standstill import LATE_S, TICK_S, Standstill, Ticks, measured, overlap

pytestmark = pytest.mark.unit


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ticks_in_time_or_a_little_late_are_no_standstill() -> None:
    ticks = Ticks(0.0)
    for now in (TICK_S, 2 * TICK_S, 3 * TICK_S + LATE_S):
        ticks.tick(now)
    assert ticks.gaps(3 * TICK_S + LATE_S) == []


def test_a_late_tick_is_a_standstill_from_when_it_was_due() -> None:
    ticks = Ticks(0.0)
    ticks.tick(24.0)
    ticks.tick(24.0 + TICK_S)
    assert ticks.gaps(24.0 + TICK_S) == [(TICK_S, 24.0)]


def test_one_that_lasts_is_known_before_the_tick_that_ends_it() -> None:
    """Who is woken first after a standstill is not always the one who measures it."""
    assert Ticks(1.0).gaps(11.0) == [(1.0 + TICK_S, 11.0)]


def test_what_two_saw_at_once_counts_once_and_only_within_the_time_asked_for() -> None:
    gaps = [(10.0, 20.0), (15.0, 25.0), (40.0, 41.0), (2.0, 3.0)]
    assert overlap(gaps, 0.0, 100.0) == 17.0
    assert overlap(gaps, 12.0, 18.0) == 6.0
    assert overlap(gaps, 26.0, 30.0) == 0.0


async def test_a_limit_goes_on_by_as_long_as_nothing_ran() -> None:
    clock = Clock()
    standstill = Standstill(clock)
    async with standstill.within(5.0):
        clock.now = 3600.0  # nobody ticked for an hour: nothing of the limit is used up
        for _ in range(3):
            await asyncio.sleep(0)
    assert standstill.ran_s(0.0) == pytest.approx(TICK_S)


async def test_a_limit_that_is_used_up_ends_what_it_limits() -> None:
    async with measured() as standstill:
        with pytest.raises(TimeoutError):
            async with standstill.within(2 * TICK_S):
                await asyncio.Event().wait()


async def test_an_event_loop_that_is_held_up_is_measured() -> None:
    async with measured() as standstill:
        began = standstill.now()
        time.sleep(LATE_S + 4 * TICK_S)  # noqa: ASYNC251 -- which is what is measured
        held = standstill.now() - began
        assert held - 2 * TICK_S < standstill.stood_s(began) <= held
        assert held - 2 * TICK_S < standstill.longest_s()
