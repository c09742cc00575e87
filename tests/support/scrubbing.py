"""A history with conversations that were erased, and what is left of what was said in them in an export."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
from msgspec.structs import replace

from ops.cli.scrub import _opened
from ops.export.scrub import Scrubbed, scrub
from ops.export.words import words_in
from streams.core.content import Assignment, Frame, RunStatus, Turn
from streams.core.events import (
    ConversationErased,
    ConversationHandedOver,
    ConversationOpened,
    Entry,
    Event,
    FrameCommitted,
    RunEnded,
    TurnCommitted,
    TurnEdited,
)
from streams.core.invocations import RELEASED
from tests.support.exports import MemoryHistory, read_back
from turnlog.data.tables import BY_NAME

SECRET = 'zebra "Wilhelmina",\nsaid\tö'
SAID = "zebra"
GONE = "it's gone"
"""The conversation that is erased."""
KEPT = "kept"
TABLES = ("turns", "frames", "runs", "conversations")


def _talk(conversation: str, token: str | None) -> list[Event]:
    place: dict[str, Any] = {"conversation_id": conversation}
    document = json.dumps({"a": SECRET})
    turn = Turn(id=f"{conversation}.1", sender="anna", channel="web", type="text", text=SECRET, data=document)
    given = (Assignment("g", "m", f"{conversation}/1/g"), Assignment("h", "m", f"{conversation}/1/h"))
    frame = Frame(id=f"{conversation}.2", type="buttons", extra=document, text="", metadata="{}")
    ended = (1, "g", "m", 1, RunStatus.CANCELLED, "cancelled")
    released = (1, "h", "m", 1, RunStatus.OWNER_GONE, RELEASED)
    sealed = replace(turn, id=f"{conversation}.4", text=token, data=None, key_id="0123456789abcdef")
    return [
        ConversationOpened("web", "anna", metadata=document, **place),
        TurnCommitted(turn, assigned=given, seq=1, **place),
        FrameCommitted(frame, "bot", "web", "g", "m", f"{conversation}/1/g", 1, seq=2, **place),
        RunEnded(f"{conversation}/1/g", *ended, by="anna", detail=SECRET, **place),
        RunEnded(f"{conversation}/1/h", *released, by="op", detail="its pod is deleted", **place),
        ConversationHandedOver("desk", "eve", SECRET, "u", seq=3, **place),
        TurnCommitted(sealed, seq=4, **place),
        TurnEdited(1, f"{conversation}.1", "anna", text=SECRET, **place),
    ]


def spoken(erased: int = 1, rounds: int = 1) -> MemoryHistory:
    """Two partitions of a talk each, and one that is erased at the end of the first partition; nobody sealed most."""
    first = [event for n in range(rounds) for event in _talk(GONE if not n else f"{GONE} {n}", "tls1:x")]
    events = [*first, *_talk(KEPT, "tls1:y")]
    over = [
        ConversationErased("op", "request 7", "e", conversation_id=name, seq=5)
        for name in dict.fromkeys(event.conversation_id for event in first)
        if erased
    ]
    other = _talk(f"{KEPT} too", None)
    return MemoryHistory([_entries([*events, *over]), _entries(other)])


def _entries(events: Sequence[Event]) -> list[Entry]:
    return [Entry(n, 1_000 * n, 1_700_000_000_000 + 1_000 * n, 1, event) for n, event in enumerate(events, start=1)]


def scrubbed(root: Path, *named: str, dry_run: bool = False) -> Scrubbed:
    """`turnlog scrub`."""
    target, states = _opened(str(root), None)
    return scrub(target, states, named, lambda _: None, dry_run=dry_run)


def expected(history: MemoryHistory) -> dict[str, list[dict[str, Any]]]:
    """The history's tables without what was said in what is erased."""
    found = history.rows()
    gone = {row["conversation_id"] for row in found["conversations"] if row["status"] == "erased"}
    for name in TABLES:
        for row in found[name]:
            if row["conversation_id"] in gone:
                row.update(dict.fromkeys(words_in(name, row)))
    return found


def speaking(format_: str, root: Path) -> set[str]:
    """Conversations in which something is left of it, by somebody else's reader."""
    return {
        row["conversation_id"]
        for name in TABLES
        for row in read_back(format_, root, name)
        if SAID in json.dumps(row, default=str)
    }


def holding(root: Path) -> set[str]:
    """Tables, or folders of ours, in which any file has bytes of it, unpacked where they are packed."""
    found = set()
    for path in (path for path in root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content = json.dumps(pyarrow.parquet.ParquetFile(path).read().to_pylist(), default=str).encode()
        if SAID.encode() in content:
            found.add(
                next((part for part in path.relative_to(root).parts if part in BY_NAME or part == "state"), path.name)
            )
    return found
