"""How the demo looks: a live table in a terminal, plain lines in a pipe. Both tell the same happenings."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ops.demo.board import Board, Happening, Kind, Progress

FRAMES_PER_S = 12
STORY_LINES = 7
KEPT_LINES = 4
FRAME_LINES = 11
"""Lines of the picture that are neither rows of the table nor of the story."""

_COLOURS: Mapping[Kind, str] = {
    Kind.MEMBER: "cyan",
    Kind.TURN: "default",
    Kind.ANSWER: "green",
    Kind.MOVE: "bold yellow",
    Kind.FAILURE: "bold red",
}
_MARKS: Mapping[Progress, tuple[str, str]] = {
    Progress.WAITING: ("…", "yellow"),
    Progress.GIVEN: ("→", "default"),
    Progress.ANSWERING: ("✎", "blue"),
    Progress.ANSWERED: ("✓", "green"),
    Progress.FAILED: ("✗", "red"),
}
OWNER_COLOURS = ("magenta", "blue", "cyan", "green")


class Show(AbstractContextManager["Show"], Protocol):
    """Where the story is told."""

    def note(self, line: str) -> None:
        """Something about the stack, or the director's own doing."""

    def happened(self, happening: Happening) -> None:
        """Something that the journal says."""

    def end(self, lines: list[tuple[bool, str]]) -> None:
        """The verdict: claims, and whether each holds."""


class PlainShow:
    """One line a happening, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def note(self, line: str) -> None:
        self._line("·", line)

    def happened(self, happening: Happening) -> None:
        self._line(happening.kind.value, happening.text)

    def end(self, lines: list[tuple[bool, str]]) -> None:
        for holds, claim in lines:
            self._line("ok" if holds else "NOT OK", claim)

    def _line(self, kind: str, text: str) -> None:
        elapsed = time.monotonic() - self._start
        self._console.print(f"{elapsed:6.2f}  {kind:<8}{text}", markup=False, highlight=False, soft_wrap=True)


class LiveShow:
    """The board, redrawn as it changes, above the last lines of the story."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console = console
        self._board = board
        self._story: deque[Text] = deque(maxlen=STORY_LINES)
        self._kept: deque[Text] = deque(maxlen=KEPT_LINES)
        """Kills, moves and failures: too few to scroll away."""
        self._start = time.monotonic()
        self._verdict: RenderableType | None = None
        self._live = Live(console=console, refresh_per_second=FRAMES_PER_S, get_renderable=self._picture)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def note(self, line: str) -> None:
        self._story.append(self._line(Text(line, style="dim")))

    def happened(self, happening: Happening) -> None:
        line = self._line(Text(happening.text, style=_COLOURS[happening.kind]))
        (self._kept if happening.kind in {Kind.MOVE, Kind.FAILURE} else self._story).append(line)

    def end(self, lines: list[tuple[bool, str]]) -> None:
        text = "\n".join(
            f"[{'green' if holds else 'red'}]{'✓' if holds else '✗'}[/] {escape(claim)}" for holds, claim in lines
        )
        every = all(holds for holds, _ in lines)
        self._verdict = Panel(text, title="verdict", border_style="green" if every else "red", box=ROUNDED)

    def _line(self, text: Text) -> Text:
        text.truncate(max(20, self._console.width - 14), overflow="ellipsis")
        return Text(f"{time.monotonic() - self._start:6.2f}  ", style="dim") + text

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = [Text("Turnlog: who owns what, from the log", style="bold")]
        if self._board.rows:
            parts.append(self._table())
        parts.append(Panel(Group(*self._story), title="what the log says", box=ROUNDED, border_style="dim"))
        if self._kept:
            parts.append(Panel(Group(*self._kept), title="one agent dies", box=ROUNDED, border_style="yellow"))
        if self._verdict is not None:
            parts.append(self._verdict)
        return Group(*parts)

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False)
        table.add_column("conversation", no_wrap=True, width=14)
        table.add_column("turn", justify="right", width=5)
        table.add_column("owner", no_wrap=True, width=9)
        table.add_column("epoch", justify="right", width=5)
        table.add_column("", width=1)
        table.add_column("said / answer so far", no_wrap=True, ratio=1)
        rows = list(self._board.rows.values())
        room = max(4, self._console.height - FRAME_LINES - STORY_LINES - KEPT_LINES)
        for row in rows[:room]:
            mark, colour = _MARKS[row.progress]
            text = Text(row.answer or row.said, style="default" if row.answer else "dim", overflow="ellipsis")
            table.add_row(
                row.title, f"#{row.seq}", self._owner(row.owner), str(row.epoch), Text(mark, style=colour), text
            )
        if len(rows) > room:
            table.add_row(Text(f"and {len(rows) - room} more", style="dim"))
        return table

    def _owner(self, member: str | None) -> Text:
        names = list(self._board.names)
        colour = OWNER_COLOURS[names.index(member) % len(OWNER_COLOURS)] if member in names else "default"
        return Text(self._board.name(member), style=colour)
