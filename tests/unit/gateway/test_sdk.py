"""The SDK against a gateway whose partitions decide in memory: what its own tests take on trust from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.gateway_world import Peer, Served
from tests.support.waiting import until
from turnlog import Agent, Client, Conflict, Conversation, Frames, NotInterrupted, Reply, Turn
from turnlog.backoff import Backoff
from turnlog.seen import Catalog

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


@asynccontextmanager
async def chatting(served: Served) -> AsyncIterator[tuple[Conversation, Frames]]:
    async with Client(served.url, channel_secret="web-secret", user="ann") as client:
        conversation = await client.open()
        yield conversation, conversation.frames()


async def seen(frames: Frames, *types: str) -> dict[str, Any]:
    """The next frame of an agent of one of these types, as the client's stream has it."""
    while True:
        viewed = await anext(frames)
        if viewed.type in types and viewed.frame.get("from") != "user":
            return viewed.frame


async def test_a_button_answers_and_only_while_the_question_is_open(served: Served) -> None:
    async with serving(served, on_turn=refund), chatting(served) as (conversation, frames):
        await conversation.send("refund order 7")
        await seen(frames, "interrupt")
        (ask,) = await conversation.asks()
        assert (ask.payload, [action["label"] for action in ask.actions]) == (
            {"title": "Refund 249.90?"},
            ["Approve", "Reject"],
        )
        with pytest.raises(NotInterrupted):
            await conversation.answer({"another": 1})
        await conversation.answer({ask.id: {"ok": True}}, key="once")
        assert (await seen(frames, "interrupt_resolved"))["data"] == {"answer": {"ok": True}}
        assert (await seen(frames, "text"))["data"]["text"] == "{'ok': True} at epoch 1"
        await conversation.answer({ask.id: {"ok": True}}, key="once")  # a repeat is acknowledged like the first one
        with pytest.raises(NotInterrupted):
            await conversation.answer({ask.id: {"ok": True}})
        assert await conversation.asks() == ()


async def test_an_answer_that_reached_a_process_that_died_reaches_the_next_one(served: Served) -> None:
    heard: list[Any] = []

    async def first(turn: Turn, reply: Reply) -> None:
        heard.append(await reply.ask("Sure?"))
        await asyncio.Event().wait()

    async def second(turn: Turn, reply: Reply) -> str:
        return f"got {await reply.ask('Sure?')} at epoch {turn.run_epoch}"

    async with chatting(served) as (conversation, frames), serving(served, on_turn=first) as lost:
        await conversation.send("go")
        await seen(frames, "interrupt")
        (ask,) = await conversation.asks()
        await conversation.answer({ask.id: ["yes"]})
        await until(lambda: heard)
        async with serving(served, on_turn=second):
            await lost.stop(budget=0)
            assert (await seen(frames, "text", "interrupt"))["data"] == {"text": "got ['yes'] at epoch 2"}


async def test_an_abort_cancels_the_handler(served: Served) -> None:
    begun = asyncio.Event()
    cancelled: asyncio.Queue[tuple[str | None, bool]] = asyncio.Queue()

    async def slow(turn: Turn) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.put_nowait((turn.text, turn.cancelled.is_set()))
            raise

    async with serving(served, on_turn=slow), chatting(served) as (conversation, _frames):
        await conversation.send("go")
        await begun.wait()
        await conversation.abort()
        assert await asyncio.wait_for(cancelled.get(), 10) == ("go", True)


async def test_an_edited_message_is_answered_anew(served: Served) -> None:
    async def echo(turn: Turn) -> str:
        return f"you said {turn.text}"

    async with serving(served, on_turn=echo), chatting(served) as (conversation, frames):
        sent = await conversation.send("helo")
        assert (await seen(frames, "text"))["data"]["text"] == "you said helo"
        await conversation.edit(sent.id, "hello")
        assert (await seen(frames, "text"))["data"]["text"] == "you said hello"
        await conversation.regenerate(sent.id)
        assert (await seen(frames, "text"))["data"]["text"] == "you said hello"
        await conversation.send("next")
        await seen(frames, "text")
        with pytest.raises(Conflict):
            await conversation.edit(sent.id, "too late")


