"""Rule 8: an open interrupt is state; the next user message answers it and joins its run."""

from __future__ import annotations

import pytest

from streams.core.events import (
    Assignment,
    Event,
    FrameCommitted,
    Refused,
    RefusedReason,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunStatus,
    TurnCommitted,
)
from tests.support.partition_world import GROUP, World

WATCHDOG_MS = 300_000


@pytest.fixture
def world() -> World:
    """Member a works on the first turn of c and asks."""
    world = World(to=("agents", "auditors"))
    world.join("a", settle=True)
    world.join("x", "auditors", settle=True)
    world.open()
    world.say()
    world.read("a", 1)
    world.send("a", "interrupt", id="ask-1")
    return world


def turn(events: list[Event]) -> TurnCommitted:
    committed = events[-1]
    assert isinstance(committed, TurnCommitted)
    return committed


def test_the_next_user_message_is_the_answer_and_joins_that_run(world: World) -> None:
    answer = turn(world.say("yes"))
    assert (answer.joins_run, answer.interrupt_id) == (f"c/1/{GROUP}", "ask-1")
    assert answer.assigned == (Assignment("auditors", "x", "c/3/auditors"),), "other groups get a run of their own"


def test_it_is_the_answer_too_where_one_group_has_answered_turn_after_turn() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    for seq in (1, 2, 3):
        world.say()
        world.read("a", seq)
    world.send("a", "interrupt", id="ask-1")
    assert turn(world.say("yes")).interrupt_id == "ask-1"


def test_one_ask_takes_one_answer(world: World) -> None:
    world.say("yes")
    after = turn(world.say("and another thing"))
    assert after.joins_run is None
    assert [assignment.group for assignment in after.assigned] == [GROUP, "auditors"]


def test_a_run_that_waits_for_a_person_ends_at_once_when_it_is_cancelled(world: World) -> None:
    closing, ended = world.cancel(f"c/1/{GROUP}", ref="r")
    assert isinstance(closing, FrameCommitted)
    assert (closing.frame.type, closing.frame.id, closing.sender) == ("interrupt_resolved", "ask-1", "system")
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason, ended.by, ended.ref) == (RunStatus.CANCELLED, "cancelled", "ann", "r")
    after = turn(world.say("yes", reply_to="ask-1"))
    assert (after.joins_run, after.interrupt_id) == (None, None), "what is said then is a turn of its own"
    assert [assignment.group for assignment in after.assigned] == [GROUP, "auditors"]


def test_a_run_that_is_to_stop_ends_when_it_asks_and_nobody_is_asked(world: World) -> None:
    world.say("yes")
    [cancelling] = world.cancel(f"c/1/{GROUP}")
    assert isinstance(cancelling, RunCancelling), "it was answered, and works"
    world.chunk("a", "s")
    refused, closing, ended = world.send("a", "interrupt", id="ask-2", ref="q")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.ref, refused.run_id) == (RefusedReason.FENCED, "q", f"c/1/{GROUP}")
    assert isinstance(closing, FrameCommitted)
    assert (closing.frame.type, closing.frame.stream_id, closing.frame.done) == ("genui", "s", True)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.CANCELLED, "cancelled")
    assert turn(world.say("and?")).joins_run is None


def test_a_run_that_is_to_stop_may_still_end_what_it_asked_before(world: World) -> None:
    world.resume({"ask-1": True})
    world.cancel(f"c/1/{GROUP}")
    [resolved] = world.send("a", "interrupt_resolved", id="ask-1")
    assert isinstance(resolved, FrameCommitted)
    [ended] = world.run("a", "aborted")
    assert isinstance(ended, RunEnded)
    assert ended.reason == "aborted"


def test_a_turn_that_names_an_ask_answers_that_one_and_else_the_oldest(world: World) -> None:
    world.send("a", "interrupt", id="ask-2")
    assert turn(world.say(reply_to="ask-2")).interrupt_id == "ask-2"
    world.send("a", "interrupt", id="ask-3")
    assert turn(world.say(reply_to="something else")).interrupt_id == "ask-1"


def test_a_resolved_ask_takes_no_answer(world: World) -> None:
    world.send("a", "interrupt_resolved", id="ask-1")
    assert turn(world.say()).joins_run is None


def test_an_ended_runs_ask_takes_no_answer(world: World) -> None:
    world.run("a", "aborted")
    assert turn(world.say()).joins_run is None


def test_the_answered_run_goes_on_and_ends_as_ever(world: World) -> None:
    answer = turn(world.say("yes"))
    client_id = f"p.{answer.turn.id}.m1"
    [frame] = world.send("a", client_id=client_id)
    assert isinstance(frame, FrameCommitted)
    assert frame.run_id == f"c/1/{GROUP}", "a message that names the answering turn is of the run that asked"
    assert isinstance(world.run("a", "finished")[-1], RunEnded)


def test_the_watchdog_rests_while_a_person_is_asked(world: World) -> None:
    assert world.pass_time(3 * WATCHDOG_MS) == []
    world.say("sorry, I was away")
    assert world.pass_time(WATCHDOG_MS - 1000) == []
    [ended] = world.pass_time(1000)
    assert isinstance(ended, RunEnded)
    assert ended.reason == "watchdog"


def test_a_repeated_ask_is_one_ask(world: World) -> None:
    world.send("a", "interrupt", id="ask-1")
    assert world.conversation().asking == 1
    world.say()
    assert world.conversation().asking == 0


def test_a_waiting_runs_ask_takes_no_answer_for_its_next_owner_starts_over(world: World) -> None:
    world.leave("a")
    assert turn(world.say()).joins_run is None


def test_restart_closes_the_ask_and_gives_the_turn_again(world: World) -> None:
    world.leave("a")
    _, closing, moved, *_ = world.join("b")
    assert isinstance(closing, FrameCommitted)
    assert (closing.frame.type, closing.frame.id) == ("interrupt_resolved", "ask-1")
    assert isinstance(moved, RunMoved)
    assert world.conversation().asking == 0
    world.send("b", "interrupt", id="ask-1", run=f"c/1/{GROUP}")
    assert turn(world.say()).interrupt_id == "ask-1"
