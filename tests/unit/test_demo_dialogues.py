"""The demo's dialogues: what is read, what is refused, and what the verdict holds against a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ops.demo.board import Board
from ops.demo.dialogues import SAMPLE, Dialogue, DialogueError, Exchange, read_dialogues
from ops.demo.people import Wrong
from ops.demo.play import Kill, Play, longest_answer, verdict
from ops.demo.show import PlainShow
from streams.core.events import Entry, MoveReason, RunMoved

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "dialogues.jsonl"


def turn(speaker: str, text: Any) -> dict[str, Any]:
    return {"speaker": speaker, "text": text}


def file_of(folder: Path, *lines: Any) -> Path:
    path = folder / "d.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_lines_are_paired_and_lines_in_a_row_joined(tmp_path: Path) -> None:
    spoken = [
        turn("SYSTEM", "welcome"),
        turn("USER", "hi"),
        turn("USER", "there"),
        turn("SYSTEM", "hello"),
        turn("USER", " "),
        turn("SYSTEM", "you"),
        turn("USER", "bye"),
    ]
    path = file_of(tmp_path, {"dialogue_id": "d", "services": ["Trains_1"], "turns": spoken})
    assert read_dialogues(path) == [Dialogue(1, "d", "Trains", (Exchange("hi there", "hello you"),))]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{", r"d\.jsonl:1: not JSON"),
        ([], "must be a JSON object"),
        ({"turns": []}, "dialogue_id: must be a text"),
        ({"dialogue_id": "d"}, "turns: must be a list"),
        ({"dialogue_id": "d", "turns": [turn("BOT", "x")]}, r"turns\[0\]\.speaker: must be USER or SYSTEM"),
        ({"dialogue_id": "d", "turns": [turn("USER", 7)]}, r"turns\[0\]\.text: must be a text"),
        ({"dialogue_id": "d", "turns": [turn("USER", "x")]}, "no USER line that a SYSTEM line answers"),
    ],
)
def test_a_line_that_breaks_the_format_is_refused_by_field_and_rule(tmp_path: Path, line: Any, rule: str) -> None:
    with pytest.raises(DialogueError, match=rule):
        read_dialogues(file_of(tmp_path, line))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DialogueError, match="holds no dialogue"):
        read_dialogues(file_of(tmp_path, ""))


def test_dialogues_of_the_same_name_are_told_apart_and_no_more_are_read_than_asked_for(tmp_path: Path) -> None:
    one = {"dialogue_id": "d", "turns": [turn("USER", "x"), turn("SYSTEM", "y")]}
    path = file_of(tmp_path, one, one, "{")
    assert [each.number for each in read_dialogues(path, 2)] == [1, 2]


def test_the_sample_is_whole_and_every_answer_can_be_cut_in_the_middle() -> None:
    dialogues = read_dialogues(SAMPLE)
    assert 6 <= len(dialogues) <= 10
    slowly = longest_answer(dialogues)
    chosen = next(each for each in dialogues if each.number == slowly.dialogue)
    assert slowly.exchange > 0
    assert chosen.exchanges[slowly.exchange].answer.count(" ") > 8


@pytest.mark.skipif(not REAL.exists(), reason="the shared dialogues are not beside this checkout")
def test_the_real_dialogues_are_read_whole() -> None:
    assert len(read_dialogues(REAL)) > 1_000


def good_kill() -> Kill:
    return Kill("agent A", 10.0, "r", moved=10.1, to="agent B", answered=12.0, answered_by="agent B")


REPORT = {"ok": True, "events": 90, "turns": 20, "answered": 20, "open": 0, "takeovers": 1, "violations": []}


def holds(kill: Kill | None, wrong: list[Wrong], report: dict[str, Any]) -> bool:
    play = Play(PlainShow(Console(quiet=True)), Board(), kill=kill)
    return all(each for each, _ in verdict(play, wrong, report, 20))


def test_the_verdict_holds_when_all_of_it_does() -> None:
    assert holds(good_kill(), [], REPORT)


@pytest.mark.parametrize(
    ("kill", "wrong", "report"),
    [
        (None, [], REPORT),
        (Kill("agent A", 10.0, "r"), [], REPORT),
        (Kill("agent A", 10.0, "r", moved=10.1, to="agent B"), [], REPORT),
        (Kill("agent A", 10.0, "r", 10.1, "agent B", 12.0, "agent A"), [], REPORT),
        (good_kill(), [Wrong(1, 0, "no answer")], REPORT),
        (good_kill(), [], REPORT | {"ok": False, "violations": ["v"]}),
        (good_kill(), [], REPORT | {"answered": 19}),
        (good_kill(), [], {}),
    ],
)
def test_the_verdict_falls_with_any_of_its_claims(
    kill: Kill | None, wrong: list[Wrong], report: dict[str, Any]
) -> None:
    assert not holds(kill, wrong, report)


def moved(run_id: str) -> Entry:
    event = RunMoved(
        conversation_id="c", run_id=run_id, turn_seq=1, group="agents/demo", from_member="m1", to_member="m2",
        run_epoch=2, reason=MoveReason.MEMBER_LEFT,
    )  # fmt: skip
    return Entry(1, 0, 0, 1, event)


def test_what_is_timed_is_the_turn_in_whose_middle_the_agent_died_not_another_of_its_turns() -> None:
    kill = Kill("agent A", 10.0, "r")
    play = Play(PlainShow(Console(quiet=True)), Board(names={"m1": "agent A", "m2": "agent B"}), kill=kill)
    play.took(moved("another"))
    assert (kill.moved, kill.to) == (None, None)
    play.took(moved("r"))
    assert kill.moved is not None
    assert kill.to == "agent B"
