"""Rule 8 and the other frames of people: what a resume answers, what an abort ends, who is given what."""

from __future__ import annotations

import json

import pytest

from streams.core.events import (
    Assignment,
    Duplicate,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    RunEnded,
    RunMoved,
    RunStatus,
    TurnCommitted,
)
from tests.support.partition_world import GROUP, World, image, replay

RUN = f"c/1/{GROUP}"
DAY_MS = 24 * 60 * 60 * 1000
WATCHDOG_MS = 300_000


@pytest.fixture
def world() -> World:
    """Member a, which can continue, works on the first turn of c and asks; x of another group was given it too."""
    world = World(to=("agents", "auditors", "lobby"))
    world.join("a", settle=True, continues=True)
    world.join("x", "auditors", settle=True)
    world.open()
    world.say()
    world.read("a", 1)
    world.send("a", "interrupt", id="ask-1")
    return world


def passed(events: list[Event]) -> list[tuple[object, tuple[Assignment, ...]]]:
    """Payload and addressees of what a frame came to."""
    assert all(isinstance(event, PersonFrameCommitted) for event in events), events
    return [(json.loads(e.frame.data or "null"), e.to) for e in events if isinstance(e, PersonFrameCommitted)]


def refused(events: list[Event]) -> RefusedReason:
    [event] = events
    assert isinstance(event, Refused)
    return event.reason


# ------------------------------------------------------------------------------------------------ resume
def test_a_resume_is_given_to_who_holds_the_run_that_asks(world: World) -> None:
    assert passed(world.resume({"ask-1": {"ok": True}})) == [
        ({"answers": {"ask-1": {"ok": True}}}, (Assignment(GROUP, "a", RUN),))
    ]


def test_whoever_of_the_conversations_people_sends_it(world: World) -> None:
    [event] = world.resume({"ask-1": 1}, sender="bob", channel="lobby")
    assert isinstance(event, PersonFrameCommitted)
    assert (event.sender, event.channel) == ("bob", "lobby")


def test_an_answered_interrupt_takes_no_second_answer(world: World) -> None:
    world.resume({"ask-1": True})
    assert refused(world.resume({"ask-1": False})) is RefusedReason.NOT_INTERRUPTED
    turn = world.say("and another thing")[-1]
    assert isinstance(turn, TurnCommitted)
    assert turn.joins_run is None


def test_a_run_that_ends_before_its_agent_said_so_closes_the_interrupt_with_the_answer_that_it_got(
    world: World,
) -> None:
    world.send("a", "interrupt", id="ask-2")
    world.resume({"ask-1": {"ok": True}, "ask-2": 2})
    world.send("a", "interrupt", id="ask-3")
    world.run("a", "finished", run=RUN, epoch=1)
    frames = [event.frame for event in world.of(FrameCommitted) if event.frame.type == "interrupt_resolved"]
    closing = {frame.id: json.loads(frame.data or "") for frame in frames}
    assert closing == {"ask-1": {"answer": {"ok": True}}, "ask-2": {"answer": 2}, "ask-3": {"answer": None}}


def test_nothing_that_is_open_is_not_interrupted(world: World) -> None:
    assert refused(world.resume({"ask-9": True})) is RefusedReason.NOT_INTERRUPTED
    world.send("a", "interrupt_resolved", id="ask-1")
    assert refused(world.resume({"ask-1": True})) is RefusedReason.NOT_INTERRUPTED


def test_all_that_a_run_asks_is_answered_at_once_and_what_nobody_asked_is_dropped(world: World) -> None:
    world.send("a", "interrupt", id="ask-2")
    assert refused(world.resume({"ask-2": 2})) is RefusedReason.INCOMPLETE_RESUME
    [(payload, _)] = passed(world.resume({"ask-2": 2, "ask-9": 9, "ask-1": 1}))
    assert payload == {"answers": {"ask-1": 1, "ask-2": 2}}


def test_each_run_is_given_its_own_answers_and_the_sender_one_outcome(world: World) -> None:
    world.read("x", 1, group="auditors")
    world.send("x", "interrupt", id="ask-x", group="auditors")
    events = world.resume({"ask-x": "x", "ask-1": "a"}, client_id="k", ref="r")
    assert passed(events) == [
        ({"answers": {"ask-1": "a"}}, (Assignment(GROUP, "a", RUN),)),
        ({"answers": {"ask-x": "x"}}, (Assignment("auditors", "x", "c/1/auditors"),)),
    ]
    assert [getattr(event, "ref", None) for event in events] == ["r", None]


