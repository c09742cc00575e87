"""`turnlog key` and `turnlog channel secret` on a real Postgres."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from ops.cli.command_line import run
from streams.fence.channels import ChannelStore, parse_document
from streams.fence.credentials import CredentialStore
from streams.fence.migrate import migrate

Command = Callable[..., int]


@pytest.fixture
def turnlog(fresh_database: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    migrate(fresh_database)
    monkeypatch.setenv("TURNLOG_POSTGRES", fresh_database)
    monkeypatch.setenv("TURNLOG_KAFKA", "127.0.0.1:1")
    return lambda *arguments: run(list(arguments))


def channel_of(dsn: str, secret: str) -> str | None:
    async def ask() -> str | None:
        store = CredentialStore(dsn)
        try:
            return await store.channel_of(secret)
        finally:
            await store.close()

    return asyncio.run(ask())


@pytest.fixture
def channels(turnlog: Command, fresh_database: str) -> None:
    async def apply() -> None:
        store = ChannelStore(fresh_database)
        await store.apply(parse_document({"channels": [{"id": "web", "kind": "web"}]}))
        await store.close()

    asyncio.run(apply())


def test_a_key_is_shown_once_and_ends_when_it_is_dropped(turnlog: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert turnlog("key", "add", "ops", "-o", "json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["key"].startswith("tlk_")
    assert turnlog("key", "list", "-o", "json") == 0
    listed = capsys.readouterr().out
    assert [key["name"] for key in json.loads(listed)] == ["ops"]
    assert made["key"] not in listed
    assert turnlog("key", "add", "ops") == 64
    assert "exists already" in capsys.readouterr().err
    assert turnlog("key", "drop", "ops", "--yes") == 0
    assert turnlog("key", "drop", "ops", "--yes") == 1
    assert "there is no key ops" in capsys.readouterr().err


def test_tokens_are_signed_by_a_new_key_after_a_rotation(turnlog: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert turnlog("key", "rotate", "--yes", "-o", "json") == 0
    first = json.loads(capsys.readouterr().out)
    assert turnlog("key", "rotate", "--yes", "-o", "json") == 0
    second = json.loads(capsys.readouterr().out)
    assert second["kid"] != first["kid"]
    assert second["verify"] == sorted([first["kid"], second["kid"]])


def test_sealed_keys_say_what_they_need(
    turnlog: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLOG_MASTER_KEY", "master")
    assert turnlog("key", "rotate", "--yes") == 0
    monkeypatch.delenv("TURNLOG_MASTER_KEY")
    assert turnlog("key", "rotate", "--yes") == 64
    assert "set TURNLOG_MASTER_KEY" in capsys.readouterr().err


@pytest.mark.usefixtures("channels")
def test_a_channels_secret_is_replaced_without_a_gap(
    turnlog: Command, fresh_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert turnlog("channel", "secret", "web") == 0
    old = capsys.readouterr().out.strip()
    assert turnlog("channel", "secret", "web", "-o", "json") == 0
    new = json.loads(capsys.readouterr().out)["secret"]
    assert [channel_of(fresh_database, secret) for secret in (old, new)] == ["web", "web"]
    assert turnlog("channel", "secret", "web", "--only", "--yes") == 0
    last = capsys.readouterr().out.strip()
    assert [channel_of(fresh_database, secret) for secret in (old, new, last)] == [None, None, "web"]
    assert turnlog("channel", "secret", "nobody") == 64
    assert "there is no channel nobody" in capsys.readouterr().err
