"""Rows of the read model's tables, as the projector writes them. Field names are the columns' names."""

from __future__ import annotations

import msgspec

OPEN = "open"


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row; fields in the order of its statement's record."""


class OpenedConversation(Row, frozen=True, gc=False):
    """A row of `conversations` to insert."""

    id: str
    channel: str
    participant: str | None
    external_id: str | None
    timestamp: int
    lsn: int
    metadata: str | None


class ChangedConversation(Row, frozen=True, gc=False):
    """A row of `conversations` to update. `head_seq` 0, `status` None: as it was."""

    id: str
    head_seq: int
    status: str | None
    timestamp: int
    lsn: int


class Line(Row, frozen=True, gc=False):
    """A row of `transcript`."""

    conversation_id: str
    seq: int
    lsn: int
    at: int
    timestamp: int
    kind: str
    id: str
    type: str
    sender: str
    role: str
    channel: str
    text: str | None = None
    key_id: str | None = None
    data: str | None = None
    metadata: str | None = None
    meta: str | None = None
    extra: str | None = None
    reply_to: str | None = None
    interrupt_id: str | None = None
    client_id: str | None = None
    stream_id: str | None = None
    done: bool = False
    member: str | None = None
    group_id: str | None = None
    run_id: str | None = None
    run_epoch: int | None = None
    origin: str | None = None


class Superseded(Row, frozen=True, gc=False):
    """A row of `transcript` that viewers may hide."""

    conversation_id: str
    seq: int


class Edited(Row, frozen=True, gc=False):
    """A row of `transcript`, a turn's, that says something else now."""

    conversation_id: str
    seq: int
    text: str | None
    data: str | None
    edited_at: int


class ErasedConversation(Row, frozen=True, gc=False):
    """A conversation whose words, and the keys of them, are deleted wherever the read model has them."""

    id: str


class OpenedRun(Row, frozen=True, gc=False):
    """A row of `runs` to insert."""

    run_id: str
    conversation_id: str
    turn_seq: int
    group_id: str
    member: str | None
    run_epoch: int
    timestamp: int
    status: str = OPEN
    invocation: str | None = None


class ChangedRun(Row, frozen=True, gc=False):
    """A row of `runs` to update. What is None stays as it was; `started_at` 0: it has not begun (any more)."""

    run_id: str
    member: str | None
    run_epoch: int
    started: bool | None = None
    status: str | None = None
    ended_at: int | None = None
    reason: str | None = None
    detail: str | None = None
    started_at: int | None = None
    cancelling: bool | None = None


class Checkpoint(Row, frozen=True, gc=False):
    """A row of `run_checkpoints` to replace."""

    run_id: str
    lsn: int
    data: str


class EndedRun(Row, frozen=True, gc=False):
    """A run whose row of `run_checkpoints` nobody needs any more."""

    run_id: str


class Owner(Row, frozen=True, gc=False):
    """A row of `owners` to replace; `member` None: to delete."""

    conversation_id: str
    group_id: str
    member: str | None


class JoinedMember(Row, frozen=True, gc=False):
    """A row of `members` to insert."""

    member: str
    group_id: str
    channel: str
    gateway: str
    since: int
    timestamp: int


class DrainingMember(Row, frozen=True, gc=False):
    """A row of `members` to update."""

    member: str
    draining_by: str
    draining_reason: str


class LeftMember(Row, frozen=True, gc=False):
    """A row of `members` to update."""

    member: str
    timestamp: int
    reason: str
