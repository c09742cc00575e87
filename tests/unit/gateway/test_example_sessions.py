"""The public example sessions, replayed against a live gateway: it answers as they show, but for ids and times; and the
examples of bad frames, one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.gateway_world import MemoryStore, Peer, Served, World, bearer, serve, settings_for
from tests.support.waiting import until
from tests.unit.gateway.conftest import SCHEMAS, own_frames
from tests.unit.gateway.test_agents import answer

pytestmark = pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the public examples are not beside this repository")
# What the server chooses.
CHOSEN = {"id", "timestamp", "connectionId", "expiresAt", "activityId", "userId", "channelId", "conversationId"}


def examples(name: str) -> list[dict[str, Any]]:
    path = SCHEMAS / "examples" / name
    frames: list[dict[str, Any]] = json.loads(path.read_text())["frames"] if path.is_file() else []
    return frames


def frame_of(name: str, index: int) -> dict[str, Any]:
    frame: dict[str, Any] = examples(name)[index]["frame"]
    return frame


def says(shown: Any, got: Any, *, but: frozenset[str] = frozenset()) -> bool:
    """Whether `got` has all that the example shows; what the server chooses need only be of the same kind."""
    match shown, got:
        case dict(), dict():
            return all(
                name in got
                and (type(value) is type(got[name]) if name in CHOSEN | but else says(value, got[name], but=but))
                for name, value in shown.items()
            )
        case list(), list():
            return len(shown) == len(got) and all(says(a, b, but=but) for a, b in zip(shown, got, strict=True))
        case _:
            return bool(shown == got)


async def answered(peer: Peer, shown: dict[str, Any], *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The next frame of the example's type; it says what the example shows."""
    wanted = shown.get("frame", shown)
    while True:
        frame = await peer.frame()
        inner: dict[str, Any] = frame.get("frame", frame)
        if inner["type"] == wanted["type"]:
            assert says(wanted, inner, but=but), (wanted, inner)
            return inner


@asynccontextmanager
async def patient(world: World, store: MemoryStore | None = None) -> AsyncIterator[Served]:
    """A gateway that takes a busy machine for no pause."""
    async with serve(world, settings_for(member_ttl_ms=60_000), store=store) as served:
        yield served


async def up_to(served: Served, agent: Peer, conversation: str, token: str, seq: int) -> None:
    """The conversation has so many messages, the last one a person's, which the agent was given."""
    for number in range(1, seq + 1):
        await served.say(conversation, token, f"m{number}")
        await agent.until("text")


async def test_the_session_that_resumes(world: World) -> None:
    name = "session-resume.json"
    async with patient(world) as served, served.agent(userId="agent-7") as agent:
        conversation, token = await served.conversation("user-42")
        await up_to(served, agent, conversation, token, 15)
        for index in (2, 3):
            shown = frame_of(name, index)
            await agent.say(conversation, {"type": shown["type"], "clientId": f"x-{index}", "data": shown["data"]})
            await agent.until("ack")
        async with served.socket(token) as person:
            await person.send({**frame_of(name, 0), "conversationId": conversation, "token": token})
            await answered(person, frame_of(name, 1))
            for index in (2, 3):
                await answered(person, frame_of(name, index))
            await person.send(frame_of(name, 4))
            await answered(person, frame_of(name, 5))
            turn = await agent.until("text")
            # In the example the agent reads after it has answered; one that is read late has no receipt here.
            await agent.say(conversation, {"type": "read", "watermark": turn["seq"]})
            await answered(person, frame_of(name, 9), but=frozenset({"by"}))
            await agent.say(conversation, {"type": "typing", "isTyping": True})
            typing = await answered(person, frame_of(name, 6), but=frozenset({"role"}))
            assert typing["sender"]["id"] == "agent-7"
            shown = frame_of(name, 7)
            message = {"type": "text", "data": shown["data"], "actions": shown["actions"]}
            await agent.say(conversation, {**message, "clientId": f"p.{turn['id']}.m1"})
            await answered(person, shown, but=frozenset({"sender"}))
            await person.send(frame_of(name, 8))
            await person.send(frame_of(name, 10))
            await answered(person, frame_of(name, 11))


async def test_the_session_of_a_channels_agent(world: World) -> None:
    name = "session-channel-agent.json"
    async with patient(world) as served:
        conversation, token = await served.conversation()
        async with served.agent(None) as earlier:
            for number in range(9):
                await served.say(conversation, token, f"m{number}")
                await answer(earlier, conversation, await earlier.until("text"))
        agents = await served.token("agents-secret", scope="channel")
        async with served.socket(agents) as agent, served.socket(token, {"watermark": 18}) as person:
            await agent.send({**frame_of(name, 0), "token": agents, "watermarks": {conversation: 18}})
            await answered(agent, frame_of(name, 1))
            await person.until("welcome")
            question = frame_of(name, 2)["frame"]
            await served.say(conversation, token, question["data"]["text"])
            await answered(agent, question)
            await agent.say(conversation, frame_of(name, 3)["frame"])
            assert (await person.until("typing"))["isTyping"] is True
            await agent.say(conversation, frame_of(name, 4)["frame"])
            await answered(agent, frame_of(name, 5))
            status = await answered(agent, frame_of(name, 6))
            assert status["data"]["channelId"] == "web"
            await agent.send({"type": "ping"})
            await answered(agent, frame_of(name, 7))


