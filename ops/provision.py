"""What must be there before any process of a deployment starts: tables, topics, channels with their login secrets.

All of it is safe to repeat, and does nothing where everything is as it should be.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError

from streams.fence.channels import ChannelDocument, ChannelStore, parse_document
from streams.fence.credentials import CredentialStore, new_channel_secret
from streams.fence.migrate import migrate
from streams.runtime.kafka import KafkaUnavailable
from streams.settings import Settings
from streams.topics import Topics, ensure

REPLICATION: Final = 3
"""Replicas of a topic where there are as many brokers; fewer brokers: one."""
ANSWER_WITHIN_MS: Final = 5_000
"""How long a broker may take to answer a first request, before the next one named is asked."""
SMALL_PARTITIONS: Final = 8
"""Partitions of each topic in `turnlog up`, unless it is told another number or the topics are there already."""

DEFAULT_CHANNELS: Final = {
    "channels": [{"id": "web", "kind": "web"}, {"id": "agents", "kind": "websocket"}],
    "routes": [{"from": "web", "to": ["agents"]}],
}
"""What people write in `web` is answered by the agents of `agents`."""


@dataclass(frozen=True, slots=True)
class ReadyChannel:
    """A channel that can be logged in to."""

    id: str
    kind: str
    secret: str


@asynccontextmanager
async def connected_admin(kafka: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """An admin client for as long as the block runs. Raises `KafkaUnavailable` when no broker answers."""
    await _answered(kafka)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _answered(kafka: str) -> None:
    """Return once one of the brokers named answers: the admin client would wait 40 s for one that hangs."""
    client = AIOKafkaClient(bootstrap_servers=kafka, request_timeout_ms=ANSWER_WITHIN_MS)
    try:
        await client.bootstrap()
    except KafkaConnectionError as error:
        raise KafkaUnavailable(
            f"{kafka} cannot be connected to, or does not answer within {ANSWER_WITHIN_MS // 1000} s"
        ) from error
    finally:
        await client.close()


async def replication_for(admin: AIOKafkaAdminClient) -> int:
    """How many replicas new topics get: 3 where there are so many brokers, else 1."""
    cluster = await admin.describe_cluster()
    return REPLICATION if len(cluster["brokers"]) >= REPLICATION else 1


async def provide(settings: Settings, partitions: int | None, secrets: Path) -> Sequence[ReadyChannel]:
    """Tables, topics and channels; the channels that are active, with a login secret each (kept in the file `secrets`).

    `partitions` None: what the topics have, or `SMALL_PARTITIONS`. Raises `SchemaMismatch`, `TopicsError`, and what the
    servers' clients raise when they cannot be reached.
    """
    await asyncio.to_thread(migrate, settings.postgres)
    async with connected_admin(settings.kafka) as admin:
        topics = Topics(settings.namespace)
        if partitions is None:
            to_make = [change for change in await ensure(admin, topics, dry_run=True) if change.setting == "partitions"]
            partitions = SMALL_PARTITIONS if len(to_make) == len(topics.all) else None
        await ensure(admin, topics, partitions=partitions, replication=await replication_for(admin))
    return await provide_channels(settings, secrets)


async def provide_channels(settings: Settings, secrets: Path) -> Sequence[ReadyChannel]:
    """The active channels (`DEFAULT_CHANNELS` where there are none) and a secret of each.

    Postgres has only hashes, so the plain ones are kept in `secrets`, readable by its owner alone; one that is missing
    there, or that the database does not know (another database), is made anew, beside those that exist. The file is
    written first: a kill in between leaves no secret in the database that no file has.
    """
    store, credentials = ChannelStore(settings.postgres), CredentialStore(settings.postgres)
    try:
        current = await store.current() or await store.apply(parse_document(DEFAULT_CHANNELS), over=0)
        kept = _read(secrets)
        valid = await _valid_secrets(current.document, credentials, kept)
        made = {channel.id: new_channel_secret() for channel in current.document.channels if channel.id not in valid}
        plain = valid | made
        if plain != kept:
            _write(secrets, plain)
        for name, secret in made.items():
            await credentials.add_channel_secret(name, secret)
        return [
            ReadyChannel(channel.id, channel.kind.value, plain[channel.id])
            for channel in current.document.channels
            if channel.active
        ]
    finally:
        await credentials.close()
        await store.close()


async def _valid_secrets(
    document: ChannelDocument, credentials: CredentialStore, kept: Mapping[str, str]
) -> dict[str, str]:
    """Of those that are kept, the secrets that still open their channel."""
    valid = {}
    for channel in document.channels:
        secret = kept.get(channel.id)
        if secret is not None and await credentials.channel_of(secret) == channel.id:
            valid[channel.id] = secret
    return valid


async def forget_secrets(settings: Settings, secrets: Path) -> None:
    """Make void what `provide_channels` kept in `secrets`: with the file gone, nobody could log in with them again."""
    credentials = CredentialStore(settings.postgres)
    try:
        await credentials.drop_channel_secrets(_read(secrets).values())
    finally:
        await credentials.close()


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    found = json.loads(path.read_text("utf-8"))
    return {str(channel): str(secret) for channel, secret in found.items()}


def _write(path: Path, secrets: Mapping[str, str]) -> None:
    """Replace the file in one step; a kill in the middle leaves the old one."""
    partial = path.with_suffix(".new")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(secrets, file, indent=2)
    partial.replace(path)
