"""Rule 7: what becomes of a turn that comes during a run of its group, and when a run in line gets its turn."""

from __future__ import annotations

from typing import Any

import pytest

from streams.core.events import (
    Event,
    OwnerChanged,
    Refused,
    RefusedReason,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from tests.support.partition_world import GROUP, World, document, image, replay

RUN = f"c/1/{GROUP}"


def world_of(policy: str, **agents: Any) -> World:
    """Member a works on the first turn of c."""
    world = World(policy=policy, **agents)
    world.join("a", settle=True)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    return world


def shown(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_delivered_turns_get_their_runs_at_once() -> None:
    [turn] = world_of("deliver").say("more")
    assert isinstance(turn, TurnCommitted)
    assert ([assigned.member for assigned in turn.assigned], turn.queued) == (["a"], ())


@pytest.mark.parametrize("status", ["finished", "error", "aborted"])
def test_a_turn_in_line_gets_its_run_when_the_earlier_one_ended(status: str) -> None:
    world = world_of("enqueue")
    [second] = world.say("second")
    [third] = world.say("third")
    assert isinstance(second, TurnCommitted)
    assert isinstance(third, TurnCommitted)
    assert (second.assigned, second.queued, third.queued) == ((), (GROUP,), (GROUP,))
    assert [run.member for run in world.conversation().runs.values()] == ["a", None, None]
    *_, opened = world.run("a", status, delivered=1)
    assert opened == RunOpened(
        conversation_id="c", run_id=f"c/2/{GROUP}", turn_seq=2, group=GROUP, channel="agents", member="a"
    )
    assert world.conversation().runs[f"c/3/{GROUP}"].queued, "one after another"


def left_by_all(policy: str, *said: str) -> World:
    """c's first run has the frames `said`; every member refused to go on with it, and from now on nobody may."""
    world = World(policy=policy)
    world.join("a", settle=True, continues=True)
    world.open()
    world.say()
    world.run("a", "started", run=RUN, epoch=1)
    for kind in said:
        world.send("a", kind, run=RUN, epoch=1, stream_id="s" if kind == "genui" else None)
    world.join("b", settle=True, continues=True)
    world.leave("a")
    world.refuse("b", RUN, epoch=2)
    assert world.conversation().runs[RUN].member is None
    world.configure(2, policy=policy, on_owner_loss="restart")
    return world


def test_in_line_behind_a_run_that_its_next_try_ends_it_is_opened() -> None:
    world = left_by_all("enqueue", "text")
    world.say("second")
    world.open("d")
    world.say(id_="d")
    events = world.run("b", "finished", id_="d", run=f"d/1/{GROUP}", epoch=1)
    assert shown(events) == ["RunEnded", "RunEnded", "OwnerChanged", "RunOpened"]
    assert not world.state.queued
    assert image(replay(world.journal)) == image(world.state)


def test_a_run_tried_again_is_closed_behind_what_its_conversation_was_told_just_now() -> None:
    world = left_by_all("deliver", "genui")
    world.say("second")
    events = world.send("b", run=f"c/3/{GROUP}", epoch=1)
    assert [event.seq for event in events] == [4, 0, 5, 0]
    assert image(replay(world.journal)) == image(world.state)


def test_an_answer_of_an_agent_that_announces_nothing_lets_the_next_one_in() -> None:
    world = World(policy="enqueue")
    world.join("a", settle=True)
    world.open()
    world.say()
    world.say("second")
    assert shown(world.send("a", delivered=1)) == ["FrameCommitted", "RunEnded", "RunOpened"]


def test_who_waits_in_line_is_given_to_the_owner_of_then() -> None:
    world = world_of("enqueue", on_owner_loss="fail")
    world.say("second")
    world.join("b", settle=True)
    *_, changed, opened = world.leave("a")
    assert isinstance(changed, OwnerChanged)
    assert isinstance(opened, RunOpened)
    assert (changed.previous, changed.owner, opened.member) == ("a", "b", "b")


def test_in_line_behind_a_run_that_moves_it_waits_on() -> None:
    world = world_of("enqueue")
    world.say("second")
    world.join("b", settle=True)
    assert "RunOpened" not in shown(world.leave("a"))
    assert world.conversation().runs[f"c/2/{GROUP}"].queued


def test_a_join_places_nobody_who_waits_in_line() -> None:
    world = world_of("enqueue")
    world.say("second")
    world.leave("a")
    moved = world.join("b", settle=True)
    assert shown(moved) == ["MemberJoined", "RunMoved"]
    assert world.conversation().runs[f"c/2/{GROUP}"].queued


def test_a_rejected_turn_is_not_taken_but_its_repeat_is_known() -> None:
    world = World(policy="reject")
    world.join("a", settle=True)
    world.open()
    world.say("first", key="k")
    [refused] = world.say("second", key="k2", ref="r2")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.ref) == (RefusedReason.BUSY, "r2")
    assert shown(world.say("first", key="k")) == ["Duplicate"]
    world.send("a", delivered=1)
    assert shown(world.say("second", key="k2")) == ["TurnCommitted"], "it is free again"


def test_no_more_turns_wait_in_line_than_may() -> None:
    world = World(policy="enqueue", max_waiting=2)
    world.join("a", settle=True)
    world.open()
    world.say()
    for text in ("second", "third"):
        [turn] = world.say(text)
        assert isinstance(turn, TurnCommitted)
        assert turn.queued == (GROUP,)
    [refused] = world.say("fourth", key="k4", ref="r4")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.ref) == (RefusedReason.BUSY, "r4")
    assert refused.detail == f"conversation_id: 2 turns wait in line for {GROUP} already"
    world.send("a", delivered=1)
    [turn] = world.say("fourth", key="k4")
    assert isinstance(turn, TurnCommitted), "the first of them was given, so that there is a place"


