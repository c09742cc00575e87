"""Who types, who is there, what was read and delivered: at every gateway, to people and to the agents that follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from connectors.gateway.clock import wall_ms
from connectors.gateway.live import TYPING_MS
from connectors.gateway.protocol.actions import Follow, Unfollow
from connectors.gateway.protocol.limits import MAX_CONVERSATIONS
from streams.core.events import GatewayEnded
from streams.runtime.codec import Codec, Undecodable
from streams.runtime.live import LiveSignal, Presence, Receipt, Shown, Signal, Typing
from tests.support.gateway_world import Peer, Served, World, bearer, serve
from tests.unit.gateway.test_agents import answer
from tests.unit.gateway.test_sessions import NOW, turn
from tests.unit.gateway.test_sessions import agent as agent_session

ANN = {"id": "ann", "role": "user"}


@asynccontextmanager
async def elsewhere(world: World) -> AsyncIterator[Served]:
    async with serve(world) as other:
        yield other


@asynccontextmanager
async def watching(*sockets: Any) -> AsyncIterator[Sequence[Peer]]:
    """These people, each welcomed, what was told of the others read away."""
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(socket) for socket in sockets]
        for peer in peers:
            await peer.until("welcome")
        for peer in peers:
            await peer.settled()
        yield peers


def kinds(frames: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [frame for frame in frames if frame["type"] == kind]


# --------------------------------------------------------------------------------------------------------- typing
async def test_typing_is_shown_at_every_gateway_but_not_to_who_types(world: World, served: Served) -> None:
    _, token = await served.conversation()
    async with elsewhere(world) as other:
        sockets = (served.socket(token, {}), served.socket(token, {}), other.socket(token, {}))
        async with watching(*sockets) as (typist, here, there):
            await typist.send({"type": "typing", "isTyping": True})
            for peer in (here, there):
                assert await peer.until("typing") == {"type": "typing", "isTyping": True, "from": "user", "sender": ANN}
            assert await typist.settled() == []


async def test_typing_is_passed_on_once_in_two_seconds_and_its_end_at_once(world: World, served: Served) -> None:
    _, token = await served.conversation()
    async with watching(served.socket(token, {}), served.socket(token, {})) as (typist, other):
        for active in (False, True, True, True, False, False):
            await typist.send({"type": "typing", "isTyping": active})
        await typist.settled()
        assert [frame["isTyping"] for frame in kinds(await other.settled(), "typing")] == [True, False]
    assert [s.signal for s in world.signals if isinstance(s.signal, Typing)] == [
        Typing(active=True),
        Typing(active=False),
    ]


async def test_who_says_no_more_that_it_types_has_stopped_after_six_seconds(world: World, served: Served) -> None:
    _, token = await served.conversation()
    async with elsewhere(world) as other, watching(served.socket(token, {}), other.socket(token, {})) as (typist, seen):
        began = wall_ms()
        await typist.send({"type": "typing", "isTyping": True})
        await seen.until("typing")
        other.gateway.live.tick(began + TYPING_MS - 1)
        assert kinds(await seen.settled(), "typing") == []
        other.gateway.live.tick(wall_ms() + TYPING_MS)
        assert [frame["isTyping"] for frame in kinds(await seen.settled(), "typing")] == [False]


async def test_an_agent_is_shown_typing_while_it_holds_a_run_and_only_then(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with (
        elsewhere(world) as other,
        served.agent(userId="bot-1") as agent,
        watching(other.socket(token, {})) as (person,),
    ):
        await agent.say(conversation, {"type": "typing", "isTyping": True})
        await agent.settled()
        assert await person.settled() == []
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        await agent.say(conversation, {"type": "typing", "isTyping": True})
        shown = await person.until("typing")
        assert (shown["from"], shown["sender"]) == ("bot", {"id": "bot-1", "role": "bot"})
        await answer(agent, conversation, turn)


async def test_an_agent_is_told_who_types_where_it_was_given_a_turn(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, served.agent() as agent, watching(other.socket(token, {})) as (person,):
        for active in (True, False):
            await person.send({"type": "typing", "isTyping": active})
        await person.settled()
        assert await agent.settled() == []
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await person.send({"type": "typing", "isTyping": True})
        assert (await agent.until("typing"))["sender"] == ANN


async def test_an_agent_is_told_nothing_of_channels_that_are_not_routed_to_it(world: World, served: Served) -> None:
    """It may name any conversation in its hello."""
    conversation, token = await served.conversation()
    served.gateway.directory.config.routes = {}
    async with served.agent(watermarks={conversation: 1}) as agent, watching(served.socket(token, {})) as (person,):
        await person.send({"type": "typing", "isTyping": True})
        await person.settled()
        assert await agent.settled() == []


# ------------------------------------------------------------------------------------------------------- receipts
async def test_what_a_person_read_is_told_to_the_others_and_never_goes_back(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, served.agent() as agent:
        await served.say(conversation, token, "hello")
        await answer(agent, conversation, await agent.until("text"))
        sockets = (served.socket(token, {"watermark": 2}), other.socket(token, {"watermark": 2}))
        async with watching(*sockets) as (reader, seen):
            for watermark in (1, 99, 2, 1):
                await reader.send({"type": "read", "watermark": watermark})
            await reader.settled()
            for peer in (seen, agent):
                told = [f["data"] for f in kinds(await peer.settled(), "deliveryStatus")]
                assert [(each["upToSeq"], each["status"], each["by"]) for each in told] == [
                    (1, "read", ANN),
                    (2, "read", ANN),  # nobody has read what was not given to him
                ]
            await reader.send({"type": "read", "watermark": 0})
            assert (await reader.frame())["data"]["code"] == "invalid_watermark"


async def test_an_agent_is_told_that_its_message_came_to_the_person(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, served.agent() as agent, watching(other.socket(token, {})) as (person,):
        await served.say(conversation, token, "hello")
        ack = await answer(agent, conversation, await agent.until("text"))
        while (await person.until("text"))["seq"] != ack["seq"]:
            pass
        status = (await agent.until("deliveryStatus"))["data"]
        assert (status["status"], status["activityId"], status["seq"]) == ("delivered", ack["id"], ack["seq"])
        assert status["channelId"] == "web"


# ------------------------------------------------------------------------------------------------------- presence
def presences(frames: Sequence[dict[str, Any]]) -> list[tuple[str, str, int]]:
    shown = [frame["data"] for frame in kinds(frames, "presence")]
    return [(each["participant"]["id"], each["status"], each["connections"]) for each in shown]


async def test_a_participant_is_there_while_it_has_a_connection_at_some_gateway(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        async with watching(served.socket(token, {})) as (first,):
            async with watching(other.socket(token, {})):
                assert presences(await agent.settled()) == [("ann", "online", 1)]
            assert presences(await first.settled()) == []  # it knows that it is there
        assert presences([await agent.until("presence")]) == [("ann", "offline", 0)]


async def test_an_agent_that_begins_to_follow_is_told_who_is_there_wherever_that_is(
    world: World, served: Served
) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, watching(other.socket(token, {})), served.agent() as agent:
        await served.say(conversation, token, "hello")
        assert presences([await agent.until("presence")]) == [("ann", "online", 1)]


async def test_whom_a_gateway_had_is_gone_when_it_is_given_up(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        async with watching(other.socket(token, {})):
            assert presences([await agent.until("presence")]) == [("ann", "online", 1)]
            ended = other.gateway.membership.incarnation
            served.gateway.live.gateway_ended(ended)
            assert presences([await agent.until("presence")]) == [("ann", "offline", 0)]
            # It was given up by mistake: as a new incarnation it says again whom it has.
            other.gateway.membership.gateway_ended(GatewayEnded(gateway=ended, reason="expired"))
            assert presences([await agent.until("presence")]) == [("ann", "online", 1)]


async def test_nothing_is_kept_of_a_conversation_that_nobody_watches(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other:
        async with watching(served.socket(token, {}), other.socket(token, {})) as (first, _):
            await first.send({"type": "typing", "isTyping": True})
            await first.settled()
        for each in (served, other):
            await each.gateway.drain()
            assert not each.gateway.live._conversations
            assert not each.gateway.hub.concerned(conversation)


# ------------------------------------------------------------------------------------------------- catalogs, limits
@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "skills", "hash": "9f3a", "skills": [{"name": "brand-voice", "description": "Write so."}]},
        {"type": "genui_components", "hash": "4be1", "unchanged": True},
    ],
    ids=lambda each: each["type"],
)
async def test_what_a_bot_has_to_offer_is_shown_as_it_is(world: World, served: Served, catalog: dict[str, Any]) -> None:
    conversation, token = await served.conversation()
    async with elsewhere(world) as other, served.agent() as agent, watching(other.socket(token, {})) as (person,):
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await agent.say(conversation, {"type": catalog["type"]})
        refused = (await agent.frame())["frame"]
        while refused["type"] != "error":
            refused = (await agent.frame())["frame"]
        assert (refused["data"]["code"], refused["data"]["frameType"]) == ("invalid_message", catalog["type"])
        await agent.say(conversation, catalog)
        assert await person.until(catalog["type"]) == catalog


def test_the_least_recently_active_conversation_is_followed_no_more() -> None:
    session = agent_session({f"c{number}": 1 for number in range(MAX_CONVERSATIONS)})
    active = session.run_given("c0/2/g", 1, turn(2, "c0"), NOW)
    assert [action for action in active if isinstance(action, Follow | Unfollow)] == []
    given = session.run_given("new/1/g", 1, turn(1, "new"), NOW)
    assert [action for action in given if isinstance(action, Follow | Unfollow)] == [
        Follow(("new",), ask=True),
        Unfollow("c1"),
    ]


# --------------------------------------------------------------------------------------------------------- records
@pytest.mark.parametrize(
    "signal",
    [
        Typing(active=True, member="gw-1.2"),
        Presence(online=True, connections=3, asks=True),
        Receipt("read", 4),
        Shown("{}"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_signal_is_read_as_it_was_written(signal: Signal) -> None:
    record = LiveSignal(
        conversation_id="c", sender="ann", at=5, gateway="gw-1", role="user", channel="web", signal=signal
    )
    assert Codec().decode_live(Codec().encode_live(record)) == record


@pytest.mark.parametrize("value", [None, b"", b"nonsense"])
def test_what_is_no_signal_is_told_apart(value: bytes | None) -> None:
    with pytest.raises(Undecodable):
        Codec().decode_live(value)


async def test_who_comes_later_at_another_gateway_is_told_the_catalogs_too(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    catalogs: list[dict[str, Any]] = [
        {"type": "genui_components", "hash": "c1", "components": [{"name": "card", "template": "<b></b>"}]},
        {"type": "skills", "hash": "s1", "skills": [{"name": "fold", "description": "folds"}]},
    ]
    async with elsewhere(world) as other, served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        for catalog in catalogs:
            await agent.say(conversation, catalog)
        await agent.settled()
        async with other.socket(token, {"skillsHash": "s1"}) as later:
            assert [await later.until(catalog["type"]) for catalog in catalogs] == [
                catalogs[0], {"type": "skills", "hash": "s1", "unchanged": True},
            ]  # fmt: skip
            async with other.socket(token, {}) as last:
                assert [await last.until(catalog["type"]) for catalog in catalogs] == catalogs
            shown = [frame["type"] for frame in await later.settled()]
            assert not {"genui_components", "skills"} & {*shown}, "it has them"
        path = f"/v1/conversations/{conversation}/stream"
        async with other.http.stream("GET", path, headers=bearer(token)) as stream:
            names = [line async for line in until_line(stream, "event: skills")]
            assert "event: genui_components" in names


async def until_line(stream: httpx.Response, last: str) -> AsyncIterator[str]:
    async for line in stream.aiter_lines():
        yield line
        if line == last:
            return
