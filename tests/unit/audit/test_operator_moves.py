"""Invariant 3 where an operator took part: a run that was moved or released went to whom it must."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ops.audit.owners import Owners
from ops.audit.replay import Replay
from streams.core.events import Entry, RunMoved
from tests.support.journals import with_event
from tests.support.partition_world import World


def world_with(*members: str) -> World:
    world = World()
    for member in members:
        world.join(member, settle=True)
    world.open()
    world.say()
    return world


def told(entries: list[Entry]) -> list[str]:
    replay = Replay(0)
    problems: list[str] = []
    for entry in entries:
        problems += Owners(replay.state).see(entry)
        replay.see(entry)
    replay.close()
    return problems


@pytest.mark.parametrize("to_somebody", [True, False], ids=["moved", "released"])
def test_a_run_that_an_operator_moved_elsewhere_than_he_said_is_found(to_somebody: bool) -> None:
    world = world_with("a", "b", "c")
    holder = world.conversation().owners["agents/support"]
    others = [member for member in ("a", "b", "c") if member != holder]
    world.move(others[0] if to_somebody else None)
    journal = list(world.journal)
    assert told(journal) == []
    [index] = [index for index, entry in enumerate(journal) if isinstance(entry.event, RunMoved)]
    moved = journal[index].event
    assert isinstance(moved, RunMoved)
    wrong = next(member for member in others if member != moved.to_member)
    planted = with_event(journal, RunMoved, lambda event: replace(event, to_member=wrong))
    assert any(f"was given to {wrong} by an operator" in problem for problem in told(planted[: index + 1]))