def test_an_answer_is_taken_though_a_line_is_full_and_waits_in_none() -> None:
    world = World(to=("agents", "auditors"), policy="enqueue", max_waiting=1)
    world.join("a", settle=True)
    world.join("x", "auditors", settle=True)
    world.open()
    world.say()
    world.say("second")
    world.send("a", "interrupt", id="ask", delivered=1)
    [answer] = world.say("yes")
    assert isinstance(answer, TurnCommitted)
    assert (answer.interrupt_id, answer.assigned, answer.queued) == ("ask", (), ())


def test_an_answer_is_taken_though_another_group_would_reject_it() -> None:
    world = World(to=("agents", "auditors"), policy="reject")
    world.join("a", settle=True)
    world.join("x", "auditors", settle=True)
    world.open()
    world.say()
    world.send("a", "interrupt", id="ask", delivered=1)
    [answer] = world.say("yes")
    assert isinstance(answer, TurnCommitted)
    assert (answer.interrupt_id, answer.assigned) == ("ask", ())


def test_an_interrupting_turn_ends_the_earlier_run_in_the_same_batch() -> None:
    world = world_of("interrupt")
    world.chunk("a", "s", delivered=1)
    closing, ended, turn = world.say("stop that, do this")
    assert isinstance(ended, RunEnded)
    assert isinstance(turn, TurnCommitted)
    assert (ended.run_id, ended.status, ended.reason) == (RUN, RunStatus.CANCELLED, "interrupted")
    assert (closing.seq, turn.seq) == (3, 4)
    assert turn.assigned[0].run_id == f"c/4/{GROUP}"
    [fenced] = world.chunk("a", "s", run=RUN, epoch=1)
    assert isinstance(fenced, Refused)


def test_each_group_follows_its_own_policy() -> None:
    world = World(policy="enqueue", groups={"support": {"policy": "deliver"}})
    world.join("a", settle=True)
    world.join("b", "agents/others", settle=True)
    world.open()
    world.say()
    [second] = world.say("second")
    assert isinstance(second, TurnCommitted)
    assert ([assigned.group for assigned in second.assigned], second.queued) == ([GROUP], ("agents/others",))


