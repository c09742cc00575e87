"""Operators' commands on real servers with a real worker: each is done, and in the journal with who and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ops import actions
from ops.cli.command_line import run
from streams.core.events import (
    ConversationClosed,
    ConversationMoved,
    OperatorActed,
    Refused,
    RunMoved,
    TurnCommitted,
    WriterOpened,
)
from streams.fence.credentials import CredentialStore
from streams.fence.migrate import migrate
from streams.settings import Settings
from tests.support.command import Ended, turnlog_async
from tests.support.deployment import Deployment, deployment
from tests.support.sequencing import GATEWAY, GROUP
from tests.support.waiting import until

MEMBERS = (f"{GATEWAY}.1", f"{GATEWAY}.2")
BY = ("--by", "eve", "--why", "it hangs", "--yes", "-o", "json")


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Deployment]:
    async with deployment(settings, 2) as made:
        yield made


async def turnlog(place: Deployment, *arguments: str) -> Ended:
    return await turnlog_async(*arguments, environment=place.environment)


@asynccontextmanager
async def alive(place: Deployment) -> AsyncIterator[None]:
    """The members' gateway says that it is there, as gateways do, once a second."""

    async def beat() -> None:
        while True:
            await place.beat()
            await asyncio.sleep(1)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def events(place: Deployment, kind: type[Any]) -> list[Any]:
    return [e.event for entries in (await place.journal()).values() for e in entries if isinstance(e.event, kind)]


async def test_conversations_are_moved_released_and_closed_and_a_lease_is_released(place: Deployment) -> None:
    async with place.worker() as (_, worker), alive(place):
        await place.furnish(*MEMBERS)
        await place.furnished(MEMBERS[1])
        await place.open("c1")
        await place.turn("c1", "first")
        await place.all_taken({"c1": ["first"]})
        [first] = await events(place, TurnCommitted)
        holder = first.assigned[0].member
        other = next(member for member in MEMBERS if member != holder)

        looked = await turnlog(place, "conversation", "move", "c1", "--to", other, "--dry-run", "-o", "json")
        assert looked.document["before"]["owners"] == {GROUP: holder}
        assert not await events(place, ConversationMoved)
        moved = await turnlog(place, "conversation", "move", "c1", "--to", other, *BY)
        assert moved.code == 0, moved.err
        assert moved.document["after"]["owners"] == {GROUP: other}
        assert [run["member"] for run in moved.document["after"]["open_runs"]] == [other]
        as_eve: Any = {"by": "eve", "reason": "it hangs"}
        refused = await actions.move(place.settings, "c1", to="ghost", **as_eve)
        assert isinstance(refused, Refused)
        assert refused.detail == "to: there is no member ghost"
        await actions.release(place.settings, "c1", group="", **as_eve)
        assert [(one.to_member, one.reason) for one in await events(place, RunMoved)] == [
            (other, "operator"),
            (holder, "operator"),
        ]
        await actions.close(place.settings, "c1", **as_eve)

        told = await events(place, ConversationMoved)
        assert [(one.to, one.by, one.reason) for one in told] == [(other, "eve", "it hangs"), (None, "eve", "it hangs")]
        assert [(one.by, one.reason) for one in await events(place, ConversationClosed)] == [("eve", "it hangs")]

        home = place.home("c1")
        before = (await place.writers())[home][1]
        taken = await turnlog(place, "lease", "release", str(home), *BY)
        assert (taken.code, taken.document["released"], taken.document["worker"]) == (0, True, worker)
        assert taken.document["claimed"]["writer_epoch"] > before

        async def claimed() -> bool:
            opened = await events(place, WriterOpened)
            return any(one.writer_epoch == taken.document["claimed"]["writer_epoch"] for one in opened)

        await until(claimed)
        [acted] = await events(place, OperatorActed)
        assert (acted.action, acted.by, acted.reason) == ("lease_released", "eve", "it hangs")
        assert acted.subject == f"{worker} epoch {before}"
    await place.require_sound()


async def test_a_token_is_its_operators_until_it_is_revoked(fresh_database: str) -> None:
    migrate(fresh_database)
    store = CredentialStore(fresh_database)
    try:
        token = await store.add_operator("eve")
        assert token.startswith("tlo_")
        assert await store.operator_of(token) == "eve"
        assert await store.api_key_name(token) is None
        assert await store.revoke_operator("eve")
        assert await store.operator_of(token) is None
        assert not await store.revoke_operator("eve")
        [(name, created, revoked)] = await store.operators()
        assert (name, revoked is not None and revoked >= created) == ("eve", True)
    finally:
        await store.close()


def test_the_commands_for_tokens(
    fresh_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(fresh_database)
    monkeypatch.setenv("TURNLOG_POSTGRES", fresh_database)
    monkeypatch.setenv("TURNLOG_KAFKA", "127.0.0.1:1")
    assert run(["key", "operator", "add", "eve"]) == 0
    token = capsys.readouterr().out.strip()
    assert run(["key", "operator", "list", "-o", "json"]) == 0
    listed = capsys.readouterr().out
    assert ('"name":"eve"' in listed, token in listed) == (True, False)
    assert run(["key", "operator", "add", "eve"]) == 64
    assert run(["key", "operator", "revoke", "eve", "--yes"]) == 0
    assert run(["key", "operator", "revoke", "eve", "--yes"]) == 1
    assert run(["key", "operator", "add", "eve"]) == 64, "a name is never given twice"
