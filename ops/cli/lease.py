"""`turnlog lease`: which worker may write which partition."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.actions import ByOption, WhyOption
from ops.cli.common import (
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
from ops.cli.errors import NEGATIVE, CommandFailed

if TYPE_CHECKING:
    from ops.actions import Released
    from streams.fence.port import HeldBy

app = typer.Typer(
    name="lease",
    help="Which worker may write which partition.",
    no_args_is_help=True,
)

COLUMNS = (
    "partition",
    "worker",
    "writer_epoch",
    "live",
    "expires_in_ms",
    "draining",
    "stopped",
    "checkpoint_lsn",
    "checkpoint_age_ms",
)


@app.command("list")
def list_leases(
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List each partition's lease: its worker, writer epoch, how long it lasts, and its checkpoint's age.

    `stopped`: why its worker keeps the partition without running it, until an operator looks and restarts the worker.

    Example:

      turnlog lease list -o jsonl
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        rows = asyncio.run(_leases(settings.postgres))
    show_rows(rows, COLUMNS, output, empty="no worker has ever held a partition: start one with `turnlog worker`")


async def _leases(dsn: str) -> list[dict[str, object]]:
    from ops.database import Database

    database = Database(dsn)
    try:
        return list(await database.rows("leases"))
    finally:
        await database.close()


@app.command("release")
def release(
    partition: Annotated[int, typer.Argument(min=0, metavar="PARTITION", help="The partition.", show_default=False)],
    by: ByOption = None,
    why: WhyOption = "operator",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a partition's lease from its worker: for one that holds it, lives, and does not go on.

    The worker is fenced, and throws away what it has of the partition in memory; whoever is due for it, maybe the same
    worker, claims it with a new writer epoch and goes on from the journal. Nothing is lost, and turns wait meanwhile.
    It is written into the partition's journal. Returns once the partition is claimed again.

    Exit code 1 if nobody holds it, or it changed hands meanwhile.

    Example:

      turnlog lease release 3 --why "no commit for minutes"
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.actions import Released, lease_of, release_lease

        held = asyncio.run(lease_of(settings, partition))
        if held is None:
            raise CommandFailed(f"no worker holds partition {partition}; see `turnlog lease list`", NEGATIVE)
        if dry_run:
            _tell(Released(held, done=False, claimed=None), output, dry_run=True)
            return
        if not yes:
            require_yes(f"Take partition {partition} from {_holder(held)}?")
        result = asyncio.run(release_lease(settings, held, by=by or getpass.getuser(), reason=why))
    _tell(result, output, dry_run=False)
    if not result.done:
        raise typer.Exit(NEGATIVE)


def _holder(held: HeldBy) -> str:
    return f"{held.worker} (writer epoch {held.writer_epoch})"


def _tell(result: Released, output: Output, *, dry_run: bool) -> None:
    held, claimed = result.held, result.claimed
    if output is not Output.TABLE:
        document = {"partition": held.partition, "worker": held.worker, "writer_epoch": held.writer_epoch}
        after = None if claimed is None else {"worker": claimed.worker, "writer_epoch": claimed.writer_epoch}
        emit({**document, "released": result.done, "claimed": after, "dry_run": dry_run})
    elif dry_run:
        progress(f"partition {held.partition} would be taken from {_holder(held)}")
    elif not result.done:
        progress(f"{_holder(held)} did not hold partition {held.partition} any more: nothing was released")
    elif claimed is None:
        progress(f"partition {held.partition} was taken from {_holder(held)}; nobody has claimed it yet")
    else:
        progress(f"partition {held.partition} was taken from {_holder(held)}; {_holder(claimed)} has it now")
