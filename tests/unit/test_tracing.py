"""A turn's way is one trace, through the headers of real records; and nothing is asked where tracing is off."""

from __future__ import annotations

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

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
from streams.tracing import OFF, OpenTelemetryTracer, now_ns, open_tracer
from tests.support.sequencing import GATEWAY, GROUP, World, settle

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
        self.gateway.delivered(entries, contexts_of(records, entries), now_ns())
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
        traced.gateway._begin_work(f"c{number}", MEMBER, CLIENTS)
    assert len(traced.gateway._at_work) == AT_WORK_MAX


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


def test_spans_reach_the_collector_that_is_named() -> None:
    received: list[tuple[str, int]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, len(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        url = f"http://127.0.0.1:{server.server_port}"
        settings = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none", traces=url)
        tracer = open_tracer(settings, "test")
        tracer.begin("turnlog.send", None, conversation="c1").end()
        tracer.close()
        server.shutdown()
        serving.join()
    assert [path for path, _ in received] == ["/v1/traces"]
    assert received[0][1] > 0
