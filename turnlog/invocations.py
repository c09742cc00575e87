"""What is known of an invocation: its record, its events, its outcome.

ACCEPTED ──▶ RUNNING ──▶ SUCCEEDED | FAILED | TIMED_OUT | OWNER_GONE
    │           │
    └───────────┴──────▶ CANCELLING ──▶ CANCELLED (or as above, when that came first)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turnlog.errors import InvocationFailed, OwnerGone, ProtocolViolation, TurnlogError, error_of
from turnlog.wire import Frame


class State(StrEnum):
    """See the diagram above."""

    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    OWNER_GONE = "OWNER_GONE"

    @property
    def ended(self) -> bool:
        return self not in {State.ACCEPTED, State.RUNNING, State.CANCELLING}


_CODES: Mapping[State, str] = {
    State.FAILED: "AGENT_ERROR",
    State.CANCELLED: "CANCELLED",
    State.TIMED_OUT: "DEADLINE_EXCEEDED",
    State.OWNER_GONE: "OWNER_GONE",
}
"""For a record whose error names no code."""


@dataclass(frozen=True, slots=True)
class Record:
    """An invocation as the gateway has it. It is durable: any gateway, and any later process, reads the same."""

    id: str
    thread: str
    state: State
    text: str = ""
    """All the text of its answer, once it has ended: streams and messages, joined by blank lines."""
    messages: tuple[Frame, ...] = ()
    """`{type, text, data}` each, once it has ended."""
    error: TurnlogError | None = None
    """Why it did not succeed."""
    events: int = 0
    """How many there are so far."""
    raw: Frame = field(default_factory=dict, repr=False)
    """As it came: `member`, `runEpoch`, `createdAt`, `startedAt`, `endedAt` …"""

    @property
    def ended(self) -> bool:
        return self.state.ended

    @property
    def value(self) -> Any:
        """What the agent's function returned: its JSON value, else the text."""
        for message in reversed(self.messages):
            data = message.get("data")
            if message.get("type") == "result" and isinstance(data, dict):
                return data.get("value")
        return self.text

    def succeeded(self) -> Record:
        """Itself. Raises what it ended with, if that was no success, and `RuntimeError` when it has not ended yet."""
        if self.error is not None:
            raise self.error
        if not self.ended:
            raise RuntimeError(f"invocation {self.id} of thread {self.thread} is {self.state.value}: wait for its end")
        return self


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the agent said or showed."""

    n: int
    """Place in the invocation, 1-based, without a gap."""
    type: str
    data: Frame = field(repr=False)
    """The frame, as viewers of the thread get it."""
    at: str = ""
    """When it was stored: ISO 8601."""

    @property
    def text(self) -> str:
        """What it adds to the text of the answer: a message's text, or a piece of a stream. Else ``""``."""
        if self.data.get("superseded") is True:
            return ""
        chunk, data = self.data.get("chunk"), self.data.get("data")
        source, name = (chunk, "content") if self.type == "genui" else (data, "text")
        said = source.get(name) if isinstance(source, dict) else None
        return said if isinstance(said, str) and self.type not in {"tool_call", "skill", "event"} else ""


@dataclass(frozen=True, slots=True)
class Page:
    """Events in a row. `done`: the invocation has ended, and these are its last; else `next` is where to go on from."""

    events: tuple[Event, ...]
    next: int
    done: bool


def record_in(body: Frame) -> Record:
    """A record off the wire."""
    try:
        state = State(str(body.get("state")))
    except ValueError as error:
        raise ProtocolViolation(f"state: {body.get('state')!r} is none", code="bad_response") from error
    output = body.get("output")
    output = output if isinstance(output, dict) else {}
    messages = output.get("messages")
    thread = str(body.get("thread", ""))
    record = Record(
        id=str(body.get("id", "")),
        thread=thread,
        state=state,
        text=str(output.get("text") or ""),
        messages=tuple(each for each in messages if isinstance(each, dict)) if isinstance(messages, list) else (),
        error=_error(state, body.get("error"), thread),
        events=body["events"] if isinstance(body.get("events"), int) else 0,
        raw=body,
    )
    if isinstance(record.error, InvocationFailed):
        record.error.record = record
    return record


def _error(state: State, given: object, thread: str) -> TurnlogError | None:
    if not state.ended or state is State.SUCCEEDED:
        return None
    data = dict(given) if isinstance(given, dict) else {}
    data.setdefault("code", _CODES[state])
    data.setdefault("message", f"the invocation ended as {state.value}")
    error = error_of(data, conversation=thread)
    if state is State.OWNER_GONE and not isinstance(error, OwnerGone):
        return OwnerGone(str(error), code=error.code, conversation=thread)
    if type(error) is TurnlogError:
        return InvocationFailed(str(error), code=error.code, conversation=thread)
    return error


def event_in(body: Frame) -> Event:
    """An event off the wire."""
    n, data = body.get("n"), body.get("data")
    if not isinstance(n, int) or not isinstance(data, dict):
        raise ProtocolViolation("an event of the invocation has no `n` or no `data`", code="bad_response")
    return Event(n, str(body.get("type", "")), data, str(body.get("at", "")))


def page_in(body: Frame) -> Page:
    """A page off the wire."""
    events = body.get("events")
    listed = tuple(event_in(each) for each in events) if isinstance(events, list) else ()
    following = body.get("next")
    return Page(listed, following if isinstance(following, int) else 0, body.get("done") is True)
