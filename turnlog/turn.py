"""What a handler is given."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlog.resume import Resume, resume_in
from turnlog.seen import text_of
from turnlog.wire import NOT_TURNS, Frame


@dataclass(frozen=True, slots=True)
class Invocation:
    """What makes a turn an invocation: another program asked, and waits for the outcome."""

    id: str
    """Its id: accepted once in its thread, which is the turn's conversation."""
    deadline: float | None = None
    """Seconds that it may take in all; None: no limit but the watchdog's."""
    streamed: bool = False
    """Whether the caller follows the answer as it grows."""
    data: dict[str, Any] = field(default_factory=dict)
    """The input beside the turn's `text`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a person said, or a program asked, given to this process to answer."""

    conversation: str
    id: str
    """Message id: the same when the turn is given again, to whomever."""
    text: str
    """The plain text of any message type that has one (`text`, `caption`, `title` or `name`), else ``""``."""
    type: str = "text"
    seq: int | None = None
    """Place in the conversation, 1-based; None where the server gave a turn again without saying."""
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    """The sender's own `metadata` object."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Context of this turn (locale, channel …), never stored with the message by the protocol's rule."""
    sender: str | None = None
    channel: str | None = None
    """Id of the channel that it came from."""
    reply_to: str | None = None
    """Id of the message that it answers."""
    run: str | None = None
    """Id of the run that answering it is; None behind a server that does not name runs."""
    run_epoch: int | None = None
    """1 for the first owner, +1 each time the run moved."""
    invocation: Invocation | None = None
    """Set when a program invoked the agent."""
    answers: str | None = None
    """Id of the question that it answers, where the server says so."""
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Set when the turn is not this process's to answer any more: a function in a thread looks at it, to end early."""
    resume: Resume | None = None
    """What an earlier owner had done of it, for an agent that `continues`; None: begin at the beginning."""
    traceparent: str | None = None
    """W3C trace context of its delivery, where the gateway traces; what the answer sends carries it back."""
    raw: Frame = field(default_factory=dict, repr=False)
    """The frame as it came."""


def turn_in(conversation: str, frame: Frame, earlier: Sequence[Frame] = ()) -> Turn | None:
    """The turn in a conversation's frame, or None when the frame is something else. `earlier`: see `resume_in`."""
    kind, data = frame.get("type"), frame.get("data")
    if frame.get("from") != "user" or not isinstance(kind, str) or not isinstance(data, dict) or kind in NOT_TURNS:
        return None
    meta = _object(frame.get("meta"))
    return Turn(
        conversation=conversation,
        id=str(frame.get("id") or ""),
        text=text_of(data),
        type=kind,
        # `turnSeq`: given again behind a later one; `seq` would say that it is new.
        seq=_integer(frame.get("seq", frame.get("turnSeq"))),
        data=data,
        metadata=_object(frame.get("metadata")),
        meta=meta,
        sender=_string(_object(frame.get("sender")).get("id")),
        channel=_channel_of(meta),
        reply_to=_string(_object(frame.get("replyTo")).get("id")),
        run=_string(frame.get("run")),
        run_epoch=_integer(frame.get("runEpoch")),
        invocation=_invocation_of(frame.get("invocation"), data),
        answers=_string(frame.get("answers")),
        resume=resume_in(frame, earlier),
        traceparent=_string(frame.get("traceparent")),
        raw=frame,
    )


def _invocation_of(value: object, data: Frame) -> Invocation | None:
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        return None
    ms = _integer(value.get("deadlineMs"))
    return Invocation(value["id"], ms / 1000 if ms else None, value.get("streamed") is True, _object(data.get("input")))


def _channel_of(meta: Frame) -> str | None:
    channel = meta.get("channel")
    return _string(channel.get("id")) if isinstance(channel, dict) else _string(channel)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
