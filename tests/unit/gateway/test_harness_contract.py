"""What an agent's tests see in `turnlog.testing` is what a person sees behind a real gateway: one script on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from tests.support.gateway_world import Served
from tests.support.waiting import until
from turnlog import Agent, AgentProxy, Client, Conversation, Reply, State, Turn
from turnlog.backoff import Backoff
from turnlog.testing import AgentHarness, Person

pytestmark = pytest.mark.unit

Frame = dict[str, Any]


class Stage(Protocol):
    """Where a script is played."""

    async def say(self, text: str) -> None: ...

    async def shown(self, kind: str, count: int = 1) -> None:
        """Returns once so many frames of this type were stored."""

    async def answer(self, value: Any) -> None: ...

    async def abort(self) -> None: ...

    async def invoke(self, text: str) -> None:
        """A program calls the agent, and waits for nothing."""

    async def cancel(self) -> None:
        """It calls that off."""

    async def kill(self) -> None:
        """The only process dies; another one comes."""

    async def stored(self, count: int) -> list[Frame]:
        """All frames, once there are so many."""


Script = Callable[[Stage], Awaitable[None]]


class InMemory:
    """The harness."""

    def __init__(self, harness: AgentHarness, person: Person) -> None:
        self._harness = harness
        self._person = person
        self._called: asyncio.Task[Any] | None = None

    async def say(self, text: str) -> None:
        self._person.send(text)

    async def shown(self, kind: str, count: int = 1) -> None:
        await until(lambda: [frame["type"] for frame in self._person.frames].count(kind) >= count)

    async def answer(self, value: Any) -> None:
        await self._person.answer(value)

    async def abort(self) -> None:
        await self._person.abort()

    async def invoke(self, text: str) -> None:
        self._called = asyncio.create_task(self._person.invoke(text))

    async def cancel(self) -> None:
        await self._person.cancel()
        assert self._called is not None
        await self._called

    async def kill(self) -> None:
        await self._harness.kill()

    async def stored(self, count: int) -> list[Frame]:
        await until(lambda: len(self._person.frames) >= count)
        return self._person.frames


class Behind:
    """A real gateway, whose partitions decide in memory."""

    def __init__(self, served: Served, agent: Agent, conversation: Conversation) -> None:
        self._served = served
        self._agent = agent
        self._conversation = conversation
        self.running: list[Agent] = []

    async def start(self) -> None:
        agent = Agent(
            self._served.url,
            channel_secret="agents-secret",
            group="bots",
            backoff=Backoff(first=0.01, most=0.1),
            flush_every=0.0,
            continues=self._agent.settings.continues,
        )
        agent.handlers = agent.process._handlers = self._agent.handlers
        await agent.start()
        self.running.append(agent)

    async def say(self, text: str) -> None:
        await self._conversation.send(text)

    async def shown(self, kind: str, count: int = 1) -> None:
        async def there() -> bool:
            return [frame["type"] for frame in await self._frames()].count(kind) >= count

        await until(there)

    async def answer(self, value: Any) -> None:
        (ask,) = await self._conversation.asks()
        await self._conversation.answer({ask.id: value})

    async def abort(self) -> None:
        await self._conversation.abort()

    def _proxy(self) -> AgentProxy:
        return AgentProxy(self._served.url, "agents/bots", channel_secret="web-secret", user="ann")

    async def invoke(self, text: str) -> None:
        async with self._proxy() as proxy:
            await proxy.submit(text, thread=self._conversation.id, id="i-1")

    async def cancel(self) -> None:
        async with self._proxy() as proxy:
            await proxy.cancel(self._conversation.id, "i-1")
            assert (await proxy.status(self._conversation.id, "i-1", wait=10)).state is State.CANCELLED

    async def kill(self) -> None:
        agent = self.running.pop()
        link = agent._link
        link._closing.set()
        assert link._socket is not None
        link._socket.transport.abort()
        await agent.process.abandon()
        await agent.stop(budget=0)
        await self.start()

    async def stored(self, count: int) -> list[Frame]:
        async def there() -> bool:
            return len(await self._frames()) >= count

        await until(there)
        return await self._frames()

    async def _frames(self) -> list[Frame]:
        shown = await self._conversation.activities(limit=200)
        if not shown:
            return []
        frames = self._conversation.frames()
        seen: list[Frame] = []
        async with asyncio.timeout(10):
            while len(seen) < len(shown):
                viewed = await anext(frames)
                if viewed.seq is not None:
                    seen.append(viewed.frame)
        await frames.aclose()
        return seen


@asynccontextmanager
async def in_memory(agent: Agent, served: Served) -> AsyncIterator[Stage]:
    harness = AgentHarness(agent)
    async with harness as person:
        yield InMemory(harness, person)


@asynccontextmanager
async def behind(agent: Agent, served: Served) -> AsyncIterator[Stage]:
    async with Client(served.url, channel_secret="web-secret", user="ann") as client:
        stage = Behind(served, agent, await client.open())
        await stage.start()
        try:
            yield stage
        finally:
            for running in stage.running:
                await running.stop(budget=0)


def essence(frame: Frame) -> tuple[Any, ...]:
    """What a person can tell apart, without ids that each side makes in its own way."""
    shown = frame.get("chunk") or frame.get("data") or {}
    kept = {name: value for name, value in shown.items() if name != "id"}
    if frame["type"] == "genui":
        kept["closed"] = shown.get("id") == "closed"
    return frame["seq"], frame["type"], frame.get("from"), kept, frame.get("done"), bool(frame.get("superseded"))


# ------------------------------------------------------------------------------------------------------- scripts
def agent_of(*, continues: bool = False) -> Agent:
    return Agent("http://unused", token="t", continues=continues, flush_every=0.0)


class Held:
    """Says `one two three`; waits before the last word until it is let go on."""

    def __init__(self, *, continues: bool) -> None:
        self.agent = agent_of(continues=continues)
        self.go_on = asyncio.Event()
        self.agent.on_turn(self.count)

    async def count(self, turn: Turn, reply: Reply) -> None:
        words = ["one ", "two ", "three"]
        said = turn.resume.text.split() if turn.resume is not None else []
        async with reply.stream() as stream:
            for word in words[len(said) :]:
                if word == "three":
                    await self.go_on.wait()
                await stream.write(word)


async def words(turn: Turn) -> AsyncGenerator[str, None]:
    for word in ("one ", "two"):
        yield word


async def asks(turn: Turn, reply: Reply) -> str:
    async with reply.tool("look_up", {"q": turn.text}) as call:
        if not call.done:
            call.result = 7
    return f"got {await reply.ask('Sure?', actions=[('Yes', 1), ('No', 0)])} for {call.result}"


async def fails(turn: Turn, reply: Reply) -> None:
    await reply.text("before")
    raise LookupError("secret")


async def shows(turn: Turn, reply: Reply) -> None:
    card = await reply.genui("card", {"n": 1})
    await card.update({"n": 2})
    await reply.event("note", text="seen")
    await reply.skill("pdf")


async def twice(stage: Stage) -> None:
    await stage.say("hi")
    await stage.shown("genui", 3)
    await stage.say("again")
    await stage.stored(8)


async def button(stage: Stage) -> None:
    await stage.say("hi")
    await stage.shown("interrupt")
    await stage.answer(1)
    await stage.stored(6)


async def message(stage: Stage) -> None:
    await stage.say("hi")
    await stage.shown("interrupt")
    await stage.say("no")
    await stage.stored(7)


async def button_after_a_death(stage: Stage) -> None:
    await stage.say("hi")
    await stage.shown("interrupt")
    await stage.kill()
    await stage.answer(1)
    await stage.stored(6)


async def to_the_end(stage: Stage) -> None:
    await stage.say("hi")
    await stage.stored(2)


async def all_shown(stage: Stage) -> None:
    await stage.say("hi")
    await stage.stored(6)


def handled(handler: Any, *, continues: bool = False) -> Agent:
    agent = agent_of(continues=continues)
    agent.on_turn(handler)
    return agent


@pytest.mark.parametrize(
    ("handler", "continues", "script"),
    [
        pytest.param(words, False, twice, id="streams"),
        pytest.param(asks, False, button, id="asks-button"),
        pytest.param(asks, False, message, id="asks-message"),
        pytest.param(asks, True, button_after_a_death, id="asks-takeover"),
        pytest.param(fails, False, to_the_end, id="fails"),
        pytest.param(shows, False, all_shown, id="shows"),
    ],
)
async def test_a_script_gives_the_same_log_on_both(
    served: Served, handler: Any, continues: bool, script: Script
) -> None:
    logs = []
    for opened in (in_memory, behind):
        async with opened(handled(handler, continues=continues), served) as stage:
            await script(stage)
            logs.append([essence(frame) for frame in await stage.stored(0)])
    assert logs[0] == logs[1]


@pytest.mark.parametrize(("continues", "frames"), [(True, 5), (False, 8)])
async def test_a_process_that_dies_in_the_middle_leaves_the_same_log_on_both(
    served: Served, continues: bool, frames: int
) -> None:
    logs = []
    for opened in (in_memory, behind):
        held = Held(continues=continues)
        async with opened(held.agent, served) as stage:
            await stage.say("count")
            await stage.shown("genui", 2)
            await stage.kill()
            held.go_on.set()
            logs.append([essence(frame) for frame in await stage.stored(frames)])
    assert logs[0] == logs[1]


async def test_what_is_called_off_leaves_the_same_log_on_both(served: Served) -> None:
    logs = []
    for opened in (in_memory, behind):
        async with opened(Held(continues=False).agent, served) as stage:
            await stage.say("count")
            await stage.shown("genui", 2)
            await stage.abort()
            logs.append([essence(frame) for frame in await stage.stored(4)])
    assert logs[0] == logs[1]


async def test_a_call_that_waits_for_a_person_and_is_cancelled_leaves_the_same_log_on_both(served: Served) -> None:
    logs = []
    for opened in (in_memory, behind):
        async with opened(handled(asks), served) as stage:
            await stage.invoke("pay")
            await stage.shown("interrupt")
            await stage.cancel()
            logs.append([essence(frame) for frame in await stage.stored(5)])
    assert logs[0] == logs[1]
    assert [kind for _, kind, *_ in logs[0]] == ["text", "tool_call", "tool_call", "interrupt", "interrupt_resolved"]


async def test_a_call_at_work_that_is_cancelled_leaves_the_same_log_on_both(served: Served) -> None:
    logs = []
    for opened in (in_memory, behind):
        async with opened(Held(continues=False).agent, served) as stage:
            await stage.invoke("count")
            await stage.shown("genui", 2)
            await stage.cancel()
            logs.append([essence(frame) for frame in await stage.stored(4)])
    assert logs[0] == logs[1]
