"""What `--help` shows: whole paragraphs that any width can break, and examples that fit."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main
from rich.text import Text

from ops.cli.command_line import app
from ops.cli.prose import EXAMPLE, WIDTH, flowing

MARGIN = 4
"""What typer puts at both sides of a line of help."""


def helps(command: Any = None, name: str = "turnlog") -> Iterator[tuple[str, str]]:
    command = command or typer.main.get_command(app)
    yield name, inspect.cleandoc(command.help or "")
    for child_name, child in getattr(command, "commands", {}).items():
        yield from helps(child, f"{name} {child_name}")


def test_no_paragraph_of_any_command_has_line_ends_of_its_own() -> None:
    ragged = [
        f"{name}: {paragraph}"
        for name, text in helps()
        for paragraph in text.split("\n\n")
        if "\n" in paragraph and not paragraph.startswith(EXAMPLE)
    ]
    assert not ragged
    assert len(list(helps())) > 40


def test_every_line_of_an_example_fits_into_a_terminal() -> None:
    lines = [(name, line) for name, text in helps() for line in text.splitlines() if line.startswith(EXAMPLE)]
    assert lines
    assert not [(name, line) for name, line in lines if len(line) > WIDTH - MARGIN]


def test_nothing_in_a_help_is_taken_for_markup() -> None:
    assert not [name for name, text in helps() if Text.from_markup(text).plain != text]


def test_paragraphs_flow_and_examples_stay() -> None:
    assert flowing("First\n    line.\n\n    Second\n    one.\n\n      x \\\n        y\n") == (
        "First line.\n\nSecond one.\n\n  x \\\n    y"
    )
