"""Rules 7 and 9 for invocations: one claim a thread, ids that are used once, deadlines, cancelling, lost owners."""

from __future__ import annotations

from typing import Any

import pytest

from streams.core.events import (
    Duplicate,
    Event,
    Refused,
    RefusedReason,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from tests.support.partition_world import GROUP, World, image, replay

OTHER = "auditors/x"
RUN = f"c/1/{GROUP}"


def fresh(**agents: Any) -> World:
    """A thread, and one member in each of two groups; only the first group's channel is routed to."""
    world = World(**agents)
    world.join("a", settle=True)
    world.join("x", OTHER, settle=True)
    world.open()
    return world


def called(**terms: Any) -> World:
    """Member a works on an invocation."""
    world = fresh()
    world.call(**terms)
    world.run("a", "started", run=RUN, epoch=1)
    return world


def reason_of(events: list[Event]) -> RefusedReason:
    [refused] = events
    assert isinstance(refused, Refused)
    assert refused.detail
    return refused.reason


def end_of(events: list[Event]) -> tuple[RunStatus, str]:
    [ended] = [event for event in events if isinstance(event, RunEnded)]
    return ended.status, ended.reason


def test_it_goes_to_its_group_alone_wherever_its_channel_is_routed() -> None:
    [turn] = fresh().call(group=OTHER)
    assert isinstance(turn, TurnCommitted)
    assert [(given.group, given.member) for given in turn.assigned] == [(OTHER, "x")]


def test_an_id_is_used_once_and_with_one_input() -> None:
    world = fresh()
    world.call("i", "hello")
    [again] = world.call("i", "hello", ref="r2")
    assert isinstance(again, Duplicate)
    assert (again.of_seq, again.ref) == (1, "r2")
    assert reason_of(world.call("i", "something else")) is RefusedReason.INVOCATION_CONFLICT
    world.run("a", "finished", run=RUN, epoch=1)
    assert isinstance(world.call("i", "hello")[0], Duplicate), "also when it is over"
    assert reason_of(world.call("i", "something else")) is RefusedReason.INVOCATION_CONFLICT


def test_an_id_of_another_thread_is_another_one() -> None:
    world = fresh()
    world.open("d")
    world.call("i", "hello")
    assert isinstance(world.call("i", "something else", "d")[0], TurnCommitted)


@pytest.mark.parametrize("group", [GROUP, OTHER])
def test_a_thread_has_one_claim(group: str) -> None:
    world = called()
    assert reason_of(world.call("j", group=group)) is RefusedReason.CONVERSATION_BUSY
    world.run("a", "finished", run=RUN, epoch=1)
    assert isinstance(world.call("j", group=group)[0], TurnCommitted)


def test_distinct_threads_run_together() -> None:
    world = called()
    world.open("d")
    assert isinstance(world.call("i", "hello", "d")[0], TurnCommitted)


def test_a_turn_of_its_group_makes_the_thread_busy() -> None:
    world = fresh()
    world.say()
    assert reason_of(world.call()) is RefusedReason.CONVERSATION_BUSY


@pytest.mark.parametrize("policy", ["deliver", "reject"])
def test_it_never_runs_beside_another(policy: str) -> None:
    world = fresh(policy=policy)
    world.call("i")
    assert reason_of(world.call("j", policy="deliver")) is RefusedReason.CONVERSATION_BUSY


@pytest.mark.parametrize(("policy", "own"), [("enqueue", None), ("reject", "enqueue")])
def test_it_waits_in_line_where_it_or_its_group_says_so(policy: str, own: str | None) -> None:
    world = fresh(policy=policy)
    world.call("i")
    for id_, group in (("j", OTHER), ("k", GROUP)):
        [turn] = world.call(id_, group=group, policy=own)
        assert isinstance(turn, TurnCommitted)
        assert turn.queued == (group,)
    *_, opened = world.run("a", "finished", run=RUN, epoch=1)
    assert isinstance(opened, RunOpened)
    assert (opened.run_id, opened.member) == (f"c/2/{OTHER}", "x"), "one after another, also of other groups"
    assert world.conversation().runs[f"c/3/{GROUP}"].queued


def test_it_interrupts_where_it_says_so() -> None:
    world = called()
    ended, turn = world.call("j", group=OTHER, policy="interrupt")
    assert isinstance(ended, RunEnded)
    assert isinstance(turn, TurnCommitted)
    assert (ended.run_id, ended.status, ended.reason) == (RUN, RunStatus.CANCELLED, "interrupted")


def test_nobody_is_there_to_be_called() -> None:
    world = fresh()
    assert reason_of(world.call(group="agents/none")) is RefusedReason.AGENT_UNAVAILABLE
    world.drain("a")
    assert reason_of(world.call()) is RefusedReason.AGENT_UNAVAILABLE, "who drains takes no calls"
    assert reason_of(world.call(group="web")) is RefusedReason.CHANNEL_UNKNOWN


def test_in_line_it_ends_when_nobody_is_there_at_its_turn() -> None:
    world = called()
    world.call("j", policy="enqueue")
    world.call("k", group=OTHER, policy="enqueue")
    events = world.leave("a")
    ends = [event for event in events if isinstance(event, RunEnded)]
    assert [(end.turn_seq, end.status, end.reason) for end in ends] == [
        (1, RunStatus.OWNER_GONE, "owner_gone"),
        (2, RunStatus.FAILED, "agent_unavailable"),
    ]
    assert [event.turn_seq for event in events if isinstance(event, RunOpened)] == [3]


def test_a_closed_thread_and_one_that_a_human_answers_take_none() -> None:
    world = fresh()
    world.close()
    assert reason_of(world.call()) is RefusedReason.CONVERSATION_CLOSED


@pytest.mark.parametrize(
    "terms", [{"deadline_ms": 3_600_001}, {"deadline_ms": -1}, {"policy": "later"}, {"group": "x" * 600}]
)
def test_terms_that_break_a_rule_are_refused_by_name(terms: dict[str, Any]) -> None:
    assert reason_of(fresh().call(**terms)) is RefusedReason.INVALID_TEXT


# -------------------------------------------------------------------------------------------------------- deadlines


def test_it_ends_at_its_deadline_however_busy_it_is() -> None:
    world = called(deadline_ms=10_000)
    for _ in range(9):
        world.pass_time(1_000)
        world.chunk("a", "s", run=RUN, epoch=1)
    events = world.pass_time(1_000)
    assert end_of(events) == (RunStatus.TIMED_OUT, "deadline")


@pytest.mark.parametrize(
    ("terms", "end"),
    [
        ({"deadline_ms": 3_600_000}, None),
        ({"deadline_ms": 3_600_000, "streamed": True}, (RunStatus.TIMED_OUT, "watchdog")),
        ({"deadline_ms": 0}, (RunStatus.TIMED_OUT, "watchdog")),
    ],
)
def test_the_idle_watchdog_counts_where_it_is_streamed_or_has_no_deadline(
    terms: dict[str, Any], end: tuple[RunStatus, str] | None
) -> None:
    world = called(**terms)
    ends = [(e.status, e.reason) for e in world.pass_time(301_000) if isinstance(e, RunEnded)]
    assert ends == ([] if end is None else [end])


def test_an_open_question_stops_both_clocks() -> None:
    world = called(deadline_ms=10_000, streamed=True)
    world.pass_time(9_000)
    world.send("a", "interrupt", id="ask", run=RUN, epoch=1)
    assert not [e for e in world.pass_time(400_000) if isinstance(e, RunEnded)]
    world.send("a", "interrupt_resolved", id="ask", run=RUN, epoch=1)
    assert end_of(world.pass_time(1_000)) == (RunStatus.TIMED_OUT, "deadline")


def test_time_without_a_writer_does_not_count_against_the_deadline() -> None:
    world = called(deadline_ms=10_000)
    copy = replay(world.journal)
    assert copy.conversations["c"].runs[RUN].deadline_at == world.conversation().runs[RUN].deadline_at
    assert image(copy) == image(world.state)


# --------------------------------------------------------------------------------------------------------- lost owners


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("reason", ["left", "done"])
def test_it_is_not_executed_again_when_its_owner_is_lost(begun: bool, reason: str) -> None:
    world = fresh()
    world.call()
    if begun:
        world.run("a", "started", run=RUN, epoch=1)
    world.join("b", settle=True)
    assert end_of(world.leave("a", reason=reason)) == (RunStatus.OWNER_GONE, "owner_gone")


@pytest.mark.parametrize(
    ("agents", "terms", "moves"),
    [
        ({}, {"retry": True}, True),
        ({"on_owner_loss": "restart"}, {}, True),
        ({"on_owner_loss": "continue"}, {}, True),
        ({"on_owner_loss": "fail"}, {"retry": True}, False),
    ],
)
def test_it_is_where_it_or_its_group_says_so(agents: dict[str, Any], terms: dict[str, Any], moves: bool) -> None:
    world = fresh(**agents)
    world.call(**terms)
    world.run("a", "started", run=RUN, epoch=1)
    world.join("b", settle=True)
    assert ("RunMoved" in [type(event).__name__ for event in world.leave("a")]) is moves


def test_a_message_is_not_yet_its_end() -> None:
    world = called(retry=True)
    world.send("a", run=RUN, epoch=1)
    world.join("b", settle=True)
    moved = world.leave("a")[-1]
    assert isinstance(moved, RunMoved)
    assert (moved.to_member, moved.superseded) == ("b", (2,))
    world = called(deadline_ms=0)
    world.send("a", run=RUN, epoch=1)
    assert end_of(world.pass_time(301_000)) == (RunStatus.TIMED_OUT, "watchdog")
    world = called()
    world.send("a", run=RUN, epoch=1)
    assert end_of(world.leave("a")) == (RunStatus.OWNER_GONE, "owner_gone")


def test_a_gateway_that_is_given_up_is_its_owners_end_and_nothing_less() -> None:
    world = called()
    world.pass_time(60_000)
    assert not world.of(RunEnded), "a process that is silent is not gone for that"
    world.join("b", gateway="gw-2", settle=True)
    world.expire("gw-1")
    assert not world.of(RunEnded), "it may come back"
    assert end_of(world.pass_time(30_000)) == (RunStatus.OWNER_GONE, "owner_gone")


@pytest.mark.parametrize("reason", ["closed", "drained"])
def test_the_claim_of_a_lost_connection_is_kept_for_its_process_alone(reason: str) -> None:
    world = called()
    world.join("b", settle=True)
    kept = world.leave("a", reason=reason)[-1]
    assert isinstance(kept, RunMoved)
    assert (kept.to_member, kept.superseded) == (None, ())
    assert reason_of(world.call("j")) is RefusedReason.CONVERSATION_BUSY
    world.pass_time(29_000)
    world.join("stranger")
    assert world.conversation().runs[RUN].member is None
    adopted = world.join("a2", watermarks={"c": 1})[-1]
    assert isinstance(adopted, RunMoved)
    assert (adopted.to_member, adopted.adopted) == ("a2", True)
    world.pass_time(299_000)
    assert not world.of(RunEnded), "it may be silent for as long as work may be"
    assert end_of(world.run("a2", "finished", run=RUN, epoch=3)) == (RunStatus.ANSWERED, "finished")


def test_a_kept_claim_ends_after_its_grace_at_its_deadline_or_when_it_is_cancelled() -> None:
    def lost(**terms: Any) -> World:
        world = called(**terms)
        world.leave("a", reason="closed")
        return world

    assert end_of(lost().pass_time(30_000)) == (RunStatus.OWNER_GONE, "owner_gone")
    assert end_of(lost(deadline_ms=10_000).pass_time(10_000)) == (RunStatus.TIMED_OUT, "deadline")
    assert end_of(lost().cancel(RUN)) == (RunStatus.CANCELLED, "cancelled")
    assert end_of(lost().release(RUN)) == (RunStatus.OWNER_GONE, "released")


def test_without_a_grace_a_lost_connection_is_the_end() -> None:
    world = fresh(grace_ms=0)
    world.call()
    assert end_of(world.leave("a", reason="closed")) == (RunStatus.OWNER_GONE, "owner_gone")


# ---------------------------------------------------------------------------------------------------------- cancelling


def test_before_it_has_begun_it_ends_at_once() -> None:
    world = fresh()
    world.call()
    [ended] = world.cancel(RUN, ref="r")
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason, ended.by, ended.detail, ended.ref) == (
        RunStatus.CANCELLED, "cancelled", "ann", "enough", "r",
    )  # fmt: skip


