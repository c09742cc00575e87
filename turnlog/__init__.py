"""Turnlog's public API for agents and clients: light, with no Kafka and no Postgres in it.

`Agent` answers the turns that its process owns; `Client` is a person's side of a conversation. Everything that an
outsider needs is exported here; the modules below are this package's own. It imports none of `streams`, `connectors`,
`ops` and `schemas`, which are the server's rooms.
"""

from turnlog import seen
from turnlog.agent import Agent
from turnlog.client import Activity, Client, Conversation, Sent
from turnlog.errors import (
    AckTimeout,
    AgentBusy,
    AgentUnavailable,
    AskTimeout,
    BotUnavailable,
    Busy,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    ConversationNotFound,
    Fenced,
    HandedOver,
    IncompleteResume,
    Interrupted,
    InvalidRequest,
    InvocationCancelled,
    InvocationConflict,
    InvocationFailed,
    InvocationNotFound,
    InvocationTimedOut,
    NotInterrupted,
    OwnerGone,
    ProtocolViolation,
    RateLimited,
    SubmissionUncertain,
    TooManyConversations,
    TooManyEvents,
    TurnlogError,
    Unauthorized,
    Unavailable,
)
from turnlog.invocations import Event, Page, Record, State
from turnlog.logs import TurnFields
from turnlog.outbox import Ack
from turnlog.proxy import AgentProxy
from turnlog.reply import Reply
from turnlog.resume import Resume, Streamed
from turnlog.seen import Ask, Seen
from turnlog.shown import Component, ToolCall
from turnlog.stream import Stream
from turnlog.turn import Invocation, Turn
from turnlog.viewer import Frames, Message, Messages, Viewed

__all__ = [
    "Ack",
    "AckTimeout",
    "Activity",
    "Agent",
    "AgentBusy",
    "AgentProxy",
    "AgentUnavailable",
    "Ask",
    "AskTimeout",
    "BotUnavailable",
    "Busy",
    "Client",
    "Component",
    "Conflict",
    "Conversation",
    "ConversationBusy",
    "ConversationClosed",
    "ConversationNotFound",
    "Event",
    "Fenced",
    "Frames",
    "HandedOver",
    "IncompleteResume",
    "Interrupted",
    "InvalidRequest",
    "Invocation",
    "InvocationCancelled",
    "InvocationConflict",
    "InvocationFailed",
    "InvocationNotFound",
    "InvocationTimedOut",
    "Message",
    "Messages",
    "NotInterrupted",
    "OwnerGone",
    "Page",
    "ProtocolViolation",
    "RateLimited",
    "Record",
    "Reply",
    "Resume",
    "Seen",
    "Sent",
    "State",
    "Stream",
    "Streamed",
    "SubmissionUncertain",
    "TooManyConversations",
    "TooManyEvents",
    "ToolCall",
    "Turn",
    "TurnFields",
    "TurnlogError",
    "Unauthorized",
    "Unavailable",
    "Viewed",
    "seen",
]
