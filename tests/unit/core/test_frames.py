"""Rules 6 and 7: which run a frame belongs to, and whether its sender may write it."""

from __future__ import annotations

import pytest

from streams.core.events import (
    Event,
    FrameCommitted,
    Refused,
    RefusedReason,
    RunEnded,
    RunStarted,
    RunStatus,
    TurnCommitted,
)
from streams.core.frame_types import NOT_KEPT
from streams.core.limits import RECORD_MAX_BYTES, RUN_EVENTS_MAX, RUN_FRAMES_MAX, TEXT_MAX_BYTES
from streams.core.state import REFUSAL_SLOTS, REFUSALS_WRITTEN
from tests.support.partition_world import GROUP, World


@pytest.fixture
def world() -> World:
    """One member a, one conversation c, no turn yet."""
    world = World()
    world.join("a", settle=True)
    world.open()
    return world


def run_id(seq: int) -> str:
    return f"c/{seq}/{GROUP}"


def reason(events: list[Event]) -> RefusedReason:
    [event] = events
    assert isinstance(event, Refused)
    return event.reason


def belongs_to(events: list[Event]) -> str | None:
    frame = events[0]
    assert isinstance(frame, FrameCommitted), frame
    return frame.run_id


class TestCorrelation:
    def test_by_the_run_that_it_names(self, world: World) -> None:
        world.say()
        world.say()
        assert belongs_to(world.send("a", "tool_call", run=run_id(2), epoch=1)) == run_id(2)

    def test_by_the_turn_that_its_client_id_names(self, world: World) -> None:
        world.say()
        world.say()
        turn = world.of(TurnCommitted)[1].turn.id
        assert belongs_to(world.send("a", client_id=f"p.q.{turn}.m2", delivered=2)) == run_id(2)

    def test_by_the_preceding_read(self, world: World) -> None:
        world.say()
        world.say()
        world.read("a", 2)
        assert belongs_to(world.chunk("a", "s", delivered=2)) == run_id(2)

    def test_by_the_order_of_delivery(self, world: World) -> None:
        world.say()
        world.say()
        assert belongs_to(world.chunk("a", "s", delivered=2)) == run_id(1)

    def test_a_turn_not_yet_delivered_is_not_what_the_frame_answers(self, world: World) -> None:
        world.say()
        world.say()
        world.run("a", "started", delivered=1)
        world.run("a", "finished", delivered=1)
        assert belongs_to(world.send("a", delivered=1)) is None

    def test_of_each_conversation_apart(self, world: World) -> None:
        world.open("d")
        world.say(id_="c")
        world.say(id_="d")
        world.read("a", 1, id_="d")
        assert belongs_to(world.chunk("a", "s", id_="c", delivered=1)) == run_id(1)


