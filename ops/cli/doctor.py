"""`turnlog doctor`: what is missing or wrong here, and what to do about it."""

from __future__ import annotations

import asyncio
import os

import typer

from ops.cli.common import Output, OutputOption, show_rows, translated_failures
from ops.cli.errors import NEGATIVE


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("doctor", rich_help_panel="Look")(doctor)


def doctor(output: OutputOption = Output.TABLE) -> None:
    """Check Python, the packages, the Java runtime and, where TURNLOG_KAFKA and TURNLOG_POSTGRES point, the servers.

    Each line is one check; a failing one names what it is about and the way out. Exit code 1 if one fails.

    Example:

      turnlog doctor -o json
    """
    from ops.doctor import diagnose

    with translated_failures():
        checks = asyncio.run(diagnose(os.environ))
    rows = [{"check": c.name, "result": c.result.value, "found": c.found, "way_out": c.way_out} for c in checks]
    show_rows(rows, ("check", "result", "found", "way_out"), output, empty="")
    raise typer.Exit(NEGATIVE if any(row["result"] == "failed" for row in rows) else 0)
