"""`turnlog canary`: whether a zombie's writes are refused on these servers."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    emit,
    progress,
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.errors import COULD_NOT, NEGATIVE, CommandFailed

if TYPE_CHECKING:
    from streams.runtime.canary import Verdict
    from streams.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("canary", rich_help_panel="Look")(canary)


def canary(
    every: Annotated[
        float | None,
        typer.Option("--every", min=1.0, help="Go on, one run each so many seconds, until one fails or Ctrl-C."),
    ] = None,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let one node claim what another still believes it owns, and see that the other's next writes are refused.

    It has a topic and a PostgreSQL schema of its own; no conversation is touched. Exit code 0: everything of the zombie
    was refused; 1: something went through, which must never happen; 2: it could not be checked. Projectors run it each
    TURNLOG_CANARY_EVERY_S seconds and tell in their metrics.

    Example:

      turnlog canary -o json
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        try:
            code = asyncio.run(_runs(settings, every, output))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
    raise typer.Exit(code)


async def _runs(settings: Settings, every: float | None, output: Output) -> int:
    me = asyncio.current_task()
    if every is not None and me is not None and sys.platform != "win32":
        # A shell lets what it runs in the background ignore SIGINT, and Python then does so too.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, me.cancel)
    while True:
        code = await _run(settings, output, last=every is None)
        if every is None or code == NEGATIVE:
            return code
        await asyncio.sleep(every)


async def _run(settings: Settings, output: Output, *, last: bool) -> int:
    from streams.runtime.canary import CouldNotCheck, run

    try:
        verdict = await run(settings)
    except CouldNotCheck as error:
        if last:
            raise CommandFailed(str(error)) from error
        progress(f"could not be checked: {error}")
        return COULD_NOT
    _show(verdict, output)
    return 0 if verdict.ok else NEGATIVE


def _show(verdict: Verdict, output: Output) -> None:
    rows: list[dict[str, Any]] = [{"check": c.name, "ok": c.ok, "found": c.found} for c in verdict.checks]
    if output is Output.TABLE:
        show_rows(rows, ("check", "ok", "found"), output, empty="")
        sentence = "a zombie is refused" if verdict.ok else "A ZOMBIE'S WRITE WENT THROUGH"
        progress(f"{sentence} ({verdict.seconds:.1f} s)")
    else:
        emit({"ok": verdict.ok, "seconds": round(verdict.seconds, 3), "checks": rows})
