"""What the gateway asks of the outside; Kafka and Postgres implement it, and memory does in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from connectors.gateway.protocol.render import Told
from streams.core.commands import Command
from streams.core.events import Entry
from streams.fence.signing import KeyRing
from streams.runtime.signals import Signal
from streams.tracing import TRACEPARENT

Headers = Sequence[tuple[str, bytes]]


def traced(traceparent: str | None) -> Headers:
    """The headers of a command that is part of this trace, or of none."""
    return () if traceparent is None else ((TRACEPARENT, traceparent.encode()),)


class Unavailable(Exception):
    """Kafka or Postgres cannot be asked now. What was asked for may have happened, or not: repeats are safe by key."""


class Written(msgspec.Struct, frozen=True):
    """Where an intake record lies."""

    partition: int
    offset: int


class Intake(Protocol):
    """The intake topics, written at least once, in the order of the calls for one key or partition."""

    @property
    def partitions(self) -> int:
        """How many partitions every topic by conversation has."""

    async def send(
        self, command: Command | Signal, *, partition: int | None = None, headers: Headers = ()
    ) -> asyncio.Future[Written]:
        """Queue a record: `partition` for membership, by the conversation otherwise. Raises `Unavailable`; so may the
        future, which is done once the brokers have it."""


class Stored(msgspec.Struct, frozen=True):
    """A numbered entry of a transcript. `superseded`: another process did that part again. `edited_at`: of a turn, when
    what it says was last edited, ms since the epoch."""

    entry: Entry
    superseded: bool = False
    edited_at: int | None = None


def told(stored: Sequence[Stored]) -> list[Told]:
    """As sessions, which know nothing of where it is stored, take them."""
    return [Told(item.entry, item.superseded, item.edited_at) for item in stored]


class ConversationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation at a glance; times in ms since the epoch."""

    id: str
    channel: str
    participant: str | None
    external_id: str | None = None
    status: str = "open"
    """An erased one is closed, for people and their clients."""
    erased: bool = False
    head_seq: int = 0
    opened_at: int = 0
    updated_at: int = 0
    metadata: str | None = None


class OpenRun(msgspec.Struct, frozen=True):
    """A run that nobody has ended yet."""

    run_id: str
    turn_seq: int
    group: str
    member: str | None
    run_epoch: int


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation's run as the read model has it. `status`: `queued`, `open`, or how it ended. Times: ms since the
    epoch."""

    id: str
    run_id: str
    turn_seq: int
    group: str
    member: str | None
    run_epoch: int
    status: str
    cancelling: bool
    opened_at: int
    started_at: int | None
    ended_at: int | None
    reason: str | None
    detail: str | None


class MemberInfo(msgspec.Struct, frozen=True):
    """A member as the read model has it."""

    member: str
    group: str
    channel: str
    gateway: str
    since: int
    partitions: int
    draining: int = 0
    """How many of the partitions that know it give it nothing new."""


class LeaseInfo(msgspec.Struct, frozen=True):
    """A row of the lease table."""

    partition: int
    worker: str
    writer_epoch: int
    live: bool
    expires_in_ms: int


class Position(msgspec.Struct, frozen=True):
    """How far the read model is in a partition. `journal_offset`: the next record to read."""

    lsn: int = 0
    journal_offset: int = 0


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """The last checkpoint of an open run. `data`: JSON."""

    lsn: int
    data: str


class ListQuery(msgspec.Struct, frozen=True):
    """Filters of a list of conversations; `cursor` is the last page's `next_cursor`."""

    limit: int
    cursor: str | None = None
    status: str | None = None
    channel: str | None = None
    external_id: str | None = None
    named: str | None = None
    """The beginning of its id, or the whole of its external id or of its participant's."""


class ReadModel(Protocol):
    """The projector's tables. Every method raises `Unavailable` when it cannot answer in time."""

    async def position(self, partition: int) -> Position: ...
    async def conversation(self, conversation_id: str) -> ConversationInfo | None: ...
    async def transcript(self, conversation_id: str, after: int, limit: int) -> Sequence[Stored]:
        """Numbered entries with seq > `after`, ascending, at most `limit`."""

    async def superseded(self, conversation_id: str, upto: int) -> Sequence[int]:
        """Seqs up to `upto` that viewers may hide, ascending."""

    async def last_edited(self, conversation_id: str, upto: int) -> Stored | None:
        """Of the turns up to `upto` that were edited, the last one."""

    async def open_runs(self, conversation_id: str) -> Sequence[OpenRun]: ...
    async def given_upto(self, conversation_id: str, channel: str) -> int:
        """The highest turn with a run of a group of this agents' channel; 0: none."""

    async def checkpoint(self, run_id: str) -> StoredCheckpoint | None: ...
    async def owners(self, conversation_id: str) -> dict[str, str]: ...
    async def call(self, conversation_id: str, invocation: str) -> StoredCall | None:
        """The invocation's run."""

    async def open_calls(self, conversation_id: str) -> Sequence[str]:
        """Ids of the invocations that have not ended, in the order of their turns."""

    async def interrupts(self, conversation_id: str) -> Sequence[Stored]:
        """The newest entries that open or close a question, ascending."""

    async def conversations(self, query: ListQuery) -> tuple[Sequence[ConversationInfo], str | None]:
        """A page, and the cursor of the next one."""

    async def members(self) -> Sequence[MemberInfo]: ...
    async def leases(self) -> Sequence[LeaseInfo]: ...


class Store(Protocol):
    """Channels, secrets and keys, shared by all gateways. Methods raise `Unavailable` when it cannot answer."""

    async def document(self) -> tuple[int, str]:
        """Version and JSON of the current document of channels and routes; (0, "") where there is none."""

    async def channel_of_secret(self, secret: str) -> str | None:
        """The channel that a login secret belongs to."""

    async def key_ring(self) -> KeyRing:
        """The keys of access tokens."""

    async def is_api_key(self, key: str) -> bool:
        """Whether it is a key of the tenant API."""

    async def operator_of(self, token: str) -> str | None:
        """The name of the operator with this token."""

    async def release_lease(self, lease: LeaseInfo) -> bool:
        """Take a lease from the worker that was seen to hold it; False: it does not hold it like that any more."""
