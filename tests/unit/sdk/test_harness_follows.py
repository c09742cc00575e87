"""Agents that follow conversations and speak first, tested without a server."""

from __future__ import annotations

import asyncio

import pytest

from turnlog import Agent, ConversationClosed, Turn, Viewed, followed, seen
from turnlog.testing import AgentHarness

pytestmark = pytest.mark.unit


class Bridge:
    """An agent that passes on what it hears, and remembers it."""

    def __init__(self) -> None:
        self.agent = Agent("http://unused", token="t")
        self.heard: list[tuple[int | None, object]] = []
        self.may = asyncio.Event()
        self.may.set()
        self.agent.on_activity(self._hear)

    async def _hear(self, conversation: str, viewed: Viewed) -> None:
        await self.may.wait()
        match viewed.seen:
            case seen.Said(text=text) | seen.Edited(text=text):
                self.heard.append((viewed.seq, text))
            case seen.Superseded(seqs=seqs):
                self.heard.append((viewed.seq, seqs))
            case seen.Typing(typing=typing):
                self.heard.append((viewed.seq, typing))
            case other:
                self.heard.append((viewed.seq, type(other).__name__))


async def test_what_is_said_is_heard_from_where_it_is_followed_and_what_became_of_it() -> None:
    bridge = Bridge()
    harness = AgentHarness(bridge.agent)
    async with harness:
        room = harness.conversation()
        await room.say("before")
        bridge.agent.follow(room.id, after=1)
        assert await room.say("hello", who="ann") == 2
        await room.say("good day", who="bot", role="bot")
        room.typing(who="ann")
        room.edit(2, "hello there")
        room.supersede(3)
        room.close()
        await room.heard()
        assert bridge.heard == [
            (2, "hello"), (3, "good day"), (None, True), (None, "hello there"), (None, (3,)), (4, "Changed"),
        ]  # fmt: skip
        assert room.transcript == [("person", "before"), ("ann", "hello there"), ("bot", "good day")]


async def test_what_it_says_is_stored_once_and_not_heard_also_after_a_lost_connection() -> None:
    bridge = Bridge()
    harness = AgentHarness(bridge.agent)
    async with harness:
        room = harness.conversation()
        bridge.agent.follow(room.id)
        assert (await bridge.agent.say(room.id, "Your parcel is here.", key="parcel-7")).seq == 1
        again = await bridge.agent.say(room.id, "Your parcel is here.", key="parcel-7")
        assert (again.seq, again.duplicate) == (1, True)
        await room.say("thanks")
        await harness.cut()
        await room.say("really")
        assert bridge.heard == [(2, "thanks"), (3, "really")]
        assert [text for _, text in room.transcript] == ["Your parcel is here.", "thanks", "really"]
        room.close()
        with pytest.raises(ConversationClosed):
            await bridge.agent.say(room.id, "one more thing")


async def test_a_process_that_begins_anew_follows_what_the_program_does_from_its_start() -> None:
    bridge = Bridge()
    bridge.agent.follow("room", after=1)
    harness = AgentHarness(bridge.agent)
    async with harness:
        room = harness.conversation("room")
        for text in ("one", "two"):
            await room.say(text)
        await harness.kill()
        await room.say("three")
        assert bridge.heard == [(2, "two"), (2, "two"), (3, "three")]


async def test_who_claims_to_have_seen_what_is_not_there_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bridge = Bridge()
    harness = AgentHarness(bridge.agent)
    async with harness:
        room = harness.conversation()
        bridge.agent.follow(room.id, after=7)
        await room.say("hello")
        assert bridge.heard == []
        assert "cannot be followed" in caplog.text


async def test_a_slow_handler_hears_all_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "WAITING_MAX", 2)
    bridge = Bridge()
    bridge.may.clear()
    harness = AgentHarness(bridge.agent)
    async with harness:
        room = harness.conversation()
        bridge.agent.follow(room.id)
        for number in range(20):
            room.send(str(number))
            await asyncio.sleep(0)
        bridge.may.set()
        await room.heard()
        assert bridge.heard == [(number + 1, str(number)) for number in range(20)]


async def test_one_that_is_not_through_is_not_waited_for_without_end() -> None:
    bridge = Bridge()
    bridge.may.clear()
    harness = AgentHarness(bridge.agent, patience=0.05)
    async with harness:
        room = harness.conversation()
        bridge.agent.follow(room.id)
        with pytest.raises(AssertionError, match="not through"):
            await room.say("hello")


async def test_a_handler_of_turns_speaks_in_another_conversation_and_the_agent_is_its_own_again_afterwards() -> None:
    agent = Agent("http://unused", token="t")
    outside = agent.process

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        told = await agent.say("desk", f"{turn.sender} asks: {turn.text}")
        return f"passed on as {told.seq}"

    harness = AgentHarness(agent, copies=2)
    async with harness as person:
        desk = harness.conversation("desk")
        with pytest.raises(ValueError, match="already"):
            harness.conversation("desk")
        assert (await person.say("where is it?")).text == "passed on as 1"
        assert desk.transcript == [("agent", "person asks: where is it?")]
    assert agent.process is outside
