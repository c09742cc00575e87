"""The port in memory: the same rules on one dictionary and a clock that the test moves. No IO, nothing survives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streams.fence.port import (
    Checkpoint,
    ConversationRow,
    Fenced,
    FenceUnavailable,
    HeldBy,
    KeyRow,
    Lease,
    Positions,
    Token,
    WorkerRow,
)

HOUR_MS = 3_600_000


@dataclass(slots=True)
class LeaseRow:
    """A row of the lease table; `expires_at` on the store's clock, ms."""

    owner: str
    writer_epoch: int
    expires_at: int
    stopped: str | None = None


@dataclass(slots=True)
class MemoryStore:
    """What a database holds: share one between the `MemoryLeases` and `MemoryCheckpoints` of several workers."""

    now_ms: int = 1_000_000
    leases: dict[int, LeaseRow] = field(default_factory=dict)
    workers: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Per worker: when its row expires, and whether it drains."""
    reaching: dict[str, int | None] = field(default_factory=dict)
    """Per worker that ever lost Kafka: since when it reaches it again."""
    sessions: set[str] = field(default_factory=set)
    """Workers whose session lock is held."""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    conversations: dict[str, tuple[int, ConversationRow]] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[int, KeyRow]] = field(default_factory=dict)
    reachable: bool = True

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def kill(self, worker: str) -> None:
        """The worker's process is gone: its session lock is free, its rows stay."""
        self.sessions.discard(worker)

    def require_reachable(self) -> None:
        if not self.reachable:
            raise FenceUnavailable("the store in memory is switched off")


class MemoryLeases:
    """`Leases` of one worker on a `MemoryStore`."""

    def __init__(self, store: MemoryStore, worker: str, ttl_ms: int = 15_000) -> None:
        self.worker = worker
        self._store = store
        self._ttl_ms = ttl_ms
        self._seen_held: set[str] = set()

    async def open(self) -> None:
        self._store.require_reachable()
        self._store.sessions.add(self.worker)
        self._store.workers[self.worker] = (self._store.now_ms + self._ttl_ms, False)

    async def close(self) -> None:
        self._store.require_reachable()
        for row in self._store.leases.values():
            if row.owner == self.worker:
                row.expires_at = min(row.expires_at, self._store.now_ms)
        self._store.workers.pop(self.worker, None)
        self._store.sessions.discard(self.worker)

    async def claim(self, partition: int) -> Lease | HeldBy:
        self._store.require_reachable()
        now = self._store.now_ms
        row = self._store.leases.get(partition)
        if row is None:
            row = self._store.leases[partition] = LeaseRow(self.worker, 1, 0)
        elif row.owner == self.worker and row.expires_at > now:
            pass
        elif row.expires_at <= now or self._is_dead(row.owner):
            row.owner = self.worker
            row.writer_epoch += 1
        else:
            return self._held_by(partition, row)
        row.expires_at, row.stopped = now + self._ttl_ms, None
        return Lease(partition, Token(row.writer_epoch, self.worker))

    async def next_epoch(self, lease: Lease, above: int = 0) -> Lease:
        row = self._mine(lease)
        row.writer_epoch = max(row.writer_epoch, above) + 1
        return Lease(lease.partition, Token(row.writer_epoch, self.worker))

    async def confirm(self, lease: Lease) -> None:
        self._mine(lease).expires_at = self._store.now_ms + self._ttl_ms

    async def hand_back(self, lease: Lease) -> None:
        self._store.require_reachable()
        row = self._store.leases.get(lease.partition)
        if row is not None and Token(row.writer_epoch, row.owner) == lease.token:
            row.expires_at = min(row.expires_at, self._store.now_ms)

    async def set_draining(self) -> None:
        self._store.require_reachable()
        if self.worker in self._store.workers:
            self._store.workers[self.worker] = (self._store.workers[self.worker][0], True)

    async def set_reaching(self, reaches: bool) -> None:
        self._store.require_reachable()
        known = self._store.reaching
        if not reaches:
            known[self.worker] = None
        elif known.get(self.worker, 0) is None:
            known[self.worker] = self._store.now_ms

    async def set_stopped(self, lease: Lease, why: str) -> None:
        self._store.require_reachable()
        row = self._store.leases.get(lease.partition)
        if row is not None and Token(row.writer_epoch, row.owner) == lease.token:
            row.stopped = why

    async def workers(self) -> Sequence[WorkerRow]:
        self._store.require_reachable()
        return [
            WorkerRow(
                worker,
                expires_at > self._store.now_ms and not self._is_dead(worker),
                draining,
                self._reaches_ms(worker),
            )
            for worker, (expires_at, draining) in sorted(self._store.workers.items())
        ]

    async def table(self) -> Sequence[HeldBy]:
        self._store.require_reachable()
        return [self._held_by(partition, row) for partition, row in sorted(self._store.leases.items())]

    async def view(self) -> tuple[Sequence[WorkerRow], Sequence[HeldBy]]:
        return await self.workers(), await self.table()

    def _mine(self, lease: Lease) -> LeaseRow:
        self._store.require_reachable()
        row = self._store.leases.get(lease.partition)
        if row is None or Token(row.writer_epoch, row.owner) != lease.token or row.expires_at <= self._store.now_ms:
            raise Fenced(
                f"partition {lease.partition}: the lease of epoch {lease.token.writer_epoch} is not mine any more"
            )
        return row

    def _reaches_ms(self, worker: str) -> int | None:
        since = self._store.reaching.get(worker, self._store.now_ms - HOUR_MS)
        return None if since is None else self._store.now_ms - since

    def _is_dead(self, worker: str) -> bool:
        if worker in self._store.sessions:
            self._seen_held.add(worker)
            return False
        if worker not in self._seen_held:
            return False
        if worker in self._store.workers:
            expires_at, draining = self._store.workers[worker]
            self._store.workers[worker] = (min(expires_at, self._store.now_ms), draining)
        return True

    def _held_by(self, partition: int, row: LeaseRow) -> HeldBy:
        left = row.expires_at - self._store.now_ms
        live = left > 0 and not self._is_dead(row.owner)
        return HeldBy(partition, row.owner, row.writer_epoch, live, max(left, 0), row.stopped is not None)


