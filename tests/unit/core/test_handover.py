"""Rule 10: a conversation is handed to a human, and back, in the same order as everything else."""

from __future__ import annotations

import pytest

from streams.core.events import (
    Assignment,
    ConversationHandedBack,
    ConversationHandedOver,
    Duplicate,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    RunEnded,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from streams.core.state import REFUSALS_WRITTEN
from tests.support.partition_world import GROUP, World, image, replay

RUN = f"c/1/{GROUP}"


@pytest.fixture
def world() -> World:
    """Member a streams an answer to the first turn of c."""
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    world.chunk("a", "s")
    return world


def reason_of(events: list[Event]) -> RefusedReason:
    [event] = events
    assert isinstance(event, Refused)
    return event.reason


def test_open_runs_end_first_with_what_they_left_open(world: World) -> None:
    closing, ended, over = world.hand_over(ref="r")
    assert isinstance(closing, FrameCommitted)
    assert (closing.frame.stream_id, closing.frame.done) == ("s", True)
    assert isinstance(ended, RunEnded)
    assert (ended.run_id, ended.status, ended.reason) == (RUN, RunStatus.CANCELLED, "handed_over")
    assert isinstance(over, ConversationHandedOver)
    assert (over.seq, over.by, over.to, over.reason, over.id, over.ref) == (4, "op", "desk", "asked", "over", "r")


def test_no_bot_frame_is_stored_until_it_is_given_back(world: World) -> None:
    world.hand_over()
    head = world.conversation().head
    assert reason_of(world.chunk("a", "s", run=RUN, epoch=1)) is RefusedReason.HANDED_OVER
    assert reason_of(world.send("a", client_id="m1")) is RefusedReason.HANDED_OVER
    assert reason_of(world.send("a", "tool_call", data='{"id":"t"}')) is RefusedReason.HANDED_OVER
    assert world.conversation().head == head
    assert world.of(FrameCommitted)[-1].sender == "system"


def test_a_streaming_agent_cannot_flood_the_journal_with_refusals(world: World) -> None:
    world.hand_over()
    written = [event for _ in range(40) for event in world.chunk("a", "s", run=RUN)]
    assert len(written) == REFUSALS_WRITTEN


def test_what_people_say_is_stored_and_opens_no_run(world: World) -> None:
    world.hand_over()
    [turn] = world.say("is a human there?")
    assert isinstance(turn, TurnCommitted)
    assert (turn.assigned, turn.waiting, turn.joins_run) == ((), (), None)
    assert not world.conversation().runs
    [frame] = world.person("genui_event")
    assert isinstance(frame, PersonFrameCommitted)
    assert frame.to == ()


def test_after_the_return_turns_go_to_agents_again_and_those_said_meanwhile_do_not(world: World) -> None:
    world.hand_over()
    world.say("to the human")
    [back] = world.hand_back(ref="r")
    assert isinstance(back, ConversationHandedBack)
    assert (back.by, back.reason, back.id, back.ref) == ("op", "done", "back", "r")
    [turn] = world.say("to the bot")
    assert isinstance(turn, TurnCommitted)
    assert turn.assigned == (Assignment(GROUP, "a", f"c/{turn.seq}/{GROUP}"),)
    assert [run.turn_seq for run in world.conversation().runs.values()] == [turn.seq]


def test_a_turn_that_waited_for_a_group_waits_no_more() -> None:
    world = World()
    world.open()
    world.say()
    assert world.conversation().waiting
    world.hand_over()
    world.hand_back()
    assert not [event for event in world.join("a") if isinstance(event, RunOpened)]
    assert not world.state.waiting


def test_a_repeat_of_either_is_a_duplicate_of_it(world: World) -> None:
    [none] = world.hand_back(ref="r0")
    assert isinstance(none, Duplicate)
    assert (none.of_seq, none.ref) == (0, "r0")
    over = world.hand_over()[-1]
    [again] = world.hand_over(ref="r2", update="another")
    assert isinstance(again, Duplicate)
    assert (again.of_seq, again.id, again.ref) == (over.seq, "over", "r2")
    [back] = world.hand_back()
    [again] = world.hand_back(ref="r4")
    assert isinstance(again, Duplicate)
    assert again.of_seq == back.seq


def test_a_close_and_a_reopen_change_nothing_of_it(world: World) -> None:
    world.hand_over()
    world.close()
    assert reason_of(world.hand_back()) is RefusedReason.CONVERSATION_CLOSED
    world.reopen()
    assert world.conversation().handed_over
    assert isinstance(world.hand_back()[0], ConversationHandedBack)


def test_a_conversation_that_is_not_there_is_refused_and_so_are_bad_words(world: World) -> None:
    assert reason_of(world.hand_over("nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND
    assert reason_of(world.hand_over(update="")) is RefusedReason.INVALID_TEXT


def test_a_join_while_a_human_answers_changes_nothing(world: World) -> None:
    world.hand_over()
    world.say("one")
    world.join("b", settle=True)
    world.leave("a")
    assert not world.conversation().runs


def test_the_journal_alone_gives_the_state(world: World) -> None:
    world.hand_over()
    world.say("x")
    world.hand_back()
    world.say("y")
    assert image(replay(world.journal)) == image(world.state)
