"""What is made ready before any process starts, and what of it goes again with a folder that nobody keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from ops.children import ChildFailed
from ops.embedded import EmbeddedStack
from ops.provision import provide_channels
from ops.stack import StackPlan, running_on
from streams.fence.credentials import CredentialStore
from streams.fence.migrate import migrate
from streams.settings import Settings

NOBODY = StackPlan(port=0, workers=0, gateways=0, projectors=0, partitions=1)


def secrets_in(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM channel_secrets").fetchall()
        return int(count)


async def run_once(stack: EmbeddedStack, settings: Settings, plan: StackPlan, folder: Path) -> list[str]:
    told: list[str] = []
    async with running_on(stack, settings, plan, folder, told.append) as running:
        assert secrets_in(settings.postgres) >= len(running.channels) == 2
    return told


async def test_a_run_that_keeps_no_folder_leaves_no_secret_in_a_database_that_stays(
    stack: EmbeddedStack, settings: Settings, tmp_path: Path
) -> None:
    for run in range(2):
        await run_once(stack, settings, NOBODY, tmp_path / f"run-{run}")
        assert secrets_in(settings.postgres) == 0


async def test_a_run_that_fails_leaves_no_secret_either(
    stack: EmbeddedStack, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLOG_TICK_MS", "none")  # the worker says so and ends before it is ready
    with pytest.raises(ChildFailed):
        await run_once(stack, settings, replace(NOBODY, workers=1), tmp_path)
    assert secrets_in(settings.postgres) == 0


async def test_a_folder_that_is_kept_keeps_its_secrets(
    stack: EmbeddedStack, settings: Settings, tmp_path: Path
) -> None:
    for _ in range(2):
        await run_once(stack, settings, replace(NOBODY, data=tmp_path), tmp_path)
        assert secrets_in(settings.postgres) == 2


async def test_a_secret_that_was_ended_is_replaced(settings: Settings, tmp_path: Path) -> None:
    migrate(settings.postgres)
    first = await provide_channels(settings, tmp_path / "secrets.json")
    store = CredentialStore(settings.postgres)
    await store.drop_channel_secrets([first[0].secret])
    second = await provide_channels(settings, tmp_path / "secrets.json")
    owners = [await store.channel_of(channel.secret) for channel in second]
    await store.close()
    assert owners == [channel.id for channel in second]
    assert (first[0].secret != second[0].secret, first[1].secret == second[1].secret) == (True, True)