def test_in_line_it_ends_at_once_too() -> None:
    world = called()
    world.call("j", policy="enqueue")
    assert end_of(world.cancel(f"c/2/{GROUP}")) == (RunStatus.CANCELLED, "cancelled")


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("aborted", (RunStatus.CANCELLED, "aborted")),
        ("finished", (RunStatus.ANSWERED, "finished")),
        ("error", (RunStatus.FAILED, "error")),
    ],
)
def test_at_work_it_ends_when_its_agent_says_so(status: str, end: tuple[RunStatus, str]) -> None:
    world = called()
    [cancelling] = world.cancel(RUN, ref="r")
    assert isinstance(cancelling, RunCancelling)
    assert (cancelling.member, cancelling.by, cancelling.ref) == ("a", "ann", "r")
    world.chunk("a", "s", run=RUN, epoch=1)
    assert end_of(world.run("a", status, run=RUN, epoch=1)) == end


def test_the_loss_of_its_owner_ends_it_as_cancelled() -> None:
    world = called(retry=True)
    world.cancel(RUN)
    world.join("b", settle=True, watermarks={"c": 1})
    assert end_of(world.leave("a")) == (RunStatus.CANCELLED, "cancelled")


def test_its_deadline_holds_while_it_is_cancelled() -> None:
    world = called(deadline_ms=5_000)
    world.cancel(RUN)
    assert end_of(world.pass_time(5_000)) == (RunStatus.TIMED_OUT, "deadline")