def test_the_same_interrupt_asked_by_two_runs_is_answered_for_both(world: World) -> None:
    world.read("x", 1, group="auditors")
    world.send("x", "interrupt", id="ask-1", group="auditors")
    assert len(passed(world.resume({"ask-1": True}))) == 2
    assert world.conversation().asking == 0


def test_a_repeat_of_a_resume_gets_the_first_ones_answer(world: World) -> None:
    [first] = world.resume({"ask-1": True}, client_id="k", ref="r1")
    [again] = world.resume({"ask-1": True}, client_id="k", ref="r2")
    assert isinstance(first, PersonFrameCommitted)
    assert isinstance(again, Duplicate)
    assert (again.ref, again.id, again.client_id) == ("r2", first.frame.id, "k")


@pytest.mark.parametrize("data", ["{", "[]", '{"answers": 7}', '{"answers": []}'])
def test_a_resume_without_answers_names_the_field(world: World, data: str) -> None:
    [event] = world.person("resume", data=data)
    assert isinstance(event, Refused)
    assert event.reason is RefusedReason.INVALID_TEXT
    assert event.detail.startswith("answers: ")


def test_a_takeover_in_the_middle_of_an_interrupt_brings_the_answer_to_the_new_owner(world: World) -> None:
    world.join("b", continues=True)
    moved = world.leave("a")[-1]
    assert isinstance(moved, RunMoved)
    assert (moved.to_member, moved.continued, moved.answers) == ("b", True, ())
    [(payload, to)] = passed(world.resume({"ask-1": "yes"}))
    assert (payload, to) == ({"answers": {"ask-1": "yes"}}, (Assignment(GROUP, "b", RUN, 2),))


def test_a_resume_passed_to_a_member_that_died_is_taken_over_too(world: World) -> None:
    world.resume({"ask-1": "yes"})
    answered = world.journal[-1].lsn
    world.join("b", continues=True)
    world.join("d", continues=True)
    moved = next(event for event in world.leave("a") if isinstance(event, RunMoved))
    assert (moved.continued, moved.answers, moved.resume) == (True, (answered,), '{"ask-1":"yes"}')
    again = next(event for event in world.leave(moved.to_member or "") if isinstance(event, RunMoved))
    assert again.answers == (answered,), "until the agent says that it is resolved"
    world.send(again.to_member or "", "interrupt_resolved", id="ask-1", data='{"answer":"yes"}', run=RUN)
    assert world.conversation().runs[RUN].progress.answers == {}  # type: ignore[union-attr]


def test_an_answer_to_a_run_that_waits_for_a_member_is_kept_for_the_next(world: World) -> None:
    world.leave("a")
    [(_, to)] = passed(world.resume({"ask-1": "yes"}))
    assert to == ()
    answered = world.journal[-1].lsn
    [moved] = [event for event in world.join("b", continues=True) if isinstance(event, RunMoved)]
    assert moved.answers == (answered,)


def test_a_process_that_comes_back_is_given_what_nobody_was_given_and_nothing_twice(world: World) -> None:
    world.resume({"ask-1": "yes"})
    world.leave("a")
    [moved] = [e for e in world.join("a2", continues=True, watermarks={"c": 1}) if isinstance(e, RunMoved)]
    assert (moved.adopted, moved.answers) == (True, ()), "it was passed to that process"
    world.send("a2", "interrupt_resolved", id="ask-1", run=RUN)
    world.send("a2", "interrupt", id="ask-2", run=RUN)
    world.leave("a2")
    world.resume({"ask-2": "again"})
    answered = world.journal[-1].lsn
    [moved] = [e for e in world.join("a3", continues=True, watermarks={"c": 1}) if isinstance(e, RunMoved)]
    assert (moved.adopted, moved.answers) == (True, (answered,))


def test_a_restart_closes_the_interrupt_answered_or_not(world: World) -> None:
    world.resume({"ask-1": "yes"})
    world.join("b")
    events = world.leave("a")
    closing = [e.frame.id for e in events if isinstance(e, FrameCommitted)]
    [moved] = [event for event in events if isinstance(event, RunMoved)]
    assert (closing, moved.continued, moved.answers) == (["ask-1"], False, ())


