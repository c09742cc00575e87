"""A turn's way is one trace, through the headers of real records; and nothing is asked where tracing is off."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from connectors.gateway.traces import AT_WORK_MAX, Traces, contexts_of
from streams.core.commands import Command, CommitFrame, CommitTurn
from streams.core.content import Frame, Turn
from streams.core.events import Entry, FrameCommitted, TurnCommitted
from streams.runtime.writer import Writer
from streams.settings import SettingsError, load_settings
from streams.tracing import LAST_SPANS, OFF, OpenTelemetryTracer, open_tracer, traceparent_of
from tests.support.collector import collector
from tests.support.sequencing import GATEWAY, GROUP, World, settle
from tests.support.waiting import until

MEMBER = f"{GATEWAY}.1"
CLIENTS = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TURN = Turn(id="t", sender="ann", channel="web", type="text", text="hello")
ASKED = CommitTurn(at=0, timestamp=0, conversation_id="c1", turn=TURN)
ANSWER = CommitFrame(
    at=0, timestamp=0, conversation_id="c1", frame=Frame(id="f", type="text", text="hi"), sender="bot",
    channel="agents", group=GROUP, member=MEMBER, gateway=GATEWAY, delivered_seq=1,
)  # fmt: skip


class Traced:
    """A sequencer and a gateway's side of it, both traced, over a log in memory."""

    def __init__(self) -> None:
        self.told = InMemorySpanExporter()
        self.tracer = OpenTelemetryTracer("test", SimpleSpanProcessor(self.told))
        self.gateway = Traces(self.tracer)
        self.gateway.mine = lambda member: member == MEMBER
        self.gateway.concerned = lambda conversation: conversation == "c1"
        self.world = World()

    async def writer(self) -> Writer:
        self.world.configure()
        self.world.join()
        self.world.converse("c1")
        writer = await self.world.writer(tracer=self.tracer)
        await settle(writer)
        return writer

    def send(self, command: Command, topic: str, *headers: tuple[str, bytes]) -> None:
        span, sent = self.gateway.sending(command, "c1", headers)
        self.world.say(command)
        self.world.kafka.logs[topic, 0].records[-1].headers = tuple(sent)
        span.end()

    def deliver(self, kind: type[Any]) -> list[Entry]:
        """The journal's records of this kind, to whom they concern."""
        records = [
            r for r in self.world.kafka.readable("conversations", 0) if ("type", kind.__name__.encode()) in r.headers
        ]
        entries = [self.world.codec.decode_entry(record.value) for record in records]
        for span in self.gateway.delivering(entries, contexts_of(records, entries)):
            span.end()
        return entries

    def spans(self) -> Sequence[ReadableSpan]:
        return self.told.get_finished_spans()


def lineage(spans: Sequence[ReadableSpan], last: ReadableSpan) -> list[str]:
    """Names from the root to this one."""
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    names = [last.name]
    while last.parent is not None and last.parent.span_id in by_id:
        last = by_id[last.parent.span_id]
        names.append(last.name)
    return names[::-1]


@pytest.mark.parametrize("headers", [(), (("traceparent", CLIENTS),)], ids=["its own", "a client's"])
async def test_from_the_person_to_the_agent_and_back_is_one_trace(headers: tuple[tuple[str, bytes], ...]) -> None:
    traced = Traced()
    writer = await traced.writer()
    traced.send(ASKED, "turns", *headers)
    await settle(writer)
    assert len(traced.deliver(TurnCommitted)) == 1
    traced.send(ANSWER, "frames")
    await settle(writer)
    assert len(traced.deliver(FrameCommitted)) == 1
    spans = traced.spans()
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    way = ["turnlog.send", "turnlog.commit", "turnlog.deliver", "turnlog.agent"]
    assert lineage(spans, spans[-1]) == [*way, *way[:3]]
    if headers:
        assert spans[0].parent is not None
        assert f"{spans[0].parent.span_id:016x}" == "b7ad6b7169203331"
    commit = next(span for span in spans if span.name == "turnlog.commit")
    assert commit.attributes is not None
    about = dict(commit.attributes)
    assert (about["conversation"], about["partition"], about["writer_epoch"], about["event"]) == (
        "c1",
        0,
        1,
        "TurnCommitted",
    )


