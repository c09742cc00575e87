"""Rule 6: a process that names no run comes back and is given turns before its old connection is missed. What it had
begun over that one is adopted beside what it has begun since.

Found by `turnlog chaos` (seed 8101): an adopted run took the end of another one's answer, and the next answer.
"""

from __future__ import annotations

import pytest

from streams.core.events import FrameCommitted, MoveReason, RunEnded, RunMoved, RunStarted, RunStatus
from tests.support.partition_world import GROUP, World

BEFORE, SINCE, UNREAD = (f"c/{seq}/{GROUP}" for seq in (1, 4, 3))
ADOPT_MS = 5_000


@pytest.fixture
def world() -> World:
    """Over its old connection `a` the process streams an answer to turn 1 (seq 2 is a piece of it), and is given
    turn 3, which it never gets. Over its new one, `a2`, it has begun turn 4 when the old one is missed."""
    world = World()
    world.join("a", gateway="gw-1", settle=True)
    world.open()
    world.say()
    world.read("a", 1, delivered=1)
    world.chunk("a", "s", delivered=1)
    world.say("is lost")
    world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1})
    world.drain("a")  # its gateway is cut off; so that the next turn is the new connection's
    world.say("since")
    assert world.conversation().runs[SINCE].member == "a2"
    world.read("a2", 4, delivered=4)
    world.chunk("a2", "t", done=True, delivered=4)
    world.expire("gw-1")
    moved = {event.run_id: event.adopted for event in world.of(RunMoved)}
    assert moved == {BEFORE: True, UNREAD: False}
    return world


def test_an_end_is_of_the_run_that_was_begun_over_the_present_connection(world: World) -> None:
    [ended] = world.run("a2", "finished", delivered=4)
    assert isinstance(ended, RunEnded)
    assert (ended.run_id, ended.status, ended.reason) == (SINCE, RunStatus.ANSWERED, "finished")


def test_who_begins_once_more_begins_what_it_was_given_since(world: World) -> None:
    world.run("a2", "finished", delivered=4)
    [started] = world.run("a2", "started", delivered=4)
    assert isinstance(started, RunStarted)
    assert started.run_id == UNREAD
    [frame] = world.chunk("a2", "u", done=True, delivered=4)
    assert isinstance(frame, FrameCommitted)
    assert frame.run_id == UNREAD
    [ended] = world.run("a2", "finished", delivered=4)
    assert isinstance(ended, RunEnded)
    assert (ended.run_id, ended.status) == (UNREAD, RunStatus.ANSWERED)


def test_what_it_had_begun_before_is_given_to_it_again_when_nothing_comes_of_it(world: World) -> None:
    world.run("a2", "finished", delivered=4)
    world.run("a2", "started", delivered=4)
    again = [event for event in world.pass_time(ADOPT_MS) if isinstance(event, RunMoved)]
    assert [(event.run_id, event.to_member, event.reason) for event in again] == [
        (BEFORE, "a2", MoveReason.ADOPT_TIMEOUT)
    ]


def test_while_it_goes_on_with_it_that_is_what_it_works_on(world: World) -> None:
    world.run("a2", "finished", delivered=4)
    [rest] = world.send("a2", client_id="m1", delivered=4)
    assert isinstance(rest, FrameCommitted)
    assert rest.run_id == BEFORE
    [again] = world.run("a2", "started", delivered=4)
    assert isinstance(again, FrameCommitted)
    assert again.run_id == BEFORE