class TestAnnouncing:
    def test_read_starts_the_run_up_to_its_watermark(self, world: World) -> None:
        world.say()
        world.say()
        assert world.read("a", 1) == [
            RunStarted(
                conversation_id="c", run_id=run_id(1), run_epoch=1, group=GROUP, member="a", turn_seq=1, by="read"
            )
        ]

    def test_read_and_run_started_after_it_are_one_event(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        assert world.run("a", "started", delivered=1) == []
        assert world.read("a", 1) == []

    def test_run_started_alone_starts_the_first_given(self, world: World) -> None:
        world.say()
        world.say()
        [started] = world.run("a", "started", delivered=2)
        assert isinstance(started, RunStarted)
        assert (started.turn_seq, started.by) == (1, "run")

    def test_a_read_of_nothing_open_is_no_event(self, world: World) -> None:
        assert world.read("a", 9) == []

    @pytest.mark.parametrize(
        ("status", "ended"),
        [("finished", RunStatus.ANSWERED), ("error", RunStatus.FAILED), ("aborted", RunStatus.CANCELLED)],
    )
    def test_run_statuses_end_the_run(self, world: World, status: str, ended: RunStatus) -> None:
        world.say()
        world.read("a", 1)
        [event] = world.run("a", status)
        assert isinstance(event, RunEnded)
        assert (event.status, event.reason) == (ended, status)
        assert world.run("a", status) == [], "there is no run any more"

    def test_the_end_of_a_run_that_is_over_does_not_end_the_next_one(self, world: World) -> None:
        """Its first message ended the run of an agent whose `read` was lost; then comes its `finished`."""
        world.say()
        world.say()
        world.send("a", client_id=f"p.{world.of(TurnCommitted)[0].turn.id}.m1", delivered=2)
        for status in ("finished", "error", "aborted"):
            assert world.run("a", status, delivered=2) == []
        assert list(world.conversation().runs) == [run_id(2)]

    def test_the_end_of_a_run_that_it_names_ends_that_one_begun_or_not(self, world: World) -> None:
        world.say()
        assert isinstance(world.run("a", "error", run=run_id(1))[-1], RunEnded)

    def test_what_a_run_left_open_is_closed_when_it_ends(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        world.chunk("a", "s")
        world.send("a", "interrupt", id="ask")
        events = world.run("a", "finished")
        assert [type(event) for event in events] == [FrameCommitted, FrameCommitted, RunEnded]
        assert world.conversation().asking == 0

    def test_interrupted_is_shown_and_not_numbered(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        world.send("a", "interrupt", id="ask")
        [frame] = world.run("a", "interrupted")
        assert isinstance(frame, FrameCommitted)
        assert frame.seq == 0

    def test_one_answer_may_be_several_messages(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        for number in range(3):
            assert belongs_to(world.send("a", client_id=f"m{number}")) == run_id(1)
        assert isinstance(world.run("a", "finished")[0], RunEnded)
        assert [frame.seq for frame in world.of(FrameCommitted)] == [2, 3, 4]


class TestUnannounced:
    def test_its_first_message_answers_every_turn_it_had_been_given(self, world: World) -> None:
        for _ in range(3):
            world.say()
        frame, *ended = world.send("a", client_id="m1", delivered=2)
        assert isinstance(frame, FrameCommitted)
        assert frame.run_id == run_id(1)
        assert [(e.turn_seq, e.status, e.reason) for e in ended if isinstance(e, RunEnded)] == [
            (2, RunStatus.ANSWERED, "message"),
            (1, RunStatus.ANSWERED, "message"),
        ]
        assert list(world.conversation().runs) == [run_id(3)]

    def test_a_stream_that_ends_its_run_is_closed_once(self, world: World) -> None:
        world.say()
        world.chunk("a", "other", delivered=1)
        world.chunk("a", "s", delivered=1)
        done, closing, ended = world.chunk("a", "s", done=True, delivered=1)
        assert isinstance(done, FrameCommitted)
        assert isinstance(closing, FrameCommitted)
        assert (closing.frame.stream_id, closing.seq) == ("other", done.seq + 1)
        assert isinstance(ended, RunEnded)

    def test_a_message_that_names_its_turn_answers_that_one(self, world: World) -> None:
        world.say()
        world.say()
        turn = world.of(TurnCommitted)[0].turn.id
        world.send("a", client_id=f"p.{turn}.m1", delivered=2)
        assert list(world.conversation().runs) == [run_id(2)]

    def test_a_tool_call_or_an_unfinished_stream_is_no_answer_and_a_finished_stream_is(self, world: World) -> None:
        world.say()
        world.send("a", "tool_call", delivered=1)
        world.chunk("a", "s", delivered=1)
        assert not world.of(RunEnded)
        world.chunk("a", "s", done=True, delivered=1)
        assert world.of(RunEnded)[0].status is RunStatus.ANSWERED

    def test_a_started_run_is_not_ended_by_another_ones_message(self, world: World) -> None:
        world.say()
        world.say()
        world.read("a", 1)
        world.send("a", client_id="m1", delivered=2)
        assert not world.of(RunEnded)


class TestProactive:
    def test_the_owner_may_write_without_a_run(self, world: World) -> None:
        [frame] = world.send("a", client_id="m1")
        assert isinstance(frame, FrameCommitted)
        assert (frame.seq, frame.run_id, frame.run_epoch, frame.key) == (1, None, 0, f"bot:{GROUP}:-:m1")

    def test_another_member_may_not(self, world: World) -> None:
        world.join("b", settle=True)
        owner = "a" if isinstance(world.send("a")[0], FrameCommitted) else "b"
        assert reason(world.send("b" if owner == "a" else "a")) is RefusedReason.FENCED

    def test_a_group_that_the_conversation_is_not_routed_to_may_not(self, world: World) -> None:
        world.join("x", "auditors", settle=True)
        assert reason(world.send("x", group="auditors")) is RefusedReason.FENCED

    def test_into_a_closed_conversation_is_refused_as_such(self, world: World) -> None:
        world.close()
        assert reason(world.send("a")) is RefusedReason.CONVERSATION_CLOSED

    @pytest.mark.parametrize("type_", ["error", "interrupt", "skills"])
    def test_what_needs_a_run_is_fenced_without_one(self, world: World, type_: str) -> None:
        assert reason(world.send("a", type_)) is RefusedReason.FENCED

    def test_a_frame_that_names_an_ended_run_or_turn_never_becomes_proactive(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        world.run("a", "finished")
        turn = world.of(TurnCommitted)[0].turn.id
        assert reason(world.send("a", run=run_id(1))) is RefusedReason.FENCED
        assert reason(world.send("a", client_id=f"p.{turn}.m7")) is RefusedReason.FENCED
        assert reason(world.send("a", client_id="p.00000000-0000-0000-0000-00000000dead.m1")) is RefusedReason.FENCED
        assert reason(world.send("a", run="c/99/nowhere")) is RefusedReason.FENCED
        assert world.conversation().head == 1


class TestFenced:
    def test_another_member_at_a_run_it_does_not_hold(self, world: World) -> None:
        world.say()
        world.join("b", settle=True)
        assert reason(world.send("b", run=run_id(1))) is RefusedReason.FENCED

    def test_another_group_at_a_run_of_this_one(self, world: World) -> None:
        world.say()
        world.join("x", "agents/other", settle=True)
        assert reason(world.send("x", group="agents/other", run=run_id(1))) is RefusedReason.FENCED

    def test_an_earlier_or_later_epoch(self, world: World) -> None:
        world.say()
        for epoch in (0, 2):
            assert reason(world.send("a", run=run_id(1), epoch=epoch)) is RefusedReason.FENCED
        assert isinstance(world.send("a", run=run_id(1), epoch=1)[0], FrameCommitted)

    def test_a_member_that_ended_or_claims_another_group(self, world: World) -> None:
        world.say()
        assert reason(world.send("a", group="agents/other", run=run_id(1))) is RefusedReason.FENCED
        world.leave("a")
        for kind in ("text", "read", "run", "genui", "error"):
            assert reason(world.send("a", kind)) is RefusedReason.FENCED

    def test_a_live_member_may_finish_its_run_though_later_turns_go_to_another(self, world: World) -> None:
        world.say()
        world.join("b", settle=True)
        world.join("d", settle=True)
        world.say()
        assert belongs_to(world.send("a", client_id="m", run=run_id(1))) == run_id(1)

    def test_refusals_of_one_member_and_run_are_written_sixteen_times(self, world: World) -> None:
        world.say()
        world.join("b", settle=True)
        counts = [
            event.count for _ in range(50) for event in world.send("b", run=run_id(1)) if isinstance(event, Refused)
        ]
        assert counts == list(range(1, REFUSALS_WRITTEN + 1))
        refused = world.of(Refused)[0]
        assert (refused.member, refused.run_id) == ("b", run_id(1))

    def test_made_up_run_names_buy_no_more_events(self, world: World) -> None:
        for number in range(100):
            world.send("a", run=f"c/{number}/made-up")
        assert len(world.of(Refused)) == REFUSALS_WRITTEN

    def test_the_bookkeeping_is_bounded(self, world: World) -> None:
        for number in range(REFUSAL_SLOTS + 10):
            world.send(f"ghost-{number}")
        assert len(world.state.refusals) == REFUSAL_SLOTS


class TestLimits:
    def test_an_unknown_conversation(self, world: World) -> None:
        assert reason(world.send("a", id_="nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND

    def test_a_text_over_64_kib_counts_in_bytes(self, world: World) -> None:
        assert reason(world.send("a", text="é" * (TEXT_MAX_BYTES // 2 + 1))) is RefusedReason.TEXT_TOO_LARGE
        assert isinstance(world.send("a", text="é" * (TEXT_MAX_BYTES // 2))[0], FrameCommitted)

    def test_a_record_over_384_kib(self, world: World) -> None:
        assert reason(world.send("a", data="x" * RECORD_MAX_BYTES)) is RefusedReason.RECORD_TOO_LARGE
        assert isinstance(world.send("a", data="x" * (RECORD_MAX_BYTES - 1000))[0], FrameCommitted)

    @pytest.mark.parametrize("bad", ["a\0b", "half \ud83d"])
    def test_text_that_a_store_cannot_hold(self, world: World, bad: str) -> None:
        [event] = world.send("a", text=bad)
        assert isinstance(event, Refused)
        assert event.reason is RefusedReason.INVALID_TEXT
        assert event.detail.startswith("text:")

    def test_a_run_of_too_many_events_ends(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        for number in range(RUN_EVENTS_MAX):
            world.send("a", "tool_call", id=f"t{number}")
        ended, refused = world.send("a", "tool_call", ref="r")
        assert isinstance(ended, RunEnded)
        assert (ended.status, ended.reason) == (RunStatus.FAILED, "too_many_events")
        assert isinstance(refused, Refused)
        assert (refused.reason, refused.ref) == (RefusedReason.TOO_MANY_EVENTS, "r")

    def test_consecutive_chunks_of_one_stream_are_one_event_but_not_without_end(self, world: World) -> None:
        world.say()
        world.read("a", 1)
        for _ in range(RUN_FRAMES_MAX):
            world.chunk("a", "s")
        assert not world.of(RunEnded)
        progress = world.conversation().runs[run_id(1)].progress
        assert progress is not None
        assert progress.events == 1
        world.chunk("a", "s")
        assert world.of(RunEnded)[0].reason == "too_many_events"

    @pytest.mark.parametrize("type_", sorted(NOT_KEPT))
    def test_what_may_be_lost_or_is_no_agents_to_say_becomes_no_event(self, world: World, type_: str) -> None:
        assert world.send("a", type_) == []


def test_unknown_types_are_messages(world: World) -> None:
    world.say()
    frame, ended = world.send("a", "hologram", data='{"x":1}', delivered=1)
    assert isinstance(frame, FrameCommitted)
    assert frame.seq == 2
    assert isinstance(ended, RunEnded)
