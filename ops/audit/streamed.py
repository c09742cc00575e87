"""Streamed answers in a timeline: one line each, however many pieces they came in, and the pieces behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from ops.pieces import piece_of
from ops.shown import mask
from streams.core.events import Event, FrameCommitted
from streams.core.runs import SYSTEM

PIECES_MOST: Final = 50
"""Pieces of one stream that are listed one by one: a report tells up to 400 streams a conversation."""
TEXT_MOST: Final = 1_000
"""Characters of a stream's text that are kept: a line shows less."""

Row = dict[str, Any]
Key = tuple[str | None, str | None, str | None, int | None, str | None]


def stream_of(event: Event) -> Key | None:
    """Which stream this is a piece of: of a conversation, member, run and run epoch. None: it is no piece. What the
    writer says who closes a stream that was left open is an event of its own."""
    if not isinstance(event, FrameCommitted) or event.frame.type != "genui" or event.sender == SYSTEM:
        return None
    if event.run_id is None and event.frame.stream_id is None:
        return None
    return event.conversation_id, event.member, event.run_id, event.run_epoch, event.frame.stream_id


@dataclass(slots=True)
class Stream:
    """The line of a stream, which is that of its first piece until there are more. `masked`: its text is not told."""

    line: Row
    first: FrameCommitted
    masked: bool
    text: str = ""
    characters: int = 0
    pieces: list[Row] = field(default_factory=list)
    count: int = 0

    def add(self, piece: Row, data: str | None, sentence: Callable[[Event], str]) -> None:
        """The next piece as a line of its own, and what was said in it."""
        text = piece_of(data)
        self.characters += len(text)
        self.text = (self.text + text)[:TEXT_MOST]
        self.count += 1
        if len(self.pieces) < PIECES_MOST:
            self.pieces.append(piece)
        if self.count == 1:
            return
        whole = self.text
        if self.masked:
            whole = mask("x" * self.characters) if self.characters else ""
        told = sentence(replace(self.first, frame=replace(self.first.frame, data=None, text=whole)))
        self.line["words"] = told.removesuffix(": ")
        self.line["pieces"] = self.pieces
        self.line["pieces_left_out"] = self.count - len(self.pieces)
