"""Edit and regenerate: the latest turn's answer, wanted anew."""

from __future__ import annotations

import pytest

from streams.core.events import (
    Event,
    FrameCommitted,
    OwnerChanged,
    Refused,
    RefusedReason,
    RunEnded,
    RunOpened,
    RunStarted,
    RunStatus,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ids import edition_id
from tests.support.partition_world import GROUP, World, image, replay

FIRST = f"c/1/{GROUP}"
SECOND = f"c/1~1/{GROUP}"


@pytest.fixture
def world() -> World:
    """Member a answered the first turn of c with a stream and a message, seqs 2 to 4."""
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    world.chunk("a", "s")
    world.chunk("a", "s", done=True)
    world.send("a", client_id="m1", id="answer")
    world.run("a", "finished")
    assert not world.conversation().runs
    return world


def latest(world: World) -> str:
    return world.of(TurnCommitted)[-1].turn.id


def refused(events: list[Event]) -> Refused:
    [event] = events
    assert isinstance(event, Refused)
    return event


def test_an_edit_says_the_new_text_supersedes_the_answer_and_gives_the_turn_anew(world: World) -> None:
    turn = latest(world)
    edited, opened = world.edit(turn, "better", client_id="k", ref="r")
    assert isinstance(edited, TurnEdited)
    assert (edited.turn_seq, edited.turn_id, edited.by, edited.text, edited.edition) == (1, turn, "ann", "better", 1)
    assert (edited.superseded, edited.client_id, edited.ref, edited.seq) == ((2, 3, 4), "k", "r", 0)
    assert isinstance(opened, RunOpened)
    assert (opened.run_id, opened.turn_seq, opened.member) == (SECOND, 1, "a")
    assert opened.turn_id == edition_id("c", turn, 1) != turn


def test_regenerate_does_the_same_with_the_turn_as_it_was(world: World) -> None:
    regenerated, opened = world.regenerate(latest(world))
    assert isinstance(regenerated, TurnRegenerated)
    assert regenerated.superseded == (2, 3, 4)
    assert isinstance(opened, RunOpened)


def test_it_may_be_named_by_its_answer(world: World) -> None:
    assert refused(world.regenerate("answer")).reason is RefusedReason.NOT_EDITABLE, "nobody knows where that is"
    assert refused(world.regenerate("answer", watermark=1)).reason is RefusedReason.NOT_EDITABLE
    assert isinstance(world.regenerate("answer", watermark=4)[0], TurnRegenerated)
    assert refused(world.edit("answer", watermark=4)).reason is RefusedReason.NOT_EDITABLE


def test_an_open_run_ends_and_what_it_had_said_is_superseded_with_its_closing_frames() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    world.chunk("a", "s")
    closing, ended, edited, opened = world.edit(latest(world))
    assert isinstance(closing, FrameCommitted)
    assert isinstance(ended, RunEnded)
    assert (ended.run_id, ended.status, ended.reason) == (FIRST, RunStatus.CANCELLED, "edited")
    assert isinstance(edited, TurnEdited)
    assert edited.superseded == (2, closing.seq)
    assert isinstance(opened, RunOpened)
    assert opened.run_id == SECOND


def test_what_is_still_sent_to_the_first_edition_is_fenced_and_never_taken_for_the_new_answer(world: World) -> None:
    turn = latest(world)
    world.edit(turn)
    named = edition_id("c", turn, 1)
    for late in (world.send("a", client_id=f"p.{turn}.m2"), world.send("a", client_id="m3", run=FIRST, epoch=1)):
        assert refused(late).reason is RefusedReason.FENCED
    world.run("a", "started", run=SECOND, epoch=1)
    [fresh] = world.send("a", client_id=f"p.{named}.m1")
    assert isinstance(fresh, FrameCommitted)
    assert fresh.run_id == SECOND


def test_a_further_edition_supersedes_the_one_before(world: World) -> None:
    world.edit(latest(world))
    [answer, _] = world.send("a", client_id="m9", run=SECOND, epoch=1)
    edited, opened = world.edit(latest(world), "best")
    assert isinstance(edited, TurnEdited)
    assert (edited.superseded, edited.edition) == ((answer.seq,), 2)
    assert isinstance(opened, RunOpened)
    assert opened.run_id == f"c/1~2/{GROUP}"


def test_only_the_latest_turn_only_its_sender(world: World) -> None:
    turn = latest(world)
    assert refused(world.edit(turn, sender="bob")).detail == "messageId: only who said the turn may"
    world.say("another")
    problem = refused(world.edit(turn))
    assert (problem.reason, problem.detail) == (
        RefusedReason.NOT_EDITABLE, "messageId: it names neither the conversation's latest turn nor its answer"
    )  # fmt: skip


def test_a_turn_that_answered_a_question_stays_as_it_is() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.read("a", 1)
    world.send("a", "interrupt", id="ask")
    world.say("yes")
    assert "answered a question" in refused(world.edit(latest(world))).detail
    world.run("a", "finished")
    assert "answered a question" in refused(world.regenerate(latest(world))).detail


def test_a_closed_conversation_and_an_empty_one_have_nothing_to_edit(world: World) -> None:
    turn = latest(world)
    world.close()
    assert refused(world.edit(turn)).reason is RefusedReason.CONVERSATION_CLOSED
    world.open("d")
    assert refused(world.edit(turn, id_="d")).reason is RefusedReason.NOT_EDITABLE


@pytest.mark.parametrize("extra", [None, "{}", '{"messageId": 7}'])
def test_a_frame_that_names_no_message_says_which_field(world: World, extra: str | None) -> None:
    problem = refused(world.person("edit", text="x", extra=extra))
    assert (problem.reason, problem.detail.partition(":")[0]) == (RefusedReason.INVALID_TEXT, "messageId")


def test_the_owner_of_now_gets_it(world: World) -> None:
    world.join("b", settle=True)
    world.leave("a")
    edited, changed, opened = world.edit(latest(world))
    assert isinstance(edited, TurnEdited)
    assert isinstance(changed, OwnerChanged)
    assert (changed.previous, changed.owner) == ("a", "b")
    assert isinstance(opened, RunOpened)
    assert opened.member == "b"


def test_without_a_member_it_waits_for_the_next(world: World) -> None:
    world.leave("a")
    [edited] = world.edit(latest(world))
    assert isinstance(edited, TurnEdited)
    assert edited.waiting == ("agents",)
    world.say("later")  # the turn that waits is not the latest any more
    opened = [event for event in world.join("b") if isinstance(event, RunOpened)]
    assert [event.run_id for event in opened] == [SECOND, f"c/{world.conversation().head}/{GROUP}"]
    assert opened[0].turn_id == edition_id("c", edited.turn_id, 1)
    assert opened[1].turn_id == ""


def test_while_a_human_answers_only_the_words_change(world: World) -> None:
    world.hand_over()
    world.say("to the human")
    [edited] = world.edit(latest(world))
    assert isinstance(edited, TurnEdited)
    assert (edited.superseded, edited.waiting) == ((), ())


def test_the_new_run_goes_on_as_any_other(world: World) -> None:
    world.edit(latest(world))
    [started] = world.run("a", "started", run=SECOND, epoch=1)
    assert isinstance(started, RunStarted)
    [answer] = world.send("a", client_id="m1", run=SECOND)
    assert isinstance(answer, FrameCommitted)
    assert isinstance(world.run("a", "finished", run=SECOND)[-1], RunEnded)
    assert isinstance(world.say("next")[-1], TurnCommitted)
    assert image(replay(world.journal)) == image(world.state)


def busy_with_the_turn_before(**settings: str) -> tuple[World, str]:
    """Member a works on the first turn; the second is the latest."""
    world = World(**settings)
    world.join("a", settle=True)
    world.open()
    world.say("one")
    world.run("a", "started", delivered=1)
    world.say("two")
    return world, latest(world)


def test_during_a_run_of_the_turn_before_it_waits_in_line_where_turns_do() -> None:
    world, turn = busy_with_the_turn_before(policy="enqueue")
    ended, edited, opened = world.edit(turn)
    assert isinstance(ended, RunEnded)
    assert isinstance(edited, TurnEdited)
    assert isinstance(opened, RunOpened)
    assert (opened.queued, opened.member) == (True, None)
    given = world.run("a", "finished", run=FIRST)[-1]
    assert isinstance(given, RunOpened)
    assert (given.run_id, given.member, given.queued) == (f"c/2~1/{GROUP}", "a", False)
    assert image(replay(world.journal)) == image(world.state)


def test_or_interrupts_it_where_turns_do() -> None:
    world = World(policy="interrupt")
    world.join("a", settle=True)
    world.open()
    world.say("one")
    world.say("two")
    world.send("a", client_id="m1", run=f"c/2/{GROUP}")
    world.configure(2, policy="deliver")
    world.say("three")
    world.say("four")
    world.configure(3, policy="interrupt")
    ends = [event for event in world.edit(latest(world)) if isinstance(event, RunEnded)]
    assert {event.reason for event in ends} == {"edited", "interrupted"}


def test_what_closes_a_run_of_the_turn_before_that_it_interrupts_is_not_superseded() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.chunk("a", "before", run=FIRST, epoch=1)
    world.say("second")
    world.chunk("a", "of it", run=f"c/3/{GROUP}", epoch=1)
    world.configure(2, policy="interrupt")
    world.edit(latest(world))
    closing = {event.run_id: event.seq for event in world.of(FrameCommitted) if event.sender == "system"}
    [edited] = world.of(TurnEdited)
    assert closing.keys() == {FIRST, f"c/3/{GROUP}"}
    assert edited.superseded == (4, closing[f"c/3/{GROUP}"])


def test_or_is_refused_where_turns_are() -> None:
    world, turn = busy_with_the_turn_before(policy="deliver")
    world.configure(2, policy="reject")
    assert refused(world.edit(turn)).reason is RefusedReason.BUSY
