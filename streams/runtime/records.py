"""What the codec speaks of: which command travels in which topic, and why a record, or a value, is no good."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    CancelRun,
    CloseConversation,
    Command,
    CommitFrame,
    CommitPersonFrame,
    CommitTurn,
    Drain,
    EraseConversation,
    EraseIdle,
    HandBack,
    HandOver,
    Join,
    Leave,
    MoveConversation,
    NoteAction,
    OpenConversation,
    RefuseRun,
    ReleaseRun,
    ReopenConversation,
)
from streams.core.events import Event, Unknown
from streams.runtime.signals import Goodbye, Heartbeat, Signal, Tick

# The design's limit of a record (rule 9); membership, whose lists and documents are the operators' own, may fill the
# 1 MiB that a broker takes by default, but for what the journal's envelope and headers add: a document is one event.
MAX_BYTES: Final[Mapping[str, int]] = {"turns": 384 * 1024, "frames": 384 * 1024, "membership": 960 * 1024}
"""Intake topic (a schema's name) to the largest value that is decoded, bytes."""

TURN_COMMANDS: Final = (
    OpenConversation,
    CommitTurn,
    CloseConversation,
    ReopenConversation,
    CommitPersonFrame,
    HandOver,
    HandBack,
    CancelRun,
    ReleaseRun,
    MoveConversation,
    EraseConversation,
    EraseIdle,
)
FRAME_COMMANDS: Final = (CommitFrame, RefuseRun)
MEMBERSHIP_COMMANDS: Final = (Join, Leave, ApplyList, ApplyConfig, Heartbeat, Goodbye, Tick, Drain, NoteAction)
EVENTS: Final[Mapping[str, type[Event]]] = {c.__name__: c for c in Event.__subclasses__() if c is not Unknown}

INTAKE_OF: Final[Mapping[type, str]] = {
    **dict.fromkeys(TURN_COMMANDS, "turns"),
    **dict.fromkeys(FRAME_COMMANDS, "frames"),
    **dict.fromkeys(MEMBERSHIP_COMMANDS, "membership"),
}
"""Class of a command or signal to the intake topic (a schema's name) that carries it."""

KEYED_CLASSES: Final[Mapping[str, Mapping[str, type[Command]]]] = {
    "turns": {c.__name__: c for c in TURN_COMMANDS},
    "frames": {c.__name__: c for c in FRAME_COMMANDS},
}
MEMBERSHIP_CLASSES: Final[Mapping[str, type[Command | Signal]]] = {c.__name__: c for c in MEMBERSHIP_COMMANDS}


class Reason(StrEnum):
    """Why a record cannot be taken: the dead letter's `error`, and the reason of its `Rejected`."""

    NULL_VALUE = "null_value"
    TOO_LARGE = "too_large"
    UNKNOWN_SCHEMA = "unknown_schema"
    WRONG_SCHEMA = "wrong_schema"
    TRUNCATED = "truncated"
    TRAILING_BYTES = "trailing_bytes"
    KEY_MISMATCH = "key_mismatch"
    WRONG_PARTITION = "wrong_partition"
    UNDECIDABLE = "undecidable"


class Undecodable(Exception):
    """A record that cannot be taken. `reason` in a word for machines, `str()` a sentence for people."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Unencodable(ValueError):
    """A value that its schema has no bytes for; the message names the field and the rule."""


class KafkaRecord(Protocol):
    """What the codec reads of a consumed record: aiokafka's `ConsumerRecord` is one."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator did with a dead letter: see `ops/dlq`."""

    action: str
    by: str
    why: str
    at: int
    """ms since the epoch, by the clock of the operator's machine."""
    into: str | None = None
    """replayed: the record that it was written as, `<topic>/<partition>/<offset>`."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An intake record that could not be taken, as it was; see `schemas/avro/dead_letters.avsc`.

    With `settled` it is the mark that says what was done with the letter of that origin.
    """

    error: str
    reason: str
    origin: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    settled: Settled | None = None
    at: int
