"""Rule 6: a process that says it works on a run which is over is told to stop, so that it stops before it answers."""

from __future__ import annotations

import pytest

from streams.core.events import Refused, RefusedReason
from tests.support.partition_world import GROUP, World

RUN = f"c/1/{GROUP}"


@pytest.fixture
def world() -> World:
    """Member a answered the turn; its run is over. Member b comes back and believes to have it."""
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.run("a", "started", run=RUN, epoch=1)
    world.send("a", run=RUN, epoch=1)
    world.run("a", "finished", run=RUN, epoch=1)
    world.join("b", settle=True)
    return world


def test_run_started_of_an_ended_run_is_fenced(world: World) -> None:
    [refused] = world.run("b", "started", run=RUN)
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.member) == (RefusedReason.FENCED, "b")


def test_read_of_an_ended_run_is_fenced(world: World) -> None:
    [refused] = world.read("b", 1, run=RUN)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.FENCED


@pytest.mark.parametrize("status", ["finished", "error", "aborted"])
def test_that_it_has_stopped_is_no_news(world: World, status: str) -> None:
    assert world.run("b", status, run=RUN) == []


def test_an_agent_that_names_no_run_may_have_read_what_is_answered(world: World) -> None:
    assert world.read("b", 1) == []
    assert world.run("b", "started", delivered=1) == []
