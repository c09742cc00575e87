"""Postgres as the runtime sees it: the port in memory (one contract suite runs on it and on Postgres) behind a network.

A call takes effect when it arrives, or never; whoever waits too long is told `FenceUnavailable`, and what it asked for
may still happen later. A session carries the worker's advisory lock and ends with its process. `back_up` and `restore`
are what an operator, or a failover to a standby that lacks the last seconds, does to the data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from streams.fence.heartbeat import Heartbeat, OnLost, Watched
from streams.fence.memory import LeaseRow, MemoryCheckpoints, MemoryLeases, MemoryStore
from streams.fence.port import (
    Checkpoint,
    ConversationRow,
    FenceUnavailable,
    HeldBy,
    KeyRow,
    Lease,
    Token,
    WorkerRow,
)
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network, Reply, Reset, Server, run_now

T = TypeVar("T")


@dataclass(slots=True)
class Backup:
    """The rows as they were at one moment."""

    made_at: float
    leases: dict[int, LeaseRow]
    workers: dict[str, tuple[int, bool]]
    checkpoints: dict[int, Checkpoint]
    conversations: dict[str, tuple[int, ConversationRow]]
    keys: dict[tuple[str, str], tuple[int, KeyRow]]


class Database:
    """The server, its rows, and who is connected."""

    LIMIT_S = 1.0
    """Of one call."""

    def __init__(self, loop: SimLoop, network: Network) -> None:
        self.server = Server("postgres")
        self.store = MemoryStore()
        self.sessions = 0
        """Grows when all sessions end: what was learnt about other sessions' locks holds no longer."""
        self.restored_at = float("-inf")
        self.ended: set[str] = set()
        """Workers whose session was ended, and that have not been back."""
        self.ended_at: dict[str, float] = {}
        """When a worker's session was ended last, alone."""
        self.allowed_at: dict[tuple[str, int], float] = {}
        """When a worker was last told by its clock that it may write to a partition."""
        self.handed_back_at: dict[tuple[str, int], float] = {}
        self.after_call: Callable[[], None] = lambda: None
        self.on_take: Callable[[int, int], None] = lambda partition, writer_epoch: None
        self.on_close: Callable[[str], None] = lambda worker: None
        self.reached = network.announce
        self._loop = loop
        self._network = network

    def row_of(self, partition: int) -> LeaseRow | None:
        """Whose lease is live now; None: nobody's."""
        row = self.store.leases.get(partition)
        return row if row is not None and row.expires_at > self._now_ms() else None

    async def call(self, effect: Callable[[], T], limit_s: float = LIMIT_S) -> T:
        """Run `effect` at the server."""

        def arrive(reply: Reply) -> None:
            self.store.now_ms = self._now_ms()
            try:
                value: Any = effect()
            except Exception as error:  # noqa: BLE001 -- it is the caller's
                value = error
            self.after_call()
            reply(value)

        try:
            answer: T = await self._network.ask(self.server, arrive, limit_s)
            return answer
        except (Reset, TimeoutError) as error:
            raise FenceUnavailable(f"Postgres did not answer: {error}") from error

    def end_session(self, worker: str) -> None:
        """pg_terminate_backend of one session: who has seen its lock held takes its worker for dead."""
        self.store.sessions.discard(worker)
        self.ended.add(worker)
        self.ended_at[worker] = self._loop.now

    def end_sessions(self) -> None:
        """A restart, or an operator's pg_terminate_backend: every lock is free, and everybody has to come again."""
        self.sessions += 1
        self.store.sessions.clear()

    def back_up(self) -> Backup:
        store = self.store
        leases = {partition: replace(row) for partition, row in store.leases.items()}
        return Backup(
            self._loop.now,
            leases,
            dict(store.workers),
            dict(store.checkpoints),
            dict(store.conversations),
            dict(store.keys),
        )

    def restore(self, backup: Backup) -> None:
        """Put the rows of `backup` in place of what there is. One that was made before the last restore has another
        history by now: nobody would put it back."""
        if backup.made_at < self.restored_at:
            return
        store = self.store
        store.leases = {partition: replace(row) for partition, row in backup.leases.items()}
        store.workers, store.checkpoints = dict(backup.workers), dict(backup.checkpoints)
        store.conversations, store.keys = dict(backup.conversations), dict(backup.keys)
        self.restored_at = self._loop.now
        self.end_sessions()

    def _now_ms(self) -> int:
        return 1_000_000 + int(self._loop.now * 1000)


