"""Questions, tools and calls of the SDK against a whole Turnlog."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.up import Up
from turnlog import (
    Agent,
    AgentProxy,
    Client,
    Conversation,
    Frames,
    InvocationConflict,
    Reply,
    State,
    Turn,
    Viewed,
)
from turnlog.backoff import Backoff

PATIENCE_S = 30


@pytest.fixture
def group() -> str:
    return f"g{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def serving(up: Up, group: str, gateway: int = 0, **handlers: Any) -> AsyncIterator[Agent]:
    agent = Agent(
        up.gateways[gateway],
        channel_secret=up.secret("agents"),
        group=group,
        backoff=Backoff(first=0.05, most=0.5),
        continues=True,
    )
    for name, handler in handlers.items():
        getattr(agent, name)(handler)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop(budget=0)


@asynccontextmanager
async def talking(up: Up) -> AsyncIterator[tuple[Conversation, Frames]]:
    async with Client(up.gateways[0], channel_secret=up.secret("web"), user="ana") as client:
        conversation = await client.open()
        yield conversation, conversation.frames()


async def until(frames: Frames, *types: str) -> Viewed:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(aiter_of(frames, types))


async def aiter_of(frames: Frames, types: tuple[str, ...]) -> AsyncIterator[Viewed]:
    async for viewed in frames:
        if viewed.type in types and viewed.frame.get("from") != "user":
            yield viewed


async def refund(turn: Turn, reply: Reply) -> str:
    async with reply.tool("get_order", {"id": 7}) as call:
        if not call.done:
            call.result = 249.9
    answer = await reply.ask("Refund 249.90?", actions=[("Approve", {"ok": True}), ("Reject", {"ok": False})])
    card = await reply.genui("receipt", {"total": call.result})
    await card.update({"total": call.result, "paid": True})
    return f"{answer} at epoch {turn.run_epoch}"


async def test_a_question_outlives_its_process_and_its_answer_reaches_the_new_one(up: Up, group: str) -> None:
    async with talking(up) as (conversation, frames), serving(up, group, on_turn=refund) as first:
        await conversation.send("refund order 7")
        ask = await until(frames, "interrupt")
        async with serving(up, group, gateway=1, on_turn=refund):
            await first.stop(budget=0)
            (open_ask,) = await conversation.asks()
            assert open_ask.id == ask.frame["id"]
            await conversation.answer({open_ask.id: "Reject"})
            resolved = await until(frames, "interrupt_resolved", "interrupt", "tool_call")
            assert (resolved.type, resolved.frame["id"]) == ("interrupt_resolved", ask.frame["id"])
            assert (await until(frames, "text")).frame["data"]["text"] == "{'ok': False} at epoch 2"


async def test_a_program_calls_an_agent_through_one_gateway_and_reads_the_record_from_the_other(
    up: Up, group: str
) -> None:
    async def count(turn: Turn) -> AsyncIterator[str]:
        assert turn.invocation is not None
        for word in turn.invocation.data["words"]:
            yield f"{word} "

    agent = f"agents/{group}"
    secret = up.secret("web")
    async with (
        serving(up, group, gateway=1, on_invoke=count),
        AgentProxy(up.gateways[0], agent, channel_secret=secret, user="ann") as here,
        AgentProxy(up.gateways[1], agent, channel_secret=secret, user="ann") as there,
    ):
        thread = uuid.uuid4().hex
        call = here.stream_invoke("count", data={"words": ["one", "two", "three"]}, thread=thread, id="1")
        async with asyncio.timeout(PATIENCE_S):
            said = [event async for event in call]
        assert "".join(event.text for event in said) == "one two three "
        record = await there.status(thread, "1", wait=5)
        assert (record.state, record.text, record.events) == (State.SUCCEEDED, "one two three ", len(said))
        assert [event async for event in there.events(thread, "1")] == said
        again = await there.submit("count", data={"words": ["one", "two", "three"]}, thread=thread, id="1")
        assert again.state is State.SUCCEEDED
        with pytest.raises(InvocationConflict):
            await there.submit("count", data={"words": []}, thread=thread, id="1")
