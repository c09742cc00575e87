"""Rule 2 and the watchdog of rule 9: log time, and what it brings about."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.clock import TICK_ADVANCE_MAX_MS, Advance, LogClock
from streams.core.commands import OpenWriter, TimePassed
from streams.core.events import FrameCommitted, RunEnded, RunStatus
from streams.core.fold import step
from streams.core.timers import Timers
from tests.support.partition_world import GROUP, World, replay

WATCHDOG_MS = 300_000


def test_log_time_starts_at_the_first_tick_and_moves_by_the_difference_between_ticks() -> None:
    clock = LogClock()
    assert clock.tick(5_000_000) == Advance(at=5_000_000, restart=True)
    assert clock.tick(5_001_100) == Advance(at=5_001_100, restart=False)


def test_a_jump_ahead_advances_two_seconds_and_starts_every_timeout_anew() -> None:
    clock = LogClock()
    clock.tick(1000)
    assert clock.tick(1000 + TICK_ADVANCE_MAX_MS) == Advance(at=3000, restart=False)
    assert clock.tick(900_000_000) == Advance(at=5000, restart=True)


def test_a_jump_back_freezes_nothing() -> None:
    clock = LogClock()
    clock.tick(900_000)
    assert clock.tick(1000) == Advance(at=900_000, restart=False)
    assert clock.tick(2000) == Advance(at=901_000, restart=False)


def test_after_a_claim_the_first_tick_advances_nothing() -> None:
    clock = LogClock(at=7000)
    assert clock.tick(9_999_999) == Advance(at=7000, restart=True)
    assert clock.tick(10_000_999) == Advance(at=8000, restart=False)


@given(st.lists(st.integers(min_value=1, max_value=2**43), min_size=2))
def test_log_time_never_goes_back_and_never_by_more_than_two_seconds_a_tick(ticks: list[int]) -> None:
    clock = LogClock()
    times = [clock.tick(tick).at for tick in ticks]
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert all(0 <= passed <= TICK_ADVANCE_MAX_MS for passed in steps)


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    return world


def test_a_run_that_nobody_started_has_no_watchdog(world: World) -> None:
    assert world.pass_time(10 * WATCHDOG_MS) == []


def test_a_started_run_that_is_idle_times_out(world: World) -> None:
    world.read("a", 1)
    world.chunk("a", "s")
    assert world.pass_time(WATCHDOG_MS - 1) == []
    _, ended = world.pass_time(1)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.TIMED_OUT, "watchdog")
    assert world.state.timers == Timers()


def test_work_postpones_it(world: World) -> None:
    world.read("a", 1)
    for _ in range(4):
        assert world.pass_time(WATCHDOG_MS - 1000) == []
        world.chunk("a", "s")


def test_a_run_that_answered_and_never_said_finished_counts_as_answered(world: World) -> None:
    """`run finished` is dropped while an agent is offline, so it may never come."""
    world.read("a", 1)
    world.send("a", client_id="m1")
    [ended] = world.pass_time(WATCHDOG_MS)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.ANSWERED, "watchdog_after_answer")


def test_time_without_a_writer_counts_against_nobody(world: World) -> None:
    world.read("a", 1)
    world.pass_time(WATCHDOG_MS - 1000)
    opened = OpenWriter(at=world.at, timestamp=world.wall, writer_epoch=2, worker="wk-2")
    step(world.state, opened, 2)
    world.at += WATCHDOG_MS - 1
    assert step(world.state, TimePassed(at=world.at, timestamp=0), 2) == []
    [entry] = step(world.state, TimePassed(at=world.at + 1, timestamp=0), 2)
    assert isinstance(entry.event, RunEnded)


def test_a_shorter_watchdog_of_a_new_document_counts_for_open_runs(world: World) -> None:
    world.read("a", 1)
    world.configure(2, watchdog_ms=10_000)
    assert world.pass_time(9_999) == []
    assert isinstance(world.pass_time(1)[0], RunEnded)


def test_timeouts_fire_oldest_first_whatever_their_bucket() -> None:
    world = World()
    world.join("a", settle=True)
    for number in (3, 1, 2):
        world.open(f"c{number}")
        world.say(id_=f"c{number}")
        world.read("a", 1, id_=f"c{number}")
        world.at += 7
    world.chunk("a", "s", id_="c3")
    fired = world.do(TimePassed(at=world.at + WATCHDOG_MS, timestamp=0))
    fired = [event for event in fired if isinstance(event, RunEnded)]
    assert [event.conversation_id for event in fired] == ["c1", "c2", "c3"]


def test_a_tick_costs_what_is_due_not_what_is_open() -> None:
    world = World()
    world.join("a", settle=True)
    for number in range(50):
        world.open(f"c{number}")
        world.say(id_=f"c{number}")
        world.read("a", 1, id_=f"c{number}")
    assert world.state.timers.candidates(world.at + WATCHDOG_MS - 1000) == []
    assert len(world.state.timers.candidates(world.at + WATCHDOG_MS)) == 50


def test_timers_are_the_same_after_a_replay(world: World) -> None:
    world.read("a", 1)
    world.chunk("a", "s")
    world.say()
    world.run("a", "finished")
    assert replay(world.journal).timers.where.keys() == world.state.timers.where.keys() == set()
    world.read("a", 3)
    assert replay(world.journal).timers.where.keys() == {f"c/3/{GROUP}"}


class TestWhereTheChannelSaysSo:
    """`begin_ms` and `wait_ms`: limits of rule 9 that no channel has unless it sets them."""

    def given(self, **settings: Any) -> World:
        world = World(**settings)
        world.join("a", settle=True)
        world.open()
        world.say()
        return world

    def test_a_run_that_its_member_does_not_begin_ends(self) -> None:
        world = self.given(begin_ms=10_000)
        assert world.pass_time(9_999) == []
        [ended] = world.pass_time(1)
        assert isinstance(ended, RunEnded)
        assert (ended.status, ended.reason) == (RunStatus.TIMED_OUT, "not_begun")

    def test_one_that_was_begun_has_the_watchdog_instead(self) -> None:
        world = self.given(begin_ms=10_000)
        world.read("a", 1)
        assert world.pass_time(WATCHDOG_MS - 1) == []
        [ended] = world.pass_time(1)
        assert isinstance(ended, RunEnded)
        assert ended.reason == "watchdog"

    def test_every_further_turn_is_limited_as_the_first_one(self) -> None:
        world = self.given(begin_ms=10_000)
        for _ in range(3):
            world.at += 1
            world.say()
        ended = [event for event in world.pass_time(10_000) if isinstance(event, RunEnded)]
        assert [event.turn_seq for event in ended] == [1, 2, 3, 4]

    def test_who_is_given_it_next_has_all_the_time_anew(self) -> None:
        world = self.given(begin_ms=10_000)
        world.pass_time(9_000)
        world.join("b", gateway="gw-2")
        world.leave("a")
        assert world.pass_time(9_999) == []
        assert isinstance(world.pass_time(1)[0], RunEnded)

    def test_a_document_that_brings_the_limit_brings_it_to_open_runs(self) -> None:
        world = self.given()
        world.pass_time(20_000)
        world.configure(2, begin_ms=10_000)
        assert isinstance(world.pass_time(1)[0], RunEnded)

    def test_a_run_without_member_waits_for_ever_unless_the_channel_says_how_long(self) -> None:
        world = self.given()
        world.leave("a")
        assert world.pass_time(10 * WATCHDOG_MS) == []
        world.configure(2, wait_ms=60_000)
        [ended] = world.pass_time(1)
        assert isinstance(ended, RunEnded)
        assert (ended.status, ended.reason, ended.member) == (RunStatus.OWNER_GONE, "no_member", None)
        assert world.state.orphans == {}

    def test_it_counts_from_when_the_run_began_to_wait(self) -> None:
        world = self.given(wait_ms=60_000)
        world.pass_time(50_000)
        world.leave("a")
        assert world.pass_time(59_999) == []
        assert isinstance(world.pass_time(1)[0], RunEnded)

    def test_what_was_left_open_is_closed_and_what_was_answered_counts_as_answered(self) -> None:
        world = World(wait_ms=60_000)
        world.join("a", settle=True, continues=True)
        for name in ("answered", "asking"):
            world.open(name)
            world.say(id_=name)
            world.read("a", 1, id_=name)
            world.send("a", id_=name)
        world.send("a", "interrupt", "asking", id="ask-1")
        world.leave("a")
        first, closing, second = world.pass_time(60_000)
        assert isinstance(first, RunEnded)
        assert (first.conversation_id, first.status) == ("answered", RunStatus.ANSWERED)
        assert isinstance(closing, FrameCommitted)
        assert (closing.frame.type, closing.member) == ("interrupt_resolved", "")
        assert isinstance(second, RunEnded)
        assert (second.conversation_id, second.status) == ("asking", RunStatus.OWNER_GONE)

    def test_time_without_a_writer_counts_against_nobody(self) -> None:
        world = self.given(wait_ms=60_000)
        world.leave("a")
        world.at += 59_000
        step(world.state, OpenWriter(at=world.at, timestamp=0, writer_epoch=2, worker="wk-2"), 2)
        world.at += 59_999
        assert step(world.state, TimePassed(at=world.at, timestamp=0), 2) == []
        assert step(world.state, TimePassed(at=world.at + 1, timestamp=0), 2)
