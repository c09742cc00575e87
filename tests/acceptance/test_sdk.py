"""The SDK against a whole Turnlog: what its own tests take on trust from a scripted gateway."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.command import turnlog_async
from tests.support.up import Up
from tests.support.waiting import until
from turnlog import Agent, Client, Conversation, Fenced, Messages, Reply, Turn, Unauthorized
from turnlog.backoff import Backoff

Answer = Callable[[Turn, Reply], Any]


@pytest.fixture
def group() -> str:
    return f"g{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def serving(
    up: Up, group: str, handler: Answer, gateway: int = 0, *, continues: bool = False, instance: str | None = None
) -> AsyncIterator[Agent]:
    agent = Agent(
        [*up.gateways[gateway:], *up.gateways[:gateway]],
        channel_secret=up.secret("agents"),
        group=group,
        backoff=Backoff(first=0.05, most=0.5),
        continues=continues,
        instance=instance,
    )
    agent.on_turn(handler)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop(budget=0)


@asynccontextmanager
async def talking(up: Up) -> AsyncIterator[tuple[Conversation, Messages]]:
    async with Client(up.gateways[0], channel_secret=up.secret("web"), user="ana") as client:
        conversation = await client.open()
        yield conversation, conversation.messages()


async def heard(messages: Messages, number: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(30):
        return [(message.role, message.text) for message in [await anext(messages) for _ in range(number)]]


def cut(agent: Agent) -> None:
    """The network goes away under the agent; it is told nothing."""
    socket = agent._link._socket
    assert socket is not None
    socket.transport.abort()


async def test_a_turn_is_answered_and_its_run_is_named(up: Up, group: str) -> None:
    turns: list[Turn] = []

    async def answer(turn: Turn, reply: Reply) -> None:
        turns.append(turn)
        ack = await reply.text(f"you said {turn.text}", actions=["Yes", "No"])
        assert ack.seq == 2

    async with serving(up, group, answer), talking(up) as (conversation, messages):
        sent = await conversation.send("hi", key="k", metadata={"a": 1})
        assert (await conversation.send("hi", key="k")).id == sent.id
        assert await heard(messages, 2) == [("user", "hi"), ("bot", "you said hi")]
        (turn,) = turns
        assert (turn.id, turn.seq, turn.metadata, turn.sender) == (sent.id, 1, {"a": 1}, "ana")
        assert (turn.run, turn.run_epoch, turn.channel) == (f"{conversation.id}/1/agents/{group}", 1, "web")
        stored = await conversation.activities()
        assert [activity.text for activity in stored] == ["hi", "you said hi"]


async def test_a_streamed_answer_arrives_whole(up: Up, group: str) -> None:
    async def answer(turn: Turn, reply: Reply) -> AsyncGenerator[str, None]:
        for word in ("one ", "two ", "three"):
            yield word

    async with serving(up, group, answer), talking(up) as (conversation, messages):
        await conversation.send("count")
        assert await heard(messages, 2) == [("user", "count"), ("bot", "one two three")]


async def test_a_turn_that_moved_is_answered_by_its_new_owner_and_the_old_one_is_fenced(up: Up, group: str) -> None:
    held = asyncio.Event()
    fenced: asyncio.Queue[BaseException] = asyncio.Queue()
    taken: asyncio.Queue[Turn] = asyncio.Queue()

    async def slow(turn: Turn, reply: Reply) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(Fenced) as caught:
                await reply.text("from the grave")
            fenced.put_nowait(caught.value)
            raise

    async def quick(turn: Turn, reply: Reply) -> str:
        taken.put_nowait(turn)
        return "from the living"

    async with talking(up) as (conversation, messages), serving(up, group, slow) as old:
        await conversation.send("hello?")
        await held.wait()
        async with serving(up, group, quick, gateway=1):
            cut(old)  # it comes back by itself, as another member, and says that it still has the turn
            turn = await asyncio.wait_for(taken.get(), 30)
            assert turn.run_epoch is not None
            assert turn.run_epoch > 1
            assert await heard(messages, 2) == [("user", "hello?"), ("bot", "from the living")]
            assert isinstance(await asyncio.wait_for(fenced.get(), 30), Fenced)


async def test_the_only_agent_goes_on_with_what_it_has_after_a_lost_connection(up: Up, group: str) -> None:
    release = asyncio.Event()
    calls: list[str] = []

    async def answer(turn: Turn, reply: Reply) -> str:
        calls.append(turn.text)
        await release.wait()
        return f"you said {turn.text}"

    async with serving(up, group, answer) as agent, talking(up) as (conversation, messages):
        await conversation.send("hello?")
        await until(lambda: calls)
        before = agent.member
        cut(agent)
        await until(lambda: agent.member != before)
        release.set()
        assert await heard(messages, 2) == [("user", "hello?"), ("bot", "you said hello?")]
        await conversation.send("again")
        assert await heard(messages, 2) == [("user", "again"), ("bot", "you said again")]
        assert calls == ["hello?", "again"]


async def test_what_a_declared_process_has_in_hand_is_held_for_it_though_another_is_there(up: Up, group: str) -> None:
    release = asyncio.Event()
    taken: list[str] = []

    def named(name: str) -> Answer:
        async def answer(turn: Turn, reply: Reply) -> str:
            taken.append(name)
            await release.wait()
            return f"by {name}"

        return answer

    async with serving(up, group, named("one"), instance="one") as one, talking(up) as (conversation, messages):
        await conversation.send("hello?")
        await until(lambda: taken)
        async with serving(up, group, named("two"), gateway=1):
            before = one.member
            cut(one)
            await until(lambda: one.member != before)
            release.set()
            assert await heard(messages, 2) == [("user", "hello?"), ("bot", "by one")]
            assert taken == ["one"]


async def test_a_draining_agent_finishes_its_answer_and_the_next_turn_goes_to_another(up: Up, group: str) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    async def slow(turn: Turn, reply: Reply) -> str:
        began.set()
        await release.wait()
        return "my last words"

    async def quick(turn: Turn, reply: Reply) -> str:
        return "and mine"

    async with talking(up) as (conversation, messages), serving(up, group, slow) as old:
        await conversation.send("one")
        await began.wait()
        stopping = asyncio.create_task(old.stop(budget=20))
        async with serving(up, group, quick, gateway=1):
            await drained(up, old.member or "")
            await conversation.send("two")
            assert await heard(messages, 3) == [("user", "one"), ("user", "two"), ("bot", "and mine")]
            release.set()
            assert await heard(messages, 1) == [("bot", "my last words")]
            await stopping


async def drained(up: Up, member: str) -> None:
    """Returns once every partition gives the member nothing new."""

    async def shown() -> bool:
        listed = await turnlog_async("member", "list", "-o", "json", environment=up.environment)
        rows = {row["member"]: row for row in listed.document}
        return member in rows and 0 < rows[member]["draining"] == rows[member]["partitions"]

    await until(shown)


async def test_while_nobody_else_is_there_a_draining_agent_answers_what_comes(up: Up, group: str) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    async def slow(turn: Turn, reply: Reply) -> str:
        began.set()
        await release.wait()
        return f"answer to {turn.text}"

    async with talking(up) as (conversation, messages), serving(up, group, slow) as old:
        await conversation.send("one")
        await began.wait()
        stopping = asyncio.create_task(old.stop(budget=20))
        await drained(up, old.member or "")
        await conversation.send("two")
        release.set()
        said = [("user", "one"), ("user", "two"), ("bot", "answer to one"), ("bot", "answer to two")]
        assert await heard(messages, 4) == said
        await stopping


async def test_an_operator_drains_a_member_and_the_next_turn_goes_to_another(up: Up, group: str) -> None:
    async def answer(turn: Turn, reply: Reply) -> str:
        return "old"

    async def quick(turn: Turn, reply: Reply) -> str:
        return "new"

    async with talking(up) as (conversation, messages), serving(up, group, answer) as old:
        await conversation.send("one")
        assert await heard(messages, 2) == [("user", "one"), ("bot", "old")]
        member = old.member or ""
        async with serving(up, group, quick, gateway=1):
            command = ("member", "drain", member, "--reason", "test", "-o", "json")
            dry = await turnlog_async(*command, "--dry-run", environment=up.environment)
            assert (dry.code, dry.document["draining"], dry.document["others"]) == (0, 0, 1)
            told = await turnlog_async(*command, "--yes", environment=up.environment)
            # It has no runs: its gateway may have sent it away before the command looks.
            assert told.code == 0
            assert told.document["left"] or told.document["draining"] == told.document["partitions"]
            await conversation.send("two")
            assert await heard(messages, 2) == [("user", "two"), ("bot", "new")]
        unknown = await turnlog_async("member", "drain", "gw-0.1", "--yes", environment=up.environment)
        assert unknown.code == 1


@pytest.mark.parametrize("continues", [False, True])
async def test_a_stream_cut_by_a_lost_connection_is_one_stream(up: Up, group: str, continues: bool) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            await stream.write("first half, ")
            await stream.flush()
            begun.set()
            await release.wait()
            await stream.write("second half")

    async with serving(up, group, answer, continues=continues) as agent, talking(up) as (conversation, messages):
        await conversation.send("tell me")
        await begun.wait()
        before = agent.member
        cut(agent)
        await until(lambda: agent.member != before)
        release.set()
        assert await heard(messages, 2) == [("user", "tell me"), ("bot", "first half, second half")]
        stored = [activity.raw["channelData"]["frame"] for activity in (await conversation.activities())[1:]]
        assert len({frame["streamId"] for frame in stored}) == 1
        said = "".join(frame["chunk"].get("content", "") for frame in stored)
        assert said == "first half, second half"
        assert not any("superseded" in frame for frame in stored)
        await conversation.send("more")
        assert await heard(messages, 2) == [("user", "more"), ("bot", "first half, second half")]


async def test_a_wrong_secret_is_refused_at_once(up: Up, group: str) -> None:
    agent = Agent(up.gateways[0], channel_secret="wrong", group=group)

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        return None

    with pytest.raises(Unauthorized):
        await agent.start()