async def test_of_several_runs_of_a_conversation_only_the_one_that_ended_is_stopped(served: Served) -> None:
    given: list[str] = []
    go_on = asyncio.Event()

    async def answer(turn: Turn) -> str:
        given.append(turn.text)
        await go_on.wait()
        return f"about {turn.text}"

    async with serving(served, on_turn=answer), Client(served.url, channel_secret="web-secret", user="ann") as client:
        conversation = await client.open()
        await conversation.send("one")
        second = await conversation.send("two")
        await until(lambda: given == ["one"])
        await conversation.edit(second.id, "two, rather")
        go_on.set()
        messages = conversation.messages()
        shown = [await anext(messages) for _ in range(4)]
        assert [each.text for each in shown] == ["one", "two, rather", "about one", "about two, rather"]
        assert given == ["one", "two, rather"], "the turn that was edited is not answered as it was"


async def test_what_an_agent_offers_is_told_to_who_is_there_and_who_comes(served: Served) -> None:
    cards, skills = [{"name": "card", "template": "<b></b>"}], [{"name": "fold", "description": "folds"}]

    async def answer(turn: Turn, reply: Reply) -> str:
        await reply.offer_components(cards)
        await reply.offer_skills(skills)
        return "done"

    async with serving(served, on_turn=answer), Client(served.url, channel_secret="web-secret", user="ann") as client:
        conversation = await client.open()

        async def offered() -> list[Any]:
            found: list[Any] = []
            async with asyncio.timeout(10):
                async for viewed in (frames := conversation.frames()):
                    found += [viewed.seen] if isinstance(viewed.seen, Catalog) else []
                    if len(found) == 2:
                        await frames.aclose()
                        return found
            return found

        there = asyncio.create_task(offered())
        await until(lambda: len(served.gateway.streams) == 1)
        await conversation.send("hi")
        told = await there
        assert [(each.kind, list(each.entries)) for each in told] == [("genui_components", cards), ("skills", skills)]
        assert await offered() == told


async def test_a_message_that_is_edited_comes_again_to_who_was_shown_it_live_or_after_a_loss(served: Served) -> None:
    async def answer(turn: Turn) -> str:
        return f"about {turn.text}"

    async with serving(served, on_turn=answer), Client(served.url, channel_secret="web-secret", user="ann") as client:
        conversation = await client.open()
        messages = conversation.messages()
        sent = await conversation.send("one")
        assert [(await anext(messages)).text for _ in range(2)] == ["one", "about one"]
        await conversation.edit(sent.id, "two")
        live = await anext(messages)
        assert (live.id, live.seq, live.text, live.edited) == (sent.id, 1, "two", True)
        assert (await anext(messages)).text == "about two"
        for stream in list(served.gateway.streams):
            stream.end()  # it comes back, and is told of the edit that it knows
        await conversation.send("three")
        assert [(await anext(messages)).text for _ in range(2)] == ["three", "about three"]
        last = await conversation.send("four")
        assert [(await anext(messages)).text for _ in range(2)] == ["four", "about four"]
        for stream in list(served.gateway.streams):
            stream.end()
        await conversation.edit(last.id, "five")
        told = [(await anext(messages)) for _ in range(2)]
        assert {(each.text, each.edited) for each in told} == {("five", True), ("about five", False)}
        stored = await conversation.activities()
        assert [each.text for each in stored if each.edited_at is not None] == ["two", "five"]


async def test_what_else_a_client_says_reaches_the_agents_handler_of_frames(served: Served) -> None:
    heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def frame(conversation: str, frame: dict[str, Any]) -> None:
        heard.put_nowait(frame)

    async def answer(turn: Turn) -> str:
        return "here"

    async with serving(served, on_turn=answer, on_frame=frame), chatting(served) as (conversation, frames):
        await conversation.send("hi")
        await seen(frames, "text")
        await conversation.frame({"type": "client_tools", "tools": [{"name": "pick_date"}]})
        assert (await asyncio.wait_for(heard.get(), 10))["tools"] == [{"name": "pick_date"}]
        await conversation.offer_tools([{"name": "scan"}])
        assert (await asyncio.wait_for(heard.get(), 10))["tools"] == [{"name": "scan"}]
        await conversation.offer_skills([{"name": "fold", "description": "folds", "instructions": "fold"}])
        assert (await asyncio.wait_for(heard.get(), 10))["skills"][0]["name"] == "fold"
        await conversation.happened("s", "picked", {"day": 1}, component="calendar")
        event = await asyncio.wait_for(heard.get(), 10)
        assert (event["streamId"], event["eventType"], event["payload"], event["component"]) == (
            "s", "picked", {"day": 1}, "calendar",
        )  # fmt: skip
        await conversation.survey(rating=5, comment="good")
        assert (await asyncio.wait_for(heard.get(), 10))["rating"] == 5
