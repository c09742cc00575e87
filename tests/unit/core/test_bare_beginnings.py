"""Rule 6, and decision 19: which turn a `run started` begins that names none, where a process is given a later turn
before its old connection is missed. It is taken for the first; where one turn is given at a time, there is one only.
"""

from __future__ import annotations

from typing import Any

from streams.core.events import MoveReason, RunMoved, RunOpened, RunStarted
from tests.support.partition_world import GROUP, World

FIRST, LATER = (f"c/{seq}/{GROUP}" for seq in (1, 2))
ADOPT_MS = 5_000


def back_before_it_is_missed(**rules: Any) -> World:
    """Over `a` the process is given turn 1. It comes back as `a2`, then turn 2 is said, and only then is `a` missed.
    What it did of turn 1 over `a`, whether it answered it or not, reached nobody."""
    world = World(**rules)
    world.join("a", gateway="gw-1", settle=True)
    world.open()
    world.say()
    world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1})
    world.drain("a")
    world.say("later")
    world.expire("gw-1")
    assert {event.run_id: event.adopted for event in world.of(RunMoved)} == {FIRST: True}
    return world


def test_a_turn_that_is_given_before_an_earlier_one_is_adopted_leaves_two_that_a_beginning_may_mean() -> None:
    """The known limit. Nothing could be held back when it was found out: turn 2 had been given by then."""
    world = back_before_it_is_missed()
    assert {run.id: run.member for run in world.conversation().runs.values()} == {FIRST: "a2", LATER: "a2"}
    [started] = world.run("a2", "started", delivered=2)
    assert isinstance(started, RunStarted)
    assert started.run_id == FIRST


def test_where_turns_wait_for_each_other_a_beginning_can_mean_one_only() -> None:
    world = back_before_it_is_missed(policy="enqueue")
    assert world.conversation().runs[LATER].queued
    [again] = [event for event in world.pass_time(ADOPT_MS) if isinstance(event, RunMoved)]
    assert (again.run_id, again.to_member, again.reason) == (FIRST, "a2", MoveReason.ADOPT_TIMEOUT)
    [first] = world.run("a2", "started", delivered=1)
    assert isinstance(first, RunStarted)
    assert first.run_id == FIRST
    [opened] = [event for event in world.run("a2", "finished", delivered=1) if isinstance(event, RunOpened)]
    assert (opened.run_id, opened.member) == (LATER, "a2")
    [later] = world.run("a2", "started", delivered=2)
    assert isinstance(later, RunStarted)
    assert later.run_id == LATER
