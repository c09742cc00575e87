"""`AgentProxy` and `@agent.on_invoke` against a gateway whose partitions decide in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.gateway_world import API_KEY, Served, World, serve, settings_for
from tests.support.waiting import until
from turnlog import (
    Agent,
    AgentBusy,
    AgentProxy,
    AgentUnavailable,
    ConversationBusy,
    InvocationCancelled,
    InvocationConflict,
    InvocationFailed,
    InvocationNotFound,
    InvocationTimedOut,
    OwnerGone,
    Record,
    State,
    TooManyEvents,
    Turn,
)
from turnlog.backoff import Backoff

pytestmark = pytest.mark.unit

AGENT = "agents/bots"


@asynccontextmanager
async def serving(served: Served, handler: Any, **options: Any) -> AsyncIterator[Agent]:
    agent = Agent(
        served.url,
        channel_secret="agents-secret",
        group="bots",
        backoff=Backoff(first=0.01, most=0.1),
        flush_every=0.0,
        **options,
    )
    agent.on_invoke(handler)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop(budget=0)


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[AgentProxy]:
    async with AgentProxy(served.url, AGENT, channel_secret="web-secret", user="ann") as calling:
        yield calling


class Work:
    """A handler that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Turn] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, turn: Turn) -> str:
        self.begun.put_nowait(turn)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"done: {turn.text}"

    async def handler(self, turn: Turn) -> str:
        return await self(turn)


async def test_a_function_is_called_and_its_value_returned(served: Served, proxy: AgentProxy) -> None:
    async def add(turn: Turn) -> dict[str, int]:
        assert turn.invocation is not None
        assert (turn.invocation.deadline, turn.invocation.streamed) == (60, False)
        return {"sum": sum(turn.invocation.data["numbers"])}

    async with serving(served, add):
        record = await proxy.invoke("add", data={"numbers": [17, 25]}, deadline=60)
    assert (record.value, record.state, record.events) == ({"sum": 42}, State.SUCCEEDED, 1)


async def test_a_thread_goes_on_from_call_to_call_and_one_id_is_executed_once(
    served: Served, proxy: AgentProxy
) -> None:
    calls: list[str] = []

    async def answer(turn: Turn) -> str:
        calls.append(turn.text)
        return f"call {len(calls)} of {turn.conversation}"

    async with serving(served, answer):
        first = await proxy.invoke("a", thread="t", id="1")
        again = await proxy.invoke("a", thread="t", id="1")
        second = await proxy.invoke("b", thread="t", id="2")
        assert (first.text, again.text, second.text) == ("call 1 of t", "call 1 of t", "call 2 of t")
        with pytest.raises(InvocationConflict):
            await proxy.submit("other", thread="t", id="1")
    assert calls == ["a", "b"]


async def test_a_streamed_call_is_followed_piece_by_piece_and_read_again_in_pages(
    served: Served, proxy: AgentProxy
) -> None:
    async def count(turn: Turn) -> AsyncGenerator[str, None]:
        for word in ("one ", "two ", "three"):
            yield word

    async with serving(served, count):
        events = [event async for event in proxy.stream_invoke("count", thread="t", id="i")]
    assert "".join(event.text for event in events) == "one two three"
    assert [event.n for event in events] == [1, 2, 3, 4]
    first = await proxy.page("t", "i", limit=3)
    rest = await proxy.page("t", "i", after=first.next)
    assert ([*first.events, *rest.events], first.done, rest.done) == (events, False, True)
    assert [event async for event in proxy.events("t", "i", after=2)] == events[2:]
    assert (await proxy.status("t", "i")).text == "one two three"


async def test_states_as_they_come(served: Served, proxy: AgentProxy) -> None:
    work = Work()
    async with serving(served, work.handler):
        record = await proxy.submit("x", thread="t", id="i")
        assert record.state in {State.ACCEPTED, State.RUNNING}
        await work.begun.get()
        assert (await is_state(proxy, State.RUNNING)).state is State.RUNNING
        busy = await proxy.claim("t")
        assert busy is not None
        assert busy.id == "i"
        with pytest.raises(ConversationBusy):
            await proxy.submit("y", thread="t")
        elsewhere = await proxy.submit("z", thread="u")  # distinct threads go together
        await work.begun.get()
        work.go_on.set()
        assert (await proxy.status("t", "i", wait=5)).succeeded().text == "done: x"
        assert (await proxy.status("u", elsewhere.id, wait=5)).text == "done: z"
        assert await proxy.claim("t") is None


async def is_state(proxy: AgentProxy, state: State) -> Record:
    async with asyncio.timeout(10):
        while (record := await proxy.status("t", "i")).state is not state:
            pass
    return record


async def test_a_cancel_waits_for_the_real_end_of_its_thread(served: Served, proxy: AgentProxy) -> None:
    running, may_end = threading.Event(), threading.Event()

    def slow(turn: Turn) -> str:
        running.set()
        turn.cancelled.wait(10)
        may_end.wait(10)
        return "too late"

    async with serving(served, slow):
        await proxy.submit("x", thread="t", id="i")
        await asyncio.to_thread(running.wait, 10)
        assert (await proxy.cancel("t", "i")).state is State.CANCELLING
        assert (await proxy.status("t", "i", wait=0.2)).state is State.CANCELLING
        may_end.set()
        with pytest.raises(InvocationCancelled):
            (await proxy.status("t", "i", wait=5)).succeeded()


