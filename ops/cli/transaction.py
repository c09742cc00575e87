"""`turnlog transaction`: transactions that are open in the journal or the intake, and ending one that nobody ends."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
    DryRunOption,
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    YesOption,
    progress,
    require_yes,
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ops.transactions import Found
    from streams.settings import Settings

app = typer.Typer(
    name="transaction",
    help="Transactions that hold readers of the journal or the intake back.",
    no_args_is_help=True,
)

COLUMNS = (
    "topic",
    "partition",
    "producer_id",
    "producer_epoch",
    "start_offset",
    "idle_ms",
    "transactional_id",
    "state",
    "own",
    "hanging",
)


@app.command("list")
def list_transactions(
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Of this partition alone.")] = None,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the transactions that are open now in the journal and the intake. Readers stop before the first of them.

    `own`: of a partition's worker; it is open for milliseconds, and one that hangs is ended by the next claim.
    `hanging`: Kafka holds it for ended, so that nothing but `turnlog transaction abort` or a claim ends it.

    Example:

      turnlog transaction list
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        found = asyncio.run(_found(settings, None, partition))
    show_rows([_row(one) for one in found], COLUMNS, output, empty="no transaction is open")


@app.command("abort")
def abort(
    partition: Annotated[int, typer.Option("--partition", min=0, help="The partition that it is open in.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Its topic.  [default: the journal]")] = None,
    producer: Annotated[
        int | None, typer.Option("--producer", help="The producer id, where more than one is open.", show_default=False)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also one of the partition's own worker, or one that is not hanging.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Abort an open transaction: a hanging one, or with `--force` any. Exit code 1 if there is none.

    A hanging one gets the marker that is missing. One that its coordinator still holds is ended by fencing its
    producer. Of a worker's own, a claim knows whether it must be committed: restart the worker rather than force it.

    Example:

      turnlog transaction abort --partition 3 --dry-run
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        (one,) = _chosen(asyncio.run(_found(settings, topic or "", partition)), producer)
        _require_abortable(one, force)
        if not dry_run:
            if not yes:
                require_yes(f"Abort the transaction of {one.open} in {one.topic}[{partition}]?")
            asyncio.run(_abort(settings, one))
    show_rows([_row(one) | {"aborted": not dry_run}], (*COLUMNS, "aborted"), output, empty="")


def _chosen(found: Sequence[Found], producer: int | None) -> Sequence[Found]:
    open_ones = [one for one in found if producer is None or one.open.producer_id == producer]
    if not open_ones:
        progress("no such transaction is open")
        raise typer.Exit(NEGATIVE)
    if len(open_ones) > 1:
        ids = ", ".join(str(one.open.producer_id) for one in open_ones)
        raise CommandFailed(f"{len(open_ones)} are open: choose one by --producer: {ids}", USAGE)
    return open_ones


def _require_abortable(one: Found, force: bool) -> None:
    if force:
        return
    if one.own:
        raise CommandFailed(
            f"it is the partition's own worker's ({one.open}): it ends by itself, or with the next claim; restart the "
            "worker if it does not. `--force` aborts it all the same",
            NEGATIVE,
        )
    if not one.hanging:
        raise CommandFailed(
            f"{one.transactional_id} is alive ({one.state}): end whoever writes there. `--force` fences it", NEGATIVE
        )


async def _found(settings: Settings, topic: str | None, partition: int | None) -> Sequence[Found]:
    """`topic`: None all of them, empty the journal."""
    from ops.transactions import OpenTransactions

    transactions = OpenTransactions(settings)
    try:
        count = await transactions.partitions()
        if partition is not None and partition >= count:
            raise CommandFailed(f"--partition must be below {count}", USAGE)
        wanted = range(count) if partition is None else [partition]
        names = transactions.topics if topic is None else [topic or transactions.topics[0]]
        if not set(names) <= set(transactions.topics):
            raise CommandFailed(f"--topic must be one of {', '.join(transactions.topics)}", USAGE)
        return [one for name in names for number in wanted for one in await transactions.found(name, number)]
    finally:
        await transactions.close()


async def _abort(settings: Settings, one: Found) -> None:
    from ops.transactions import OpenTransactions
    from streams.fence.port import Fenced
    from streams.runtime.kafka import Doubt

    transactions = OpenTransactions(settings)
    try:
        await transactions.abort(one)
    except Fenced as error:
        raise CommandFailed(f"{error}: it was ended meanwhile", NEGATIVE) from error
    except Doubt as error:
        raise CommandFailed(f"{error}: look again with `turnlog transaction list`") from error
    finally:
        await transactions.close()


def _row(one: Found) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "producer_id": one.open.producer_id,
        "producer_epoch": one.open.producer_epoch,
        "start_offset": one.open.start,
        "idle_ms": max(0, round(time.time() * 1000) - one.open.last_timestamp),
        "transactional_id": one.transactional_id,
        "state": one.state,
        "own": one.own,
        "hanging": one.hanging,
    }
