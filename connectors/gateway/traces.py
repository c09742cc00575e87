"""What a gateway tells of a turn's way: its sends, its deliveries, and how long an agent took; see `streams.tracing`.

Only made where tracing is on. Spans of agents are the gateway's: from a turn's delivery to the agent's first frame.
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
from streams.tracing import TRACEPARENT, Span, Tracer

AT_WORK_MAX: Final = 10_000
"""Turns whose agents are waited for; beyond, the oldest is forgotten."""


class _Work(msgspec.Struct):
    """A turn that an agent of this gateway has. `span`: None once its first frame came."""

    traceparent: bytes
    span: Span | None


class Traces:
    """The spans of one gateway. `mine`: whether a member is connected here; `concerned`: whether anybody watches."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._at_work: OrderedDict[tuple[str, str], _Work] = OrderedDict()
        self.mine: Callable[[str], bool] = lambda _member: False
        self.concerned: Callable[[str], bool] = lambda _conversation: False

    def sending(self, command: Command | Signal, conversation: str, headers: Headers) -> tuple[Span, Headers]:
        """A command goes to Kafka: its span, to be ended once Kafka has it, and the headers with its context."""
        parent = next((value for name, value in headers if name == TRACEPARENT), None)
        if isinstance(command, CommitFrame):
            parent = self._answering(conversation, command.member) or parent
        span = self._tracer.begin("turnlog.send", parent, conversation=conversation, command=type(command).__name__)
        kept = [(name, value) for name, value in headers if name != TRACEPARENT]
        return span, [*kept, (TRACEPARENT, span.traceparent)]

    def _answering(self, conversation: str, member: str) -> bytes | None:
        work = self._at_work.get((conversation, member))
        if work is None:
            return None
        if work.span is not None:
            work.span.end()
            work.span = None
        return work.traceparent

    def delivered(self, entries: Iterable[Entry], contexts: dict[int, bytes], since_ns: int) -> None:
        """These went to whom they concern, since then. `contexts`: by lsn, the `traceparent` of their records."""
        for entry in entries:
            parent = contexts.get(entry.lsn)
            if parent is None:
                continue
            event = entry.event
            members = [member for member in _given(event) if self.mine(member)]
            watched = isinstance(event, FrameCommitted) and self.concerned(event.conversation_id or "")
            if not members and not watched:
                continue
            about: dict[str, Any] = {"conversation": event.conversation_id or "", "event": type(event).__name__}
            span = self._tracer.begin("turnlog.deliver", parent, since_ns=since_ns, lsn=entry.lsn, **about)
            for member in members:
                self._begin_work(event.conversation_id or "", member, span.traceparent)
            span.end()

    def _begin_work(self, conversation: str, member: str, parent: bytes) -> None:
        span = self._tracer.begin("turnlog.agent", parent, conversation=conversation, member=member)
        self._at_work[conversation, member] = _Work(span.traceparent, span)
        self._at_work.move_to_end((conversation, member))
        if len(self._at_work) > AT_WORK_MAX:
            self._at_work.popitem(last=False)


def contexts_of(records: Sequence[Any], entries: Sequence[Entry | None]) -> dict[int, bytes]:
    """By lsn, the `traceparent` of each record that has one; `entries`: what each record holds."""
    return {
        entry.lsn: value
        for record, entry in zip(records, entries, strict=True)
        if entry is not None
        for name, value in record.headers
        if name == TRACEPARENT
    }


def _given(event: object) -> list[str]:
    """The members that an event gives a turn to."""
    match event:
        case TurnCommitted():
            return [each.member for each in event.assigned if each.member is not None]
        case RunOpened(member=str() as member) | RunMoved(to_member=str() as member):
            return [member]
        case _:
            return []
