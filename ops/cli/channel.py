"""`turnlog channel`: where people and agents connect, and which agents answer which people."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.common import (
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
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streams.fence.channels import ChannelDocument, ChannelStore
    from streams.fence.credentials import CredentialStore
    from streams.settings import Settings

app = typer.Typer(
    name="channel",
    help="Where people and agents connect, and which agents answer which people.",
    no_args_is_help=True,
)

COLUMNS = (
    "id",
    "kind",
    "active",
    "to",
    "secrets",
    "policy",
    "busy",
    "on_owner_loss",
    "groups",
    "ungrouped",
    "group_settle_ms",
    "retain_days",
)
PLAIN_STAYS = (
    "warning: {channels}: retain_days is set, and nobody seals what is said (TURNLOG_SEAL): the words of what "
    "was idle for so long leave PostgreSQL, and stay in Kafka, archives and exports"
)


@app.command("list")
def list_channels(
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the channels in force, where each one's turns go, and how many login secrets it has.

    `-o json` gives the whole document; save it, change it, and apply it again.

    Example:

      turnlog channel list -o json > channels.json
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        document, counts = asyncio.run(_current(settings.postgres))
    if output is Output.JSON:
        emit(document)
        return
    routes = {route["from"]: route["to"] for route in document["routes"]}
    rows = [
        {
            **channel,
            "to": routes.get(channel["id"], []),
            "secrets": counts.get(channel["id"], 0),
            "groups": {name: _set(own) for name, own in channel["groups"].items()},
        }
        for channel in document["channels"]
    ]
    show_rows(rows, COLUMNS, output, empty="there are no channels yet: `turnlog channel apply FILE.yaml`")


def _set(fields: dict[str, Any]) -> dict[str, Any]:
    """What a group has of its own; the rest is as its channel has it."""
    return {name: value for name, value in fields.items() if value is not None}


async def _current(dsn: str) -> tuple[dict[str, Any], dict[str, int]]:
    async with _stores(dsn) as (store, credentials):
        current = await store.current()
        if current is None:
            return {"version": 0, "channels": [], "routes": []}, {}
        return {"version": current.version, **current.document.plain()}, dict(await credentials.secret_counts())


@app.command("apply")
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON file with `channels` and `routes`.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what changes; exit code 1 if something does.")
    ] = False,
    yes: YesOption = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replace the channels and routes by those of FILE; gateways pick them up by themselves, within seconds.

    Shows what changes and asks first. A channel that has no login secret gets one, printed here once: Postgres keeps
    only its hash. A file like this routes what people write in `web` to the agents of `agents`:

      channels:
        - {id: web, kind: web}
        - {id: agents, kind: websocket, on_owner_loss: restart}
      routes:
        - from: web
          to:
            - agents

    What a turn gets that comes while an agent answers the one before is said by `policy` (deliver, enqueue, reject or
    interrupt), what it gets when no agent has room by `busy` (wait or refuse), for a channel or one of its `groups`. At
    most `max_waiting` turns (100) of a conversation wait in line, with enqueue; one more is refused as busy:

      channels:
        - id: agents
          kind: websocket
          policy: enqueue
          groups: {fast: {busy: refuse}}

    What the people of a channel are shown is changed by its `middleware`: steps that mask what a pattern (RE2) matches,
    filter frames by type, or set and drop fields; docs/reference/protocol.md says more:

      channels:
        - id: web
          kind: web
          middleware:
            - mask: {pattern: "(?i)password: .*", with: "***"}
            - filter:
                types:
                  - tool_call
                  - skill

    A channel that says `retain_days: 30` keeps no conversation in which nothing was said for 30 days: it is erased, as
    `turnlog erase` does. Without it, conversations are kept for ever. docs/how-to/erase.md says more:

      channels:
        - {id: web, kind: web, retain_days: 30}

    Examples:

      turnlog channel apply channels.yaml --dry-run

      turnlog channel apply channels.yaml --yes -o json
    """
    settings = settings_from(kafka, postgres, namespace)
    with translated_failures():
        result = _reviewed(settings, file, dry_run=dry_run, yes=yes)
    if output is Output.TABLE:
        for channel, secret in result["secrets"].items():
            typer.echo(f"secret of {channel}: {secret}")
        progress(f"version {result['version']} is in force")
    else:
        emit(result)


