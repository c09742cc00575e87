"""Writes `docs/reference/cli.md` from the command line itself: `python -m ops.cli.reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import typer.main

from ops.cli.command_line import app
from streams.settings import ENV_PREFIX, Settings

SETTINGS_HEAD = """## Settings

Every server process reads these variables, all of them before it does anything, and names each one that breaks a rule.
Names that end in `_MS` are milliseconds, in `_S` seconds. Secrets are never logged.

| variable | default | |
|---|---|---|"""

PAGE_WIDTH = 120
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"

HEAD = """# The `turnlog` command

<!-- Written by `python -m ops.cli.reference`: change the command line, not this page. -->

Noun, then verb. Data goes to stdout, progress and errors to stderr. `-o table` is for people, `-o json` prints one JSON
document, `-o jsonl` one a line. An option that has an environment variable takes it from there; other settings of the
servers are [variables only](#settings).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | done, and the answer is no: violations, a failed check, no answer in time, not confirmed |
| 2 | could not be done; the message says why, and the way out |
| 64 | the command line or its input was wrong |
| 130 | interrupted |
"""


def page() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    return "\n".join([HEAD, *_commands(root, "turnlog"), *_settings()]).rstrip() + "\n"


def _commands(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is not None:
        for child_name, child in children.items():
            yield from _commands(child, f"{name} {child_name}")
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    usage = " ".join([name, *(_usage(argument) for argument in arguments)])
    yield f"## `{usage}`\n"
    yield from _prose(inspect.cleandoc(command.help or ""))
    if arguments or options:
        yield "| | default | |\n|---|---|---|"
        for parameter in (*arguments, *options):
            yield _row(parameter)
        yield ""


def _usage(argument: Any) -> str:
    name = argument.metavar or str(argument.name).upper()
    return str(name) if argument.required else f"[{name}]"


def _prose(text: str) -> Iterator[str]:
    """The help as written there: indented paragraphs are examples."""
    for indented, paragraphs in groupby(text.split("\n\n"), key=lambda paragraph: paragraph.startswith("  ")):
        if indented:
            yield "```sh\n" + "\n".join(inspect.cleandoc(paragraph) for paragraph in paragraphs) + "\n```\n"
        else:
            yield from (fill(paragraph, PAGE_WIDTH, break_on_hyphens=False) + "\n" for paragraph in paragraphs)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or str(parameter.name).upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in sorted(parameter.opts, key=len))
    variable = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    return f"| {names} | {_default(parameter)} | {_escaped(parameter.help or '')}{variable} |"


def _default(parameter: Any) -> str:
    default = parameter.default
    if default is None or default is False or getattr(parameter, "required", False):
        return "required" if parameter.required else ""
    return f"`{getattr(default, 'value', default)}`"


def _escaped(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def _settings() -> Iterator[str]:
    yield SETTINGS_HEAD
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else _shown(field.default)
        yield f"| `{ENV_PREFIX}{name.upper()}` | {default} | {_escaped(field.description or '')} |"


def _shown(default: object) -> str:
    value = getattr(default, "value", default)
    return "" if value in {None, ""} else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
