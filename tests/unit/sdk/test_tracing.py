"""What an agent traces: the answer is in the trace of its turn, with OpenTelemetry and without. A caller's goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.support.scripted_gateway import Peer, ScriptedGateway, scripted_gateway
from tests.support.scripted_http import Answer, scripted_http
from turnlog import Agent, AgentProxy, Client, Turn
from turnlog.backoff import Backoff
from turnlog.live import Live
from turnlog.tokens import FixedToken

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def carried(peer: Peer, **more: Any) -> list[str | None]:
    """What each frame of the answer to a turn carries: started, the message, finished."""
    await peer.turn("c1", "hi", seq=1, **more)
    started, message = await peer.inner("c1"), await peer.inner("c1")
    await peer.ack("c1", message, seq=2)
    return [frame.get("traceparent") for frame in (started, message, await peer.inner("c1"))]


async def answering(gateway: ScriptedGateway, agent: Agent, **more: Any) -> list[str | None]:
    starting = asyncio.create_task(agent.start())
    peer = await gateway.welcomed()
    await starting
    try:
        return await carried(peer, **more)
    finally:
        await agent.stop(budget=0)


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_handler_runs_in_a_span_of_its_turns_trace(threaded: bool) -> None:
    told, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(told))

    def work(turn: Turn) -> str:
        with provider.get_tracer("mine").start_as_current_span("a model is asked"):
            return "you said hi"

    async def awaited(turn: Turn) -> str:
        return work(turn)

    async with scripted_gateway() as gateway:
        agent = Agent(gateway.url, token="t", tracing=provider, backoff=Backoff(first=0.01, most=0.05))
        agent.on_turn(work if threaded else awaited)
        started, message, finished = await answering(gateway, agent, traceparent=GIVEN)
    inner, answer = told.get_finished_spans()
    assert answer.context is not None
    assert answer.parent is not None
    assert (answer.name, f"{answer.parent.span_id:016x}") == ("turnlog.answer", GIVEN.split("-")[2])
    assert dict(answer.attributes or {}) == {
        "conversation": "c1", "turn": "turn-1", "run": "c1/1/agents", "run_epoch": 1,
    }  # fmt: skip
    assert (inner.parent, answer.context.trace_id) == (answer.context, int(GIVEN.split("-")[1], 16))
    mine = f"00-{GIVEN.split('-')[1]}-{answer.context.span_id:016x}-01"
    assert (started, message, finished) == (GIVEN, mine, mine)


@pytest.mark.parametrize("asked", [False, True])
async def test_without_spans_the_frames_carry_what_the_turn_did(asked: bool) -> None:
    """`asked`: of a program that has no tracer provider."""
    async with scripted_gateway() as gateway:
        agent = Agent(gateway.url, token="t", tracing=asked)

        @agent.on_turn
        async def answer(turn: Turn) -> str:
            assert turn.traceparent == GIVEN
            assert not trace.get_current_span().is_recording()
            return "you said hi"

        assert await answering(gateway, agent, traceparent=GIVEN) == [GIVEN] * 3


async def test_where_the_gateway_does_not_trace_nothing_is_carried() -> None:
    async with scripted_gateway() as gateway:
        agent = Agent(gateway.url, token="t")

        @agent.on_turn
        async def answer(turn: Turn) -> str:
            return "you said hi"

        assert await answering(gateway, agent) == [None] * 3


def test_who_asks_without_opentelemetry_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(RuntimeError, match=r"turnlog\[tracing\]"):
        Agent("http://127.0.0.1:1", token="t", tracing=True)


OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
ENDED = Answer(body={"id": "i", "thread": "t", "state": "SUCCEEDED", "output": {"text": "42", "messages": []}})


@contextmanager
def span() -> Iterator[str]:
    """A span of the program's own; the context that it is in."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("mine").start_as_current_span("a question"):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        yield carrier["traceparent"]


async def test_a_call_of_an_agent_goes_on_with_the_callers_trace_also_from_a_thread() -> None:
    async with scripted_http(*[ENDED] * 5) as http, AgentProxy(http.url, "agents", token="t-1") as proxy:
        await proxy.invoke("?")
        with span() as mine:
            await proxy.invoke("?")
            await asyncio.to_thread(proxy.invoke_sync, "?")
            await proxy.invoke("?", traceparent=OTHER)
            await proxy.invoke("?", traceparent="no header\r\nat: all")
    assert [asked.headers.get("traceparent") for asked in http.asked] == [None, mine, mine, OTHER, mine]


async def test_what_a_person_says_goes_on_with_the_callers_trace() -> None:
    token = Answer(body={"token": "user-token", "expires_in": 1800})
    opened = Answer(201, {"conversationId": "c1", "token": "conversation-token", "expires_in": 1800})
    said = Answer(201, {"id": "m-1"})
    async with (
        scripted_http(token, opened, said, said, said) as http,
        Client(http.url, channel_secret="s", user="ana") as client,
    ):
        conversation = await client.open()
        await conversation.send("hi")
        with span() as mine:
            await conversation.send("hi")
            await conversation.send("hi", traceparent=OTHER)
    assert [asked.headers.get("traceparent") for asked in http.asked[2:]] == [None, mine, OTHER]


async def test_what_a_person_says_on_a_socket_goes_on_with_the_callers_trace() -> None:
    async with scripted_gateway() as gateway:
        live = Live(gateway.url, FixedToken("t-1"), "c1", seen=0, budget=5.0)
        peer = await gateway.welcomed()
        with span() as mine:
            saying = asyncio.create_task(live.say({"type": "survey", "rating": 5}, key="k"))
        assert await peer.receive() == {"type": "survey", "rating": 5, "clientId": "k", "traceparent": mine}
        await peer.send({"type": "ack", "clientId": "k", "id": "x", "seq": 0, "timestamp": 1})
        await saying
        await live.close()


def test_nothing_is_imported_to_find_out_that_nobody_traces() -> None:
    """In a process of its own: in this one it is imported."""
    script = "import sys, turnlog, turnlog.traced as t; print(t.carried(), 'opentelemetry' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "{} False\n"