def _reviewed(settings: Settings, file: Path, *, dry_run: bool, yes: bool) -> dict[str, Any]:
    """Show what FILE changes, have that confirmed, and apply it: the version, and the secrets that were made."""
    from streams.fence.channels import changes, parse_document

    document, dsn = parse_document(_loaded(file)), settings.postgres
    version, known = asyncio.run(_in_force(dsn))
    lines = changes(known, document)
    for line in lines or ["nothing changes"]:
        progress(line)
    retained = document.retained()
    if retained and not settings.seal and not asyncio.run(_seals(dsn)):
        progress(PLAIN_STAYS.format(channels=", ".join(retained)))
    if dry_run:
        raise typer.Exit(NEGATIVE if lines else 0)
    if lines and not yes:
        require_yes("Apply?")
    return asyncio.run(_apply(dsn, document, version))


@app.command("secret")
def new_secret(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's id.", show_default=False)],
    only: Annotated[bool, typer.Option("--only", help="End every other secret of the channel.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before ending secrets.")] = False,
    postgres: PostgresOption = None,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make one more login secret of a channel, and print it: it is shown this once. The others stay valid.

    To replace one: make a new one, give it to whoever connects, then end the others with `--only` and the next one.

    Example:

      turnlog channel secret agents
    """
    settings = settings_from(kafka, postgres, namespace)
    if only and not yes:
        require_yes(f"End every other secret of {channel}?")
    with translated_failures():
        secret = asyncio.run(_new_secret(settings.postgres, channel, only=only))
    if output is Output.TABLE:
        typer.echo(secret)
    else:
        emit({"channel": channel, "secret": secret})


async def _new_secret(dsn: str, channel: str, *, only: bool) -> str:
    async with _stores(dsn) as (store, credentials):
        current = await store.current()
        if current is None or current.document.channel(channel) is None:
            raise CommandFailed(f"there is no channel {channel}: see `turnlog channel list`", USAGE)
        secret = await credentials.add_channel_secret(channel)
        if only:
            await credentials.keep_only_channel_secret(channel, secret)
        return secret


def _loaded(file: Path) -> object:
    import yaml

    try:
        # Every JSON document is a YAML document.
        return yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}", USAGE) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file}: {error}", USAGE) from error


async def _in_force(dsn: str) -> tuple[int, ChannelDocument | None]:
    async with _stores(dsn) as (store, _):
        current = await store.current()
        return (0, None) if current is None else (current.version, current.document)


async def _seals(dsn: str) -> bool:
    from streams.projector.retention import IdleConversations

    idle = IdleConversations(dsn)
    try:
        return await idle.seals()
    finally:
        await idle.close()


async def _apply(dsn: str, document: ChannelDocument, over: int) -> dict[str, Any]:
    async with _stores(dsn) as (store, credentials):
        applied = await store.apply(document, over=over)
        counts = await credentials.secret_counts()
        new = [channel.id for channel in document.channels if not counts.get(channel.id)]
        return {
            "version": applied.version,
            "secrets": {channel: await credentials.add_channel_secret(channel) for channel in new},
        }


@asynccontextmanager
async def _stores(dsn: str) -> AsyncIterator[tuple[ChannelStore, CredentialStore]]:
    """The document and the secrets, for as long as the block runs. Neither connects before it is asked."""
    from streams.fence.channels import ChannelStore
    from streams.fence.credentials import CredentialStore

    store, credentials = ChannelStore(dsn), CredentialStore(dsn)
    try:
        yield store, credentials
    finally:
        await credentials.close()
        await store.close()
