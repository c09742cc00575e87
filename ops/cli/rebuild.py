"""`turnlog rebuild`: the tables that are derived from the journal, made anew."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
    ArchiveOption,
    DryRunOption,
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    YesOption,
    emit,
    progress,
    require_yes,
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.errors import CommandFailed

if TYPE_CHECKING:
    from ops.rebuild.run import Plan
    from streams.settings import Settings

AGAIN = "interrupted; nothing in use was changed by what is not whole. Go on with the same command"


class TableGroup(StrEnum):
    """Tables that are only right together."""

    READ_MODEL = "read-model"
    CHECKPOINTS = "checkpoints"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("rebuild", rich_help_panel="Operate")(rebuild)


def rebuild(
    table: Annotated[
        list[TableGroup] | None,
        typer.Option("--table", help="Only these: what projectors write, or what workers store. May be given twice."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make every table anew that is derived from the journal: the read model, and checkpoints.

    They are written beside those in use (schema `rebuild`), and replace them in one transaction at the end: until then
    nothing in use is touched. Projectors and gateways may run. Workers must not, for checkpoints: it says which to
    stop. Interrupted, the same command goes on where it was.

    Leases, channels, secrets and keys are in no journal: they come from a backup of PostgreSQL.

    Examples:

      turnlog rebuild --dry-run

      turnlog rebuild --table read-model --yes
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        try:
            wanted = table or list(TableGroup)
            asyncio.run(_rebuild(settings, archive, wanted, dry_run=dry_run, yes=yes, output=output))
        except KeyboardInterrupt:
            progress(AGAIN)
            raise


async def _rebuild(
    settings: Settings,
    archive: str | None,
    wanted: list[TableGroup],
    *,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    from ops.history import open_history
    from ops.rebuild.beside import Beside, CannotRebuild, Group, held_by
    from ops.rebuild.run import planned
    from ops.rebuild.run import rebuild as run

    beside = await Beside.connect(settings.postgres)
    try:
        async with open_history(settings, archive) as history:
            plan = await planned(history, beside, [Group(each.value) for each in wanted])
            if dry_run:
                _show_plan(plan, output)
                if plan.writers:
                    progress(held_by(plan.writers))
                return
            if plan.writers:
                raise CannotRebuild(held_by(plan.writers))
            if not yes:
                await asyncio.to_thread(
                    require_yes, f"Replace {', '.join(plan.rows)} by what {plan.offsets:,} offsets of the journal give?"
                )
            _show(await run(history, beside, plan, progress), output)
    except CannotRebuild as error:
        raise CommandFailed(str(error)) from error
    finally:
        await beside.close()


def _show_plan(plan: Plan, output: Output) -> None:
    if output is not Output.TABLE:
        emit(plan.document())
        return
    how = "goes on with an interrupted rebuild" if plan.goes_on else "begins at the journal's beginning"
    progress(f"{plan.partitions} partitions, {plan.offsets:,} offsets of the journal; it {how}")
    rows: list[dict[str, Any]] = [{"table": name, "rows": count} for name, count in plan.rows.items()]
    show_rows(rows, ("table", "rows"), output, empty="no tables")


def _show(done: dict[str, Any], output: Output) -> None:
    if output is not Output.TABLE:
        emit(done)
        return
    progress(f"{done['events']:,} events were read")
    rows = [{"table": name, **counts} for name, counts in done["tables"].items()]
    show_rows(rows, ("table", "before", "after"), output, empty="no tables")
