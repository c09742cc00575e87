"""Agents tested without a server: what the harness shows is what a real gateway would."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from tests.support.waiting import until
from turnlog import Agent, AskTimeout, Reply, Turn
from turnlog.testing import AgentHarness

pytestmark = pytest.mark.unit


def agent_of(**options: bool) -> Agent:
    return Agent("http://unused", token="t", **options)  # type: ignore[arg-type]


def echo() -> Agent:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        return f"you said {turn.text}"

    return agent


def counting(hold: asyncio.Event, *, continues: bool) -> Agent:
    """Says `one two three`, and waits before `three` until `hold` is set; goes on where another process stopped."""
    agent = agent_of(continues=continues)

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        said = turn.resume.text if turn.resume is not None else ""
        async with reply.stream() as stream:
            for word in ("one ", "two ", "three")[len(said.split()) :]:
                if word == "three":
                    await hold.wait()
                await stream.write(word)
                await stream.flush()

    return agent


async def test_a_person_talks_and_sees_the_answer() -> None:
    async with AgentHarness(echo()) as person:
        answer = await person.say("hi")
        assert (answer.text, answer.status) == ("you said hi", "finished")
        assert (await person.say("again")).text == "you said again"
        assert person.transcript == [
            ("user", "hi"),
            ("bot", "you said hi"),
            ("user", "again"),
            ("bot", "you said again"),
        ]


async def test_persons_have_conversations_of_their_own() -> None:
    harness = AgentHarness(echo())
    async with harness as ana:
        ben = harness.person("ben")
        both = await asyncio.gather(ana.say("a"), ben.say("b"))
        assert [answer.text for answer in both] == ["you said a", "you said b"]
        assert ana.conversation != ben.conversation


async def test_a_stream_is_seen_as_it_grows() -> None:
    hold = asyncio.Event()
    async with AgentHarness(counting(hold, continues=False)) as person:
        pieces = person.stream("count")
        assert [await anext(pieces), await anext(pieces)] == ["one ", "two "]
        hold.set()
        assert [piece async for piece in pieces] == ["three"]


async def test_a_question_comes_back_and_its_answer_goes_on() -> None:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        colour = await reply.ask("Which colour?", actions=["Red", ("Blue", {"rgb": 255})])
        return f"{colour} and {await reply.ask('Which size?')}"

    async with AgentHarness(agent) as person:
        asked = await person.say("a shirt")
        assert (asked.status, asked.question) == ("asking", "Which colour?")
        assert [action["label"] for action in asked.asks[0].actions] == ["Red", "Blue"]
        again = await person.say("blue")
        assert again.question == "Which size?"
        done = await person.answer("XL", ask=again.asks[0])
        assert (done.text, done.status) == ("{'rgb': 255} and XL", "finished")
        with pytest.raises(AssertionError, match="not_interrupted"):
            await person.answer("late")
        with pytest.raises(AssertionError, match="the agent asked nothing; it said"):
            _ = done.question


async def test_of_several_questions_of_a_run_all_have_to_be_answered_together() -> None:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        return str(await asyncio.gather(reply.ask("a?", id="a"), reply.ask("b?", id="b")))

    async with AgentHarness(agent) as person:
        asked = await person.say("hi")
        if len(asked.asks) < 2:
            asked = await person.wait_for(lambda now: len(now.asks) == 2)
        one, two = (ask.id for ask in asked.asks)
        with pytest.raises(AssertionError, match="incomplete_resume"):
            await person.answer_all({one: 1})
        assert (await person.answer_all({one: 1, two: 2})).text == "[1, 2]"


async def test_a_process_that_dies_is_continued_by_an_agent_that_can() -> None:
    hold = asyncio.Event()
    harness = AgentHarness(counting(hold, continues=True))
    async with harness as person:
        pieces = person.stream("count")
        assert [await anext(pieces), await anext(pieces)] == ["one ", "two "]
        await harness.kill()
        hold.set()
        assert [piece async for piece in pieces] == ["three"]
        assert not any(frame.get("superseded") for frame in person.frames)


async def test_of_an_agent_that_cannot_the_turn_begins_anew_and_the_partial_answer_is_marked() -> None:
    hold = asyncio.Event()
    harness = AgentHarness(counting(hold, continues=False), copies=2)
    async with harness as person:
        pieces = person.stream("count")
        assert [await anext(pieces), await anext(pieces)] == ["one ", "two "]
        await harness.kill()
        hold.set()
        assert [piece async for piece in pieces] == ["one ", "two ", "three"]
        assert person.transcript == [("user", "count"), ("bot", "one two three")]
        marked = [frame["chunk"] for frame in person.frames if frame.get("superseded")]
        assert [chunk.get("content") for chunk in marked] == ["one ", "two ", None]  # and its end


async def test_a_question_outlives_the_process_that_asked_it() -> None:
    agent = agent_of(continues=True)

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        return f"{await reply.ask('Sure?')} at epoch {turn.run_epoch}"

    harness = AgentHarness(agent)
    async with harness as person:
        await person.say("refund")
        await harness.kill()
        assert (await person.say("yes")).text == "yes at epoch 2"
        assert [frame["type"] for frame in person.frames].count("interrupt") == 1


async def test_an_answer_that_was_given_to_the_process_that_died_is_not_lost() -> None:
    agent = agent_of(continues=True)
    hold = asyncio.Event()
    taken = asyncio.Event()
    heard: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        heard.append(await reply.ask("Sure?"))
        taken.set()
        await hold.wait()
        return "done"

    harness = AgentHarness(agent)
    async with harness as person:
        await person.say("refund")
        waiting = asyncio.create_task(person.answer("yes"))
        await taken.wait()
        await harness.kill()
        hold.set()
        assert (await waiting).text == "done"
        assert heard == ["yes", "yes"]


async def test_a_lost_connection_loses_nothing() -> None:
    hold = asyncio.Event()
    harness = AgentHarness(counting(hold, continues=False))
    async with harness as person:
        pieces = person.stream("count")
        assert await anext(pieces) == "one "
        await harness.cut()
        hold.set()
        assert "one " + "".join([piece async for piece in pieces]) == "one two three"


async def test_a_draining_process_ends_what_it_has_and_the_next_turn_goes_to_another() -> None:
    hold = asyncio.Event()
    harness = AgentHarness(counting(hold, continues=False))
    async with harness as person:
        pieces = person.stream("count")
        assert await anext(pieces) == "one "
        draining = asyncio.create_task(harness.drain())
        hold.set()
        assert "".join([piece async for piece in pieces]) == "two three"
        await draining
        assert (await person.say("again")).text == "one two three"


async def test_an_abort_cancels_the_handler() -> None:
    agent = agent_of()
    began, cancelled = asyncio.Event(), asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with AgentHarness(agent) as person:
        person.send("hi")
        await began.wait()
        assert (await person.abort()).status == "aborted"
        await cancelled.wait()


async def test_a_handler_that_fails_shows_so_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        raise LookupError("secret")

    async with AgentHarness(agent) as person:
        failed = await person.say("hi")
        assert failed.status == "error"
        assert failed.error is not None
        assert failed.error["code"] == "agent_error"
        assert "secret" not in str(person.frames)


async def test_time_passes_as_the_test_says() -> None:
    agent = agent_of()
    woken: list[float] = []

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            await asyncio.sleep(1_000)
            woken.append(round(loop.time() - began, -1))
        try:
            return str(await reply.ask("Still there?", timeout=86_400))
        except AskTimeout:
            return "good night"

    harness = AgentHarness(agent)
    async with harness as person:
        person.send("hi")
        await harness.advance(3_500)
        assert woken == [1_000, 2_000, 3_000]
        assert (await person.wait()).question == "Still there?"
        await harness.advance(86_400)
        assert (await person.wait()).text == "good night"
    assert asyncio.get_running_loop().time() < woken[-1] + 10**7
    assert "time" not in vars(asyncio.get_running_loop())


async def test_an_agent_that_says_nothing_fails_the_test_and_not_the_machine() -> None:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        await asyncio.Event().wait()

    async with AgentHarness(agent, patience=0) as person:
        with pytest.raises(AssertionError, match="said no more for 0 s: conversation-1/1/agents open"):
            await person.say("hi")


async def test_tools_and_checkpoints_are_seen_by_who_goes_on() -> None:
    agent = agent_of(continues=True)
    hold = asyncio.Event()
    looked_up: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        async with reply.tool("get_order", {"id": 7}) as call:
            if not call.done:
                looked_up.append(turn.text)
                call.result = 9
        if turn.resume is None:
            await reply.checkpoint({"total": call.result})
            hold.set()
            await asyncio.Event().wait()
        assert turn.resume is not None
        return f"{call.result} {turn.resume.checkpoint}"

    harness = AgentHarness(agent)
    async with harness as person:
        person.send("order 7")
        await hold.wait()
        await harness.kill()
        done = await person.wait()
        assert done.text == "9 {'total': 9}"
        assert looked_up == ["order 7"]
        (tool,) = done.tools
        assert (tool["name"], tool["status"], tool["result"]) == ("get_order", "completed", 9)


async def test_an_invocation_gets_its_input_and_gives_its_value() -> None:
    agent = echo()

    @agent.on_invoke
    async def add(turn: Turn) -> dict[str, int]:
        assert turn.invocation is not None
        assert turn.invocation.deadline == 300
        return {"sum": turn.invocation.data["a"] + turn.invocation.data["b"]}

    async with AgentHarness(agent) as person:
        assert (await person.invoke(data={"a": 1, "b": 2})).value == {"sum": 3}
        assert (await person.say("hi")).text == "you said hi"


async def test_an_invocation_that_waits_for_a_person_ends_at_once_when_it_is_cancelled() -> None:
    agent = agent_of()
    ended: list[str] = []

    @agent.on_invoke
    async def answer(turn: Turn, reply: Reply) -> Any:
        try:
            return await reply.ask("Sure?")
        finally:
            ended.append(turn.text)

    async with AgentHarness(agent) as person:
        asked = await person.invoke("pay")
        assert asked.status == "asking"
        cancelled = await person.cancel()
        assert (cancelled.status, cancelled.asks) == ("aborted", ())
        await until(lambda: ended == ["pay"])
        later = person.send("yes")  # is a turn of its own
        assert later.turn["data"] == {"text": "yes"}


async def test_an_invocation_at_work_ends_when_its_handler_has_and_may_ask_nobody_any_more() -> None:
    agent = agent_of()
    hold = asyncio.Event()

    @agent.on_invoke
    async def answer(turn: Turn, reply: Reply) -> Any:
        await reply.text("working")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await hold.wait()
        return "too late"

    async with AgentHarness(agent) as person:
        called = asyncio.create_task(person.invoke("work"))
        await until(lambda: len(person.frames) == 2)
        cancelling = asyncio.create_task(person.cancel("no more"))
        await asyncio.sleep(0)
        assert not cancelling.done(), "its handler has not ended"
        hold.set()
        assert (await cancelling).status == "aborted"
        assert (await called).text == "working"

    thread_agent = agent_of()

    @thread_agent.on_invoke
    def plain(turn: Turn) -> str:
        turn.cancelled.wait(10)
        return "and yet"

    async with AgentHarness(thread_agent) as person:
        called = asyncio.create_task(person.invoke("work"))
        await until(lambda: person._last().started if person.frames else False)
        assert (await person.cancel()).status == "aborted"
        assert (await called).status == "aborted"


async def test_a_question_of_what_is_to_stop_is_fenced_and_ends_it() -> None:
    """By a process that does not heed its cancellation: the SDK's own does, so the frames are told apart here."""
    agent = agent_of()
    hold = asyncio.Event()

    @agent.on_invoke
    async def answer(turn: Turn, reply: Reply) -> None:
        await hold.wait()

    async with AgentHarness(agent) as person:
        called = asyncio.create_task(person.invoke("work"))
        await until(lambda: person._last().started if person.frames else False)
        run = person._last()
        run.cancelling = True
        assert run.member is not None
        question = {"type": "interrupt", "id": "i", "data": {"payload": {}}, "run": run.id, "runEpoch": run.epoch}
        await run.member.send({"conversationId": person.conversation, "frame": question})
        assert (await called).status == "aborted"
        assert [frame["type"] for frame in person.frames] == ["text"]


