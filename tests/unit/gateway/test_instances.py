"""Agents that declare their process: what is held for it, who gets it, and who does not."""

from __future__ import annotations

from typing import Any

from streams.core.events import MemberJoined, RunMoved
from tests.support.gateway_world import Peer, Served, World, serve
from tests.support.waiting import until


def process(peer: Peer) -> dict[str, Any]:
    """What the next connection of the same process says."""
    return {"instanceId": peer.welcome["instanceId"], "instanceSecret": peer.welcome["instanceSecret"]}


def moved(world: World, conversation: str) -> list[RunMoved]:
    return [e.event for e in world.journal_of(conversation) if isinstance(e.event, RunMoved)]


async def begin(served: Served, agent: Peer) -> tuple[str, dict[str, Any]]:
    """A turn is given to the agent, who begins to answer it."""
    conversation, token = await served.conversation()
    await served.say(conversation, token, "hello")
    given = await agent.until("text")
    run = {"run": given["run"], "runEpoch": given["runEpoch"]}
    await agent.say(conversation, {"type": "run", "data": {"status": "started"}, **run})
    await agent.settled()
    return conversation, given


async def lose(peer: Peer) -> None:
    """As a network does: without a close."""
    peer.raw.transport.abort()
    await peer.raw.wait_closed()


async def test_its_run_is_held_and_is_its_again_at_any_gateway(world: World, served: Served) -> None:
    async with serve(world) as other, served.agent(instanceId="worker-7") as first:
        assert first.welcome["limits"]["graceMs"] == 30_000
        conversation, given = await begin(served, first)
        async with other.agent() as second:
            await lose(first)
            await until(lambda: bool(moved(world, conversation)))
            assert [f for f in await second.settled() if f["type"] == "text"] == []
            hello = process(first) | {"watermarks": {conversation: 1}}
            async with other.agent(**hello) as back:
                assert process(back) == process(first)
                held, given_back = moved(world, conversation)
                assert (held.to_member, given_back.to_member, given_back.proved) == (None, back.member, True)
                run = {"run": given["run"], "runEpoch": given_back.run_epoch}
                await back.say(conversation, {"type": "text", "clientId": "m-1", "data": {"text": "hi"}, **run})
                assert (await back.until("ack"))["seq"] == 2
    assert world.kinds(conversation).count("TurnCommitted") == 1


async def test_without_its_secret_another_process_of_that_name_gets_nothing(world: World, served: Served) -> None:
    async with served.agent(instanceId="worker-7") as first:
        conversation, _ = await begin(served, first)
        secret = first.welcome["instanceSecret"]
        await lose(first)
        await until(lambda: bool(moved(world, conversation)))
        for said in ({}, {"instanceSecret": "nonsense"}, {"instanceSecret": secret[:-3] + "abc"}):
            async with served.agent(instanceId="worker-7", watermarks={conversation: 1}, **said) as thief:
                assert [f for f in await thief.settled() if f["type"] == "text"] == []
                assert thief.welcome["instanceSecret"] != secret
        async with served.agent("others", instanceId="worker-7", instanceSecret=secret) as elsewhere:
            assert elsewhere.welcome["instanceSecret"] != secret, "a process is one of its group"
        assert [event.to_member for event in moved(world, conversation)] == [None]


async def test_a_connection_that_is_not_missed_yet_gives_way_to_the_next(world: World, served: Served) -> None:
    async with served.agent(instanceId="worker-7") as first:
        conversation, _ = await begin(served, first)
        async with served.agent(**process(first), watermarks={conversation: 1}) as back:
            code, _, _ = await first.ended()
            assert code == 1012
            [event] = moved(world, conversation)
            assert (event.from_member, event.to_member, event.proved) == (first.member, back.member, True)


async def test_who_declares_nothing_is_told_of_nothing(world: World, served: Served) -> None:
    async with served.agent() as plain:
        assert "instanceSecret" not in plain.welcome
        assert "graceMs" not in plain.welcome["limits"]
    joined = [e.event for journal in world.journals for e in journal.entries if isinstance(e.event, MemberJoined)]
    assert {event.instance for event in joined} == {""}


async def test_a_name_that_cannot_be_one_is_refused_by_field(served: Served) -> None:
    token = await served.token("agents-secret", scope="channel")
    async with served.socket(token, {"instanceId": "with space"}) as peer:
        code, _, frames = await peer.ended()
    assert code == 4400
    assert "instanceId" in frames[0]["data"]["message"]
