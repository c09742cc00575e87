"""Rule 5: what becomes of a member's open runs when it goes."""

from __future__ import annotations

from typing import Any

import pytest

from streams.core.commands import OpenWriter, TimePassed
from streams.core.events import (
    Event,
    FrameCommitted,
    MemberLeft,
    MoveReason,
    OwnerChanged,
    Refused,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from streams.core.fold import step
from streams.core.ownership import owner_of
from tests.support.partition_world import GROUP, World

ADOPT_MS = 5000


def two_members(**settings: Any) -> tuple[World, str, str]:
    """A world with a turn in conversation c; its owner, and the other member."""
    world = World(**settings)
    world.join("a", gateway="gw-1")
    world.join("b", gateway="gw-2", settle=True)
    world.open()
    world.say()
    owner = world.of(TurnCommitted)[0].assigned[0].member
    assert owner is not None
    return world, owner, "b" if owner == "a" else "a"


def one_member(**settings: Any) -> World:
    world = World(**settings)
    world.join("a", settle=True)
    world.open()
    world.say()
    return world


def gateway_of(world: World, member: str) -> str:
    return world.state.members[member].gateway


def moves(events: list[Event]) -> list[tuple[int, str | None, str | None, int]]:
    return [(e.turn_seq, e.from_member, e.to_member, e.run_epoch) for e in events if isinstance(e, RunMoved)]


def test_an_unanswered_turn_goes_to_the_owner_of_now_at_the_next_epoch() -> None:
    world, owner, other = two_members()
    events = world.leave(owner, gateway_of(world, owner))
    assert isinstance(events[0], MemberLeft)
    assert moves(events) == [(1, owner, other, 2)]
    assert world.of(RunMoved)[0].reason is MoveReason.MEMBER_LEFT
    assert owner_of(world.state, GROUP, "c", world.at) == other


@pytest.mark.parametrize(
    ("go", "reason"),
    [
        (lambda world, member: world.leave(member, gateway_of(world, member), reason="drained"), "member_drained"),
        (lambda world, member: world.expire(gateway_of(world, member)), "member_expired"),
        (lambda world, member: world.list_members(gateway_of(world, member), 1), "member_left"),
    ],
    ids=["drained", "expired", "missing in its gateway's list"],
)
def test_every_way_to_go_moves_the_runs(go: object, reason: str) -> None:
    world, owner, other = two_members()
    events = go(world, owner)  # type: ignore[operator]
    assert moves(events) == [(1, owner, other, 2)]
    assert world.of(RunMoved)[0].reason == reason


def test_all_its_open_runs_move_in_the_order_of_conversation_and_turn() -> None:
    world = World()
    world.join("a", settle=True)
    for id_ in ("z", "b", "k"):
        world.open(id_)
        world.say(id_=id_)
        world.say(id_=id_)
    world.join("h", gateway="gw-2", settle=True)
    events = world.leave("a")
    assert [(e.conversation_id, e.turn_seq) for e in events if isinstance(e, RunMoved)] == [
        ("b", 1), ("b", 2), ("k", 1), ("k", 2), ("z", 1), ("z", 2),
    ]  # fmt: skip


def test_answered_turns_go_to_nobody() -> None:
    world, owner, _ = two_members()
    world.send(owner, delivered=1)
    assert moves(world.leave(owner, gateway_of(world, owner))) == []


def test_a_turn_whose_answer_is_committed_counts_as_answered_without_its_finish() -> None:
    world, owner, _ = two_members()
    world.run(owner, "started", delivered=1)
    world.send(owner, client_id="m1")
    [_, ended] = world.leave(owner, gateway_of(world, owner))
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason, ended.superseded) == (RunStatus.ANSWERED, "owner_gone_after_answer", ())


