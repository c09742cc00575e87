"""Rule 5, `continue`: a run goes on with its next owner where the lost one stopped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams.core.events import (
    Duplicate,
    Event,
    FrameCommitted,
    MemberLeft,
    MoveReason,
    Refused,
    RefusedReason,
    RunEnded,
    RunMoved,
    RunStarted,
    RunStatus,
    TurnCommitted,
)
from streams.core.limits import CHECKPOINT_MAX_BYTES
from streams.core.state import ImpossibleEvent
from tests.support.partition_world import GROUP, World, replay

ADOPT_MS = 5000
WATCHDOG_MS = 300_000
RUN = f"c/1/{GROUP}"


def half_answered(*, heirs: bool = True, **settings: Any) -> tuple[World, str, str]:
    """A world in which the owner of c's turn has begun its answer; the owner, and who will get it.

    `heirs`: whether members can continue.
    """
    world = World(**settings)
    world.join("a", gateway="gw-1", continues=heirs)
    world.join("b", gateway="gw-2", settle=True, continues=heirs)
    world.open()
    world.say()
    owner = world.of(TurnCommitted)[0].assigned[0].member
    assert owner is not None
    world.run(owner, "started", delivered=1)
    world.chunk(owner, "s", data="{}", client_id="c1")
    return world, owner, "b" if owner == "a" else "a"


def lone(**settings: Any) -> World:
    """A world in which the only member has begun its answer."""
    world = World(**settings)
    world.join("a", settle=True, continues=True)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    world.chunk("a", "s", client_id="c1")
    return world


def go(world: World, member: str) -> list[Event]:
    return world.leave(member, world.state.members[member].gateway)


def test_nothing_is_closed_or_superseded_and_the_next_owner_has_the_next_epoch() -> None:
    world, owner, heir = half_answered()
    world.send(owner, "interrupt", id="ask-1")
    _, moved = go(world, owner)
    assert isinstance(moved, RunMoved)
    assert (moved.to_member, moved.run_epoch, moved.continued, moved.superseded) == (heir, 2, True, ())
    progress = world.conversation().runs[RUN].progress
    assert progress is not None
    assert (progress.frames, progress.streams, list(progress.asks)) == ([2, 3], ["s"], ["ask-1"])
    assert world.conversation().asking == 1


def test_the_next_owner_finishes_the_same_stream_of_the_same_answer() -> None:
    world, owner, heir = half_answered()
    go(world, owner)
    world.run(heir, "started", run=RUN, epoch=2)
    [chunk] = world.chunk(heir, "s", done=True, run=RUN, epoch=2)
    assert isinstance(chunk, FrameCommitted)
    assert (chunk.frame.stream_id, chunk.run_epoch, chunk.seq) == ("s", 2, 3)
    [ended] = world.run(heir, "finished", run=RUN)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.superseded) == (RunStatus.ANSWERED, ())


def test_what_was_committed_before_is_a_repeat_from_the_next_owner() -> None:
    world, owner, heir = half_answered()
    go(world, owner)
    world.run(heir, "started", run=RUN)
    [again] = world.chunk(heir, "s", client_id="c1", run=RUN)
    assert isinstance(again, Duplicate)
    assert again.of_seq == 2


def test_the_next_owner_says_by_itself_that_it_works_on_it() -> None:
    world, owner, heir = half_answered()
    go(world, owner)
    progress = world.conversation().runs[RUN].progress
    assert progress is not None
    assert not progress.started
    [started] = world.run(heir, "started", delivered=1)
    assert isinstance(started, RunStarted)
    assert (started.member, started.run_epoch) == (heir, 2)


def test_an_end_that_names_no_run_does_not_end_what_its_sender_has_not_begun() -> None:
    world, owner, heir = half_answered()
    go(world, owner)
    assert world.run(heir, "finished", delivered=1) == []
    assert RUN in world.conversation().runs
    assert isinstance(world.run(heir, "finished", run=RUN)[-1], RunEnded)


@pytest.mark.parametrize("begin", ["run", "tool_call"])
def test_an_end_that_names_no_run_ends_what_its_sender_has_begun(begin: str) -> None:
    world, owner, heir = half_answered()
    go(world, owner)
    world.send(heir, begin, status="started" if begin == "run" else None, delivered=1)
    assert isinstance(world.run(heir, "finished", delivered=1)[-1], RunEnded)


def test_the_lost_owner_is_fenced() -> None:
    world, owner, _ = half_answered()
    go(world, owner)
    [refused] = world.chunk(owner, "s", run=RUN, epoch=1)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.FENCED


def test_a_run_of_which_nothing_was_done_is_just_given() -> None:
    world = World()
    world.join("a", continues=True, settle=True)
    world.open()
    world.say()
    world.join("b", gateway="gw-2", continues=True)
    [_, moved] = world.leave("a")
    assert isinstance(moved, RunMoved)
    assert not moved.continued


@pytest.mark.parametrize(
    ("heirs", "policy", "continued"),
    [
        (True, None, True),
        (True, "continue", True),
        (True, "a policy of a later release", True),
        (True, "restart", False),
        (False, None, False),
        (False, "continue", False),
    ],
)
def test_it_is_continued_by_a_member_that_can_unless_the_channel_says_restart(
    heirs: bool, policy: str | None, continued: bool
) -> None:
    world, owner, _ = half_answered(heirs=heirs, on_owner_loss=policy)
    moved = go(world, owner)[-1]
    assert isinstance(moved, RunMoved)
    assert (moved.continued, moved.superseded == ()) == (continued, continued)


def test_with_fail_it_ends_though_it_could_be_continued() -> None:
    world, owner, _ = half_answered(on_owner_loss="fail")
    assert isinstance(go(world, owner)[-1], RunEnded)


def test_a_message_with_nothing_open_is_continued_for_it_may_not_have_been_the_last() -> None:
    world, owner, heir = half_answered()
    world.chunk(owner, "s", done=True)
    moved = go(world, owner)[-1]
    assert isinstance(moved, RunMoved)
    assert (moved.to_member, moved.continued) == (heir, True)


def test_a_run_that_ended_is_given_to_nobody() -> None:
    world, owner, _ = half_answered()
    world.chunk(owner, "s", done=True)
    world.run(owner, "finished")
    assert [type(event) for event in go(world, owner)] == [MemberLeft]


def test_a_question_that_was_asked_is_answered_to_the_next_owner() -> None:
    world, owner, heir = half_answered()
    world.send(owner, "interrupt", id="ask-1")
    go(world, owner)
    turn = world.say("the blue one")[-1]
    assert isinstance(turn, TurnCommitted)
    assert (turn.joins_run, turn.interrupt_id, turn.assigned) == (RUN, "ask-1", ())
    assert world.conversation().runs[RUN].member == heir


def test_the_watchdog_counts_anew_for_the_next_owner() -> None:
    world, owner, _ = half_answered()
    world.pass_time(WATCHDOG_MS - 1)
    go(world, owner)
    assert world.pass_time(WATCHDOG_MS - 1) == []
    assert isinstance(world.pass_time(1)[-1], RunEnded)


@pytest.mark.parametrize("wrong", [{"superseded": (2,)}, {"checkpoint_lsn": 1}])
def test_an_event_that_continues_another_run_than_there_is_is_impossible(wrong: dict[str, Any]) -> None:
    world, owner, _ = half_answered()
    moved = go(world, owner)[-1]
    last = msgspec.structs.replace(world.journal[-1], event=msgspec.structs.replace(moved, **wrong))
    with pytest.raises(ImpossibleEvent, match="cannot be continued so"):
        replay([*world.journal[:-1], last])


class TestWithoutMember:
    """The group is empty for a while."""

    def test_who_comes_next_goes_on_where_the_lost_one_stopped(self) -> None:
        world = lone()
        world.leave("a")
        _, moved = world.join("b", continues=True)
        assert isinstance(moved, RunMoved)
        assert (moved.from_member, moved.to_member, moved.run_epoch, moved.continued) == (None, "b", 3, True)

    def test_who_cannot_begins_anew(self) -> None:
        world = lone()
        world.leave("a")
        _, closing, moved = world.join("b")
        assert isinstance(closing, FrameCommitted)
        assert isinstance(moved, RunMoved)
        assert (moved.continued, moved.superseded) == (False, (2, 3))

    def test_a_message_of_one_that_would_have_said_that_it_is_over_waits_for_one_that_can_go_on(self) -> None:
        world = lone()
        world.chunk("a", "s", done=True)
        assert isinstance(world.leave("a")[-1], RunMoved)
        moved = world.join("b", continues=True)[-1]
        assert isinstance(moved, RunMoved)
        assert moved.continued

    def test_and_counts_as_answered_where_the_next_one_cannot(self) -> None:
        world = lone()
        world.chunk("a", "s", done=True)
        world.leave("a")
        ended = world.join("b")[-1]
        assert isinstance(ended, RunEnded)
        assert (ended.status, ended.reason) == (RunStatus.ANSWERED, "owner_gone_after_answer")


def test_who_has_it_already_adopts_it_and_is_given_it_with_all_that_was_done_when_nothing_comes() -> None:
    world = lone()
    world.leave("a")
    _, adopted = world.join("a2", continues=True, watermarks={"c": 1})
    assert isinstance(adopted, RunMoved)
    assert (adopted.adopted, adopted.continued) == (True, False)
    [again] = world.pass_time(ADOPT_MS)
    assert isinstance(again, RunMoved)
    assert (again.reason, again.to_member, again.continued) == (MoveReason.ADOPT_TIMEOUT, "a2", True)


class TestCheckpoints:
    """What an agent keeps for whoever continues its run."""

    def test_the_last_one_goes_with_the_run(self) -> None:
        world, owner, _ = half_answered()
        world.send(owner, "checkpoint", data='{"step":1}')
        [kept] = world.send(owner, "checkpoint", data='{"step":2}')
        assert isinstance(kept, FrameCommitted)
        assert (kept.seq, kept.run_id, kept.frame.data) == (0, RUN, '{"step":2}')
        lsn = world.state.lsn
        moved = go(world, owner)[-1]
        assert isinstance(moved, RunMoved)
        assert moved.checkpoint_lsn == lsn

    def test_it_stays_with_the_run_until_there_is_a_later_one(self) -> None:
        world, owner, heir = half_answered()
        world.send(owner, "checkpoint", data="1")
        lsn = world.state.lsn
        go(world, owner)
        world.join("d", gateway="gw-3", continues=True)
        moved = go(world, heir)[-1]
        assert isinstance(moved, RunMoved)
        assert (moved.continued, moved.checkpoint_lsn, moved.run_epoch) == (True, lsn, 3)

    def test_a_run_that_begins_anew_has_none(self) -> None:
        world, owner, _ = half_answered(heirs=False)
        world.send(owner, "checkpoint", data="1")
        moved = go(world, owner)[-1]
        assert isinstance(moved, RunMoved)
        assert moved.checkpoint_lsn == 0
        assert world.conversation().runs[RUN].progress is None

    def test_it_is_no_message_and_no_number(self) -> None:
        world, owner, _ = half_answered()
        head = world.conversation().head
        world.send(owner, "checkpoint", data="1")
        progress = world.conversation().runs[RUN].progress
        assert progress is not None
        assert (world.conversation().head, progress.messages, progress.events) == (head, 0, 1)

    def test_an_older_one_that_is_sent_again_does_not_take_the_last_ones_place(self) -> None:
        world, owner, _ = half_answered()
        world.send(owner, "checkpoint", data="1", client_id="k1")
        world.send(owner, "checkpoint", data="2", client_id="k2")
        lsn = world.state.lsn
        [again] = world.send(owner, "checkpoint", data="1", client_id="k1")
        assert isinstance(again, Duplicate)
        progress = world.conversation().runs[RUN].progress
        assert progress is not None
        assert progress.checkpoint == lsn

    @pytest.mark.parametrize(("size", "stored"), [(CHECKPOINT_MAX_BYTES, True), (CHECKPOINT_MAX_BYTES + 1, False)])
    def test_one_over_256_kib_is_refused_by_name(self, size: int, stored: bool) -> None:
        world, owner, _ = half_answered()
        [event] = world.send(owner, "checkpoint", data="x" * size, ref="r1")
        assert isinstance(event, FrameCommitted if stored else Refused)
        if isinstance(event, Refused):
            assert event.reason is RefusedReason.RECORD_TOO_LARGE
            assert event.detail == f"data: {size} bytes as UTF-8; at most {CHECKPOINT_MAX_BYTES}"

    def test_only_who_holds_the_run_keeps_one(self) -> None:
        world, owner, heir = half_answered()
        for events in (
            world.send(heir, "checkpoint", run=RUN),
            world.send(heir, "checkpoint"),
            world.send(owner, "checkpoint", run=RUN, epoch=2),
            world.send(owner, "checkpoint", run="c/9/agents/support"),
        ):
            [refused] = events
            assert isinstance(refused, Refused)
            assert refused.reason is RefusedReason.FENCED

    def test_it_is_a_sign_of_life(self) -> None:
        world, owner, _ = half_answered()
        world.pass_time(WATCHDOG_MS - 1)
        world.send(owner, "checkpoint", data="1")
        assert world.pass_time(WATCHDOG_MS - 1) == []
        assert world.pass_time(1)

    def test_it_is_a_frame_of_an_adopted_run(self) -> None:
        world = lone()
        world.leave("a")
        world.join("a2", watermarks={"c": 1})
        world.send("a2", "checkpoint", data="1")
        assert world.pass_time(ADOPT_MS) == []

    def test_any_number_of_them_is_taken_beside_a_full_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("streams.core.frames.RUN_EVENTS_MAX", 1)
        world, owner, _ = half_answered()
        for step in range(3):
            [kept] = world.send(owner, "checkpoint", data=str(step))
            assert isinstance(kept, FrameCommitted)
        assert isinstance(world.send(owner, "tool_call")[-1], Refused)
