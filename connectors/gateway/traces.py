"""What a gateway tells of a turn's way: its sends, its deliveries, and how long an agent took; see `streams.tracing`.

Only made where tracing is on. `turnlog.agent` is the gateway's: from a turn's delivery to the agent's first frame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from connectors.gateway.ports import Headers
from streams.core.commands import Command, CommitFrame
from streams.core.events import Entry, FrameCommitted, RunMoved, RunOpened, TurnCommitted
from streams.runtime.signals import Signal
from streams.tracing import TRACEPARENT, Span, Tracer, traceparent_in

AT_WORK_MAX: Final = 10_000
"""Runs whose agents are waited for; beyond, the oldest is forgotten."""


class _Work(msgspec.Struct):
    """A run that an agent of this gateway has. `span`: None once its first frame came."""

    conversation: str
    member: str
    traceparent: bytes
    span: Span | None


class Traces:
    """The spans of one gateway. `mine`: whether a member is connected here; `concerned`: whether anybody watches."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._at_work: OrderedDict[str, _Work] = OrderedDict()
        """By run."""
        self._latest: dict[tuple[str, str], str] = {}
        """By conversation and member, the last run that it was given: for agents that name none."""
        self.mine: Callable[[str], bool] = lambda _member: False
        self.concerned: Callable[[str], bool] = lambda _conversation: False

    def sending(self, command: Command | Signal, conversation: str, headers: Headers) -> tuple[Span, Headers]:
        """A command goes to Kafka: its span, to be ended once Kafka has it, and the headers with its context."""
        parent = traceparent_in(headers)
        if isinstance(command, CommitFrame):
            answering = self._answering(conversation, command)
            parent = parent or answering
        span = self._tracer.begin("turnlog.send", parent, conversation=conversation, command=type(command).__name__)
        kept = [(name, value) for name, value in headers if name != TRACEPARENT]
        return span, [*kept, (TRACEPARENT, span.traceparent)]

    def _answering(self, conversation: str, command: CommitFrame) -> bytes | None:
        run_id = command.run_id or self._latest.get((conversation, command.member), "")
        work = self._at_work.get(run_id)
        if work is None or work.member != command.member:
            return None
        if work.span is not None:
            work.span.end()
            work.span = None
        return work.traceparent

    def carried(self, run_id: str, member: str) -> str | None:
        """What a turn carries to its agent, for what that does with it to be told of in the same trace."""
        work = self._at_work.get(run_id)
        return work.traceparent.decode("latin-1") if work is not None and work.member == member else None

    def delivering(self, entries: Iterable[Entry], contexts: dict[int, bytes]) -> list[Span]:
        """These go to whom they concern: their spans, to be ended once they went. `contexts`: by lsn, the `traceparent`
        of their records."""
        spans = []
        for entry in entries:
            parent = contexts.get(entry.lsn)
            if parent is None:
                continue
            event = entry.event
            given = [(run_id, member) for run_id, member in _given(event) if self.mine(member)]
            watched = isinstance(event, FrameCommitted) and self.concerned(event.conversation_id or "")
            if not given and not watched:
                continue
            about: dict[str, Any] = {"conversation": event.conversation_id or "", "event": type(event).__name__}
            span = self._tracer.begin("turnlog.deliver", parent, lsn=entry.lsn, **about)
            for run_id, member in given:
                self._begin_work(event.conversation_id or "", run_id, member, span.traceparent)
            spans.append(span)
        return spans

    def _begin_work(self, conversation: str, run_id: str, member: str, parent: bytes) -> None:
        span = self._tracer.begin("turnlog.agent", parent, conversation=conversation, run=run_id, member=member)
        self._at_work[run_id] = _Work(conversation, member, span.traceparent, span)
        self._at_work.move_to_end(run_id)
        self._latest[conversation, member] = run_id
        if len(self._at_work) > AT_WORK_MAX:
            forgotten, work = self._at_work.popitem(last=False)
            if self._latest.get((work.conversation, work.member)) == forgotten:
                del self._latest[work.conversation, work.member]


def contexts_of(records: Sequence[Any], entries: Sequence[Entry | None]) -> dict[int, bytes]:
    """By lsn, the `traceparent` of each record that has one; `entries`: what each record holds."""
    found = ((entry, traceparent_in(record.headers)) for record, entry in zip(records, entries, strict=True))
    return {entry.lsn: context for entry, context in found if entry is not None and context is not None}


def _given(event: object) -> list[tuple[str, str]]:
    """The runs that an event gives, and to which members."""
    match event:
        case TurnCommitted():
            return [(each.run_id, each.member) for each in event.assigned if each.member is not None]
        case RunOpened(member=str() as member) | RunMoved(to_member=str() as member):
            return [(event.run_id, member)]
        case _:
            return []