async def test_an_invocation_whose_process_dies_is_executed_by_no_other() -> None:
    agent = agent_of(continues=True)
    hold = asyncio.Event()

    @agent.on_invoke
    async def answer(turn: Turn) -> str:
        await hold.wait()
        return "done"

    harness = AgentHarness(agent, copies=2)
    async with harness as person:
        called = asyncio.create_task(person.invoke("work"))
        await until(lambda: person._last().started if person.frames else False)
        await harness.kill()
        assert (await called).status == "owner gone"


async def test_one_handler_alone_gets_turns_and_invocations() -> None:
    async with AgentHarness(echo()) as person:
        assert (await person.invoke("x")).value == "you said x"
    agent = agent_of()
    agent.on_invoke(lambda turn: {"of": turn.text})
    async with AgentHarness(agent) as person:
        assert (await person.say("x")).value == {"of": "x"}


async def test_an_invocation_ends_at_its_deadline() -> None:
    agent = agent_of()

    @agent.on_invoke
    async def slow(turn: Turn) -> None:
        await asyncio.sleep(100)

    harness = AgentHarness(agent)
    async with harness as person:
        calling = asyncio.create_task(person.invoke("x", deadline=10))
        await asyncio.sleep(0)
        await harness.advance(10)
        assert (await calling).status == "timed out"


