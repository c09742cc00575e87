"""What others chose, ids and words, cannot make a terminal do anything."""

from __future__ import annotations

import pytest
import typer

from ops.cli.common import Output, progress, show_document, show_rows
from ops.cli.narrate import line
from streams.core.content import Turn
from streams.core.events import Entry, TurnCommitted

pytestmark = pytest.mark.unit

# Sets the clipboard, clears the screen, goes back to the line's beginning, and the one-byte form of an escape.
WICKED = "\x1b]52;c;cm0gLXJm\x07 \x1b[2J\r\x9b31m"


def test_no_way_of_telling_a_person_hands_on_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    turn = Turn(id="t", sender=f"anna{WICKED}", channel="web", type="text", text=f"hello{WICKED}")
    typer.echo(line(Entry(1, 0, 0, 1, TurnCommitted(turn, conversation_id="c", seq=1))))
    progress(f"VIOLATION: conversation {WICKED}\n\tmore of it")
    show_rows([{"id": WICKED, "what": [WICKED]}], ("id", "what"), Output.TABLE, empty="")
    show_document({"id": WICKED}, Output.TABLE)
    told = capsys.readouterr()
    assert "hello" in told.out
    assert "\n\tmore of it" in told.err
    assert not {each for each in WICKED if not each.isprintable()} & {*told.out, *told.err}
