"""Journal entries as the REST APIs show them: activities, whose types are a closed list. What is no message there is an
event with the frame beside it."""

from __future__ import annotations

import msgspec

from connectors.gateway.ports import Stored
from connectors.gateway.protocol.render import NOT_MESSAGES, Fields, iso, numbered, object_of
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationReopened,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    TurnCommitted,
)


def activity(stored: Stored) -> Fields | None:
    """A numbered entry as the client REST API shows it; None as for `numbered`."""
    entry, superseded = stored.entry, stored.superseded
    frame = numbered(entry, superseded=superseded)
    if frame is None:
        return None
    parts = _parts(entry.event)
    channel_data: Fields = parts.metadata
    if parts.type != "message":
        channel_data = {**channel_data, "frame": frame}
    elif parts.frame_type != "text":
        channel_data = {**channel_data, "type": parts.frame_type, "data": frame["data"]}
    if superseded:
        channel_data = {**channel_data, "superseded": True}
    return {
        "id": parts.id,
        "type": parts.type,
        "from": {"id": parts.sender},
        "text": parts.text,
        "timestamp": iso(entry.timestamp),
        "attachments": parts.attachments,
        "conversationId": entry.event.conversation_id,
        "channelData": channel_data,
        "replyToId": parts.reply_to,
        "editedAt": None if stored.edited_at is None else iso(stored.edited_at),
        "seq": entry.event.seq,
    }


def tenant_activity(stored: Stored, channel: str) -> Fields | None:
    """A numbered entry as the tenant REST API shows it, of a conversation of this channel."""
    shown = activity(stored)
    if shown is None:
        return None
    return {
        "id": shown["id"],
        "type": shown["type"],
        "sender": shown["from"]["id"],
        "text": shown["text"],
        "attachments": shown["attachments"],
        "metadata": shown["channelData"],
        "seq": shown["seq"],
        "reply_to_id": shown["replyToId"],
        "conversation_id": shown["conversationId"],
        "source_channel_id": _source(stored.entry.event, channel),
        "inserted_at": shown["timestamp"],
        "edited_at": shown["editedAt"],
    }


def _source(event: Event, channel: str) -> str | None:
    """The channel that it came from, where that is not the conversation's own: an agent's, for example."""
    match event:
        case TurnCommitted():
            source = event.turn.channel
        case FrameCommitted() | PersonFrameCommitted():
            source = event.channel
        case _:
            return None
    return source if source != channel else None


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What REST activities are made of."""

    id: str
    type: str
    frame_type: str
    sender: str
    text: str | None
    attachments: list[Fields] = []
    metadata: Fields = {}
    reply_to: str | None = None


def _parts(event: Event) -> _Parts:
    match event:
        case TurnCommitted():
            turn = event.turn
            data = object_of(turn.data)
            return _Parts(
                id=turn.id,
                type="message",
                frame_type=turn.type,
                sender=turn.sender,
                text=turn.text if turn.text is not None else _fallback(data),
                attachments=_attachments(data),
                metadata=object_of(turn.metadata),
                reply_to=turn.reply_to,
            )
        case FrameCommitted():
            frame = event.frame
            data = object_of(frame.data)
            reply = object_of(frame.extra).get("replyTo")
            return _Parts(
                id=f"{event.conversation_id}/{event.seq}" if frame.type.startswith("interrupt") else frame.id,
                type="event" if frame.type in NOT_MESSAGES else "message",
                frame_type=frame.type,
                sender=event.sender,
                text=frame.text if frame.text is not None else _fallback(data),
                attachments=_attachments(data),
                metadata=object_of(frame.metadata),
                reply_to=reply.get("id") if isinstance(reply, dict) else None,
            )
        case PersonFrameCommitted():
            name = event.frame.type
            return _Parts(id=event.frame.id, type="event", frame_type=name, sender=event.sender, text=name)
        case (
            ConversationClosed()
            | ConversationReopened()
            | ConversationHandedOver()
            | ConversationHandedBack()
            | ConversationErased()
        ):
            return _Parts(
                id=event.id, type="conversationUpdate", frame_type="conversationUpdate", sender="system", text=None
            )
        case _:
            raise TypeError(f"{type(event).__name__} is no activity")


def _attachments(data: Fields) -> list[Fields]:
    """Those of a text; a renderer of the application's own may mean something else by the name."""
    found = data.get("attachments")
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def _fallback(data: Fields) -> str | None:
    for field in ("text", "content", "caption", "title", "name"):
        value = data.get(field)
        if isinstance(value, str):
            return value
    return None
