"""`turnlog top`: a deployment live in the terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.common import (
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    emit,
    settings_from,
    translated_failures,
)
from ops.cli.errors import CommandFailed

if TYPE_CHECKING:
    from streams.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("top", rich_help_panel="Operate")(top)


def top(
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            envvar="TURNLOG_TOP_METRICS",
            help="Address of a worker's or gateway's /metrics; may be given several times. Without: no rates, no lag.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between two looks.")] = 1.0,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show partitions, leases, lag, members, open runs, takeovers and errors, live, until `q`.

    Leases, members and runs are read from PostgreSQL, the rest from the processes' /metrics. `-o json` looks once and
    prints what it saw; `-o jsonl` goes on, a look a line. Needs the extra `console`.

    Example:

      turnlog top --metrics http://127.0.0.1:9101/metrics
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        if output is not Output.TABLE:
            asyncio.run(_print(settings, metrics or [], every, once=output is Output.JSON))
            return
        if not sys.stdout.isatty():
            raise CommandFailed("this is no terminal: `-o json` looks once, `-o jsonl` goes on")
        asyncio.run(_show(settings, metrics or [], every))


async def _show(settings: Settings, metrics: list[str], every: float) -> None:
    try:
        from ops.console.app import Top
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        raise CommandFailed("`turnlog top` needs textual: pip install 'turnlog[server,console]'") from error
    from ops.console.sample import Deployment

    source = Deployment(settings, metrics)
    try:
        await Top(source, every).run_async()
    finally:
        await source.close()


async def _print(settings: Settings, metrics: list[str], every: float, *, once: bool) -> None:
    from dataclasses import asdict

    from ops.console.sample import Deployment

    source = Deployment(settings, metrics)
    try:
        while True:
            emit(asdict(await source.look()))
            if once:
                return
            await asyncio.sleep(every)
    finally:
        await source.close()