class SimLeases:
    """`Leases` of one worker."""

    def __init__(self, database: Database, worker: str, ttl_ms: int) -> None:
        self._database = database
        self._memory = MemoryLeases(database.store, worker, ttl_ms)
        self._worker = worker
        self._session = database.sessions
        self._opened = False
        self.killed = False

    async def _call(self, work: Callable[[], Any]) -> Any:
        def effect() -> Any:
            self._connect()
            return run_now(work())

        return await self._database.call(effect)

    def _connect(self) -> None:
        """A new session takes the lock again, and knows nothing of others' any more."""
        if self._session != self._database.sessions or self._worker in self._database.ended:
            self._session = self._database.sessions
            self._database.ended.discard(self._worker)
            self._memory._seen_held.clear()
            if self._opened and not self.killed:
                self._database.store.sessions.add(self._worker)

    def kill(self) -> None:
        """The process is gone, and with it the session."""
        self.killed = True
        self._database.store.kill(self._worker)

    async def open(self) -> None:
        await self._call(self._memory.open)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        self._database.on_close(self._worker)
        await self._call(self._memory.close)

    async def claim(self, partition: int) -> Lease | HeldBy:
        claimed: Lease | HeldBy = await self._call(lambda: self._memory.claim(partition))
        return claimed

    async def next_epoch(self, lease: Lease, above: int = 0) -> Lease:
        renewed: Lease = await self._call(lambda: self._memory.next_epoch(lease, above))
        return renewed

    async def confirm(self, lease: Lease) -> None:
        self._database.reached("confirm")
        await self._call(lambda: self._memory.confirm(lease))

    async def hand_back(self, lease: Lease) -> None:
        self._database.handed_back_at[self._worker, lease.partition] = asyncio.get_running_loop().time()
        await self._call(lambda: self._memory.hand_back(lease))

    async def set_draining(self) -> None:
        await self._call(self._memory.set_draining)

    async def set_reaching(self, reaches: bool) -> None:
        await self._call(lambda: self._memory.set_reaching(reaches))

    async def set_stopped(self, lease: Lease, why: str) -> None:
        await self._call(lambda: self._memory.set_stopped(lease, why))

    async def workers(self) -> Sequence[WorkerRow]:
        rows: Sequence[WorkerRow] = await self._call(self._memory.workers)
        return rows

    async def table(self) -> Sequence[HeldBy]:
        rows: Sequence[HeldBy] = await self._call(self._memory.table)
        return rows

    async def view(self) -> tuple[Sequence[WorkerRow], Sequence[HeldBy]]:
        seen: tuple[Sequence[WorkerRow], Sequence[HeldBy]] = await self._call(self._memory.view)
        return seen


class SimCheckpoints:
    """`Checkpoints`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._memory = MemoryCheckpoints(database.store)

    async def _call(self, work: Callable[[], Any]) -> Any:
        return await self._database.call(lambda: run_now(work()))

    async def take(self, partition: int, token: Token) -> Checkpoint | None:
        def take() -> Checkpoint | None:
            taken: Checkpoint | None = run_now(self._memory.take(partition, token))
            self._database.on_take(partition, token.writer_epoch)
            return taken

        self._database.reached("take")
        return await self._database.call(take)

    async def discard(self, partition: int, token: Token) -> None:
        await self._call(lambda: self._memory.discard(partition, token))

    async def load_hot(self, partition: int, token: Token, lsn: int) -> Sequence[ConversationRow]:
        rows: Sequence[ConversationRow] = await self._call(lambda: self._memory.load_hot(partition, token, lsn))
        return rows

    async def load(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str]
    ) -> Mapping[str, ConversationRow]:
        names = sorted(conversations)
        rows: Mapping[str, ConversationRow] = await self._call(lambda: self._memory.load(partition, token, lsn, names))
        return rows

    async def load_keys(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str], not_before: int
    ) -> Sequence[KeyRow]:
        names = sorted(conversations)
        rows: Sequence[KeyRow] = await self._call(
            lambda: self._memory.load_keys(partition, token, lsn, names, not_before)
        )
        return rows

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
        self._database.reached("save")
        await self._call(
            lambda: self._memory.save(partition, checkpoint, rows, keys, drop_keys_before, stored_lsn=stored_lsn)
        )


class _HeartSession:
    """In place of the heartbeat's own connection."""

    def __init__(self, database: Database, limit_s: float) -> None:
        self._database = database
        self._limit_s = limit_s

    async def run(self, work: Callable[[Any], Any]) -> Any:
        return await self._database.call(lambda: run_now(work(None)), self._limit_s)

    async def close(self) -> None:
        """Nothing is held."""


class SimHeartbeat(Heartbeat):
    """The heartbeat as it is, on the simulated clock; its thread is a process of its own."""

    def __init__(
        self,
        database: Database,
        worker: str,
        *,
        ttl_ms: int,
        every_ms: int,
        progress: Callable[[], int],
        on_lost: OnLost,
    ) -> None:
        super().__init__("", worker, ttl_ms=ttl_ms, every_ms=every_ms, progress=progress, on_lost=on_lost)
        self._database = database
        self._session = _HeartSession(database, every_ms / 2000)  # type: ignore[assignment]
        self._ttl_ms = ttl_ms
        self._beating: asyncio.Task[None] | None = None
        self._worker_loop = asyncio.get_running_loop()
        self._loop = self._worker_loop

    async def beat(self) -> None:
        """What the thread does."""
        await self._beat_until_stopped()

    def may_write(self, lease: Lease) -> bool:
        may = super().may_write(lease)
        if may:
            self._database.allowed_at[self._worker, lease.partition] = self._worker_loop.time()
        return may

    async def stop(self) -> None:
        self._stop_asked.set()
        if self._wake is not None:
            self._wake()

    async def _renew(self, connection: Any, sent: Mapping[int, Watched]) -> Mapping[int, int]:
        """The statement `renew` of `queries.sql`, on the rows in memory."""
        store = self._database.store
        now = store.now_ms
        draining = store.workers.get(self._worker, (0, False))[1]
        store.workers[self._worker] = (now + self._ttl_ms, draining)
        renewed = {}
        for partition in sent:
            row = store.leases.get(partition)
            if row is not None and row.owner == self._worker and row.expires_at > now:
                row.expires_at = now + self._ttl_ms
                renewed[partition] = row.writer_epoch
        return renewed