async def test_a_frame_is_of_the_trace_that_its_agent_says_and_else_of_its_run() -> None:
    traced = Traced()
    writer = await traced.writer()
    for turn in ("one", "two"):
        traced.send(msgspec.structs.replace(ASKED, turn=msgspec.structs.replace(TURN, id=turn)), "turns")
        await settle(writer)
    given = [entry.event for entry in traced.deliver(TurnCommitted)]
    first, second = (event.assigned[0].run_id for event in given if isinstance(event, TurnCommitted))
    carried = {run: traced.gateway.carried(run, MEMBER) or "" for run in (first, second)}
    assert all(traceparent_of(each) == each for each in carried.values())
    assert traced.gateway.carried(first, "somebody else") is None

    def parent(frame: CommitFrame, *headers: tuple[str, bytes]) -> str:
        traced.send(frame, "frames", *headers)
        sent = traced.spans()[-1]
        assert (sent.name, sent.parent is not None) == ("turnlog.send", True)
        return f"{sent.parent.span_id:016x}" if sent.parent is not None else ""

    def of(run: str | None) -> CommitFrame:
        return msgspec.structs.replace(ANSWER, run_id=run)

    assert [parent(of(run)) for run in (first, second, None)] == [
        carried[run].split("-")[2] for run in (first, second, second)
    ]
    assert parent(of(first), ("traceparent", CLIENTS)) == "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (CLIENTS.decode(), CLIENTS.decode()),
        (f"cc{CLIENTS.decode()[2:]}", CLIENTS.decode()),
        (f"cc{CLIENTS.decode()[2:]}-what-will-be", CLIENTS.decode()),
        (f"cc{CLIENTS.decode()[2:]}.what-will-be", None),
        (f"cc{CLIENTS.decode()[2:]}-{'x' * 512}", None),
        (f"{CLIENTS.decode()}-what-will-be", None),
        (CLIENTS.decode().upper(), None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", None),
        (f"ff{CLIENTS.decode()[2:]}", None),
        (CLIENTS.decode() + "\n", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_what_is_no_context_is_not_taken_for_one_and_one_of_a_later_version_is_as_far_as_it_is_known(
    value: object, taken: str | None
) -> None:
    assert traceparent_of(value) == taken


async def test_what_concerns_nobody_here_or_has_no_trace_has_no_span() -> None:
    traced = Traced()
    writer = await traced.writer()
    traced.world.turn("c1", "without")
    traced.send(ASKED, "turns")
    await settle(writer)
    before = len(traced.spans())
    traced.gateway.mine = lambda _: False
    assert len(traced.deliver(TurnCommitted)) == 2
    assert len(traced.spans()) == before


def test_agents_that_never_answer_are_forgotten() -> None:
    traced = Traced()
    for number in range(AT_WORK_MAX + 10):
        traced.gateway._begin_work(f"c{number}", f"c{number}/1/agents", MEMBER, CLIENTS)
    assert len(traced.gateway._at_work) == len(traced.gateway._latest) == AT_WORK_MAX


def test_a_header_that_is_no_context_begins_a_trace() -> None:
    traced = Traced()
    traced.tracer.begin("turnlog.send", b"garbage \xff").end()
    [span] = traced.spans()
    assert span.parent is None


def test_it_is_off_unless_a_collector_is_named() -> None:
    settings = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none")
    assert open_tracer(settings, "test") is OFF
    assert not OFF.on
    with pytest.raises(AssertionError, match="off"):
        OFF.begin("x", None)
    with pytest.raises(SettingsError, match="TURNLOG_TRACES"):
        load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none", traces="collector:4318")


async def test_spans_reach_the_collector_that_is_named() -> None:
    with collector() as told:
        settings = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none", traces=told.url)
        tracer = open_tracer(settings, "test")
        tracer.begin("turnlog.send", None, conversation="c1").end()
        await tracer.close()
    [span] = told.spans
    assert (span.name, span.service, span.process, span.about) == (
        "turnlog.send", "test", os.getpid(), {"conversation": "c1"},
    )  # fmt: skip


async def test_a_collector_that_does_not_answer_holds_up_neither_the_loop_nor_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = load_settings(
            kafka="127.0.0.1:1",
            postgres="postgresql://nowhere/none",
            traces=f"http://127.0.0.1:{silent.getsockname()[1]}",
        )
        tracer = open_tracer(settings, "test")
        tracer.begin("turnlog.send", None).end()
        closing = asyncio.create_task(tracer.close(within_s=0.2))
        turns = 0
        while not closing.done():
            await asyncio.sleep(0)
            turns += 1
        await closing
    assert turns > 10, "the loop stood still"
    await until(lambda: all(thread.name != LAST_SPANS for thread in threading.enumerate()))
