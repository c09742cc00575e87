"""What operators do by the API: only with a token of theirs, and written down with who and why."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.gateway.openapi import DOCUMENT
from streams.core.commands import CloseConversation, Drain, MoveConversation, NoteAction
from tests.support.gateway_world import OPERATOR_TOKEN, MemoryStore, Served, World, bearer
from tests.unit.gateway.test_openapi import check

OPERATOR = bearer(OPERATOR_TOKEN)
AT = "/v1/operator/conversations/{conversation_id}"
WHY = {"why": "it hangs"}


def said(world: World, kind: type[Any]) -> list[Any]:
    return [command for command in world.commands if isinstance(command, kind)]


async def test_a_conversation_is_moved_released_and_closed_as_described(served: Served, world: World) -> None:
    conversation, token = await served.conversation()
    async with served.agent(group="s"), served.agent(group="s"):
        await served.say(conversation, token, "hello")
        members = [each.member for each in await served.gateway.read_model.members()]
        one = f"/v1/operator/conversations/{conversation}"
        for to in members:
            moved = await served.http.post(f"{one}/move", headers=OPERATOR, json={"to": to, **WHY})
            assert check(moved, f"{AT}/move") == {"conversation": conversation, "to": to, "by": "eve"}
            home = world.journals[served.gateway.partition_of(conversation)].state
            assert home.conversations[conversation].owners == {"agents/s": to}
        released = await served.http.post(f"{one}/release", headers=OPERATOR, json=WHY)
        assert check(released, f"{AT}/release")["to"] is None
        assert [(each.by, each.reason) for each in said(world, MoveConversation)] == [("eve", "it hangs")] * 3
        nobody = await served.http.post(f"{one}/move", headers=OPERATOR, json={"to": "ghost", **WHY})
        assert (nobody.json()["error"]["code"], "no member ghost" in nobody.text) == ("AGENT_UNAVAILABLE", True)
        closed = await served.http.post(f"{one}/close", headers=OPERATOR, json=WHY)
        assert check(closed, f"{AT}/close")["status"] == "closed"
        assert [(each.by, each.reason) for each in said(world, CloseConversation)] == [("eve", "it hangs")]


async def test_who_loses_a_run_is_told_to_stop_and_who_gets_it_is_given_the_turn(served: Served, world: World) -> None:
    conversation, token = await served.conversation()
    async with served.agent(group="s") as one, served.agent(group="s") as two:
        await served.say(conversation, token, "hello")
        members = [each.member for each in await served.gateway.read_model.members()]
        home = world.journals[served.gateway.partition_of(conversation)].state
        holder = home.conversations[conversation].owners["agents/s"]
        other = next(member for member in members if member != holder)
        first, second = (one, two) if holder == members[0] else (two, one)
        await first.until("text")
        moved = await served.http.post(
            f"/v1/operator/conversations/{conversation}/move", headers=OPERATOR, json={"to": other, **WHY}
        )
        assert moved.status_code == 200
        assert (await second.until("text"))["data"]["text"] == "hello"
        await first.until("abort")


async def test_a_member_is_drained_on_every_partition(served: Served, world: World) -> None:
    async with served.agent():
        [member] = [each.member for each in await served.gateway.read_model.members()]
        path = "/v1/operator/members/{member}/drain"
        drained = await served.http.post(path.format(member=member), headers=OPERATOR, json=WHY)
        check(drained, path, 202)
        told = [(each.member, each.by, each.reason) for each in said(world, Drain) if each.by == "eve"]
        assert told == [(member, "eve", "it hangs")] * world.partitions
        assert (await served.http.post(path.format(member="ghost"), headers=OPERATOR, json=WHY)).status_code == 404


async def test_a_lease_is_released_once_it_is_written_down(served: Served, world: World) -> None:
    store = served.gateway.directory._store
    assert isinstance(store, MemoryStore)
    path = "/v1/operator/leases/{partition}/release"
    released = await served.http.post(path.format(partition=1), headers=OPERATOR, json=WHY)
    assert check(released, path, 202)["released"] is True
    assert [lease.partition for lease in store.released] == [1]
    [note] = said(world, NoteAction)
    assert (note.action, note.subject, note.by, note.reason) == ("lease_released", "wk-test epoch 1", "eve", "it hangs")
    for nowhere in ("2", "-1", "x", "9" * 30):
        assert (await served.http.post(path.format(partition=nowhere), headers=OPERATOR, json=WHY)).status_code == 404
    assert len(store.released) == 1


OPERATED = [path for path, known in DOCUMENT["paths"].items() if path.startswith("/v1/operator") and "post" in known]


@pytest.mark.parametrize("path", OPERATED)
async def test_nobody_else_may_and_nobody_without_a_reason(served: Served, world: World, path: str) -> None:
    conversation, token = await served.conversation()
    where = path.format(conversation_id=conversation, member="m", partition="0")
    before = len(world.commands)
    for headers in ({}, bearer(token), bearer("tlo_other"), {"x-api-key": "tlk_test"}):
        assert (await served.http.post(where, headers=headers, json={"to": "m", **WHY})).status_code == 401
    unreasoned = await served.http.post(where, headers=OPERATOR, json={"to": "m", "why": " "})
    assert unreasoned.status_code in {400, 404, 422}
    assert world.commands[before:] == [] or not said(world, MoveConversation)


def test_every_endpoint_of_operators_needs_their_token() -> None:
    assert len(OPERATED) == 5
    assert all(DOCUMENT["paths"][path]["post"]["security"] == [{"operatorToken": []}] for path in OPERATED)
