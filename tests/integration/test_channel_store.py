"""Channels, secrets, signing keys and API keys on a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from streams.fence.channels import ChannelDocument, ChannelStore, VersionConflict, parse_document
from streams.fence.credentials import CredentialStore, NameTaken
from streams.fence.migrate import migrate
from streams.fence.signing import MasterKeyError, SigningKeyStore


def document(settle_ms: int = 0) -> ChannelDocument:
    return parse_document(
        {
            "channels": [
                {"id": "web", "kind": "web"},
                {"id": "agents", "kind": "websocket", "group_settle_ms": settle_ms},
            ],
            "routes": [{"from": "web", "to": ["agents"]}],
        }
    )


@pytest.fixture
def database(fresh_database: str) -> str:
    migrate(fresh_database)
    return fresh_database


@pytest.fixture
async def opened(database: str) -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def signing(stack: AsyncExitStack, dsn: str, master_key: str | None = None) -> SigningKeyStore:
    store = SigningKeyStore(dsn, None if master_key is None else SecretStr(master_key))
    stack.push_async_callback(store.close)
    return store


@pytest.fixture
async def channels(database: str) -> AsyncIterator[ChannelStore]:
    store = ChannelStore(database)
    yield store
    await store.close()


@pytest.fixture
async def credentials(database: str) -> AsyncIterator[CredentialStore]:
    store = CredentialStore(database)
    yield store
    await store.close()


def column(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute(query.encode()).fetchall()]


# ----------------------------------------------------------------------------------------------- the document
async def test_versions_count_what_changed(channels: ChannelStore) -> None:
    assert await channels.current() is None
    assert (await channels.apply(document())).version == 1
    assert (await channels.apply(document())).version == 1
    assert (await channels.apply(document(settle_ms=7))).version == 2
    current = await channels.current()
    assert current is not None
    assert (current.version, current.document) == (2, document(settle_ms=7))


async def test_a_document_over_an_older_version_is_refused(channels: ChannelStore) -> None:
    await channels.apply(document(), over=0)
    with pytest.raises(VersionConflict, match="version 1 is in force, not 0"):
        await channels.apply(document(settle_ms=1), over=0)
    assert (await channels.apply(document(settle_ms=1), over=1)).version == 2


async def test_of_two_that_apply_over_the_same_version_one_wins(database: str, channels: ChannelStore) -> None:
    await channels.apply(document())
    other = ChannelStore(database)
    outcomes = await asyncio.gather(
        channels.apply(document(settle_ms=1), over=1),
        other.apply(document(settle_ms=2), over=1),
        return_exceptions=True,
    )
    await other.close()
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict", "Versioned"]


async def test_a_field_of_a_newer_release_is_ignored_when_read(database: str, channels: ChannelStore) -> None:
    await channels.apply(document())
    with psycopg.connect(database) as connection:
        connection.execute("""UPDATE channel_documents SET document = document || '{"later": true}'""")
    current = await channels.current()
    assert current is not None
    assert current.document == document()


# ------------------------------------------------------------------------------------------------- secrets
async def test_a_channel_secret_is_known_by_its_hash_alone(database: str, credentials: CredentialStore) -> None:
    plain = await credentials.add_channel_secret("web")
    assert await credentials.channel_of(plain) == "web"
    assert await credentials.channel_of(plain + "x") is None
    assert await credentials.channel_of("\ud800") is None
    assert plain.encode() not in column(database, "SELECT secret_sha256 FROM channel_secrets")


async def test_two_secrets_are_valid_while_one_is_replaced(credentials: CredentialStore) -> None:
    old = await credentials.add_channel_secret("web", "kept by up")
    new = await credentials.add_channel_secret("web")
    assert await credentials.add_channel_secret("web", old) == old
    assert await credentials.secret_counts() == {"web": 2}
    assert [await credentials.channel_of(each) for each in (old, new)] == ["web", "web"]
    await credentials.keep_only_channel_secret("web", new)
    assert [await credentials.channel_of(each) for each in (old, new)] == [None, "web"]


async def test_an_api_key_opens_until_it_is_dropped(credentials: CredentialStore) -> None:
    plain = await credentials.add_api_key("ops")
    assert await credentials.api_key_name(plain) == "ops"
    with pytest.raises(NameTaken):
        await credentials.add_api_key("ops")
    assert [name for name, _ in await credentials.api_keys()] == ["ops"]
    assert await credentials.drop_api_key("ops")
    assert not await credentials.drop_api_key("ops")
    assert await credentials.api_key_name(plain) is None


# --------------------------------------------------------------------------------------------- signing keys
async def test_processes_started_together_agree_on_the_first_key(database: str, opened: AsyncExitStack) -> None:
    stores = [await signing(opened, database) for _ in range(4)]
    rings = await asyncio.gather(*(store.load() for store in stores))
    assert len({ring.kid for ring in rings}) == 1
    assert len({ring.secret for ring in rings}) == 1
    assert len(rings[0].secret) == 32


async def test_the_newest_key_signs_and_older_ones_verify(database: str, opened: AsyncExitStack) -> None:
    store = await signing(opened, database)
    first = await store.load()
    second = await store.rotate(token_ttl_s=3_600)
    assert second.kid != first.kid
    assert second.keys == {second.kid: second.secret, first.kid: first.secret}
    assert (await store.load()).kid == second.kid


async def test_the_key_that_signed_until_now_outlives_a_rotation(database: str, opened: AsyncExitStack) -> None:
    store = await signing(opened, database)
    first, second, third = await store.load(), await store.rotate(token_ttl_s=0), None
    third = await store.rotate(token_ttl_s=0)
    assert first.kid in second.keys
    assert set(third.keys) == {second.kid, third.kid}


async def test_a_key_verifies_as_long_as_a_token_that_it_signed_last(database: str, opened: AsyncExitStack) -> None:
    store = await signing(opened, database)
    first = await store.load()
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE signing_keys SET created_at = created_at - interval '1 day'")
    second = await store.rotate(token_ttl_s=3_600)
    third = await store.rotate(token_ttl_s=3_600)
    assert set(third.keys) == {first.kid, second.kid, third.kid}
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE signing_keys SET created_at = created_at - interval '2 h'")
    fourth = await store.rotate(token_ttl_s=3_600)
    assert set(fourth.keys) == {third.kid, fourth.kid}


async def test_with_a_master_key_the_database_alone_signs_nothing(database: str, opened: AsyncExitStack) -> None:
    ring = await (await signing(opened, database, "master")).load()
    [stored] = column(database, "SELECT secret FROM signing_keys")
    assert ring.secret not in stored
    assert (await (await signing(opened, database, "master")).load()).secret == ring.secret
    with pytest.raises(MasterKeyError, match="set TURNLOG_MASTER_KEY"):
        await (await signing(opened, database)).load()
    with pytest.raises(MasterKeyError, match="another TURNLOG_MASTER_KEY"):
        await (await signing(opened, database, "other")).load()


async def test_a_master_key_set_later_still_reads_the_plain_ones(database: str, opened: AsyncExitStack) -> None:
    plain = await (await signing(opened, database)).load()
    ring = await (await signing(opened, database, "master")).rotate(token_ttl_s=3_600)
    assert ring.keys[plain.kid] == plain.secret
    assert column(database, "SELECT wrapped FROM signing_keys ORDER BY created_at") == [False, True]


async def test_a_key_ring_never_shows_its_secrets(database: str, opened: AsyncExitStack) -> None:
    ring = await (await signing(opened, database)).load()
    assert repr(ring) == f"KeyRing(kid={ring.kid!r})"
