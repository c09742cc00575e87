"""A turn and its answer are one trace, from who asks on, over five processes and Kafka: what each tells fits."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from ops.children import environment_of
from ops.provision import provide
from streams.settings import Settings
from tests.support.collector import PATH, Collector, Told, collector
from tests.support.program import program
from tests.support.waiting import until
from turnlog import Agent, Client, Turn

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "20"}
"""Milliseconds between two reports of a process; 5 s unless said."""
WAY = [
    ("a question", "an agent"),
    ("turnlog.send", "turnlog-gateway"),
    ("turnlog.commit", "turnlog-worker"),
    ("turnlog.deliver", "turnlog-gateway"),
    ("turnlog.agent", "turnlog-gateway"),
    ("turnlog.answer", "an agent"),
    ("turnlog.send", "turnlog-gateway"),
    ("turnlog.commit", "turnlog-worker"),
]


def names(way: list[Told]) -> list[tuple[str, str]]:
    return [(span.name, span.service) for span in way]


def tracing_to(told: Collector) -> TracerProvider:
    """The tracer provider of a program that has an agent in it."""
    provider = TracerProvider(
        resource=Resource.create({"service.name": "an agent", "process.pid": os.getpid()}), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=told.url + PATH)))
    return provider


async def ready(stack: AsyncExitStack, environment: Mapping[str, str], *noun: str) -> dict[str, object]:
    """A process of Turnlog that runs until the stack of contexts ends; its ready line."""
    command = (sys.executable, "-m", "ops.cli", *noun, "-o", "json")
    return await (await stack.enter_async_context(program(*command, environment=environment))).until("ready")


async def test_a_turn_and_its_answer_are_one_trace_over_all_processes(settings: Settings, tmp_path: Path) -> None:
    channels = {each.id: each.secret for each in await provide(settings, 1, tmp_path / "secrets.json")}
    with collector() as told:
        environment = {**os.environ, **environment_of(settings), **SOON, "TURNLOG_TRACES": told.url}
        async with AsyncExitStack() as processes:
            near, far, _, _ = await asyncio.gather(
                *(ready(processes, environment, "gateway", "--port", "0") for _ in range(2)),
                *(ready(processes, environment, noun) for noun in ("worker", "projector")),
            )
            provider = tracing_to(told)
            agent = Agent(str(far["url"]), channel_secret=channels["agents"], tracing=provider)

            @agent.on_turn
            async def answer(turn: Turn) -> str:
                return f"you said {turn.text}"

            await agent.start()
            async with Client(str(near["url"]), channel_secret=channels["web"], user="ann") as client:
                conversation = await client.open()
                messages = conversation.messages()
                with provider.get_tracer("a page").start_as_current_span("a question"):
                    await conversation.send("hello")
                assert [(await anext(messages)).text for _ in range(2)] == ["hello", "you said hello"]

            def found(name: str, event: str) -> list[Told]:
                return [span for span in told.spans if span.name == name and span.about.get("event") == event]

            def whole() -> bool:
                shown = [span for span in found("turnlog.deliver", "FrameCommitted") if span.process == near["pid"]]
                written = {span.parent for span in told.spans if span.name == "turnlog.project"}
                committed = found("turnlog.commit", "TurnCommitted") + found("turnlog.commit", "FrameCommitted")
                return bool(shown) and bool(committed) and {span.id for span in committed} <= written

            await until(whole)
            await agent.stop()
            provider.shutdown()
    [shown] = [span for span in found("turnlog.deliver", "FrameCommitted") if span.process == near["pid"]]
    way = told.way_to(shown)
    assert names(way) == [*WAY, ("turnlog.deliver", "turnlog-gateway")]
    assert [span.process for span in way if span.service == "turnlog-gateway"] == [
        *(near["pid"], far["pid"], far["pid"]),
        *(far["pid"], near["pid"]),
    ]
    assert {span.about["conversation"] for span in way[1:]} == {conversation.id}
    [turn] = found("turnlog.commit", "TurnCommitted")
    assert turn in way
    trace = [span for span in told.spans if span.trace == turn.trace]
    assert len({span.process for span in trace}) == 5
    written = [span for span in trace if span.name == "turnlog.project"]
    assert {span.service for span in written} == {"turnlog-projector"}
    assert {turn.id, way[-2].id} <= {span.parent for span in written}
    known = {span.id for span in trace}
    assert [span.name for span in trace if span.parent not in known] == ["a question"]
