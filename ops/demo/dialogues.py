"""Dialogues to replay: JSON lines of `{"dialogue_id", "services", "turns": [{"speaker": "USER"|"SYSTEM", "text"}]}`.

The format is that of the Schema-Guided Dialogue dataset, cut down to speaker and text. `sample.jsonl` beside this file
holds a few invented ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).with_name("sample.jsonl")


class DialogueError(ValueError):
    """A line of the file breaks the format; the message names file, line and rule."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One thing that the person says, and what is answered."""

    said: str
    answer: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One conversation to replay."""

    number: int
    """Its line in the file, from 1: what it is known by. (Names come twice where data sets were put together.)"""
    name: str
    topic: str
    exchanges: tuple[Exchange, ...]


def read_dialogues(path: Path, most: int | None = None) -> list[Dialogue]:
    """The first `most` dialogues of a file (None: all). Raises `DialogueError`, `OSError`."""
    dialogues: list[Dialogue] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if most is not None and len(dialogues) == most:
                break
            if line.strip():
                dialogues.append(_dialogue(line, number, f"{path}:{number}"))
    if not dialogues:
        raise DialogueError(f"{path}: holds no dialogue")
    return dialogues


def _dialogue(line: str, number: int, where: str) -> Dialogue:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DialogueError(f"{where}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DialogueError(f"{where}: must be a JSON object")
    name, turns, services = value.get("dialogue_id"), value.get("turns"), value.get("services")
    if not isinstance(name, str) or not name:
        raise DialogueError(f"{where}: dialogue_id: must be a text")
    if not isinstance(turns, list):
        raise DialogueError(f"{where}: turns: must be a list")
    exchanges = _exchanges([_spoken(turn, f"{where}: turns[{n}]") for n, turn in enumerate(turns)])
    if not exchanges:
        raise DialogueError(f"{where}: turns: no USER line that a SYSTEM line answers")
    first = services[0] if isinstance(services, list) and services else name
    return Dialogue(number, name, str(first).split("_")[0], exchanges)


def _spoken(turn: Any, where: str) -> tuple[str, str]:
    speaker, text = (turn.get("speaker"), turn.get("text")) if isinstance(turn, dict) else (None, None)
    if speaker not in {"USER", "SYSTEM"}:
        raise DialogueError(f"{where}.speaker: must be USER or SYSTEM")
    if not isinstance(text, str):
        raise DialogueError(f"{where}.text: must be a text")
    return speaker, text.strip()


def _exchanges(spoken: Sequence[tuple[str, str]]) -> tuple[Exchange, ...]:
    """Pairs of USER and SYSTEM. Lines of one speaker in a row are one, empty ones (real data has some) are none; what
    is left without its other half is cut.
    """
    joined: list[tuple[str, str]] = []
    for speaker, text in spoken:
        if not text:
            continue
        if joined and joined[-1][0] == speaker:
            joined[-1] = (speaker, f"{joined[-1][1]} {text}")
        else:
            joined.append((speaker, text))
    if joined and joined[0][0] == "SYSTEM":
        del joined[0]
    pairs = zip(joined[::2], joined[1::2], strict=False)
    return tuple(Exchange(said, answer) for (_, said), (_, answer) in pairs)
