"""What processes under test saw, one JSON object a line, written at once: a kill loses nothing that was seen before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ANSWER: Final = "answer to "
SECRET_VARIABLE: Final = "TURNLOG_CHAOS_SECRET"  # noqa: S105 -- the name of the variable that holds the agents' secret

NOTES_VARIABLE: Final = "TURNLOG_CHAOS_NOTES"
"""The variable that names the file in which a worker writes down what it does."""


class Notebook:
    """A file of notes, appended to."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def note(self, **fields: Any) -> None:
        """One line, with the time of day in it."""
        self._file.write(json.dumps({"time": round(time.time(), 3), **fields}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """No more notes."""
        self._file.close()


def notes(path: Path) -> Iterator[dict[str, Any]]:
    """All that were written. The last one may be cut short by a kill: it is none then."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def answer_to(text: str) -> str:
    """What every agent answers."""
    return f"{ANSWER}{text}"
