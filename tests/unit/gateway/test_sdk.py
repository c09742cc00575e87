"""The SDK against a gateway whose partitions decide in memory: what its own tests take on trust from a script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.gateway_world import Peer, Served
from tests.support.waiting import until
from turnlog import Agent, Reply, Turn
from turnlog.backoff import Backoff

pytestmark = pytest.mark.unit


@asynccontextmanager
async def serving(served: Served, **handlers: Any) -> AsyncIterator[Agent]:
    agent = Agent(
        served.url,
        channel_secret="agents-secret",
        group="bots",
        backoff=Backoff(first=0.01, most=0.1),
        flush_every=0.0,
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
async def talking(served: Served) -> AsyncIterator[tuple[Peer, str, str]]:
    conversation, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        yield person, conversation, token


async def said(person: Peer, *types: str) -> dict[str, Any]:
    """The next frame of an agent of one of these types."""
    while True:
        frame = await person.frame()
        if frame["type"] in types and frame.get("from") != "user":
            return frame


async def refund(turn: Turn, reply: Reply) -> str:
    async with reply.tool("get_order", {"id": 7}) as call:
        if not call.done:
            call.result = 249.9
    answer = await reply.ask("Refund 249.90?", actions=[("Approve", {"ok": True}), ("Reject", {"ok": False})])
    card = await reply.genui("receipt", {"total": call.result})
    await card.update({"total": call.result, "paid": True})
    return f"{answer} at epoch {turn.run_epoch}"


async def test_a_question_is_asked_and_the_next_message_is_its_answer(served: Served) -> None:
    async with serving(served, on_turn=refund), talking(served) as (person, conversation, token):
        await served.say(conversation, token, "refund order 7")
        assert (await said(person, "tool_call"))["data"]["status"] == "running"
        assert (await said(person, "tool_call"))["data"]["result"] == 249.9
        ask = await said(person, "interrupt")
        assert ask["data"]["payload"] == {"title": "Refund 249.90?"}
        await served.say(conversation, token, "approve")
        resolved = await said(person, "interrupt_resolved")
        assert (resolved["id"], resolved["data"]) == (ask["id"], {"answer": {"ok": True}})
        assert (await said(person, "genui"))["chunk"]["props"] == {"total": 249.9}
        assert (await said(person, "genui"))["chunk"]["props"] == {"total": 249.9, "paid": True}
        assert (await said(person, "text"))["data"]["text"] == "{'ok': True} at epoch 1"


async def test_a_question_outlives_its_process_and_its_answer_reaches_the_new_one(served: Served) -> None:
    async with talking(served) as (person, conversation, token), serving(served, on_turn=refund) as first:
        await served.say(conversation, token, "refund order 7")
        ask = await said(person, "interrupt")
        async with serving(served, on_turn=refund):
            await first.stop(budget=0)
            await served.say(conversation, token, "Reject")
            resolved = await said(person, "interrupt_resolved", "interrupt", "tool_call")
            assert (resolved["type"], resolved["id"]) == ("interrupt_resolved", ask["id"])
            assert (await said(person, "text"))["data"]["text"] == "{'ok': False} at epoch 2"


async def test_a_question_outlives_a_lost_connection(served: Served) -> None:
    async with talking(served) as (person, conversation, token), serving(served, on_turn=refund) as agent:
        await served.say(conversation, token, "refund order 7")
        await said(person, "interrupt")
        before = agent.member
        socket = agent._link._socket
        assert socket is not None
        socket.transport.abort()
        await until(lambda: agent.member != before)
        await served.say(conversation, token, "Approve")
        assert (await said(person, "text"))["data"]["text"].startswith("{'ok': True}")


async def test_a_handler_asks_what_was_said_before(served: Served) -> None:
    async def answer(turn: Turn, reply: Reply) -> None:
        before = [f"{each.role}: {each.text}" for each in await reply.history()]
        async with reply.stream() as stream:
            await stream.write(f"before: {before}")

    async with serving(served, on_turn=answer), talking(served) as (person, conversation, token):
        await served.say(conversation, token, "one")
        assert (await said(person, "genui"))["chunk"]["content"] == "before: []"
        assert (await said(person, "genui"))["done"]
        await served.say(conversation, token, "two")
        said_before = ["user: one", "bot: before: []"]
        assert (await said(person, "genui"))["chunk"]["content"] == f"before: {said_before}"


async def test_a_plain_function_runs_in_a_thread(served: Served) -> None:
    def shout(turn: Turn) -> str:
        return turn.text.upper()

    async with serving(served, on_turn=shout), talking(served) as (person, conversation, token):
        await served.say(conversation, token, "hello")
        assert (await said(person, "text"))["data"]["text"] == "HELLO"
