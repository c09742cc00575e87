"""`turnlog migrate`: the tables of a deployment's database."""

from __future__ import annotations

import typer

from ops.cli.common import (
    DryRunOption,
    Output,
    OutputOption,
    PostgresOption,
    emit_all,
    progress,
    settings_from,
    translated_failures,
)
from ops.cli.servers import NO_KAFKA


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

    settings = settings_from(NO_KAFKA, postgres)
    with translated_failures():
        applied = bring_up_to_date(settings.postgres, dry_run=dry_run)
    names = [f"{migration.number:04}_{migration.name}" for migration in applied]
    if output is not Output.TABLE:
        emit_all([{"migration": name, "applied": not dry_run} for name in names], output)
        return
    for name in names:
        typer.echo(f"{'missing' if dry_run else 'applied'} {name}")
    if not names:
        progress("nothing to change: the tables are those of this release")
