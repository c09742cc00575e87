"""The agent over a real socket, against a gateway that follows the test's script."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.scripted_gateway import Peer, ScriptedGateway, scripted_gateway
from turnlog import Agent, Fenced, Reply, Turn, Unauthorized
from turnlog.backoff import Backoff

pytestmark = pytest.mark.unit


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway() as scripted:
        yield scripted


def agent_of(gateway: ScriptedGateway, **options: Any) -> Agent:
    options.setdefault("token", "t-1")
    options.setdefault("flush_every", 0.0)
    return Agent(gateway.url, backoff=Backoff(first=0.01, most=0.05), **options)


@asynccontextmanager
async def serving(agent: Agent, gateway: ScriptedGateway, **welcome: Any) -> AsyncIterator[Peer]:
    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed(**welcome)
    await starting
    try:
        yield peer
    finally:
        await agent.stop(budget=0)


async def taken(peer: Peer) -> None:
    """Returns once the agent has read all that was sent to it before: it shows by beginning a turn elsewhere."""
    await peer.turn("elsewhere", "mark", seq=1)
    assert (await peer.receive())["conversationId"] == "elsewhere"


def echo(agent: Agent) -> None:
    @agent.on_turn
    async def answer(turn: Turn) -> str:
        return f"you said {turn.text}"


async def test_hello_names_the_protocol_and_the_group_and_carries_no_token(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, group="support")
    echo(agent)
    async with serving(agent, gateway) as peer:
        said = {"type": "hello", "protocol": "converger/1", "group": "support", "capabilities": ["adopt"]}
        assert peer.hello == said
        assert peer.token == "Bearer t-1"
        assert peer.socket.subprotocol is None or peer.socket.subprotocol == "converger.v1"


async def test_a_process_that_declares_itself_comes_back_with_the_welcomes_secret(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, instance="worker-7")
    echo(agent)
    async with serving(agent, gateway, instanceSecret="s-1") as peer:
        assert (peer.hello["instanceId"], "instanceSecret" in peer.hello) == ("worker-7", False)
        await peer.close(1011)
        again = await gateway.welcomed(instanceSecret="s-2")
        assert (again.hello["instanceId"], again.hello["instanceSecret"]) == ("worker-7", "s-1")
        await again.close(1011)
        assert (await gateway.welcomed()).hello["instanceSecret"] == "s-2"
    with pytest.raises(ValueError, match="instance"):
        agent_of(gateway, instance="with space")


async def test_a_returned_string_is_one_message_between_started_and_finished(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        run = {"run": "c1/1/agents", "runEpoch": 1}
        assert await peer.inner("c1") == {"type": "run", "data": {"status": "started"}, **run}
        message = await peer.inner("c1")
        assert message == {"type": "text", "clientId": "turn-1.m1", "data": {"text": "you said hi"}, **run}
        await peer.ack("c1", message, seq=2)
        assert await peer.inner("c1") == {"type": "run", "data": {"status": "finished"}, **run}


async def test_a_handler_sees_the_whole_turn(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    seen: asyncio.Queue[Turn] = asyncio.Queue()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        seen.put_nowait(turn)

    async with serving(agent, gateway) as peer:
        more: dict[str, Any] = {
            "sender": {"id": "ana", "role": "user"},
            "metadata": {"k": 1},
            "meta": {"channel": "web", "locale": "tr"},
            "replyTo": {"id": "m-0"},
        }
        await peer.turn("c1", "hi", seq=7, **more)
        turn = await seen.get()
    assert (turn.conversation, turn.id, turn.text, turn.seq, turn.type) == ("c1", "turn-7", "hi", 7, "text")
    assert (turn.sender, turn.channel, turn.reply_to) == ("ana", "web", "m-0")
    assert (turn.metadata, turn.meta["locale"], turn.run, turn.run_epoch) == ({"k": 1}, "tr", "c1/7/agents", 1)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "text", "from": "bot", "data": {"text": "x"}, "seq": 1, "id": "a"},
        {"type": "typing", "from": "user", "isTyping": True, "data": {}},
        {"type": "conversationUpdate", "from": "user", "data": {}, "seq": 1, "id": "a"},
        {"type": "text", "from": "user", "seq": 1, "id": "a"},
    ],
)
async def test_what_is_no_turn_starts_nothing(gateway: ScriptedGateway, frame: dict[str, Any]) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.say("c1", frame)
        await peer.turn("c2", "hi", seq=1)
        assert (await peer.receive())["conversationId"] == "c2"


async def test_an_async_generator_is_streamed_as_chunks_of_one_growing_text(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)

    @agent.on_turn
    async def answer(turn: Turn) -> AsyncGenerator[str, None]:
        for word in ("one ", "two ", "three"):
            yield word

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", type="run")
        chunks = [await peer.inner("c1") for _ in range(4)]
    assert {chunk["streamId"] for chunk in chunks} == {"turn-1.1.s1"}
    assert [chunk["done"] for chunk in chunks] == [False, False, False, True]
    assert [chunk["chunk"] for chunk in chunks[:3]] == [
        {"type": "text", "content": word, "id": 1} for word in ("one ", "two ", "three")
    ]
    assert chunks[3]["chunk"] == {"type": "event", "name": "stream_done", "id": 2}


async def test_pieces_written_within_a_moment_travel_as_one_chunk(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, flush_every=60.0)

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            for word in ("one ", "two ", "three"):
                await stream.write(word)

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", type="run")
        assert (await peer.inner("c1"))["chunk"]["content"] == "one two three"
        assert (await peer.inner("c1"))["done"] is True


async def test_a_message_does_not_overtake_what_was_streamed_before_it(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, flush_every=60.0)

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        stream = reply.stream()
        await stream.write("first")
        await reply.text("second")

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "count", seq=1)
        await peer.until("c1", type="run")
        assert (await peer.inner("c1"))["chunk"]["content"] == "first"
        message = await peer.inner("c1")
        assert message["data"] == {"text": "second"}
        await peer.ack("c1", message, seq=3)
        assert (await peer.inner("c1"))["done"] is True  # what a handler leaves open is closed for it


async def test_a_slow_writers_last_piece_leaves_without_waiting_for_the_next(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, flush_every=0.001)
    hold = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            await stream.write("thinking…")
            await hold.wait()

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hm", seq=1)
        chunk = await peer.until("c1", type="genui")
        assert chunk["chunk"]["content"] == "thinking…"
        hold.set()
        assert (await peer.inner("c1"))["done"] is True


async def test_turns_of_one_conversation_wait_for_each_other_and_others_do_not(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()
    began: asyncio.Queue[str] = asyncio.Queue()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        began.put_nowait(turn.text)
        if turn.text == "a1":
            await hold.wait()

    async with serving(agent, gateway) as peer:
        await peer.turn("a", "a1", seq=1)
        await peer.turn("a", "a2", seq=2)
        await peer.turn("b", "b1", seq=1)
        assert [await began.get(), await began.get()] == ["a1", "b1"]
        assert began.empty()
        hold.set()
        assert await began.get() == "a2"


async def test_no_more_than_most_at_once_run_side_by_side(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, most_at_once=1)
    hold = asyncio.Event()
    began: asyncio.Queue[str] = asyncio.Queue()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        began.put_nowait(turn.conversation)
        await hold.wait()

    async with serving(agent, gateway) as peer:
        await peer.turn("a", "x", seq=1)
        await peer.turn("b", "x", seq=1)
        assert await began.get() == "a"
        await peer.until("a", type="run")
        assert began.empty()
        hold.set()
        assert await began.get() == "b"


async def test_beyond_its_runs_a_process_refuses_and_nothing_of_it_is_begun(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, most_runs=1)
    hold = asyncio.Event()
    began: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        began.append(turn.text)
        await hold.wait()

    async with serving(agent, gateway, limits={"maxRuns": 200}) as peer:
        await peer.turn("a", "one", seq=1)
        await peer.until("a", type="run")
        await peer.turn("b", "two", seq=1)
        refused = {"type": "refuse", "reason": "busy", "run": "b/1/agents", "runEpoch": 1}
        assert await peer.inner("b") == refused
        await peer.turn("a", "one", seq=None, number=1, epoch=2)  # what it has is not refused
        assert (await peer.until("a", type="run"))["runEpoch"] == 2
        hold.set()
        assert (await peer.until("a", type="run"))["data"] == {"status": "finished"}
        await peer.turn("b", "two", seq=2, epoch=3)
        await peer.until("b", type="run")
        assert began == ["one", "two"]


async def test_a_gateway_that_knows_of_no_refusal_gets_none(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, most_runs=1)
    hold = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        await hold.wait()

    async with serving(agent, gateway) as peer:
        for conversation in ("a", "b"):
            await peer.turn(conversation, "one", seq=1)
            assert (await peer.until(conversation, type="run"))["data"] == {"status": "started"}


async def test_a_failing_handler_ends_its_run_as_failed_and_the_next_turn_is_answered(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_of(gateway)

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        if turn.text == "bad":
            raise RuntimeError("the database of orders is down")
        return "ok"

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "bad", seq=1)
        await peer.turn("c1", "good", seq=2)
        error = await peer.until("c1", type="error")
        assert error["data"]["code"] == "agent_error"
        assert "orders" not in error["data"]["message"]  # what went wrong inside is not the person's business
        assert (await peer.inner("c1"))["data"] == {"status": "error"}
        assert (await peer.until("c1", type="text"))["data"] == {"text": "ok"}
    assert "the handler failed on turn turn-1 of c1" in caplog.text


async def test_an_unacknowledged_message_is_sent_again_with_its_id_on_the_next_connection(
    gateway: ScriptedGateway,
) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=4)
        first = await peer.until("c1", type="text")
        await peer.close(1012, '{"reason":"drain","retryAfterMs":10}')

        again = await gateway.welcomed()
        assert again.hello["watermarks"] == {"c1": 4}
        confirmation = await again.inner("c1")
        assert confirmation == {"type": "run", "data": {"status": "started"}, "run": "c1/4/agents"}
        second = await again.inner("c1")
        assert second == {name: value for name, value in first.items() if name != "runEpoch"}
        await again.ack("c1", second, seq=5, duplicate=True)
        assert (await again.inner("c1"))["data"] == {"status": "finished"}


async def test_a_gateway_that_goes_away_says_when_to_come_back(gateway: ScriptedGateway) -> None:
    asked: list[float | None] = []

    class Listening(Backoff):
        def next(self, asked_s: float | None = None) -> float:
            asked.append(asked_s)
            return 0.0

    agent = Agent(gateway.url, token="t", backoff=Listening())
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.close(1012, '{"reason":"drain","retryAfterMs":250}')
        await gateway.welcomed()
    assert asked == [0.25]


async def test_a_conversation_with_nothing_in_hand_is_not_claimed_after_a_reconnect(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        await peer.ack("c1", await peer.until("c1", type="text"), seq=2)
        await peer.until("c1", data={"status": "finished"})
        await peer.close(1011)
        assert "watermarks" not in (await gateway.welcomed()).hello


async def test_a_turn_that_waits_its_turn_is_confirmed_as_read_after_a_reconnect(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        await hold.wait()

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "one", seq=1)
        await peer.turn("c1", "two", seq=2)
        await peer.until("c1", type="run")
        await peer.close(1011)
        again = await gateway.welcomed()
        assert again.hello["watermarks"] == {"c1": 2}
        assert (await again.inner("c1"))["data"] == {"status": "started"}
        assert await again.inner("c1") == {"type": "read", "watermark": 2, "run": "c1/2/agents"}
        hold.set()


async def test_a_stream_cut_by_a_reconnect_is_told_again_whole_under_another_id(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    more = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            await stream.write("half ")
            await more.wait()
            await stream.write("whole")

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "tell", seq=1)
        assert (await peer.until("c1", type="genui"))["streamId"] == "turn-1.1.s1"
        await peer.close(1011)
        again = await gateway.welcomed()
        await again.until("c1", type="run")
        more.set()
        chunk = await again.inner("c1")
        assert (chunk["streamId"], chunk["chunk"]["content"]) == ("turn-1.1.s1.1", "half whole")
        done = await again.inner("c1")
        assert (done["streamId"], done["done"]) == ("turn-1.1.s1.1", True)


async def test_a_stream_that_ends_offline_is_told_on_the_next_connection(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    more = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        async with reply.stream() as stream:
            await more.wait()
            await stream.write("late")

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "tell", seq=1)
        await peer.until("c1", type="run")
        await peer.close(1011)
        again = await gateway.accept()
        more.set()  # the handler ends its stream while nobody has welcomed it
        await again.welcome()
        assert (await again.until("c1", type="genui"))["chunk"]["content"] == "late"


async def test_a_run_given_again_while_it_runs_goes_on_at_the_new_epoch(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()
    calls: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        calls.append(turn.text)
        await hold.wait()
        return "once"

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        await peer.until("c1", type="run")
        await peer.turn("c1", "hi", seq=None, number=1, epoch=2)
        assert (await peer.inner("c1"))["runEpoch"] == 2
        hold.set()
        message = await peer.inner("c1")
        assert (message["data"]["text"], message["runEpoch"]) == ("once", 2)
    assert calls == ["hi"]


async def test_a_turn_given_again_to_a_process_that_never_had_it_is_answered(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "later", seq=5)
        await peer.ack("c1", await peer.until("c1", type="text"), seq=6)
        await peer.until("c1", data={"status": "finished"})
        await peer.turn("c1", "earlier", seq=None, number=3, epoch=2)
        message = await peer.until("c1", type="text")
        assert (message["data"]["text"], message["run"], message["runEpoch"]) == ("you said earlier", "c1/3/agents", 2)


async def test_a_fenced_message_cancels_the_handler_and_nothing_follows(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    failures: list[BaseException] = []

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        try:
            await reply.text("too late")
        except Fenced as error:
            failures.append(error)
            raise

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        message = await peer.until("c1", type="text")
        refusal = {"code": "fenced", "message": "not yours", "clientId": message["clientId"]}
        await peer.say("c1", {"type": "error", "data": refusal})
        await peer.turn("c2", "next", seq=1)
        assert (await peer.receive())["conversationId"] == "c2"
    assert [type(failure) for failure in failures] == [Fenced]


async def test_an_abort_that_names_a_run_cancels_that_run_only(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    cancelled: list[str] = []
    hold = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        try:
            await hold.wait()
        except asyncio.CancelledError:
            cancelled.append(turn.text)
            raise

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "one", seq=1)
        await peer.turn("c1", "two", seq=2)
        await peer.until("c1", type="run")
        await peer.say("c1", {"type": "abort", "run": "c1/7/agents"})
        await taken(peer)
        assert cancelled == []
        await peer.say("c1", {"type": "abort", "run": "c1/1/agents", "runEpoch": 1})
        assert (await peer.inner("c1"))["data"] == {"status": "aborted"}
        assert cancelled == ["one"]
        assert (await peer.inner("c1"))["run"] == "c1/2/agents"
        await peer.say("c1", {"type": "abort"})  # unnamed: the one that runs
        assert (await peer.inner("c1"))["data"] == {"status": "aborted"}
        assert cancelled == ["one", "two"]


async def test_an_abort_of_an_epoch_that_is_over_changes_nothing(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        await hold.wait()
        return "done"

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1, epoch=3)
        await peer.until("c1", type="run")
        await peer.say("c1", {"type": "abort", "run": "c1/1/agents", "runEpoch": 2})
        await taken(peer)
        hold.set()
        assert (await peer.until("c1", type="text"))["data"] == {"text": "done"}


async def test_a_handler_that_ignores_its_cancellation_can_send_nothing_more(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()
    refused: asyncio.Queue[str] = asyncio.Queue()

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        try:
            await hold.wait()
        except asyncio.CancelledError:
            with pytest.raises(Fenced, match="not this process's to answer"):
                await reply.text("and yet")
            refused.put_nowait("refused")

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        await peer.until("c1", type="run")
        await peer.say("c1", {"type": "abort"})
        assert await refused.get() == "refused"
        assert (await peer.inner("c1"))["data"] == {"status": "aborted"}


async def test_a_temporary_refusal_is_retried_with_the_same_id(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        first = await peer.until("c1", type="text")
        refusal = {"code": "unavailable", "message": "m", "retryAfterMs": 1, "clientId": first["clientId"]}
        await peer.say("c1", {"type": "error", "data": refusal})
        assert await peer.inner("c1") == first


async def test_a_message_nobody_acknowledges_fails_the_run(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway, ack_timeout=0.01)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "hi", seq=1)
        await peer.until("c1", type="text")
        assert (await peer.until("c1", type="run"))["data"] == {"status": "error"}


async def test_a_frame_above_the_gateways_limit_is_refused_before_it_is_sent(
    gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_of(gateway)

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        return "x" * 2_000

    async with serving(agent, gateway, limits={"maxFrameBytes": 1_000}) as peer:
        await peer.turn("c1", "hi", seq=1)
        assert (await peer.until("c1", type="run", data={"status": "error"}))["run"] == "c1/1/agents"
    assert "the gateway takes at most 1000" in caplog.text


async def test_a_message_too_large_for_the_next_gateway_fails_its_run_and_not_the_agent(
    gateway: ScriptedGateway,
) -> None:
    agent = agent_of(gateway)

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        return "x" * 2_000 if turn.text == "long" else "short"

    async with serving(agent, gateway) as first:
        await first.turn("c1", "long", seq=1)
        await first.until("c1", type="text")
        await first.close(1012)
        second = await gateway.welcomed(limits={"maxFrameBytes": 1_000})
        await second.until("c1", type="run", data={"status": "error"})
        await second.turn("c2", "hi", seq=1)
        await second.until("c2", type="text")


async def test_stop_lets_what_it_was_given_finish_and_takes_nothing_more(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()
    began: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        began.append(turn.text)
        await hold.wait()
        return "last words"

    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed()
    await starting
    await peer.turn("c1", "one", seq=1)
    await peer.turn("c1", "two", seq=2)
    await peer.until("c1", type="run")
    stopping = asyncio.create_task(agent.stop(budget=5))
    await asyncio.sleep(0)  # the drain has begun
    await peer.turn("c2", "three", seq=1)
    hold.set()
    for seq in (3, 4):
        message = await peer.until("c1", type="text")
        await peer.ack("c1", message, seq=seq)
        assert (await peer.inner("c1"))["data"] == {"status": "finished"}
    assert await peer.closed() == 1000
    await stopping
    assert began == ["one", "two"]


async def test_a_gateway_that_knows_of_drains_is_told_and_what_it_gives_nevertheless_is_answered(
    gateway: ScriptedGateway,
) -> None:
    agent = agent_of(gateway)
    hold = asyncio.Event()
    began: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        began.append(turn.text)
        await hold.wait()

    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed(capabilities={"drain": True})
    await starting
    await peer.turn("c1", "one", seq=1)
    await peer.until("c1", type="run")
    stopping = asyncio.create_task(agent.stop(budget=5))
    assert await peer.receive() == {"type": "drain"}
    await peer.turn("c2", "two", seq=1)
    await peer.until("c2", type="run")
    await peer.close(1011)
    again = await gateway.welcomed(capabilities={"drain": True})
    await again.until("c1", data={"status": "started"})
    await again.until("c2", data={"status": "started"})
    assert await again.receive() == {"type": "drain"}  # it is another member there
    hold.set()
    await stopping
    assert began == ["one", "two"]


async def test_a_turn_that_waits_for_room_is_answered_by_a_draining_agent_within_its_budget(
    gateway: ScriptedGateway,
) -> None:
    agent = agent_of(gateway, most_at_once=1)
    hold = asyncio.Event()
    began: list[str] = []

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        began.append(turn.conversation)
        await hold.wait()

    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed()
    await starting
    await peer.turn("a", "x", seq=1)
    await peer.turn("b", "x", seq=1)
    await peer.until("a", type="run")
    stopping = asyncio.create_task(agent.stop(budget=5))
    await asyncio.sleep(0)  # the drain has begun
    hold.set()
    await stopping
    assert began == ["a", "b"]


async def test_a_handler_beyond_the_drain_budget_is_cancelled_and_its_run_left_to_others(
    gateway: ScriptedGateway,
) -> None:
    agent = agent_of(gateway)
    cancelled = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed()
    await starting
    await peer.turn("c1", "one", seq=1)
    await peer.until("c1", type="run")
    await agent.stop(budget=0.01)
    assert cancelled.is_set()
    assert [frame async for frame in peer.socket] == []  # no word that the run has ended: it moves
    assert await peer.closed() == 1000


async def test_sigterm_drains_and_run_returns(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    ready: list[str | None] = []
    running = asyncio.create_task(agent.run(on_ready=lambda: ready.append(agent.member)))
    peer = await gateway.welcomed(connectionId="gw-1.7")
    await peer.turn("c1", "hi", seq=1)
    message = await peer.until("c1", type="text")
    os.kill(os.getpid(), signal.SIGTERM)
    await peer.ack("c1", message, seq=2)
    assert (await peer.inner("c1"))["data"] == {"status": "finished"}
    assert await peer.closed() == 1000
    await running
    assert ready == ["gw-1.7"]


async def test_sigterm_drains_each_agent_of_a_process(gateway: ScriptedGateway) -> None:
    peers, running = [], []
    for _ in range(2):
        agent = agent_of(gateway)
        echo(agent)
        running.append(asyncio.create_task(agent.run()))
        peers.append(await gateway.welcomed(capabilities={"drain": True}))
    os.kill(os.getpid(), signal.SIGTERM)
    for peer in peers:
        assert await peer.receive() == {"type": "drain"}
        assert await peer.closed() == 1000
    await asyncio.gather(*running)


async def test_an_agent_that_ended_leaves_the_signals_to_the_other(gateway: ScriptedGateway) -> None:
    first, second = agent_of(gateway), agent_of(gateway)
    running, peers = [], []
    for agent in (first, second):
        echo(agent)
        running.append(asyncio.create_task(agent.run()))
        peers.append(await gateway.welcomed())
    await second.stop()
    await running[1]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await peers[0].closed() == 1000
    await running[0]


async def test_a_refused_credential_ends_run_with_unauthorized(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    running = asyncio.create_task(agent.run())
    await (await gateway.accept()).close(4401, "token expired")
    with pytest.raises(Unauthorized, match="4401"):
        await running


async def test_a_refused_credential_is_renewed_once_where_it_can_be(gateway: ScriptedGateway) -> None:
    tokens = iter(["t-1", "t-2", "t-3"])

    async def fetch() -> str:
        return next(tokens)

    agent = agent_of(gateway, token=None, get_token=fetch)
    echo(agent)
    running = asyncio.create_task(agent.run())
    first = await gateway.accept()
    await first.close(4401)
    second = await gateway.accept()
    await second.close(4401)
    with pytest.raises(Unauthorized):
        await running
    assert (first.token, second.token) == ("Bearer t-1", "Bearer t-2")


async def test_a_token_is_renewed_on_the_open_connection_before_it_ends(gateway: ScriptedGateway) -> None:
    tokens = iter(["t-1", "t-2"])

    async def fetch() -> str:
        return next(tokens)

    agent = agent_of(gateway, token=None, get_token=fetch)
    echo(agent)
    async with serving(agent, gateway, expiresAt=1) as peer:  # ended long ago: renewed at once
        assert await peer.receive() == {"type": "auth", "token": "t-2"}


async def test_a_token_whose_life_only_the_gateway_knows_is_renewed_again_and_again(gateway: ScriptedGateway) -> None:
    tokens = iter(["t-1", "t-2", "t-3"])

    async def fetch() -> str:
        return next(tokens)

    agent = agent_of(gateway, token=None, get_token=fetch)
    echo(agent)
    async with serving(agent, gateway, expiresAt=1) as peer:
        assert await peer.receive() == {"type": "auth", "token": "t-2"}
        await peer.send({"type": "tokenRefreshed", "data": {"expiresAt": 1}})
        assert await peer.receive() == {"type": "auth", "token": "t-3"}


async def test_pings_keep_to_half_of_the_idle_time_out(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway, limits={"idleTimeoutMs": 20}) as peer:
        assert await peer.receive() == {"type": "ping"}


async def test_a_second_gateway_is_tried_when_the_first_is_gone(gateway: ScriptedGateway) -> None:
    async with scripted_gateway() as gone:
        dead = gone.url
    agent = Agent([dead, gateway.url], token="t", backoff=Backoff(first=0.01, most=0.05))
    echo(agent)
    async with serving(agent, gateway) as peer:
        assert peer.hello["type"] == "hello"


async def test_garbage_from_the_gateway_ends_the_connection_and_not_the_agent(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    echo(agent)
    async with serving(agent, gateway) as peer:
        await peer.socket.send("{not json")
        assert await peer.closed() == 1002
        again = await gateway.welcomed()
        await again.turn("c1", "hi", seq=1)
        assert (await again.until("c1", type="text"))["data"] == {"text": "you said hi"}


async def test_a_replay_by_a_server_that_names_no_runs_starts_no_turn_twice(gateway: ScriptedGateway) -> None:
    agent = agent_of(gateway)
    calls: list[str] = []
    hold = asyncio.Event()

    @agent.on_turn
    async def answer(turn: Turn) -> None:
        calls.append(turn.text)
        await hold.wait()

    async with serving(agent, gateway) as peer:
        await peer.turn("c1", "one", seq=1, epoch=None)
        await peer.until("c1", type="run")
        await peer.turn("c1", "one", seq=1, epoch=None)
        await peer.turn("c2", "mark", seq=1, epoch=None)
        assert (await peer.receive())["conversationId"] == "c2"
        hold.set()
    assert sorted(calls) == ["mark", "one"]


def test_a_handler_of_the_wrong_shape_is_refused_at_once() -> None:
    agent = Agent("http://127.0.0.1:1", token="t")
    with pytest.raises(TypeError, match=r"on_turn: the handler must be an `async def` function to use `reply`"):
        agent.on_turn(lambda turn, reply: "x")

    async def none() -> str:
        return "x"

    with pytest.raises(TypeError, match=r"on_invoke: the handler takes \(turn\) or \(turn, reply\)"):
        agent.on_invoke(none)
    with pytest.raises(TypeError, match="on_turn: the handler must be a function, not str"):
        agent.on_turn("x")  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"takes \(conversation, frame\)"):
        agent.on_frame(none)  # type: ignore[type-var]


@pytest.mark.parametrize("credentials", [{}, {"token": "a", "channel_secret": "b"}])
def test_exactly_one_credential_is_asked_for(credentials: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="exactly one of channel_secret, token and get_token"):
        Agent("http://127.0.0.1:1", **credentials)  # type: ignore[arg-type]
