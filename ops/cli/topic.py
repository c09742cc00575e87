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
    YesOption,
    emit,
    emit_all,
    progress,
    require_yes,
    settings_from,
    translated_failures,
)
from ops.cli.errors import CommandFailed
from ops.cli.servers import NO_POSTGRES
from ops.cli.topic_grow import grow_topics

if TYPE_CHECKING:
    from streams.settings import Settings
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
    settings = settings_from(kafka, postgres or NO_POSTGRES, namespace)
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
    emit_all(documents, output)


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


@app.command("adopt")
def adopt_topics(
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put this database in the place of the one that the topics belong to, which is lost for good.

    Topics belong to the first database that a process was started with; with any other, processes refuse to start. Stop
    every process that still uses the old one first: two databases with the same topics fence each other for ever.
    Workers then build leases and checkpoints anew from the journal; channels and secrets must be made again.

    Example:

      turnlog topic adopt --dry-run
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        owner, mine = asyncio.run(_owners(settings))
        change = owner not in {None, mine}
        if change and not dry_run:
            if not yes:
                require_yes(f"The topics belong to database {owner}. Is it lost, and does no process use it any more?")
            owner_then = asyncio.run(_adopt(settings, mine, str(owner)))
            if owner_then != mine:
                raise CommandFailed(f"another database came first: the topics belong to {owner_then} now")
    if output is not Output.TABLE:
        emit({"owner": owner, "database": mine, "change": change, "applied": change and not dry_run})
    elif not change:
        progress("nothing to change: the topics belong to this database, or to nobody yet")
    else:
        progress(
            f"the topics {'would belong' if dry_run else 'belong'} to this database, {mine}, and no more to {owner}"
        )


app.command("grow")(grow_topics)


async def _owners(settings: Settings) -> tuple[str | None, str]:
    """Whose the topics are, and the name of this database."""
    from ops.provision import connected_admin
    from streams.fence.topics import database_id
    from streams.runtime.belonging import moved_to, owner_of
    from streams.topics import Topics, TopicsError, verify

    topics = Topics(settings.namespace)
    async with connected_admin(settings.kafka) as admin:
        await verify(admin, topics)
    limit_s = settings.request_timeout_ms / 1000
    namespace = await moved_to(settings.kafka, topics.deployment, limit_s)
    if namespace is not None:
        raise TopicsError(f"this deployment was moved to the namespace {namespace!r}: adopt the topics of that one")
    owner = await owner_of(settings.kafka, topics.deployment, limit_s)
    return owner, await asyncio.to_thread(database_id, settings.postgres)


async def _adopt(settings: Settings, mine: str, owner: str) -> str | None:
    from streams.runtime.belonging import belong
    from streams.topics import Topics

    topic, limit_s = Topics(settings.namespace).deployment, settings.request_timeout_ms / 1000
    return await belong(settings.kafka, topic, mine, limit_s, instead_of=owner)