def test_cancelling_twice_or_what_is_over_is_a_repeat() -> None:
    world = called()
    world.cancel(RUN)
    assert isinstance(world.cancel(RUN, ref="r2")[0], Duplicate)
    world.run("a", "aborted", run=RUN, epoch=1)
    [over] = world.cancel(RUN, ref="r3")
    assert isinstance(over, Duplicate)
    assert over.ref == "r3"


def test_what_never_was_cannot_be_cancelled() -> None:
    assert reason_of(fresh().cancel(RUN)) is RefusedReason.RUN_NOT_FOUND
    assert reason_of(fresh().cancel(RUN, "nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND


# ----------------------------------------------------------------------------------------------------------- release


def orphaned() -> World:
    """Its member is gone, and nobody else is there to go on."""
    world = fresh(on_owner_loss="continue")
    world.call()
    world.run("a", "started", run=RUN, epoch=1)
    assert isinstance(world.leave("a")[-1], RunMoved)
    return world


def test_an_operator_releases_a_claim_whose_worker_has_stopped() -> None:
    world = orphaned()
    [ended] = world.release(RUN)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason, ended.detail) == (RunStatus.OWNER_GONE, "released", "stuck: its host is off")
    assert isinstance(world.release(RUN)[0], Duplicate)


def test_a_release_needs_a_proof_and_a_member_that_is_gone() -> None:
    assert reason_of(orphaned().release(RUN, proof=" ")) is RefusedReason.INVALID_TEXT
    assert reason_of(called().release(RUN)) is RefusedReason.MEMBER_LIVE
    assert reason_of(fresh().release(RUN)) is RefusedReason.RUN_NOT_FOUND
