"""`turnlog member`: the agent connections that turns are given to."""

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

app = typer.Typer(name="member", help="The agent connections that turns are given to.", no_args_is_help=True)

COLUMNS = ("member", "group", "channel", "gateway", "partitions", "since")


@app.command("list")
def list_members(
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the members that are there, by the read model, with the group each is in and the gateway it is connected to.

    `partitions` is how many partitions have it in their membership (all of them, once it has settled); `since` is the
    log time (UTC) from which turns count it as eligible.

    Example:

      turnlog member list
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        from ops.conversations import members

        rows = asyncio.run(members(settings))
    show_rows(rows, COLUMNS, output, empty="no agent is connected")
