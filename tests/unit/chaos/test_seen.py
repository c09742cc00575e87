"""What the clients saw against the journal: each check passes on a good story and fails on the one that breaks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ops.chaos.people import Line
from ops.chaos.seen import Told, answer_problems, delivery_problems, line_problems, tell, viewer_problems
from ops.chaos.viewers import Seen
from streams.core.events import (
    Assignment,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    MoveReason,
    RunEnded,
    RunMoved,
    RunStarted,
    RunStatus,
    Turn,
    TurnCommitted,
)

THERE = "c1"
GROUP = "agents/crew"
RUN = f"{THERE}/1/{GROUP}"


def turn(seq: int, text: str = "p0-0-text", member: str = "m1") -> TurnCommitted:
    said = Turn(id=f"t{seq}", sender="p0", channel="web", type="text", text=text)
    assigned = (Assignment(GROUP, member, f"{THERE}/{seq}/{GROUP}"),)
    return TurnCommitted(conversation_id=THERE, seq=seq, turn=said, assigned=assigned)


def frame(seq: int, run_id: str = RUN, **fields: Any) -> FrameCommitted:
    committed = Frame(**({"id": f"f{seq}", "type": "text"} | fields))
    return FrameCommitted(
        conversation_id=THERE, seq=seq, frame=committed, sender="bot", channel="agents", group=GROUP, member="m1",
        run_id=run_id, run_epoch=1,
    )  # fmt: skip


def chunk(seq: int, content: str, *, done: bool = False, stream: str = "s1", chunk_id: int | str = 1) -> FrameCommitted:
    data = json.dumps({"type": "text", "content": content, "id": chunk_id})
    return frame(seq, type="genui", stream_id=stream, done=done, data=data)


def ended(status: RunStatus = RunStatus.ANSWERED, turn_seq: int = 1) -> RunEnded:
    return RunEnded(
        conversation_id=THERE, run_id=f"{THERE}/{turn_seq}/{GROUP}", turn_seq=turn_seq, group=GROUP, member="m1",
        run_epoch=1, status=status, reason="",
    )  # fmt: skip


def moved(superseded: tuple[int, ...] = ()) -> RunMoved:
    return RunMoved(
        conversation_id=THERE, run_id=RUN, turn_seq=1, group=GROUP, from_member="m1", to_member="m2", run_epoch=2,
        reason=MoveReason.MEMBER_LEFT, superseded=superseded,
    )  # fmt: skip


def story(*events: Event) -> Told:
    entries = [Entry(lsn, 0, 0, 1, event) for lsn, event in enumerate(events, 1)]
    return tell(entries).get(THERE, Told())


def shown(seq: int, text: str, kind: str = "user") -> dict[str, Any]:
    return {
        "type": "text",
        "seq": seq,
        "id": f"{'t' if kind == 'user' else 'f'}{seq}",
        "from": kind,
        "data": {"text": text},
    }


GOOD = story(turn(1), frame(2, text="answer to p0-0-text"), ended())
FRAMES = [shown(1, "p0-0-text"), shown(2, "answer to p0-0-text", "bot")]


def viewed(frames: Sequence[dict[str, Any]], connection: int = 1, after: int = 0) -> list[Seen]:
    return [Seen(connection, after, each) for each in frames]


def test_a_viewer_who_saw_all_in_order_has_no_problem() -> None:
    assert list(viewer_problems(THERE, GOOD, viewed(FRAMES))) == []


def test_a_viewer_who_came_back_and_went_on_has_no_problem() -> None:
    assert list(viewer_problems(THERE, GOOD, viewed(FRAMES[:1]) + viewed(FRAMES[1:], 2, after=1))) == []


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (viewed([FRAMES[1]]), "too early"),
        (viewed([FRAMES[0], FRAMES[0], FRAMES[1]]), "again"),
        (viewed(FRAMES) + viewed(FRAMES, 2, after=2), "again"),
        (viewed(FRAMES[:1]), "saw up to seq 1 of 2"),
        (viewed([*FRAMES, shown(3, "ghost", "bot")]), "does not hold"),
        (viewed([FRAMES[0], shown(2, "another answer", "bot")]), "the journal holds"),
        (viewed([FRAMES[0], FRAMES[1] | {"id": "f9"}]), "the journal holds"),
    ],
)
def test_a_viewer_who_saw_something_else_has(seen: list[Seen], problem: str) -> None:
    assert any(problem in found for found in viewer_problems(THERE, GOOD, seen))


def said(*texts: str) -> list[Line]:
    return [Line(key=text, text=text, id=f"t{2 * n + 1}", seq=2 * n + 1) for n, text in enumerate(texts)]


def test_lines_that_are_there_once_and_in_order_are_no_problem() -> None:
    told = story(turn(1, "a"), frame(2, text="answer to a"), turn(3, "b"))
    assert list(line_problems("p0", told, said("a", "b"))) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([turn(1, "a")], "missing: ['b']"),
        ([turn(1, "a"), turn(2, "b"), turn(3, "b")], "more than once: ['b']"),
        ([turn(1, "b"), turn(3, "a")], "in another order"),
        ([turn(1, "a"), turn(2, "b")], "b is t3 at seq 3"),
    ],
)
def test_lines_that_are_lost_doubled_swapped_or_elsewhere_are(events: list[Event], problem: str) -> None:
    assert any(problem in found for found in line_problems("p0", story(*events), said("a", "b")))


@pytest.mark.parametrize(
    "events",
    [
        [turn(1), frame(2, text="answer to p0-0-text"), ended()],
        [turn(1), chunk(2, "answer to "), chunk(3, "p0-0-text"), chunk(4, "", done=True), ended()],
        # What the lost owner had said is superseded; its successor says it anew.
        [turn(1), chunk(2, "answer"), chunk(3, "", done=True, chunk_id="closed"), moved((2, 3)),
         chunk(4, "answer to p0-0-text", stream="s1#1"), chunk(5, "", done=True, stream="s1#1"), ended()],
        # Or goes on behind it.
        [turn(1), chunk(2, "answer to "), moved(), chunk(3, "p0-0-text"), chunk(4, "", done=True), ended()],
        [turn(1), ended(RunStatus.FAILED)],
    ],
)  # fmt: skip
def test_one_answer_or_an_end_with_a_reason_is_no_problem(events: list[Event]) -> None:
    assert list(answer_problems(THERE, story(*events))) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([turn(1), frame(2, text="answer to p0-0-text"), frame(3, text="answer to p0-0-text"), ended()], "2 times"),
        ([turn(1), ended()], "counts as answered"),
        ([turn(1), chunk(2, "answer to p0-"), chunk(3, "", done=True), ended()], "answers no turn"),
        ([turn(1), chunk(2, "answer to "), moved(), chunk(3, "to p0-0-text"), chunk(4, "", done=True), ended()],
         "counts as answered"),
        ([turn(1), frame(2, text="answer to p0-0-text"), frame(3, text="answer to p9-9-text"), ended()],
         "answers no turn"),
        ([TurnCommitted(conversation_id=THERE, seq=1, turn=turn(1).turn)], "given to nobody"),
    ],
)  # fmt: skip
def test_two_answers_none_where_one_counts_and_one_of_another_turn_are(events: list[Event], problem: str) -> None:
    assert any(problem in found for found in answer_problems(THERE, story(*events)))


def on_sdk(epoch: int = 1, run: str = RUN) -> dict[str, Any]:
    return {"note": "turn", "conversation": THERE, "run": run, "run_epoch": epoch, "text": "", "seq": 1}


def on_socket(member: str, epoch: int = 1) -> dict[str, Any]:
    inner = {"from": "user", "run": RUN, "runEpoch": epoch, "type": "text"}
    return {"note": "frame", "member": member, "conversation": THERE, "frame": {"frame": inner}}


def test_deliveries_to_whom_the_journal_names_are_no_problem() -> None:
    told = {THERE: story(turn(1), moved())}
    assert list(delivery_problems(told, {"agent-1": [on_sdk()], "agent-2": [on_socket("m2", 2)]})) == []


@pytest.mark.parametrize(
    ("agents", "problem"),
    [
        ({"agent-1": [on_sdk(3)]}, "does not have"),
        ({"agent-1": [on_socket("m9")]}, "is m1's"),
        ({"agent-1": [on_sdk(), on_sdk()]}, "2 times"),
        ({"agent-1": [on_sdk()], "agent-2": [on_sdk()]}, "was given to ['agent-1', 'agent-2']"),
    ],
)
def test_deliveries_to_another_or_twice_are(agents: dict[str, list[dict[str, Any]]], problem: str) -> None:
    told = {THERE: story(turn(1), moved())}
    assert any(problem in found for found in delivery_problems(told, agents))


def begun_by_word_alone(answer: str, *, by: str = "run", adopted: bool = True) -> list[Event]:
    """Turns 1 and 2 are m1's, which is lost. m2, which claims the first, says that it begins, and answers something."""
    second = f"{THERE}/2/{GROUP}"
    kept = RunMoved(
        conversation_id=THERE, run_id=RUN, turn_seq=1, group=GROUP, from_member="m1", to_member="m2", run_epoch=2,
        reason=MoveReason.MEMBER_EXPIRED, adopted=adopted,
    )  # fmt: skip
    given = RunMoved(
        conversation_id=THERE, run_id=second, turn_seq=2, group=GROUP, from_member="m1", to_member="m2", run_epoch=2,
        reason=MoveReason.MEMBER_EXPIRED,
    )  # fmt: skip
    begins = RunStarted(
        conversation_id=THERE, run_id=RUN, run_epoch=2, group=GROUP, member="m2", turn_seq=1, by=by
    )  # fmt: skip
    turns = [turn(1), turn(2, "p0-1-text")]
    return [*turns, kept, given, begins, chunk(3, answer, done=True), ended()]


def test_what_an_agent_meant_that_names_no_run_is_recognised_by_its_answer() -> None:
    told = story(*begun_by_word_alone("answer to p0-1-text"))
    assert told.mistaken == {RUN: 1, f"{THERE}/2/{GROUP}": 2}
    assert list(answer_problems(THERE, told)) == []
    assert told.open_runs == set()


@pytest.mark.parametrize(
    "events",
    [
        begun_by_word_alone("answer to something else"),
        begun_by_word_alone("answer to p0-1-text", by="read"),
        begun_by_word_alone("answer to p0-1-text", adopted=False),
    ],
    ids=["another answer", "it said which turn", "it claimed nothing"],
)
def test_and_nothing_else_is_taken_for_that(events: list[Event]) -> None:
    told = story(*events)
    assert told.mistaken == {}
    assert "counts as answered, but its answer is not there" in " ".join(answer_problems(THERE, told))
    assert told.open_runs == {f"{THERE}/2/{GROUP}"}
