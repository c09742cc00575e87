"""Turnlog's public API for agents and clients: light, with no Kafka and no Postgres in it.

`Agent` answers the turns that its process owns; `Client` is a person's side of a conversation. Everything that an
outsider needs is exported here; the modules below are this package's own. It imports none of `streams`, `connectors`,
`ops` and `schemas`, which are the server's rooms.
"""

from turnlog.agent import Agent
from turnlog.client import Activity, Client, Conversation, Sent
from turnlog.errors import (
    AckTimeout,
    ConversationClosed,
    ConversationNotFound,
    Fenced,
    InvalidRequest,
    ProtocolViolation,
    TurnlogError,
    Unauthorized,
    Unavailable,
)
from turnlog.outbox import Ack
from turnlog.reply import Reply
from turnlog.resume import Ask, Resume, Streamed
from turnlog.stream import Stream
from turnlog.turn import Turn
from turnlog.viewer import Frames, Message, Messages, Viewed

__all__ = [
    "Ack",
    "AckTimeout",
    "Activity",
    "Agent",
    "Ask",
    "Client",
    "Conversation",
    "ConversationClosed",
    "ConversationNotFound",
    "Fenced",
    "Frames",
    "InvalidRequest",
    "Message",
    "Messages",
    "ProtocolViolation",
    "Reply",
    "Resume",
    "Sent",
    "Stream",
    "Streamed",
    "Turn",
    "TurnlogError",
    "Unauthorized",
    "Unavailable",
    "Viewed",
]