def test_a_partial_answer_is_closed_and_superseded_before_the_run_moves() -> None:
    world, owner, other = two_members()
    world.run(owner, "started", delivered=1)
    world.chunk(owner, "s", data="{}")
    world.chunk(owner, "s", data="{}")
    world.send(owner, "interrupt", id="ask-1")
    _, stream, ask, moved = world.leave(owner, gateway_of(world, owner))
    assert isinstance(stream, FrameCommitted)
    assert (stream.seq, stream.sender, stream.frame.type, stream.frame.stream_id, stream.frame.done) == (
        5, "system", "genui", "s", True,
    )  # fmt: skip
    assert isinstance(ask, FrameCommitted)
    assert (ask.seq, ask.frame.type, ask.frame.id, ask.run_epoch) == (6, "interrupt_resolved", "ask-1", 1)
    assert isinstance(moved, RunMoved)
    assert (moved.to_member, moved.superseded, moved.run_epoch) == (other, (2, 3, 4, 5, 6), 2)
    run = world.conversation().runs[moved.run_id]
    assert run.progress is None, "the new owner starts from a clean sheet"
    assert world.conversation().asking == 0


def test_a_message_with_an_open_stream_beside_it_is_no_answer_yet() -> None:
    world, owner, other = two_members()
    world.run(owner, "started", delivered=1)
    world.send(owner, client_id="m1")
    world.chunk(owner, "s")
    assert moves(world.leave(owner, gateway_of(world, owner))) == [(1, owner, other, 2)]
    assert world.of(RunMoved)[0].superseded == (2, 3, 4)


def test_the_zombie_is_fenced_from_the_move_on() -> None:
    """Field report 20."""
    world, owner, other = two_members()
    world.run(owner, "started", delivered=1)
    world.chunk(owner, "s")
    world.leave(owner, gateway_of(world, owner))
    head = world.conversation().head
    for events in (
        world.chunk(owner, "s"),
        world.send(owner, client_id="m1", ref="r9"),
        world.run(owner, "finished"),
        world.send(owner, "error"),
    ):
        assert [type(event) for event in events] in ([Refused], [])
    assert world.conversation().head == head
    world.send(other, client_id="m1", delivered=1)
    assert world.conversation().head == head + 1


def test_with_fail_a_run_whose_owner_is_gone_ends_and_is_never_executed_again() -> None:
    world, owner, other = two_members(on_owner_loss="fail")
    world.chunk(owner, "s", delivered=1)
    _, closing, ended = world.leave(owner, gateway_of(world, owner))
    assert isinstance(closing, FrameCommitted)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason, ended.superseded) == (RunStatus.OWNER_GONE, "owner_gone", ())
    assert not world.state.members[other].conversations


def test_the_last_member_gone_the_run_waits_for_the_groups_next_one() -> None:
    world = one_member()
    assert moves(world.leave("a")) == [(1, "a", None, 2)]
    assert not world.join("x", "agents/other")[1:], "another group does not get it"
    assert moves(world.join("b")) == [(1, None, "b", 3)]
    assert isinstance(world.send("b", client_id="m", delivered=1)[-1], RunEnded)


def test_a_waiting_run_of_an_answered_turn_is_not_given_to_the_only_agent_that_reconnects() -> None:
    world = one_member()
    world.run("a", "started", delivered=1)
    world.send("a", client_id="m1")
    assert isinstance(world.leave("a")[-1], RunEnded)
    assert len(world.join("a2")) == 1


def test_a_partial_answer_stays_open_while_the_run_waits_and_is_superseded_by_a_stranger() -> None:
    world = one_member()
    world.chunk("a", "s", delivered=1)
    assert [type(event) for event in world.leave("a")] == [MemberLeft, RunMoved]
    _, closing, moved = world.join("b")
    assert isinstance(closing, FrameCommitted)
    assert (closing.run_epoch, closing.member) == (2, "")
    assert isinstance(moved, RunMoved)
    assert (moved.superseded, moved.run_epoch) == ((2, 3), 3)


