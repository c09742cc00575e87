"""Rule 10: operators move a conversation to a member, or release it from who has it."""

from __future__ import annotations

from typing import Any

import pytest

from streams.core.commands import NoteAction
from streams.core.events import (
    ConversationMoved,
    Event,
    FrameCommitted,
    MoveReason,
    OperatorActed,
    OwnerChanged,
    Refused,
    RefusedReason,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from streams.core.limits import ID_MAX_BYTES
from tests.support.partition_world import GROUP, World, image, replay

RUN = f"c/1/{GROUP}"


def world_with(*members: str, **fields: Any) -> World:
    world = World()
    for member in members:
        world.join(member, settle=True, **fields)
    world.open()
    return world


def owner(world: World) -> str:
    return world.conversation().owners[GROUP]


def other(world: World) -> str:
    return next(member for member in world.state.members if member != owner(world))


def given(events: list[Event]) -> str | None:
    [turn] = [event for event in events if isinstance(event, TurnCommitted)]
    return turn.assigned[0].member


def reason_of(events: list[Event]) -> RefusedReason:
    [event] = events
    assert isinstance(event, Refused)
    return event.reason


def test_a_move_says_who_and_why_and_takes_the_open_runs_and_all_turns_from_then_on_with_it() -> None:
    world = world_with("a", "b", "c")
    world.say()
    before, to = owner(world), other(world)
    told, changed, moved = world.move(to, ref="r")
    assert told == ConversationMoved(conversation_id="c", group=GROUP, to=to, by="op", reason="slow", ref="r")
    assert isinstance(changed, OwnerChanged)
    assert (changed.previous, changed.owner, changed.reason) == (before, to, MoveReason.OPERATOR)
    assert isinstance(moved, RunMoved)
    assert (moved.from_member, moved.to_member, moved.run_epoch, moved.reason) == (before, to, 2, MoveReason.OPERATOR)
    assert reason_of(world.send(before, run=RUN, epoch=1)) is RefusedReason.FENCED
    world.send(to, run=RUN, epoch=2)
    assert [given(world.say()) for _ in range(3)] == [to] * 3
    world.join("d", settle=True)
    assert given(world.say()) == to, "nobody who joins takes it away"
    assert image(replay(world.journal)) == image(world.state)


def test_who_it_is_moved_to_is_given_the_turn_in_line_that_the_move_itself_makes_room_for() -> None:
    """Found by the simulation (seed 8211888): the line was given by what held before the move."""
    world = World(policy="enqueue")
    for member in ("a", "b", "c"):
        world.join(member, settle=True)
    world.open()
    world.say()
    world.read(owner(world), 1, delivered=1)
    world.chunk(owner(world), "s", done=True, delivered=1)
    world.say("in line")
    before, to = owner(world), other(world)
    _, changed, ended, opened = world.move(to)
    assert isinstance(changed, OwnerChanged)
    assert (changed.previous, changed.owner) == (before, to)
    assert isinstance(ended, RunEnded)
    assert (ended.run_id, ended.reason) == (RUN, "owner_gone_after_answer")
    assert isinstance(opened, RunOpened)
    assert opened.member == to == owner(world)
    assert image(replay(world.journal)) == image(world.state)


@pytest.mark.parametrize("end", ["leave", "drain"])
def test_the_hash_decides_again_once_the_member_is_gone_or_drains(end: str) -> None:
    world = world_with("a", "b", "c")
    world.say()
    before = owner(world)
    to = other(world)
    world.move(to)
    getattr(world, end)(to)
    assert given(world.say()) == before
    assert image(replay(world.journal)) == image(world.state)


def test_a_run_goes_on_with_a_member_that_can_continue_it_and_begins_anew_with_another() -> None:
    for continues, superseded in ((True, ()), (False, (2, 3))):
        world = world_with("a", "b", continues=continues)
        world.say()
        before = owner(world)
        world.run(before, "started", delivered=1)
        world.chunk(before, "s")
        [moved] = [event for event in world.move(other(world)) if isinstance(event, RunMoved)]
        assert (moved.continued, moved.superseded) == (continues, superseded)
        closed = [event for event in world.of(FrameCommitted) if event.sender == "system"]
        assert len(closed) == (0 if continues else 1)


def test_a_release_gives_the_run_to_the_next_in_rank_and_undoes_a_move() -> None:
    world = world_with("a", "b", "c")
    world.say()
    by_hash, to = owner(world), other(world)
    world.move(to)
    [told, moved] = world.move(None, ref="r")
    assert isinstance(told, ConversationMoved)
    assert (told.to, told.group, told.ref) == (None, "", "r")
    assert isinstance(moved, RunMoved)
    assert moved.to_member == by_hash
    assert given(world.say()) == by_hash
    assert image(replay(world.journal)) == image(world.state)


def test_a_release_with_nobody_else_there_gives_the_run_to_its_member_again() -> None:
    world = world_with("a")
    world.say()
    [_, moved] = world.move(None, group=GROUP)
    assert isinstance(moved, RunMoved)
    assert (moved.from_member, moved.to_member, moved.run_epoch) == ("a", "a", 2)


def test_a_call_that_is_executed_once_stays_where_it_is() -> None:
    world = world_with("a", "b")
    world.call()
    assert [type(event) for event in world.move(other(world))] == [ConversationMoved, OwnerChanged]
    assert [type(event) for event in world.move(None)] == [ConversationMoved]


def test_a_run_that_is_to_stop_ends_and_one_that_has_answered_too() -> None:
    world = world_with("a", "b")
    world.say()
    world.run(owner(world), "started", delivered=1)
    world.cancel(RUN)
    [ended] = [event for event in world.move(other(world)) if isinstance(event, RunEnded)]
    assert (ended.run_id, ended.status) == (RUN, RunStatus.CANCELLED)


@pytest.mark.parametrize("to", ["ghost", "stranger", "draining"])
def test_who_is_not_there_drains_or_gets_no_turns_of_it_is_refused(to: str) -> None:
    world = world_with("a", "draining")
    world.join("stranger", group="auditors/x", settle=True)
    world.drain("draining")
    world.say()
    before = image(world.state)
    assert reason_of(world.move(to)) is RefusedReason.AGENT_UNAVAILABLE
    assert {**image(world.state), "": b""} == {**before, "": b""}


def test_a_conversation_that_is_closed_unknown_or_with_a_human_is_not_moved() -> None:
    world = world_with("a", "b")
    assert reason_of(world.move("a", "nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND
    world.hand_over()
    assert reason_of(world.move("a")) is RefusedReason.HANDED_OVER
    world.hand_back()
    world.close()
    assert reason_of(world.move("a")) is RefusedReason.CONVERSATION_CLOSED


NOTE = {"action": "lease_released", "subject": "wk-1 epoch 1", "by": "op", "reason": "", "id": "n"}


def noted(world: World, **fields: str) -> Event:
    [event] = world.do(NoteAction(at=world.at, timestamp=world.wall, **{**NOTE, **fields}))
    return event


def test_what_an_operator_did_elsewhere_is_in_the_journal() -> None:
    world = world_with("a")
    event = noted(world)
    assert isinstance(event, OperatorActed)
    assert {field: getattr(event, field) for field in NOTE} == NOTE
    assert image(replay(world.journal)) == image(world.state)


@pytest.mark.parametrize("field", NOTE)
def test_a_note_that_no_store_could_hold_is_refused_and_says_which_field(field: str) -> None:
    refused = noted(world_with("a"), **{field: "x\0"})
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.detail) == (RefusedReason.INVALID_TEXT, f"{field}: holds NUL or a lone surrogate")


@pytest.mark.parametrize("by", ["", "x" * (ID_MAX_BYTES + 1)])
def test_a_note_of_nobody_is_refused(by: str) -> None:
    refused = noted(world_with("a"), by=by)
    assert isinstance(refused, Refused)
    assert refused.detail.startswith("by: ")
