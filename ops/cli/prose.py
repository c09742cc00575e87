"""Help texts as paragraphs: a docstring's own line ends would be kept inside narrower ones, which reads ragged."""

from __future__ import annotations

import inspect
from typing import Final

import typer

EXAMPLE: Final = "  "
"""What examples are indented by: their lines stay as they are."""
WIDTH: Final = 80
"""Columns of a terminal that a line of help may need."""


def flowing(text: str) -> str:
    """`text` with each paragraph on one line, for whoever shows it to break; examples as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(EXAMPLE) else " ".join(each.split()) for each in paragraphs)


def let_help_flow(app: typer.Typer) -> None:
    """Make the help of every command of `app`, and of its nouns, flow."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.help = flowing(command.help or command.callback.__doc__ or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            let_help_flow(group.typer_instance)