def test_the_run_of_an_each_connection_ends_with_it() -> None:
    world = World()
    world.join("a", "agents/~a", each=True, settle=True)
    world.open()
    world.say()
    ended = world.leave("a")[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status is RunStatus.OWNER_GONE


class TestAdoption:
    """An agent that reconnects with a watermark at or above the turn still has it."""

    def test_it_goes_on_where_it_was(self) -> None:
        world = one_member()
        world.run("a", "started", delivered=1)
        world.chunk("a", "s")
        world.leave("a")
        _, moved = world.join("a2", watermarks={"c": 1})
        assert isinstance(moved, RunMoved)
        assert (moved.adopted, moved.superseded, moved.to_member, moved.run_epoch) == (True, (), "a2", 3)
        run = {"run": moved.run_id, "epoch": 3}
        world.chunk("a2", "s", done=True, **run)
        assert isinstance(world.run("a2", "finished", **run)[-1], RunEnded)
        assert world.of(RunEnded)[0].run_epoch == 3

    def test_a_watermark_below_the_turn_is_no_claim(self) -> None:
        world = one_member()
        world.say()
        world.leave("a")
        moved = [event for event in world.join("a2", watermarks={"c": 1}) if isinstance(event, RunMoved)]
        assert [(event.turn_seq, event.adopted) for event in moved] == [(1, True), (2, False)]

    def test_without_a_frame_in_time_it_is_given_again(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        assert world.pass_time(ADOPT_MS - 1) == []
        [again] = world.pass_time(1)
        assert isinstance(again, RunMoved)
        assert (again.from_member, again.to_member, again.run_epoch) == ("a2", "a2", 4)
        assert (again.reason, again.adopted) == (MoveReason.ADOPT_TIMEOUT, False)
        assert world.pass_time(60_000) == []

    def test_a_frame_in_time_keeps_it(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        world.pass_time(ADOPT_MS - 1)
        world.read("a2", 1)
        assert world.pass_time(ADOPT_MS) == []

    def test_a_chunk_in_time_keeps_it_as_well(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        world.pass_time(ADOPT_MS - 1)
        world.chunk("a2", "s")
        assert world.pass_time(ADOPT_MS) == []

    def test_while_a_person_is_asked_nothing_is_waited_for(self) -> None:
        """Who asked has nothing to say until the answer is there; from then on it has the whole time again."""
        world = one_member()
        world.run("a", "started", delivered=1)
        world.send("a", "interrupt", id="ask-1")
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        assert world.pass_time(10 * ADOPT_MS) == []
        world.say("yes")
        assert world.pass_time(ADOPT_MS - 1) == []
        assert isinstance(world.pass_time(1)[-1], RunMoved)

    def test_time_without_a_writer_does_not_count(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        world.at += ADOPT_MS - 1
        step(world.state, OpenWriter(at=world.at, timestamp=0, writer_epoch=2, worker="wk-2"), 2)
        world.at += ADOPT_MS - 1
        assert step(world.state, TimePassed(at=world.at, timestamp=0), 2) == []
        assert step(world.state, TimePassed(at=world.at + 1, timestamp=0), 2)

    def test_what_its_process_was_working_on_is_still_what_it_works_on(self) -> None:
        world = one_member()
        world.say()
        world.read("a", 2)
        world.leave("a")
        world.join("a2", watermarks={"c": 2})
        [frame] = world.chunk("a2", "s")
        assert isinstance(frame, FrameCommitted)
        assert frame.run_id == f"c/2/{GROUP}"

    def test_it_is_correlated_though_it_was_not_given_over_this_connection(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        frame, ended = world.send("a2", client_id="m1", delivered=0)
        assert isinstance(frame, FrameCommitted)
        assert frame.run_id == f"c/1/{GROUP}"
        assert isinstance(ended, RunEnded)

    def test_who_reconnected_before_its_old_connection_was_missed_inherits_from_itself(self) -> None:
        """A half-open connection: the new one joins first, the old one expires 5 s later."""
        world = World()
        world.join("a", gateway="gw-1", settle=True)
        for number in range(20):
            world.open(f"c{number}")
            world.say(id_=f"c{number}")
        world.join("b", gateway="gw-2")
        world.join("a2", gateway="gw-3", settle=True, watermarks={f"c{number}": 1 for number in range(20)})
        moved = [event for event in world.expire("gw-1") if isinstance(event, RunMoved)]
        assert {(event.to_member, event.adopted) for event in moved} == {("a2", True)}
        assert len(moved) == 20

    def test_a_claim_is_a_change_of_its_conversation(self) -> None:
        world = one_member()
        world.state.dirty.clear()
        world.join("a2", gateway="gw-2", watermarks={"c": 1, "unknown": 7})
        assert world.state.dirty == {"c"}
        assert world.conversation().lsn == world.state.lsn

    def test_who_claimed_and_left_inherits_nothing(self) -> None:
        world = one_member()
        world.join("a2", gateway="gw-2", watermarks={"c": 1})
        world.join("b", gateway="gw-3", settle=True)
        world.leave("a2", "gw-2")
        [_, moved] = world.leave("a")
        assert isinstance(moved, RunMoved)
        assert (moved.to_member, moved.adopted) == ("b", False)

    def test_what_another_process_spoke_in_is_not_adopted_but_superseded(self) -> None:
        """The run moved from a to b, b spoke and is lost, a comes back: its answer is not b's rest."""
        world = one_member()
        world.leave("a")
        world.join("b", gateway="gw-2")
        world.chunk("b", "s", delivered=1)
        world.leave("b", "gw-2")
        _, closing, moved = world.join("a2", watermarks={"c": 1})
        assert isinstance(moved, RunMoved)
        assert isinstance(closing, FrameCommitted)
        assert (moved.adopted, moved.to_member, moved.superseded) == (False, "a2", (2, closing.seq))

    def test_what_was_superseded_meanwhile_is_not_gone_on_with(self) -> None:
        """What a's process sent is hidden by now: the rest of it alone would be no answer."""
        world = one_member()
        world.chunk("a", "s", delivered=1)
        world.leave("a")
        world.join("b", gateway="gw-2")
        world.leave("b", "gw-2")
        [_, moved] = world.join("a2", watermarks={"c": 1})
        assert isinstance(moved, RunMoved)
        assert (moved.adopted, moved.superseded) == (False, ())

    def test_what_was_continued_elsewhere_is_continued_again_by_a_process_that_comes_back(self) -> None:
        world = World()
        world.join("a", settle=True, continues=True)
        world.open()
        world.say()
        world.chunk("a", "s", delivered=1)
        world.leave("a")
        world.join("b", gateway="gw-2", continues=True)
        world.leave("b", "gw-2")
        [_, moved] = world.join("a2", watermarks={"c": 1}, continues=True)
        assert isinstance(moved, RunMoved)
        assert (moved.adopted, moved.continued) == (False, True)

    def test_where_nobody_spoke_yet_a_process_that_comes_back_keeps_it_after_another_had_it(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("b", gateway="gw-2")
        world.read("b", 1)
        world.leave("b", "gw-2")
        [_, moved] = world.join("a2", watermarks={"c": 1})
        assert isinstance(moved, RunMoved)
        assert moved.adopted

    def test_who_is_given_an_adopted_run_again_is_still_the_one_that_adopted_it(self) -> None:
        world = one_member()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        world.pass_time(ADOPT_MS)
        world.chunk("a2", "s", delivered=1)
        world.leave("a2")
        [_, moved] = world.join("a3", watermarks={"c": 1})
        assert isinstance(moved, RunMoved)
        assert moved.adopted

    def test_with_fail_it_ends_when_no_frame_comes(self) -> None:
        world = one_member(on_owner_loss="fail")
        world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1})
        world.leave("a")
        [ended] = world.pass_time(ADOPT_MS)
        assert isinstance(ended, RunEnded)
        assert ended.status is RunStatus.OWNER_GONE


def test_waiting_runs_come_before_later_waiting_turns_of_the_same_conversation() -> None:
    world = one_member()
    world.leave("a")
    world.say()
    assert world.of(TurnCommitted)[-1].waiting == ("agents",)
    events = world.join("b")[1:]
    assert [type(event) for event in events] == [RunMoved, OwnerChanged, RunOpened]


def test_a_list_that_replaces_all_members_leaves_no_run_waiting() -> None:
    world = one_member()
    events = world.list_members("gw-1", 7, "b", "d")
    [move] = [event for event in events if isinstance(event, RunMoved)]
    assert move.to_member in {"b", "d"}
    assert move.run_epoch == 2


class TestComingBackInTheMiddleOfAnAnswer:
    """An agent of the public protocol names neither run nor epoch. Its new connection joins while the log still has the
    old one; what it sends on the new one before the old one is missed is refused. Then the rest must not be stored."""

    def half_said(self) -> World:
        world = World()
        world.join("a", gateway="gw-1", settle=True)
        world.open()
        world.say()
        world.run("a", "started", delivered=1)
        world.chunk("a", "s", delivered=1)
        world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1})
        return world

    def test_what_it_says_before_its_old_connection_is_missed_is_no_message_of_no_run(self) -> None:
        for settled in ("a", "a2"):  # whichever of the two is the conversation's owner
            world = self.half_said()
            world.state.members[settled].since = world.at + 1
            [refused] = world.chunk("a2", "s", delivered=1)
            assert isinstance(refused, Refused)
            assert refused.run_id == f"c/1/{GROUP}"

    def test_a_run_of_which_it_was_refused_a_piece_is_not_adopted_but_begun_anew(self) -> None:
        world = self.half_said()
        world.chunk("a2", "s", delivered=1)
        assert world.state.dirty == {"c"}
        _, closing, moved = world.leave("a")
        assert isinstance(closing, FrameCommitted)
        assert isinstance(moved, RunMoved)
        assert (moved.to_member, moved.adopted, moved.superseded) == ("a2", False, (2, closing.seq))

    def test_the_rest_of_it_is_refused_though_the_run_is_its_by_then(self) -> None:
        world = self.half_said()
        world.chunk("a2", "s", delivered=1)
        world.leave("a")
        for type_ in ("genui", "tool_call", "interrupt"):
            [refused] = world.send("a2", type_, stream_id="s", done=True, delivered=1)
            assert isinstance(refused, Refused), type_
        assert world.run("a2", "finished") == []
        assert world.run("a2", "aborted") == []
        assert f"c/1/{GROUP}" in world.conversation().runs

    def test_once_it_says_that_it_begins_what_it_says_counts(self) -> None:
        world = self.half_said()
        world.chunk("a2", "s", delivered=1)
        world.leave("a")
        world.run("a2", "started", delivered=1)
        [frame] = world.chunk("a2", "s", done=True, delivered=1)
        assert isinstance(frame, FrameCommitted)
        assert frame.frame.stream_id == "s#1"
        [ended] = world.run("a2", "finished")
        assert isinstance(ended, RunEnded)
        assert (ended.status, ended.superseded) == (RunStatus.ANSWERED, ())

    def test_a_whole_message_of_it_counts_without_that(self) -> None:
        world = self.half_said()
        world.chunk("a2", "s", delivered=1)
        world.leave("a")
        frame, ended = world.send("a2", client_id="m1", delivered=1)
        assert isinstance(frame, FrameCommitted)
        assert isinstance(ended, RunEnded)

    def test_of_two_such_runs_the_one_of_which_nothing_was_refused_goes_on(self) -> None:
        world = World()
        world.join("a", gateway="gw-1", settle=True)
        for conversation in ("c", "d"):
            world.open(conversation)
            world.say(id_=conversation)
        world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1, "d": 1})
        world.chunk("a2", "s", delivered=1)
        moved = [event for event in world.leave("a") if isinstance(event, RunMoved)]
        assert {(event.conversation_id, event.adopted) for event in moved} == {("c", False), ("d", True)}

    def test_who_named_its_epoch_needs_not_say_that_it_begins(self) -> None:
        world = self.half_said()
        world.chunk("a2", "s", delivered=1)
        world.leave("a")
        [frame] = world.chunk("a2", "t", run=f"c/1/{GROUP}", epoch=2)
        assert isinstance(frame, FrameCommitted)


class TestAStreamOverALostConnection:
    """Who names no epoch is not told what was stored; what it sent into the connection that was lost, nobody knows."""

    def adopted(self, reason: str = "closed") -> World:
        world = one_member()
        world.run("a", "started", delivered=1)
        world.chunk("a", "s", delivered=1)
        world.leave("a", reason=reason)
        world.join("a2", watermarks={"c": 1})
        assert world.of(RunMoved)[-1].adopted
        return world

    def test_its_rest_is_not_stored_and_the_run_is_given_anew(self) -> None:
        world = self.adopted()
        refused, closing, moved = world.chunk("a2", "s", done=True, delivered=1)
        assert isinstance(refused, Refused)
        assert isinstance(closing, FrameCommitted)
        assert isinstance(moved, RunMoved)
        assert (moved.to_member, moved.adopted, moved.superseded) == ("a2", False, (2, closing.seq))
        assert world.run("a2", "aborted", delivered=1) == []
        world.run("a2", "started", delivered=1)
        assert isinstance(world.chunk("a2", "t", done=True, delivered=1)[0], FrameCommitted)
        [ended] = world.run("a2", "finished", delivered=1)
        assert isinstance(ended, RunEnded)
        assert ended.status is RunStatus.ANSWERED

    def test_an_end_that_leaves_it_open_is_none(self) -> None:
        world = self.adopted()
        [refused, _, moved] = world.run("a2", "finished", delivered=1)
        assert isinstance(refused, Refused)
        assert isinstance(moved, RunMoved)
        assert not moved.adopted

    def test_with_fail_the_run_ends(self) -> None:
        world = one_member(on_owner_loss="fail")
        world.run("a", "started", delivered=1)
        world.chunk("a", "s", delivered=1)
        world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1})
        world.leave("a")
        ended = world.chunk("a2", "s", done=True, delivered=1)[-1]
        assert isinstance(ended, RunEnded)
        assert ended.status is RunStatus.OWNER_GONE

    def test_another_stream_and_other_frames_go_on_in_silence(self) -> None:
        world = self.adopted()
        for event in (
            *world.chunk("a2", "t", delivered=1),
            *world.send("a2", "tool_call", delivered=1),
            *world.send("a2", client_id="m1"),
        ):
            assert isinstance(event, FrameCommitted)

    def test_who_names_the_epoch_was_told_and_goes_on(self) -> None:
        world = self.adopted()
        [frame] = world.chunk("a2", "s", done=True, run=f"c/1/{GROUP}", epoch=3, delivered=1)
        assert isinstance(frame, FrameCommitted)

    def test_a_connection_that_a_draining_gateway_ended_was_read_to_its_end(self) -> None:
        world = one_member()
        world.run("a", "started", delivered=1)
        world.chunk("a", "s", delivered=1)
        world.join("a2", gateway="gw-2", settle=True, watermarks={"c": 1})
        world.leave("a", reason="drained")
        [frame] = world.chunk("a2", "s", done=True, delivered=1)
        assert isinstance(frame, FrameCommitted)

    def test_what_a_slow_process_says_after_its_run_was_given_to_it_anew_is_refused_until_it_begins(self) -> None:
        world = self.adopted()
        again = world.pass_time(ADOPT_MS)[-1]
        assert isinstance(again, RunMoved)
        assert (again.to_member, again.adopted) == ("a2", False)
        assert isinstance(world.chunk("a2", "s", delivered=1)[0], Refused)
        assert isinstance(world.chunk("a2", "t", delivered=1)[0], Refused)
        world.run("a2", "started", delivered=1)
        assert isinstance(world.chunk("a2", "t", delivered=1)[0], FrameCommitted)

    def test_that_stays_so_for_a_process_that_comes_back_once_more(self) -> None:
        world = self.adopted()
        world.pass_time(ADOPT_MS)
        world.leave("a2")
        world.join("a3", watermarks={"c": 1})
        assert world.of(RunMoved)[-1].adopted
        assert isinstance(world.chunk("a3", "s", delivered=1)[0], Refused)
        world.run("a3", "started", delivered=1)
        assert isinstance(world.chunk("a3", "s", delivered=1)[0], FrameCommitted)

    def test_so_it_is_for_a_process_whose_run_another_one_had_meanwhile(self) -> None:
        world = one_member()
        world.run("a", "started", delivered=1)
        world.leave("a")
        world.join("b", gateway="gw-2")
        world.run("b", "started", delivered=1)
        world.chunk("b", "s", delivered=1)
        world.leave("b", "gw-2")
        world.join("a2", watermarks={"c": 1})
        assert isinstance(world.chunk("a2", "s", done=True, delivered=1)[0], Refused)
