"""What an agent hears where it follows is in `turnlog.testing` what it is behind a real gateway: one script on both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import pytest

from tests.support.gateway_world import DOCUMENT, MemoryStore, World, bearer, serve
from tests.support.waiting import until
from turnlog import Agent, Client, Conversation, Viewed, seen
from turnlog.backoff import Backoff
from turnlog.testing import AgentHarness, OwnConversation

pytestmark = pytest.mark.unit


class Stage(Protocol):
    """Where a script is played."""

    agent: Agent
    conversation: str

    async def say(self, text: str) -> None: ...

    async def edit(self, seq: int, text: str) -> None: ...

    async def cut(self) -> None:
        """The agent's connection is lost, and comes back."""


class InMemory:
    def __init__(self, agent: Agent, harness: AgentHarness, room: OwnConversation) -> None:
        self.agent, self.conversation = agent, room.id
        self._harness, self._room = harness, room

    async def say(self, text: str) -> None:
        self._room.send(text, who="ann")

    async def edit(self, seq: int, text: str) -> None:
        self._room.edit(seq, text)

    async def cut(self) -> None:
        await self._harness.cut()


class Behind:
    def __init__(self, agent: Agent, person: Conversation) -> None:
        self.agent, self.conversation = agent, person.id
        self._person = person

    async def say(self, text: str) -> None:
        await self._person.send(text)

    async def edit(self, seq: int, text: str) -> None:
        [*_, said] = [each for each in await self._person.activities() if each.sender == "ann"]
        await self._person.edit(said.id, text)

    async def cut(self) -> None:
        link, before = self.agent._link, self.agent.member
        assert link._socket is not None
        link._socket.transport.abort()
        await until(lambda: self.agent.member != before)


@asynccontextmanager
async def in_memory(agent: Agent, world: World) -> AsyncIterator[Stage]:
    harness = AgentHarness(agent)
    async with harness:
        yield InMemory(agent, harness, harness.conversation())


@asynccontextmanager
async def behind(agent: Agent, world: World) -> AsyncIterator[Stage]:
    document = json.loads(json.dumps(DOCUMENT))
    document["channels"] += [{"id": "phone", "kind": "web"}, {"id": "bots", "kind": "websocket"}]
    document["routes"] += [{"from": "agents", "to": ["phone", "bots"]}]
    store = MemoryStore()
    store.document_text = json.dumps(document)
    async with serve(world, store=store) as served:
        owner = await served.token("agents-secret", scope="channel")
        opened = await served.http.post(
            "/api/v1/converger/conversations", headers=bearer(owner), json={"user": {"id": "ann"}}
        )
        real = Agent(served.url, channel_secret="agents-secret", group="bots", backoff=Backoff(first=0.01, most=0.1))
        real.handlers = real.process._handlers = agent.handlers
        real.process.followed._heard = agent.handlers.activity
        await real.start()
        try:
            async with Client(served.url, channel_secret="phone-secret", user="ann") as client:
                yield Behind(real, await client.conversation(opened.json()["conversationId"]))
        finally:
            await real.stop(budget=0)


@pytest.mark.parametrize("staged", [in_memory, behind])
async def test_what_is_heard_where_an_agent_follows_is_the_same_on_both(
    staged: Callable[[Agent, World], AbstractAsyncContextManager[Stage]], world: World
) -> None:
    agent = Agent("http://unused", token="t")
    heard: list[tuple[str, int | None, str]] = []

    @agent.on_activity
    async def hear(conversation: str, viewed: Viewed) -> None:
        if isinstance(viewed.seen, seen.Said | seen.Edited):
            heard.append((viewed.type, viewed.seq, viewed.seen.text))

    async with staged(agent, world) as stage:
        await stage.say("zero")
        stage.agent.follow(stage.conversation, after=0)
        await until(lambda: len(heard) == 1)
        own = await stage.agent.say(stage.conversation, "mine", key="k")
        again = await stage.agent.say(stage.conversation, "mine", key="k")
        assert (own.seq, own.duplicate, again.seq, again.duplicate) == (2, False, 2, True)
        await stage.say("one")
        await until(lambda: len(heard) == 2)
        await stage.cut()
        await stage.say("two")
        await until(lambda: len(heard) == 3)
        await stage.edit(4, "three")
        await until(lambda: len(heard) == 4)
        stage.agent.unfollow(stage.conversation)
        await stage.say("more")
        fresh = await stage.agent.say(stage.conversation, "goodbye")
        assert fresh.seq == 6
    assert heard == [("text", 1, "zero"), ("text", 3, "one"), ("text", 4, "two"), ("edited", None, "three")]
