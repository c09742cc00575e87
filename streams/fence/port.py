"""What the runtime asks of the lease store and the checkpoint store; Postgres and memory implement it.

Every method is one transaction. Any sign that this worker no longer holds what it acts on raises `Fenced`;
a store that cannot be reached raises `FenceUnavailable` and has changed nothing, or nothing that a repeat would double.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec


class Fenced(Exception):
    """This process is not (or no longer) the writer it believed to be: stop, forget the partition, publish nothing.

    `highest`: the writer epoch that stands against it, where it is known. Whoever gets a lease again after this takes a
    higher one: the lease store may have lost its rows, and would count up to it one refusal at a time.
    """

    def __init__(self, sentence: str, highest: int = 0) -> None:
        super().__init__(sentence)
        self.highest = highest


class FenceUnavailable(Exception):
    """The lease store cannot be asked now."""


class Token(msgspec.Struct, frozen=True, gc=False):
    """Who writes: compared by `writer_epoch` first; the worker's id tells two holders of a restored epoch apart."""

    writer_epoch: int
    worker: str


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A partition that this worker may write, on the database's clock."""

    partition: int
    token: Token


class HeldBy(msgspec.Struct, frozen=True, gc=False):
    """A row of the lease table as others see it. `live`: not expired, and its worker not seen dead. `stopped`: its
    holder keeps it without running it, until an operator looks."""

    partition: int
    worker: str
    writer_epoch: int
    live: bool
    expires_in_ms: int
    stopped: bool = False


class WorkerRow(msgspec.Struct, frozen=True, gc=False):
    """A worker process, with or without leases. `live`: renewed in time, and not seen dead."""

    worker: str
    live: bool
    draining: bool
    reaches_kafka_ms: int | None = 3_600_000
    """For how long it has reached Kafka without a break, counted from an hour before its start; None: it does not."""


class Leases(Protocol):
    """The lease table, spoken to by one worker. `ttl_ms` and the worker's id are given at construction."""

    async def open(self) -> None:
        """Connect, take the session advisory lock of this worker's id, write its row in `workers`."""

    async def close(self) -> None:
        """Expire this worker's rows (kept), delete its `workers` row, release the lock. Safe to call twice."""

    async def claim(self, partition: int) -> Lease | HeldBy:
        """No row: claim. My live row: extend. Someone's expired (or dead worker's) row, or my expired one: take over,
        epoch + 1. Someone's live row: nothing changes, and the holder comes back."""

    async def next_epoch(self, lease: Lease, above: int = 0) -> Lease:
        """A new writer epoch, for each InitProducerId: +1, or `above` + 1 if that is higher; only where the row is
        mine, at this epoch, and live. Else `Fenced`."""

    async def confirm(self, lease: Lease) -> None:
        """Extend it; `Fenced` unless the row is mine, at this epoch and live."""

    async def hand_back(self, lease: Lease) -> None:
        """Expire the row at once and keep it, so that another takes over with a higher epoch. Not mine: nothing."""

    async def set_draining(self) -> None:
        """Mark this worker: it counts for no share from now on."""

    async def set_reaching(self, reaches: bool) -> None:
        """Tell the others whether this worker reaches Kafka; the time counts from the first such call after one that
        said no."""

    async def set_stopped(self, lease: Lease, why: str) -> None:
        """Mark a partition that its holder cannot run, until its lease is claimed anew. Not mine: nothing."""

    async def workers(self) -> Sequence[WorkerRow]: ...

    async def table(self) -> Sequence[HeldBy]: ...

    async def view(self) -> tuple[Sequence[WorkerRow], Sequence[HeldBy]]:
        """`workers` and `table` in one, for who asks often."""


class Positions(msgspec.Struct, frozen=True, gc=False):
    """Next offset to read of each intake topic's partition."""

    turns: int = 0
    frames: int = 0
    membership: int = 0


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """One partition as of `lsn`. `state`: the partition's own state, msgpack; conversations are rows beside it."""

    token: Token
    lsn: int
    journal_offset: int
    """Journal offset just after the record `lsn` (next to read)."""
    positions: Positions
    state: bytes


class ConversationRow(msgspec.Struct, frozen=True, gc=False):
    """A conversation's state (msgpack) as of `lsn`. `hot`: every claimer loads it."""

    conversation_id: str
    lsn: int
    hot: bool
    state: bytes


class KeyRow(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key older than the 64 in its conversation's row.

    `key`: its fingerprint, hex. `id`: empty where it follows from the key.
    """

    conversation_id: str
    key: str
    seq: int
    id: str
    at: int
    timestamp: int


class Checkpoints(Protocol):
    """Checkpoint rows. A claimer calls `take` first; from then on every other token's snapshot is refused."""

    async def take(self, partition: int, token: Token) -> Checkpoint | None:
        """Put my token where the stored epoch is lower, or equal and mine. A higher one, or an equal one of another
        worker: `Fenced`, with that epoch. Returns the checkpoint stored so far (None: never one)."""

    async def discard(self, partition: int, token: Token) -> None:
        """What is stored under my token cannot be read: go on as if there had never been a checkpoint. `Fenced`: it is
        not mine. Its rows stay until they are replaced, and no load gives them."""

    async def load_hot(self, partition: int, token: Token, lsn: int) -> Sequence[ConversationRow]:
        """All rows flagged hot. `lsn`: what this writer knows to be stored; a lower stored one means that Postgres lost
        history: `Fenced`. Rows beyond the stored one are left of a discarded checkpoint, and not given."""

    async def load(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str]
    ) -> Mapping[str, ConversationRow]:
        """The rows of these conversations, those that exist. `lsn` as in `load_hot`."""

    async def load_keys(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str], not_before: int
    ) -> Sequence[KeyRow]:
        """Older keys of these conversations with `at` >= `not_before`."""

    async def save(
        self,
        partition: int,
        checkpoint: Checkpoint,
        rows: Sequence[ConversationRow],
        keys: Sequence[KeyRow],
        drop_keys_before: int,
        *,
        stored_lsn: int = 0,
    ) -> None:
        """One transaction: first the partition's row under the token's condition and lsn >= stored lsn (0 rows:
        `Fenced`), then rows and keys by COPY and upsert.

        `stored_lsn`: what this writer knows to be stored, as `lsn` of the loads. A lower one there means that Postgres
        lost history, and with it rows that this snapshot, which holds what changed since, does not bring back:
        `Fenced`."""
