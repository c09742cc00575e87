"""What commands and events carry: turns and frames as people and agents sent them, who is given what, and the words
for why something is so.

The same records lie in the intake and in the journal, with the field names of `schemas/avro`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class RunStatus(StrEnum):
    """How a run ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OWNER_GONE = "owner_gone"


class RefusedReason(StrEnum):
    """Why a command changed nothing. Each maps to one error of the wire protocol at the gateway."""

    FENCED = "fenced"
    CONVERSATION_NOT_FOUND = "conversation_not_found"
    CONVERSATION_CLOSED = "conversation_closed"
    CONVERSATION_EXISTS = "conversation_exists"
    CHANNEL_UNKNOWN = "channel_unknown"
    TEXT_TOO_LARGE = "text_too_large"
    RECORD_TOO_LARGE = "record_too_large"
    TOO_MANY_EVENTS = "too_many_events"
    INVALID_TEXT = "invalid_text"
    GATEWAY_ENDED = "gateway_ended"
    NOT_INTERRUPTED = "not_interrupted"
    INCOMPLETE_RESUME = "incomplete_resume"
    NOT_EDITABLE = "not_editable"
    HANDED_OVER = "handed_over"
    BUSY = "busy"
    CONVERSATION_BUSY = "conversation_busy"
    INVOCATION_CONFLICT = "invocation_conflict"
    RUN_NOT_FOUND = "run_not_found"
    MEMBER_LIVE = "member_live"
    AGENT_UNAVAILABLE = "agent_unavailable"
    BOT_UNAVAILABLE = "bot_unavailable"
    CHANNEL_NOT_ROUTED = "channel_not_routed"
    NOT_DUE = "not_due"


class MoveReason(StrEnum):
    """Why a run moved, or an owner changed."""

    MEMBER_LEFT = "member_left"
    MEMBER_EXPIRED = "member_expired"
    MEMBER_DRAINED = "member_drained"
    MEMBER_JOINED = "member_joined"
    ADOPT_TIMEOUT = "adopt_timeout"
    REFUSED = "refused"
    OPERATOR = "operator"


class Invocation(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What makes a turn the call of an agent: a thread's conversation holds it as a turn like any other."""

    id: str
    """The caller's; unique in its conversation, with one input."""
    group: str
    """The only group that gets it: `<channel>` for the channel's implicit one, `<channel>/<group>` for a named one."""
    deadline_ms: int = 0
    """Its run ends this long after it was taken; 0: never, for that."""
    streamed: bool = False
    """Its caller follows the run's frames: the idle watchdog counts beside the deadline."""
    policy: str | None = None
    """What becomes of it during a run of the same group: `reject`, `enqueue`, `interrupt`, `deliver`; None: the
    group's own, `reject` where it has none."""
    retry: bool = False
    """May be executed again when its owner is lost."""
    input_hash: str = ""
    """Of its input: the same id with another one is a conflict."""


class Turn(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a person said: the same record in the intake and in the journal."""

    id: str
    """Message id: uuid5 of the idempotency key when there is one, else minted by the gateway."""
    sender: str
    """The participant's id on the channel."""
    channel: str
    """Id of the channel it came from."""
    type: str
    """Message type of the wire protocol: text, image, file, quick-reply …"""
    key: str | None = None
    """Idempotency key, unique per (conversation, sender)."""
    client_id: str | None = None
    """The sender's own id for it; echoed in the ack."""
    text: str | None = None
    """The plain text, where the type has one."""
    key_id: str | None = None
    """Data key that seals `text`, `data` and `metadata`; None: they are plain."""
    data: str | None = None
    """The wire frame's `data` object as JSON, when it holds more than `text`."""
    metadata: str | None = None
    """The wire frame's `metadata` object as JSON."""
    meta: str | None = None
    """The wire frame's `meta` object as JSON."""
    reply_to: str | None = None
    """Id of the message (or interrupt) that it answers."""
    client_at: int | None = None
    """The sender's own clock, ms; never used to order anything."""
    invocation: Invocation | None = None
    """Set for the call of an agent."""


class Frame(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What an agent said or did, or a person beside their turns: the same record in the intake and in the journal."""

    id: str
    """Message id minted by the gateway; for an interrupt the agent's own interrupt id."""
    type: str
    """Frame type of the wire protocol. An agent's: text, buttons, genui, tool_call, interrupt, interrupt_resolved, run,
    read, error, checkpoint … A person's: resume, abort, edit, regenerate, survey, genui_event, client_tools,
    client_skills."""
    client_id: str | None = None
    """The sender's own id for it; echoed in the ack, and an agent's idempotency key within the run."""
    text: str | None = None
    key_id: str | None = None
    data: str | None = None
    """The wire frame's payload (`data`; the chunk of genui; else the whole) as JSON, when it holds more than `text`."""
    metadata: str | None = None
    extra: str | None = None
    """Further top-level fields of the wire frame (`actions`, `replyTo`, …) as a JSON object."""
    stream_id: str | None = None
    """genui: the stream that the chunk belongs to."""
    done: bool = False
    """genui: the last chunk of its stream."""
    status: str | None = None
    """run: started, finished, error, aborted, interrupted."""
    watermark: int = 0
    """read: the seq up to which the agent has read."""


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """One run opened by a turn: who answers it for a group. `member` None: it waits for the group's first member."""

    group: str
    member: str | None
    run_id: str
    run_epoch: int = 1
