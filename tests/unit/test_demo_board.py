"""What the demo shows, from journal entries alone."""

from __future__ import annotations

import json

import msgspec

from ops.demo.board import Board, Happening, Kind, Progress
from streams.core.events import (
    Assignment,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    MemberJoined,
    MemberLeft,
    MoveReason,
    RunEnded,
    RunMoved,
    RunStarted,
    RunStatus,
    Turn,
    TurnCommitted,
)


def entries(*events: Event) -> list[Entry]:
    return [Entry(lsn, 0, 0, 1, event) for lsn, event in enumerate(events, 1)]


def joined(member: str) -> MemberJoined:
    return MemberJoined(member=member, group="agents/demo", channel="agents", gateway="gw", n=1, since=0)


def asked(seq: int = 1, member: str | None = "m1", *, slowly: bool = False) -> TurnCommitted:
    metadata = json.dumps({"slowly": True}) if slowly else None
    turn = Turn(id="t", sender="ana", channel="web", type="text", text="how long?", metadata=metadata)
    return TurnCommitted(
        conversation_id="c", seq=seq, turn=turn, assigned=(Assignment("agents/demo", member, f"c/{seq}/agents/demo"),)
    )


def chunk(content: str, seq: int = 2) -> FrameCommitted:
    data = json.dumps({"type": "text", "content": content, "id": 1})
    frame = Frame(id="f", type="genui", stream_id="s", data=data)
    return FrameCommitted(
        conversation_id="c", seq=seq, frame=frame, sender="bot", channel="agents", group="agents/demo", member="m1"
    )


def started(epoch: int = 1) -> RunStarted:
    return RunStarted(
        conversation_id="c", run_id="r", run_epoch=epoch, group="agents/demo", member="m1", turn_seq=1, by="run"
    )


def moved(to: str | None, *superseded: int) -> RunMoved:
    return RunMoved(
        conversation_id="c", run_id="r", turn_seq=1, group="agents/demo", from_member="m1", to_member=to, run_epoch=2,
        reason=MoveReason.MEMBER_LEFT, superseded=superseded,
    )  # fmt: skip


def ended(status: RunStatus, member: str = "m2") -> RunEnded:
    return RunEnded(
        conversation_id="c", run_id="r", turn_seq=1, group="agents/demo", member=member, run_epoch=2, status=status,
        reason="finished",
    )  # fmt: skip


def told(board: Board, *events: Event) -> list[Happening]:
    return [happening for entry in entries(*events) for happening in board.took(entry)]


def test_a_turn_goes_from_given_to_answered_and_names_its_owner() -> None:
    board = Board(names={"m1": "agent A"})
    board.titled("c", "Bakery")
    assert [each.text for each in told(board, asked())] == [
        "Bakery #1: “how long?”",
        "Bakery #1 belongs to agent A",
    ]
    row = board.rows["c"]
    assert row.progress is Progress.GIVEN
    told(board, started(), chunk("six "), chunk("weeks"))
    assert (row.progress, row.answer) == (Progress.ANSWERING, "six weeks")
    (end,) = told(board, ended(RunStatus.ANSWERED, "m1"))
    assert (end.kind, end.text) == (Kind.ANSWER, "Bakery #1 answered by agent A: “six weeks”")
    assert (row.progress, row.turns, row.answered) == (Progress.ANSWERED, 1, 1)


def test_a_move_takes_back_what_the_lost_owner_had_said() -> None:
    board = Board(names={"m1": "agent A", "m2": "agent B"})
    (move,) = told(board, asked(), started(), chunk("six "), moved("m2", 2))[2:]
    assert move.kind is Kind.MOVE
    assert (
        "moved from agent A to agent B, run epoch 2 (member_left); what it had said (“six…”) is superseded" in move.text
    )
    row = board.rows["c"]
    assert (row.owner, row.epoch, row.answer, row.progress) == ("m2", 2, "", Progress.GIVEN)


def test_a_continued_answer_keeps_what_the_lost_owner_had_said() -> None:
    board = Board(names={"m1": "agent A", "m2": "agent B"})
    told(board, asked(), started(), chunk("six "), msgspec.structs.replace(moved("m2"), continued=True), chunk("weeks"))
    assert board.rows["c"].answer == "six weeks"


def test_a_turn_that_nobody_holds_waits() -> None:
    board = Board()
    told(board, asked(), moved(None))
    assert board.rows["c"].progress is Progress.WAITING
    told(board, asked(3, member=None))
    assert (board.rows["c"].progress, board.rows["c"].owner) == (Progress.WAITING, None)


def test_a_run_that_ends_otherwise_is_a_failure() -> None:
    board = Board()
    (end,) = told(board, asked(), ended(RunStatus.TIMED_OUT))[2:]
    assert end.kind is Kind.FAILURE
    assert board.rows["c"].progress is Progress.FAILED


def test_members_are_told_once_though_every_partition_says_so() -> None:
    board = Board(names={"m1": "agent A"})
    left = MemberLeft(member="m1", group="agents/demo", gateway="gw", n=2, reason=MoveReason.MEMBER_LEFT)
    lines = [each.text for each in told(board, joined("m1"), joined("m1"), left, left)]
    assert lines == ["agent A joined group agents/demo", "agent A is gone (member_left)"]


def test_the_moment_to_kill_is_the_middle_of_the_slow_answer_of_its_first_owner() -> None:
    board = Board()
    told(board, asked(slowly=True), started(), chunk("one two "))
    assert board.answering() is None
    told(board, chunk("three four "))
    assert board.answering() is board.rows["c"]
    assert board.rows["c"].run_id == "r"
    told(board, moved("m2", 2), started(2), chunk("one two three four five "))
    assert board.answering() is None


def test_an_answer_in_a_hurry_is_not_the_moment() -> None:
    board = Board()
    told(board, asked(), started(), chunk("one two three four five"))
    assert board.answering() is None
