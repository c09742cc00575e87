"""`turnlog topic grow`: the deployment moved to topics with more partitions."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.actions import ByOption
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
from ops.cli.errors import USAGE, CommandFailed

if TYPE_CHECKING:
    from ops.grow.deletion import Leftover
    from ops.grow.plan import Plan
    from streams.settings import Settings

AGAIN = "interrupted; nothing in use was changed. The same command again goes on"
COLUMNS = ("partition", "from", "events", "conversations")


PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=2, help="Partitions of each new topic: a multiple of the present count."),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="NAMESPACE",
        help="Namespace of the new topics (default: `g2`, after it `g3`, …).",
        show_default=False,
    ),
]
DeleteOldOption = Annotated[
    bool,
    typer.Option("--delete-old", help="Delete the topics of --namespace, which the deployment was moved from."),
]


def grow_topics(
    partitions: PartitionsOption = None,
    to: ToOption = None,
    delete_old: DeleteOldOption = False,
    by: ByOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move the deployment to new topics with more partitions; order, seq, keys, runs and owners stay as they are.

    Nothing may run meanwhile: stop gateways and connectors, let workers take what is left, then stop them and the
    projectors; it says what still stands in the way. The journal is copied, each conversation to its new partition;
    then the database belongs to the new topics, in one transaction. Interrupted, the same command goes on. After it set
    TURNLOG_NAMESPACE to the new namespace for every process, and start them: with the old one they refuse.

    The old topics stay, to be read by `--namespace` of old, until `--delete-old` deletes them: all but `deployment`,
    which tells where the deployment went. It refuses while a group of consumers reads them, a transaction is open
    there, or something writes to them still. Who reads without a group, it cannot know.

    Examples:

      turnlog topic grow --partitions 64 --dry-run

      turnlog topic grow --partitions 64 --yes

      turnlog topic grow --delete-old --namespace shop --dry-run
    """
    if (partitions is None) != delete_old:
        raise CommandFailed("either --partitions, to grow, or --delete-old: see `turnlog topic grow --help`", USAGE)
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures(), _cannot_grow():
        if partitions is None:
            asyncio.run(_delete_old(settings, dry_run=dry_run, yes=yes, output=output))
            return
        try:
            asyncio.run(
                _grow(
                    settings, archive, partitions, to, by or getpass.getuser(), dry_run=dry_run, yes=yes, output=output
                )
            )
        except KeyboardInterrupt:
            progress(AGAIN)
            raise


@contextmanager
def _cannot_grow() -> Iterator[None]:
    from ops.grow.split import CannotGrow

    try:
        yield
    except CannotGrow as error:
        raise CommandFailed(str(error)) from error


async def _delete_old(settings: Settings, *, dry_run: bool, yes: bool, output: Output) -> None:
    from ops.grow.database import Database
    from ops.grow.deletion import delete, leftover
    from ops.grow.split import CannotGrow

    database = await Database.connect(settings.postgres)
    try:
        left = await leftover(settings, database)
    finally:
        await database.close()
    rows = [topic.document() for topic in left.topics]
    if dry_run or not left.topics:
        _show_leftover(left, rows, output, applied=False)
        return
    if left.standing:
        raise CannotGrow("\n".join(left.standing))
    if not yes:
        await asyncio.to_thread(require_yes, _last_question(left))
    await delete(settings, left)
    _show_leftover(left, rows, output, applied=True)


def _last_question(left: Leftover) -> str:
    return (
        f"Delete {len(left.topics)} topics of the namespace {left.namespace!r} for good, with "
        f"{sum(topic.records for topic in left.topics):,} records? (The deployment is in {left.target!r}.)"
    )


def _show_leftover(left: Leftover, rows: list[dict[str, Any]], output: Output, *, applied: bool) -> None:
    if output is not Output.TABLE:
        document = {"namespace": left.namespace, "to": left.target, "topics": rows, "standing": list(left.standing)}
        emit({**document, "applied": applied})
        return
    show_rows(rows, ("topic", "partitions", "records"), output, empty="nothing is left to be deleted")
    if rows:
        progress("deleted" if applied else "would be deleted")
    for each in left.standing:
        progress(f"first: {each}")


async def _grow(
    settings: Settings,
    archive: str | None,
    partitions: int,
    to: str | None,
    by: str,
    *,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    from ops.grow.database import Database
    from ops.grow.plan import counted, planned
    from ops.grow.run import grow
    from ops.grow.split import CannotGrow
    from ops.history import open_history

    database = await Database.connect(settings.postgres)
    try:
        async with open_history(settings, archive) as history:
            plan = await planned(settings, history, database, partitions, to)
            if dry_run:
                parts = [] if plan.switched else await counted(plan, history, by, progress)
                _show_plan(plan, [part.document() for part in parts], output)
                return
            if plan.standing:
                raise CannotGrow("\n".join(plan.standing))
            if not (yes or plan.switched):
                await asyncio.to_thread(require_yes, _question(plan))
            copied = await grow(plan, history, database, by, progress)
            rows = [{"partition": p, "from": p % history.partitions, "events": c.events} for p, c in copied.items()]
            _show_done(plan, rows, output)
    finally:
        await database.close()


def _question(plan: Plan) -> str:
    events = sum(old.last.lsn for old in plan.old if old.last is not None)
    return (
        f"Copy {events:,} events of {len(plan.old)} partitions to {plan.partitions}, in the namespace "
        f"{plan.target.namespace!r}, and move the deployment there?"
    )


def _document(plan: Plan, rows: list[dict[str, Any]], *, applied: bool) -> dict[str, Any]:
    return {
        "namespace": plan.settings.namespace,
        "to": plan.target.namespace,
        "partitions": plan.partitions,
        "parts": rows,
        "standing": list(plan.standing),
        "moved_before": plan.switched,
        "applied": applied,
    }


def _show_plan(plan: Plan, rows: list[dict[str, Any]], output: Output) -> None:
    if output is not Output.TABLE:
        emit(_document(plan, rows, applied=False))
        return
    if plan.switched:
        progress(f"the deployment was moved to the namespace {plan.target.namespace!r} already")
        return
    progress(f"would be moved to the namespace {plan.target.namespace!r}, with {plan.partitions} partitions:")
    show_rows(rows, COLUMNS, output, empty="no events")
    for each in plan.standing:
        progress(f"first: {each}")


def _show_done(plan: Plan, rows: list[dict[str, Any]], output: Output) -> None:
    if output is not Output.TABLE:
        emit(_document(plan, rows, applied=True))
    else:
        show_rows(rows, COLUMNS[:3], output, empty="the deployment was moved already")
    progress(f"set TURNLOG_NAMESPACE={plan.target.namespace} for every process, then start them")
