"""`turnlog lease`: which worker may write which partition."""

from __future__ import annotations

import asyncio

import typer

from ops.cli.common import (
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    settings_from,
    show_rows,
    translated_failures,
)

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