async def test_a_caller_that_goes_away_calls_its_agent_off(served: Served, proxy: AgentProxy) -> None:
    work = Work()
    async with serving(served, work.handler):
        calling = asyncio.create_task(proxy.invoke("x", thread="t", id="i"))
        await work.begun.get()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (await proxy.status("t", "i", wait=5)).state is State.CANCELLED
    assert work.cancelled == 1


async def test_a_handler_that_fails_is_an_error_without_its_text(served: Served, proxy: AgentProxy) -> None:
    async def fail(turn: Turn) -> None:
        raise LookupError("secret")

    async with serving(served, fail):
        with pytest.raises(InvocationFailed) as caught:
            await proxy.invoke("x")
    assert "secret" not in str(caught.value)
    assert caught.value.record.state is State.FAILED


async def test_beyond_its_runs_everyone_refuses(served: Served, proxy: AgentProxy) -> None:
    work = Work()
    async with serving(served, work.handler, most_runs=1):
        await proxy.submit("x", thread="t", id="i")
        await work.begun.get()
        with pytest.raises(AgentBusy):
            await proxy.invoke("y")
        work.go_on.set()
        await proxy.status("t", "i", wait=5)
        assert (await proxy.invoke("z")).text == "done: z"


async def test_beyond_the_gateways_limit_of_a_member_the_next_is_refused(world: World) -> None:
    work = Work()
    async with (
        serve(world, settings_for(runs_per_member=1)) as small,
        serving(small, work.handler),
        AgentProxy(small.url, AGENT, channel_secret="web-secret", user="ann") as proxy,
    ):
        await proxy.submit("x")
        await work.begun.get()
        with pytest.raises(AgentBusy):
            await proxy.invoke("y")


async def test_too_much_said_ends_it(served: Served, proxy: AgentProxy) -> None:
    async def talk(turn: Turn, reply: Any) -> None:
        await asyncio.gather(*(reply.text(str(number)) for number in range(1025)))

    async with serving(served, talk):
        with pytest.raises(TooManyEvents):
            await proxy.invoke("x")


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("x" * 65_536, True),  # 64 KiB of text
        ("x" * 65_537, False),
        ({"rows": "x" * (128 * 1024 - 4_096)}, True),  # a frame of 128 KiB, its own fields included
        ({"rows": "x" * (128 * 1024)}, False),
    ],
    ids=["text", "text too long", "value", "value too large"],
)
async def test_an_answer_has_64_kib_of_text_or_128_kib_as_json(
    served: Served, proxy: AgentProxy, value: Any, *, fits: bool
) -> None:
    async def answer(turn: Turn) -> Any:
        return value

    async with serving(served, answer):
        if fits:
            assert (await proxy.invoke("x")).value == value
        else:
            with pytest.raises(InvocationFailed) as caught:
                await proxy.invoke("x")
            assert caught.value.code == "AGENT_ERROR"


async def test_without_an_agent_nothing_is_accepted(proxy: AgentProxy) -> None:
    with pytest.raises(AgentUnavailable):
        await proxy.invoke("x", thread="t", id="i")
    with pytest.raises(InvocationNotFound):
        await proxy.status("t", "i")


async def test_a_process_that_is_gone_ends_what_it_had_unless_it_may_be_done_again(
    served: Served, proxy: AgentProxy
) -> None:
    work, other = Work(), Work()
    other.go_on.set()
    async with serving(served, work.handler) as lost:
        await proxy.submit("x", thread="t", id="i")
        async with proxy.duplicate(retry=True) as again:
            await again.submit("y", thread="u", id="i")
            for _ in range(2):
                await work.begun.get()
            async with serving(served, other.handler):
                await lost.stop(budget=0)
                with pytest.raises(OwnerGone):
                    (await proxy.status("t", "i", wait=5)).succeeded()
                assert (await again.status("u", "i", wait=5)).text == "done: y"


async def test_a_process_that_comes_back_keeps_what_it_was_called_for(served: Served, proxy: AgentProxy) -> None:
    work, other = Work(), Work()
    async with serving(served, work.handler) as agent:
        await proxy.submit("x", thread="t", id="i")
        await work.begun.get()
        before, socket = agent.member, agent._link._socket
        assert socket is not None
        async with serving(served, other.handler):
            socket.transport.abort()
            await until(lambda: agent.member != before)
            work.go_on.set()
            assert (await proxy.status("t", "i", wait=10)).succeeded().text == "done: x"
    assert (work.cancelled, other.begun.qsize()) == (0, 0)


async def test_a_deadline_ends_it_and_its_handler(world: World, served: Served, proxy: AgentProxy) -> None:
    work = Work()
    async with serving(served, work.handler):
        await proxy.submit("x", thread="t", id="i", deadline=1)
        await work.begun.get()
        world.pass_time(1_500)
        with pytest.raises(InvocationTimedOut):
            (await proxy.status("t", "i", wait=5)).succeeded()
    assert work.cancelled == 1


async def test_a_backend_calls_with_its_key(served: Served) -> None:
    async def who(turn: Turn) -> str:
        return str(turn.sender)

    async with serving(served, who), AgentProxy(served.url, AGENT, api_key=API_KEY, user="billing") as proxy:
        assert (await proxy.invoke("x")).text == "billing"