def test_an_interrupt_has_a_time_of_its_own_and_pauses_the_watchdog(world: World) -> None:
    world.send("x", group="auditors", delivered=1)  # the other run is over
    assert world.pass_time(WATCHDOG_MS + 2000) == []
    world.at += DAY_MS - WATCHDOG_MS - 4000
    assert world.pass_time(1000) == []
    [ended] = [event for event in world.pass_time(2000) if isinstance(event, RunEnded)]
    assert (ended.run_id, ended.status, ended.reason) == (RUN, RunStatus.TIMED_OUT, "interrupt_expired")


def test_an_answered_run_is_watched_again(world: World) -> None:
    world.resume({"ask-1": "yes"})
    ended = [event for event in world.pass_time(WATCHDOG_MS) if isinstance(event, RunEnded) and event.run_id == RUN]
    assert [event.reason for event in ended] == ["watchdog"]


def test_a_deadline_stands_still_while_a_person_is_asked() -> None:
    world = World(deadline_ms=10_000)
    world.join("a", settle=True)
    world.open()
    world.say()
    world.read("a", 1)
    world.pass_time(4000)
    world.send("a", "interrupt", id="ask-1")
    assert world.pass_time(60_000) == []
    world.resume({"ask-1": "yes"})
    assert world.pass_time(5000) == []
    [ended] = [event for event in world.pass_time(2000) if isinstance(event, RunEnded)]
    assert ended.status is RunStatus.TIMED_OUT


# ------------------------------------------------------------------------------------------------- abort
def test_an_abort_ends_the_open_runs_of_every_group_and_tells_who_held_them(world: World) -> None:
    first, *ends = world.person("abort")
    assert isinstance(first, PersonFrameCommitted)
    assert first.to == (Assignment(GROUP, "a", RUN), Assignment("auditors", "x", "c/1/auditors"))
    ended = [event for event in ends if isinstance(event, RunEnded)]
    assert [(e.member, e.status, e.reason) for e in ended] == [
        ("a", RunStatus.CANCELLED, "aborted"), ("x", RunStatus.CANCELLED, "aborted")
    ]  # fmt: skip
    assert not world.conversation().runs


def test_an_abort_without_an_open_run_is_stored_and_given_to_nobody() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    [event] = world.person("abort")
    assert isinstance(event, PersonFrameCommitted)
    assert event.to == ()


# ------------------------------------------------------------------------------------------------ others
def test_an_interaction_is_given_to_who_is_at_work_in_each_group_or_owns_it(world: World) -> None:
    world.send("x", group="auditors", delivered=1)  # the answer: its run is over
    world.say("yes")
    world.send("a", "interrupt_resolved", id="ask-1")
    world.say("and more")
    [event] = world.person("genui_event", data='{"streamId":"s"}')
    assert isinstance(event, PersonFrameCommitted)
    assert event.seq == 0
    assert event.to == (Assignment(GROUP, "a", RUN), Assignment("auditors", "x", "c/4/auditors"))


def test_a_groups_owner_gets_it_without_a_run() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    [event] = world.person("client_tools", data='{"tools":[]}')
    assert isinstance(event, PersonFrameCommitted)
    assert event.to == (Assignment(GROUP, "a", "", 0),)


def test_a_survey_is_numbered_also_after_the_end_and_nothing_else_is_taken_then(world: World) -> None:
    world.close()
    head = world.conversation().head
    [event] = world.person("survey", data='{"rating":5}')
    assert isinstance(event, PersonFrameCommitted)
    assert event.seq == head + 1
    assert refused(world.person("genui_event")) is RefusedReason.CONVERSATION_CLOSED
    assert refused(world.person("abort")) is RefusedReason.CONVERSATION_CLOSED


def test_a_conversation_that_is_not_there_and_bad_text_are_refused(world: World) -> None:
    assert refused(world.person("abort", "nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND
    assert refused(world.person("genui_event", data="a\0b")) is RefusedReason.INVALID_TEXT


def test_the_journal_alone_gives_the_state(world: World) -> None:
    world.resume({"ask-1": "yes"}, client_id="k")
    world.person("survey", data="{}")
    world.join("b", continues=True)
    world.leave("a")
    assert image(replay(world.journal)) == image(world.state)
