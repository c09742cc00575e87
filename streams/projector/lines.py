"""What a viewer gets, as rows of `transcript`: turns, frames, and what became of a conversation. Pure."""

from __future__ import annotations

import msgspec

from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationReopened,
    Entry,
    FrameCommitted,
    PersonFrameCommitted,
    TurnCommitted,
)
from streams.projector.tables import Line

SYSTEM = "system"

Update = (
    ConversationClosed | ConversationErased | ConversationReopened | ConversationHandedOver | ConversationHandedBack
)
"""What became of a conversation, for its viewers to see."""


def text(value: str | None) -> str:
    """PostgreSQL's text takes no NUL, and a record that somebody wrote past the gateways may hold one."""
    return "" if value is None else value.replace("\0", "\N{REPLACEMENT CHARACTER}")


def optional(value: str | None) -> str | None:
    """`text`, of what may be missing."""
    return None if value is None else text(value)


def line_of_turn(entry: Entry, event: TurnCommitted) -> Line:
    """What a person said."""
    turn = event.turn
    return Line(
        conversation_id=text(event.conversation_id),
        seq=event.seq,
        lsn=entry.lsn,
        at=entry.at,
        timestamp=entry.timestamp,
        kind="turn",
        id=text(turn.id),
        type=text(turn.type),
        sender=text(turn.sender),
        role="user",
        channel=text(turn.channel),
        text=optional(turn.text),
        key_id=optional(turn.key_id),
        data=optional(turn.data),
        metadata=optional(turn.metadata),
        meta=optional(turn.meta),
        reply_to=optional(turn.reply_to),
        client_id=optional(turn.client_id),
        interrupt_id=optional(event.interrupt_id),
        run_id=optional(event.joins_run),
    )


def line_of_frame(entry: Entry, event: FrameCommitted) -> Line:
    """A numbered frame of an agent's, or of Turnlog's own."""
    frame = event.frame
    return Line(
        conversation_id=text(event.conversation_id),
        seq=event.seq,
        lsn=entry.lsn,
        at=entry.at,
        timestamp=entry.timestamp,
        kind="frame",
        id=text(frame.id),
        type=text(frame.type),
        sender=text(event.sender),
        role=SYSTEM if event.sender == SYSTEM else "agent",
        channel=text(event.channel),
        text=optional(frame.text),
        key_id=optional(frame.key_id),
        data=optional(frame.data),
        metadata=optional(frame.metadata),
        extra=optional(frame.extra),
        client_id=optional(frame.client_id),
        stream_id=optional(frame.stream_id),
        done=frame.done,
        member=optional(event.member),
        group_id=optional(event.group),
        run_id=optional(event.run_id),
        run_epoch=event.run_epoch,
        origin=optional(event.origin or None),
    )


def line_of_person_frame(entry: Entry, event: PersonFrameCommitted) -> Line:
    """A numbered frame of a person's that is no turn."""
    frame = event.frame
    return Line(
        conversation_id=text(event.conversation_id),
        seq=event.seq,
        lsn=entry.lsn,
        at=entry.at,
        timestamp=entry.timestamp,
        kind="frame",
        id=text(frame.id),
        type=text(frame.type),
        sender=text(event.sender),
        role="user",
        channel=text(event.channel),
        data=optional(frame.data),
        key_id=optional(frame.key_id),
        client_id=optional(frame.client_id),
    )


def line_of_update(entry: Entry, event: Update, data: dict[str, str]) -> Line:
    """`data`: of the frame that viewers get."""
    return Line(
        conversation_id=text(event.conversation_id),
        seq=event.seq,
        lsn=entry.lsn,
        at=entry.at,
        timestamp=entry.timestamp,
        kind="update",
        id=text(event.id),
        type="conversationUpdate",
        sender=text(event.by),
        role=SYSTEM,
        channel="",
        data=msgspec.json.encode(data).decode(),
    )