async def test_a_plain_function_runs_in_a_thread_and_so_does_a_generator() -> None:
    agent = agent_of()
    threads: list[str] = []

    @agent.on_turn
    def answer(turn: Turn) -> Iterator[str]:
        threads.append(threading.current_thread().name)
        yield "one "
        yield "two"

    @agent.on_invoke
    def call(turn: Turn) -> str:
        threads.append(threading.current_thread().name)
        return turn.text.upper()

    async with AgentHarness(agent) as person:
        assert (await person.say("hi")).text == "one two"
        assert (await person.invoke("hi")).value == "HI"
    assert all(name.startswith("turnlog") for name in threads)


async def test_the_end_of_a_cancelled_thread_is_waited_for() -> None:
    agent = agent_of()
    running, may_end = threading.Event(), threading.Event()
    ended: list[str] = []

    @agent.on_invoke
    def call(turn: Turn) -> str:
        if turn.text == "next":
            return f"after {ended}"
        running.set()
        turn.cancelled.wait(5)
        may_end.wait(5)
        ended.append(turn.text)
        return "too late"

    async with AgentHarness(agent) as person:
        person.send("first")
        await asyncio.to_thread(running.wait, 5)
        assert (await person.abort()).status == "aborted"
        waiting = asyncio.create_task(person.invoke("next"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not ended  # the next turn of the conversation waits for the thread's real end
        assert not waiting.done()
        may_end.set()
        assert (await waiting).value == "after ['first']"
        assert "too late" not in str(person.frames)


async def test_a_function_that_gives_what_json_cannot_hold_fails_its_run(caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_of()
    agent.on_invoke(lambda turn: {1, 2})
    async with AgentHarness(agent) as person:
        assert (await person.invoke("x")).status == "error"
    assert "the handler returned what JSON cannot hold" in caplog.text


async def test_an_async_generator_of_a_wrapped_function_is_streamed_too() -> None:
    async def pieces(turn: Turn) -> AsyncGenerator[str, None]:
        yield "one "
        yield turn.text

    agent = agent_of()
    agent.on_turn(functools.partial(pieces))
    async with AgentHarness(agent) as person:
        assert (await person.say("two")).text == "one two"


async def test_a_handler_asks_what_was_said_before() -> None:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        before = [f"{message.role}: {message.text}" for message in await reply.history()]
        async with reply.stream() as stream:
            await stream.write(f"{len(before)} before, ")
            await stream.write(f"last {before[-1:]}")

    async with AgentHarness(agent) as person:
        assert (await person.say("one")).text == "0 before, last []"
        assert (await person.say("two")).text == "2 before, last ['bot: 0 before, last []']"


async def test_a_stream_into_which_nothing_is_written_shows_nothing() -> None:
    agent = agent_of()

    @agent.on_turn
    async def answer(turn: Turn) -> AsyncGenerator[str, None]:
        for piece in list[str]():
            yield piece

    async with AgentHarness(agent) as person:
        assert (await person.say("hi")).frames == ()


async def test_two_harnesses_do_not_turn_one_clock() -> None:
    async with AgentHarness(echo()):
        with pytest.raises(RuntimeError, match="one harness at a time"):
            await AgentHarness(echo()).__aenter__()


def test_an_agent_without_a_handler_is_refused() -> None:
    with pytest.raises(ValueError, match="register a handler"):
        AgentHarness(agent_of())
