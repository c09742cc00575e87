"""`turnlog migrate`: the tables of a deployment's database."""

from __future__ import annotations

import typer

from ops.cli.common import (
    DryRunOption,
    Output,
    OutputOption,
    PostgresOption,
    emit,
    progress,
    settings_from,
    translated_failures,
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("migrate", rich_help_panel="Look")(migrate)


def migrate(
    dry_run: DryRunOption = False, postgres: PostgresOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Bring the database to this release's tables: what is missing, each step in a transaction of its own.

    Safe to repeat, and to run at several places at once. `turnlog up` does it by itself; where you run the processes
    yourself, run it before the first one of a new release starts. A database that is newer than this release is
    refused.

    Example:

      turnlog migrate --dry-run
    """
    from streams.fence.migrate import migrate as bring_up_to_date

    # Kafka plays no part here; the setting is required of servers alone.
    settings = settings_from("unused:1", postgres)
    with translated_failures():
        applied = bring_up_to_date(settings.postgres, dry_run=dry_run)
    names = [f"{migration.number:04}_{migration.name}" for migration in applied]
    if output is not Output.TABLE:
        rows = [{"migration": name, "applied": not dry_run} for name in names]
        for document in [rows] if output is Output.JSON else rows:
            emit(document)
        return
    for name in names:
        typer.echo(f"{'missing' if dry_run else 'applied'} {name}")
    if not names:
        progress("nothing to change: the tables are those of this release")
