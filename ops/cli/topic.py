"""`turnlog topic`: the topics of a deployment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.common import (
    DryRunOption,
    KafkaOption,
    NamespaceOption,
    Output,
    OutputOption,
    PostgresOption,
    emit,
    progress,
    settings_from,
    translated_failures,
)

if TYPE_CHECKING:
    from streams.topics import Change

app = typer.Typer(name="topic", help="The topics of a deployment.", no_args_is_help=True)


@app.command("ensure")
def ensure_topics(
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            help="Partitions of each topic. Fixed once they are made (default: what they have, else 32).",
        ),
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", min=1, help="Replicas (default: 3 where there are 3 brokers, else 1)."),
    ] = None,
    dry_run: DryRunOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the topics that are missing, with the settings that Turnlog rests on, and repair those settings.

    Safe to repeat. Partition counts that differ and compacted topics are refused: neither can be repaired in silence.

    Examples:

      turnlog topic ensure --dry-run

      turnlog topic ensure --partitions 32
    """
    # PostgreSQL plays no part here; the setting is required of servers alone.
    settings = settings_from(kafka, postgres or "postgresql://unused", namespace)
    with translated_failures():
        changes = asyncio.run(_ensure(settings.kafka, settings.namespace, partitions, replication, dry_run))
    if output is Output.TABLE:
        for change in changes:
            typer.echo(f"{'would ' if dry_run else ''}{change}")
        progress(
            "nothing to change" if not changes else f"{len(changes)} change(s){' to make' if dry_run else ' made'}"
        )
        return
    documents = [
        {"topic": c.topic, "setting": c.setting, "before": c.before, "after": c.after, "applied": not dry_run}
        for c in changes
    ]
    for document in [documents] if output is Output.JSON else documents:
        emit(document)


async def _ensure(
    kafka: str, namespace: str, partitions: int | None, replication: int | None, dry_run: bool
) -> list[Change]:
    from ops.provision import connected_admin, replication_for
    from streams.topics import Topics, ensure

    async with connected_admin(kafka) as admin:
        replicas = replication or await replication_for(admin)
        return list(
            await ensure(admin, Topics(namespace), partitions=partitions, replication=replicas, dry_run=dry_run)
        )