async def test_the_session_of_a_mekik_client(world: World) -> None:
    """It says neither `protocol` nor `clientId`; the bot takes one turn at a time."""
    name = "session-mekik-bot.json"
    store = MemoryStore()
    document = json.loads(store.document_text)
    for channel in document["channels"]:
        channel["policy"] = "reject"
    store.document_text = json.dumps(document)
    async with patient(world, store) as served, served.agent() as bot:
        token = await served.token()
        opened = (await served.http.post("/api/v1/converger/conversations", headers=bearer(token))).json()
        conversation, token = opened["conversationId"], opened["token"]
        for number in range(5):
            await served.say(conversation, token, f"m{number}")
            await answer(bot, conversation, await bot.until("text"))
            await ended(world, conversation, number + 1)
        async with served.socket(token) as person:
            await person.send({**frame_of(name, 0), "conversationId": conversation})
            await answered(person, frame_of(name, 1))
            await person.send(frame_of(name, 2))
            turn = await bot.until("text")
            assert turn["data"] == {"text": "refund ORD-42"}
            await bot.say(conversation, {"type": "read", "watermark": turn["seq"]})
            for index in range(3, 9):
                shown = {field: value for field, value in frame_of(name, index).items() if field != "seq"}
                await bot.say(conversation, shown)
                await answered(person, frame_of(name, index))
            await person.send(frame_of(name, 9))
            resume = await bot.until("resume")
            assert resume["answers"] == frame_of(name, 9)["answers"]
            for index in range(10, 14):
                shown = {
                    field: value for field, value in frame_of(name, index).items() if field in {"type", "data", "id"}
                }
                await bot.say(conversation, {**shown, "clientId": "msg-1"} if index == 12 else shown)
                await answered(person, frame_of(name, index), but=frozenset({"seq"}) if index == 12 else frozenset())
            # Of the example's last frames, the bot has begun with something else in between.
            await ended(world, conversation, 6)
            await served.say(conversation, token, "and ORD-43?")
            await bot.until("text")
            await person.send(frame_of(name, 14))
            await answered(person, frame_of(name, 15), but=frozenset({"message"}))


async def ended(world: World, conversation: str, runs: int) -> None:
    """So many runs of the conversation are over."""
    await until(lambda: world.kinds(conversation).count("RunEnded") >= runs)


# ------------------------------------------------------------------------------------------------------ bad frames
INVALID = examples("invalid.json")
CODES = {
    "clientId charset": "invalid_message",
    "text turn without data.text": "invalid_message",
    "resume without answers": "invalid_message",
    "a client cannot send a server frame type": "bad_request",
    "an envelope has no type": "bad_request",
}


@pytest.mark.parametrize("example", [e for e in INVALID if e["direction"] != "s2c"], ids=lambda each: each["reason"])
async def test_a_bad_frame_of_a_client_is_refused_by_the_right_code_and_the_next_one_is_taken(
    served: Served, example: dict[str, Any]
) -> None:
    conversation, token = await served.conversation()
    agents = await served.token("agents-secret", scope="channel")
    frame = {**example["frame"]} | ({"conversationId": conversation} if "conversationId" in example["frame"] else {})
    async with served.socket(agents if example["direction"] == "c2s-envelope" else token, {}) as peer:
        await peer.until("welcome")
        await peer.send(frame)
        refused = await peer.until_refused()
        assert refused["code"] == CODES[example["reason"]]
        assert (refused["frameType"], refused["retryable"]) == (frame["type"], False)
        await peer.send({"type": "ping", "nonce": "still here"})
        assert (await peer.until("heartbeat"))["nonce"] == "still here"


@pytest.mark.parametrize("example", [e for e in INVALID if e["direction"] == "s2c"], ids=lambda each: each["reason"])
def test_no_model_of_what_the_server_writes_holds_for_a_bad_frame(example: dict[str, Any]) -> None:
    """Every frame that any gateway test gets is checked against these models: none of these can be among them."""
    assert own_frames().errors("server-to-person", example["frame"])


MESSAGES_OF_A_BOT = [e for e in INVALID if e["direction"] == "s2c" and "from" in e["frame"]]


@pytest.mark.parametrize("example", MESSAGES_OF_A_BOT, ids=lambda each: each["reason"])
async def test_a_bad_message_of_an_agent_is_refused_or_shown_as_a_good_one(
    served: Served, example: dict[str, Any]
) -> None:
    """The server gives seq, id, side and time whatever the agent says of them; the rest it refuses."""
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        await agent.say(conversation, {**example["frame"], "clientId": f"p.{turn['id']}.m1"})
        while (told := (await agent.frame()).get("frame", {})).get("type") not in {"ack", "error"}:
            pass
        if told["type"] == "ack":
            assert example["frame"]["type"] == "text"
            while (shown := await person.until("text"))["from"] != "bot":
                pass
            assert own_frames().errors("server-to-person", shown) == []
        else:
            assert told["data"]["code"] in {"invalid_message", "bad_request"}