@pytest.mark.parametrize(("policy", "queued"), [("deliver", 0), ("enqueue", 2), ("reject", 2)])
def test_turns_that_waited_for_a_channel_come_one_after_another(policy: str, queued: int) -> None:
    world = World(policy="deliver")
    world.open()
    for text in ("one", "two", "three"):
        world.say(text)
    world.configure(2, policy=policy)
    world.join("a", settle=True)
    opened = world.of(RunOpened)
    assert [event.turn_seq for event in opened] == [1, 2, 3]
    assert sum(event.queued for event in opened) == queued
    for seq in (1, 2, 3):
        world.send("a", run=f"c/{seq}/{GROUP}", epoch=1)
    assert not world.conversation().runs


def test_of_turns_that_waited_for_a_channel_an_interrupting_one_is_the_last() -> None:
    world = World(policy="interrupt")
    world.open()
    world.say("one")
    world.say("two")
    world.join("a", settle=True)
    assert [(ended.turn_seq, ended.reason) for ended in world.of(RunEnded)] == [(1, "interrupted")]
    assert [(run.turn_seq, run.member) for run in world.conversation().runs.values()] == [(2, "a")]


def test_a_turn_that_waits_for_a_channel_makes_a_rejecting_one_busy() -> None:
    world = World(policy="reject")
    world.open()
    world.say("one")
    [refused] = world.say("two")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.BUSY


def test_close_ends_what_waits_in_line_too() -> None:
    world = world_of("enqueue")
    world.say("second")
    assert shown(world.close()) == ["RunEnded", "RunEnded", "ConversationClosed"]
    assert not world.state.queued


def test_a_deadline_of_the_group_counts_in_line_and_stands_still_while_a_person_is_asked() -> None:
    world = world_of("enqueue", deadline_ms=10_000)
    world.say("second")
    world.pass_time(4_000)
    world.send("a", "interrupt", id="ask", delivered=1)
    world.pass_time(5_000)
    [joined] = world.say("yes")
    assert isinstance(joined, TurnCommitted)
    assert joined.interrupt_id == "ask"
    ended = [event for event in world.pass_time(2_000) if isinstance(event, RunEnded)]
    assert [(event.turn_seq, event.status, event.reason) for event in ended] == [(2, RunStatus.TIMED_OUT, "deadline")]
    ended = [event for event in world.pass_time(5_000) if isinstance(event, RunEnded)]
    assert [event.turn_seq for event in ended] == [1]


def test_a_fold_gives_the_same_line() -> None:
    world = world_of("enqueue")
    world.say("second")
    world.say("third")
    assert image(replay(world.journal)) == image(world.state)
    assert replay(world.journal).queued == world.state.queued == {"c": 2}


def test_a_document_that_changes_the_policy_leaves_who_waits_in_line() -> None:
    world = world_of("enqueue")
    world.say("second")
    world.configure(2, policy="deliver")
    [third] = world.say("third")
    assert isinstance(third, TurnCommitted)
    assert third.assigned
    world.run("a", "finished", run=RUN, epoch=1)
    assert world.conversation().runs[f"c/2/{GROUP}"].queued, "the third came before it"
    assert document(2)


def test_who_says_that_it_has_all_up_to_an_answer_has_not_what_waited_in_line_before_it() -> None:
    world = World(policy="enqueue")
    world.join("b", settle=True)
    world.open()
    world.say()
    world.run("b", "started", delivered=1)
    world.say("second")
    world.send("b", "interrupt", id="ask", run=RUN, epoch=1)
    world.say("the answer")
    world.join("a", settle=True, watermarks={"c": 4})
    world.run("b", "finished", run=RUN, epoch=1)
    assert world.conversation().runs[f"c/2/{GROUP}"].member == "b"
    [moved] = [event for event in world.leave("b") if isinstance(event, RunMoved)]
    assert (moved.to_member, moved.adopted) == ("a", False)