class MemoryCheckpoints:
    """`Checkpoints` on a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def take(self, partition: int, token: Token) -> Checkpoint | None:
        self._store.require_reachable()
        stored = self._store.checkpoints.get(partition)
        if stored is None:
            self._store.checkpoints[partition] = Checkpoint(token, 0, 0, Positions(), b"")
            return None
        if token.writer_epoch < stored.token.writer_epoch or (
            token.writer_epoch == stored.token.writer_epoch and token.worker != stored.token.worker
        ):
            raise Fenced(f"partition {partition}: {token} is not the newest", stored.token.writer_epoch)
        mine = Checkpoint(token, stored.lsn, stored.journal_offset, stored.positions, stored.state)
        self._store.checkpoints[partition] = mine
        return mine if mine.lsn else None

    async def discard(self, partition: int, token: Token) -> None:
        self._require(partition, token, 0)
        self._store.checkpoints[partition] = Checkpoint(token, 0, 0, Positions(), b"")

    async def load_hot(self, partition: int, token: Token, lsn: int) -> Sequence[ConversationRow]:
        self._require(partition, token, lsn)
        return [row for row in self._rows(partition).values() if row.hot]

    async def load(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str]
    ) -> Mapping[str, ConversationRow]:
        self._require(partition, token, lsn)
        rows = self._rows(partition)
        return {name: rows[name] for name in conversations if name in rows}

    async def load_keys(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str], not_before: int
    ) -> Sequence[KeyRow]:
        self._require(partition, token, lsn)
        wanted = set(conversations)
        return [
            row
            for of, row in self._store.keys.values()
            if of == partition and row.conversation_id in wanted and row.at >= not_before
        ]

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
        self._store.require_reachable()
        stored = self._store.checkpoints.get(partition)
        if stored is None or stored.token != checkpoint.token or not stored_lsn <= stored.lsn <= checkpoint.lsn:
            raise _fenced(partition, checkpoint.token)
        self._store.checkpoints[partition] = checkpoint
        self._store.conversations.update((row.conversation_id, (partition, row)) for row in rows)
        self._store.keys.update(((row.conversation_id, row.key), (partition, row)) for row in keys)
        old = [name for name, (of, row) in self._store.keys.items() if of == partition and row.at < drop_keys_before]
        for name in old:
            del self._store.keys[name]

    def _rows(self, partition: int) -> Mapping[str, ConversationRow]:
        upto, rows = self._store.checkpoints[partition].lsn, self._store.conversations
        return {name: row for name, (of, row) in rows.items() if of == partition and row.lsn <= upto}

    def _require(self, partition: int, token: Token, lsn: int) -> None:
        self._store.require_reachable()
        stored = self._store.checkpoints.get(partition)
        if stored is None or stored.token != token or stored.lsn < lsn:
            raise _fenced(partition, token)


def _fenced(partition: int, token: Token) -> Fenced:
    return Fenced(
        f"partition {partition}: the checkpoint is not that of epoch {token.writer_epoch}, worker {token.worker}, "
        "or lost history"
    )
