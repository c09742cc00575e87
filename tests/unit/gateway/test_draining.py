"""Draining: an agent that stops, one that an operator drains, and a gateway that goes away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from streams.core.commands import ApplyList, CommitTurn, Drain, Leave
from streams.core.events import ListWanted, MemberJoined, MemberLeft, MoveReason
from tests.support.gateway_world import Peer, Served, World, bearer, serve, settings_for
from tests.support.waiting import until


async def finish(agent: Peer, conversation: str, turn: dict[str, Any]) -> None:
    named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
    await agent.say(conversation, {"type": "run", "data": {"status": "started"}} | named)
    await agent.say(conversation, {"type": "run", "data": {"status": "finished"}} | named)


async def closed(peer: Peer) -> tuple[int | None, dict[str, Any]]:
    code, reason, _ = await peer.ended()
    return code, json.loads(reason)


def drains(world: World) -> list[tuple[str, str]]:
    return [(command.member, command.reason) for command in world.commands if isinstance(command, Drain)]


def leaves(world: World) -> list[str]:
    return [command.reason for command in world.commands if isinstance(command, Leave)]


async def test_an_agent_that_stops_gets_nothing_new_and_finishes_what_it_has(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as old:
        await served.say(conversation, token, "one")
        given = await old.until("text")
        await old.send({"type": "drain"})
        await old.settled()
        async with served.agent() as new:
            for number in range(10):
                other, other_token = await served.conversation(f"user-{number}")
                await served.say(other, other_token, "two")
            assert len([frame for frame in await new.settled() if frame["type"] == "text"]) == 10
            await finish(old, conversation, given)
            assert await old.settled() == []
            await old.raw.close()
            await new.settled()
    assert drains(world) == [(old.member, "agent_stops")] * world.partitions
    left = [entry.event for entry in world.journals[0].entries if isinstance(entry.event, MemberLeft)]
    assert left[0].reason is MoveReason.MEMBER_DRAINED


async def test_drained_twice_is_drained_once(world: World, served: Served) -> None:
    async with served.agent() as agent:
        await agent.send({"type": "drain"})
        await agent.send({"type": "drain"})
        await agent.settled()
    assert len(drains(world)) == world.partitions


async def test_a_list_says_who_drains_and_who_continues(world: World, served: Served) -> None:
    async with served.agent(capabilities=["continue"]) as agent:
        await agent.send({"type": "drain"})
        await agent.settled()
        wanted = ListWanted(gateway=served.gateway.membership.incarnation, of="members", have=0)
        served.gateway.membership.list_wanted(0, wanted)
        await agent.settled()
    (listed,) = [command for command in world.commands if isinstance(command, ApplyList)]
    assert [(member.continues, member.draining) for member in listed.members] == [(True, True)]


async def test_whom_an_operator_drains_is_sent_away_once_its_runs_are_over(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "one")
        given = await agent.until("text")
        for partition in range(world.partitions):
            drain = Drain(at=0, timestamp=0, member=agent.member, by="ops", reason="deploy")
            await world.send(drain, partition=partition)
        await agent.settled()
        await finish(agent, conversation, given)
        code, reason = await closed(agent)
    assert code == 1012
    assert reason["reason"] == "drained"
    assert 15_000 <= reason["retryAfterMs"] <= 45_000
    await until(lambda: leaves(world))
    assert leaves(world) == ["sent_away"] * world.partitions


async def test_an_operators_drain_waits_for_runs_no_longer_than_the_budget(world: World) -> None:
    async with serve(world, settings_for(drain_budget_ms=1)) as served:
        conversation, token = await served.conversation()
        async with served.agent() as agent, served.agent() as heir:
            await served.say(conversation, token, "one")
            owner, other = (agent, heir) if await given(agent) else (heir, agent)
            await world.send(Drain(at=0, timestamp=0, member=owner.member, by="ops", reason="r"), partition=0)
            assert (await closed(owner))[0] == 1012
            assert (await other.until("text"))["runEpoch"] == 2


async def test_who_overran_an_operators_budget_is_not_waited_for_though_its_process_declared_itself(
    world: World,
) -> None:
    async with serve(world, settings_for(drain_budget_ms=1)) as served:
        conversation, token = await served.conversation()
        async with served.agent(instanceId="p-1") as agent, served.agent(instanceId="p-2") as heir:
            await served.say(conversation, token, "one")
            owner, other = (agent, heir) if await given(agent) else (heir, agent)
            await world.send(Drain(at=0, timestamp=0, member=owner.member, by="ops", reason="r"), partition=0)
            await world.send(Drain(at=0, timestamp=0, member=owner.member, by="ops", reason="r"), partition=1)
            assert (await closed(owner))[0] == 1012
            assert (await other.until("text"))["runEpoch"] == 2


async def given(agent: Peer) -> bool:
    return any(frame["type"] == "text" for frame in await agent.settled())


async def test_a_stopping_gateway_drains_its_members_before_it_sends_anybody_away(world: World) -> None:
    async with serve(world) as stopping, serve(world) as staying:
        conversation, token = await staying.conversation()
        async with stopping.agent() as busy, stopping.socket(token, {}) as person:
            await person.until("welcome")
            await staying.say(conversation, token, "one")
            turn = await busy.until("text")
            async with stopping.agent("idle") as idle, staying.agent() as heir:
                draining = asyncio.create_task(stopping.gateway.drain())
                for peer, about_ms in ((idle, 200), (person, 500)):
                    code, reason = await closed(peer)
                    assert (code, reason["reason"]) == (1012, "restart")
                    assert about_ms / 2 <= reason["retryAfterMs"] <= about_ms * 1.5
                assert {member for member, _ in drains(world)} == {busy.member, idle.member}
                refused = await stopping.http.get("/readyz")
                assert refused.status_code == 503
                for number in range(10):
                    other, other_token = await staying.conversation(f"user-{number}")
                    await staying.say(other, other_token, "two")
                assert len([frame for frame in await heir.settled() if frame["type"] == "text"]) == 10
                assert not draining.done()
                await finish(busy, conversation, turn)
                assert (await closed(busy))[0] == 1012
                await draining
                commands = [type(command) for command in world.commands if isinstance(command, Drain | Leave)]
                assert commands[: 2 * world.partitions] == [Drain] * 2 * world.partitions


async def test_the_late_close_of_an_old_connection_takes_nothing_from_the_new_one(world: World) -> None:
    """A half-open socket is found dead long after its process has come back: only the old member leaves."""
    async with serve(world) as first, serve(world) as second:
        conversation, token = await first.conversation()
        async with first.agent() as old:
            await first.say(conversation, token, "one")
            await old.until("text")
            async with second.agent(watermarks={conversation: 1}) as new:
                await second.say(conversation, token, "two")
                await old.raw.close()  # late: the process is back since
                await new.settled()
                path = f"/api/v1/converger/conversations/{conversation}/activities"
                answer = {
                    "type": "text",
                    "clientId": "p.1",
                    "data": {"text": "hi"},
                    "run": f"{conversation}/1/agents/bots",
                }
                await new.say(conversation, answer)
                assert (await new.until("ack"))["seq"] == 3
                assert new.member in second.gateway.membership.members
                shown = await second.http.get(path, headers=bearer(token))
                assert [each["text"] for each in shown.json()["activities"]] == ["one", "two", "hi"]
    for journal in world.journals:
        events = [entry.event for entry in journal.entries]
        joined = [event.member for event in events if isinstance(event, MemberJoined)]
        left = [event.member for event in events if isinstance(event, MemberLeft)]
        assert joined == [old.member, new.member]
        assert left[0] == old.member


@pytest.mark.parametrize("name", ["a", "b"])
async def test_when_all_of_a_group_drain_its_turns_are_given_still(world: World, served: Served, name: str) -> None:
    async with served.agent(name) as agent:
        await agent.send({"type": "drain"})
        await agent.settled()
        conversation, token = await served.conversation()
        await served.say(conversation, token, "one")
        assert (await agent.until("text"))["data"]["text"] == "one"
    assert any(isinstance(command, CommitTurn) for command in world.commands)


async def test_a_gateway_that_stops_does_not_sit_out_its_budget_for_what_waits_for_people(world: World) -> None:
    async with serve(world, settings_for(drain_budget_ms=600_000)) as served:
        conversation, token = await served.conversation()
        async with served.agent(capabilities=["adopt", "continue"]) as agent:
            await served.say(conversation, token, "refund please")
            turn = await agent.until("text")
            named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
            await agent.say(conversation, {"type": "run", "data": {"status": "started"}, **named})
            await agent.settled()
            draining = asyncio.create_task(served.gateway.drain())
            await agent.say(conversation, {"type": "interrupt", "id": "ask-1", "data": {"payload": "?"}, **named})
            await agent.settled()
            assert not draining.done(), "it is at work"
            await agent.say(conversation, {"type": "run", "data": {"status": "interrupted"}, **named})
            code, reason, _ = await agent.ended()
            assert (code, json.loads(reason)["reason"]) == (1012, "restart")
            await draining
        async with (
            serve(world) as other,
            other.agent(watermarks={conversation: 1}, capabilities=["adopt", "continue"]) as again,
        ):
            await again.settled()
            assert "RunEnded" not in world.kinds(conversation), "it goes on there"


async def test_what_would_begin_anew_elsewhere_has_the_budgets_time_to_be_answered(world: World) -> None:
    async with serve(world, settings_for(drain_budget_ms=300)) as served:
        conversation, token = await served.conversation()
        async with served.agent() as agent:
            await served.say(conversation, token, "refund please")
            turn = await agent.until("text")
            named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
            await agent.say(conversation, {"type": "interrupt", "id": "ask-1", "data": {"payload": "?"}, **named})
            await agent.say(conversation, {"type": "run", "data": {"status": "interrupted"}, **named})
            await agent.settled()
            began = asyncio.get_running_loop().time()
            await served.gateway.drain()
            assert asyncio.get_running_loop().time() - began >= 0.3
            assert (await closed(agent))[0] == 1012
