"""The lease table in Postgres, spoken to by one worker: `Leases` of the port.

Fast takeover: a worker holds a session-level advisory lock for its id. Others look it up in `pg_locks`; a lock that
this same unbroken session has seen held, and that is gone, means that the process is dead. A pooler, a failover or a
new session of either side leaves only the TTL: what was seen is forgotten with the session it was seen in.
A false death costs its worker the lease, never correctness: whoever takes over has a higher epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

from psycopg import AsyncConnection

from streams.fence.connection import Session
from streams.fence.port import Fenced, HeldBy, Lease, Token, WorkerRow
from streams.fence.queries import load_queries

QUERIES = load_queries("streams.fence")

# A call of the lease table that has not answered for so long counts as failed; the lease itself lasts longer.
CALL_LIMIT_S = 3.0

Row = tuple[int, str, int, int, bool]


@lru_cache(maxsize=1024)
def lock_key(worker: str) -> int:
    """The advisory lock of a worker's id: the first 8 bytes of its BLAKE2b, as Postgres's signed bigint."""
    return int.from_bytes(hashlib.blake2b(worker.encode(), digest_size=8).digest(), "big", signed=True)


class PostgresLeases:
    """`Leases` of one worker. `ttl_ms`: how long a claim lasts; `worker`: an id never used before.

    All calls share one session, which holds the worker's lock, and are taken one at a time.
    """

    def __init__(self, dsn: str, worker: str, *, ttl_ms: int, limit_s: float = CALL_LIMIT_S) -> None:
        self.worker = worker
        self._ttl = timedelta(milliseconds=ttl_ms)
        self._session = Session(dsn, f"lease {worker}", limit_s=limit_s, on_connect=self._on_connect)
        self._locked = False
        self._seen_held: set[str] = set()
        self._dead: set[str] = set()
        self._rows: dict[int, HeldBy] = {}
        """The table as this session saw it last."""

    async def open(self) -> None:
        """See the port. Raises `FenceUnavailable` when Postgres cannot be reached."""

        async def register(connection: AsyncConnection[Any]) -> None:
            # The lock is there already: `_on_connect` took it before anything could be claimed.
            await connection.execute(QUERIES["forget_old_workers"])
            await connection.execute(
                QUERIES["register_worker"],
                {"worker": self.worker, "lock_key": lock_key(self.worker), "ttl": self._ttl},
            )

        await self._session.run(register)

    async def close(self) -> None:
        """See the port. The lock goes with the session, also when the rows could not be written."""

        async def leave(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(QUERIES["hand_back_all"], {"worker": self.worker})
                await connection.execute(QUERIES["unregister_worker"], {"worker": self.worker})

        try:
            await self._session.run(leave)
        finally:
            await self._session.close()

    async def claim(self, partition: int) -> Lease | HeldBy:
        """See the port."""

        async def claim(connection: AsyncConnection[Any]) -> Lease | HeldBy:
            # A row seen before that was a dead worker's needs no second look: it is only taken at the epoch seen then.
            seen = self._rows.get(partition)
            lease = await self._try_claim(connection, partition, seen if seen and seen.worker in self._dead else None)
            if lease is not None:
                return lease
            cursor = await connection.execute(QUERIES["lease_of"], {"partition": partition})
            row: Row | None = await cursor.fetchone()
            if row is None:
                raise Fenced(f"partition {partition}: its lease row vanished; leases are never deleted")
            await self._look_for_dead(connection, [row[1]])
            holder = self._held_by(row)
            if holder.live:
                return holder
            return await self._try_claim(connection, partition, holder) or holder

        return await self._session.run(claim)

    async def next_epoch(self, lease: Lease, above: int = 0) -> Lease:
        """See the port."""

        async def advance(connection: AsyncConnection[Any]) -> Lease:
            cursor = await connection.execute(QUERIES["next_epoch"], self._of(lease, above=above))
            row = await cursor.fetchone()
            if row is None:
                raise self._fenced(lease)
            return Lease(lease.partition, Token(row[0], self.worker))

        return await self._session.run(advance)

    async def confirm(self, lease: Lease) -> None:
        """See the port."""

        async def confirm(connection: AsyncConnection[Any]) -> None:
            cursor = await connection.execute(QUERIES["confirm_lease"], self._of(lease, ttl=self._ttl))
            if cursor.rowcount == 0:
                raise self._fenced(lease)

        await self._session.run(confirm)

    async def hand_back(self, lease: Lease) -> None:
        """See the port."""

        async def hand_back(connection: AsyncConnection[Any]) -> None:
            await connection.execute(QUERIES["hand_back_lease"], self._of(lease))

        await self._session.run(hand_back)

    async def set_draining(self) -> None:
        """See the port."""

        async def drain(connection: AsyncConnection[Any]) -> None:
            await connection.execute(QUERIES["drain_worker"], {"worker": self.worker})

        await self._session.run(drain)

    async def set_reaching(self, reaches: bool) -> None:
        """See the port."""

        async def tell(connection: AsyncConnection[Any]) -> None:
            await connection.execute(QUERIES["set_reaching"], {"worker": self.worker, "reaches": reaches})

        await self._session.run(tell)

    async def set_stopped(self, lease: Lease, why: str) -> None:
        """See the port."""

        async def mark(connection: AsyncConnection[Any]) -> None:
            await connection.execute(QUERIES["set_stopped"], self._of(lease, why=why))

        await self._session.run(mark)

    async def workers(self) -> Sequence[WorkerRow]:
        """See the port."""
        return (await self.view())[0]

    async def table(self) -> Sequence[HeldBy]:
        """See the port."""
        return (await self.view())[1]

    async def view(self) -> tuple[Sequence[WorkerRow], Sequence[HeldBy]]:
        """See the port. One round trip, unless somebody has died."""

        async def view(connection: AsyncConnection[Any]) -> tuple[Sequence[WorkerRow], Sequence[HeldBy]]:
            if not self._locked:
                await self._take_lock(connection)
            # In this order: who has a row by then holds its lock, or is dead.
            async with connection.pipeline():
                workers = await connection.execute(QUERIES["list_workers"])
                locks = await connection.execute(QUERIES["locks_held"])
                leases = await connection.execute(QUERIES["list_leases"])
            known, table = await workers.fetchall(), await leases.fetchall()
            names = {row[0] for row in known} | {row[1] for row in table}
            await self._note_dead(connection, names, {row[0] for row in await locks.fetchall()})
            self._rows = {row[0]: self._held_by(row) for row in table}
            return [
                WorkerRow(name, live and name not in self._dead, draining, reaches)
                for name, live, draining, reaches in known
            ], list(self._rows.values())

        return await self._session.run(view)

    async def _on_connect(self, connection: AsyncConnection[Any]) -> None:
        self._seen_held.clear()
        self._dead.clear()
        self._rows.clear()
        self._locked = False
        await self._take_lock(connection)

    async def _take_lock(self, connection: AsyncConnection[Any]) -> None:
        cursor = await connection.execute(QUERIES["lock_worker"], {"lock_key": lock_key(self.worker)})
        row = await cursor.fetchone()
        # False: the server has not yet noticed that this worker's former session broke. Asked again until it has.
        self._locked = bool(row and row[0])

    async def _look_for_dead(self, connection: AsyncConnection[Any], workers: Iterable[str]) -> None:
        """Learn which of `workers` lost the lock that this session has seen them hold, and let everybody know."""
        if not self._locked:
            await self._take_lock(connection)
        cursor = await connection.execute(QUERIES["locks_held"])
        await self._note_dead(connection, workers, {row[0] for row in await cursor.fetchall()})

    async def _note_dead(self, connection: AsyncConnection[Any], workers: Iterable[str], held: Container[int]) -> None:
        """`held`: keys of the locks that are held, asked for after `workers` were."""
        for worker in workers:
            if lock_key(worker) in held:
                self._seen_held.add(worker)
                self._dead.discard(worker)  # it was cut off and came back: alive
            elif worker in self._seen_held and worker not in self._dead:
                self._dead.add(worker)
                await connection.execute(QUERIES["expire_worker"], {"worker": worker})

    async def _try_claim(self, connection: AsyncConnection[Any], partition: int, dead: HeldBy | None) -> Lease | None:
        parameters = {
            "partition": partition,
            "worker": self.worker,
            "ttl": self._ttl,
            "dead_owner": dead.worker if dead else None,
            "dead_epoch": dead.writer_epoch if dead else None,
        }
        cursor = await connection.execute(QUERIES["claim_lease"], parameters)
        row = await cursor.fetchone()
        return None if row is None else Lease(partition, Token(row[0], self.worker))

    def _held_by(self, row: Row) -> HeldBy:
        partition, owner, writer_epoch, expires_in_ms, stopped = row
        live = expires_in_ms > 0 and owner not in self._dead
        return HeldBy(partition, owner, writer_epoch, live, expires_in_ms, stopped)

    def _of(self, lease: Lease, **more: Any) -> dict[str, Any]:
        # The row's owner is compared with the lease's own token, not with this object: a lease of another worker is
        # never confirmed here by mistake.
        return {
            "partition": lease.partition,
            "worker": lease.token.worker,
            "writer_epoch": lease.token.writer_epoch,
            **more,
        }

    def _fenced(self, lease: Lease) -> Fenced:
        return Fenced(
            f"partition {lease.partition}: epoch {lease.token.writer_epoch} is not {self.worker}'s live lease any more"
        )


class LeaseTable:
    """The lease table for who holds none and claims none. Raises `FenceUnavailable` when it cannot be reached."""

    def __init__(self, dsn: str) -> None:
        self._session = Session(dsn, "lease table", limit_s=CALL_LIMIT_S)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def rows(self) -> Sequence[HeldBy]:
        """Who holds what. `live` goes by the time alone: deaths are seen by those who watch for them."""

        async def rows(connection: AsyncConnection[Any]) -> Sequence[HeldBy]:
            cursor = await connection.execute(QUERIES["list_leases"])
            return [
                HeldBy(partition, owner, writer_epoch, live=left_ms > 0, expires_in_ms=left_ms, stopped=stopped)
                for partition, owner, writer_epoch, left_ms, stopped in await cursor.fetchall()
            ]

        return await self._session.run(rows)

    async def release(self, held: HeldBy) -> bool:
        """Take the lease from whoever was seen to hold it: it is free at once, and its worker fenced. False: it is not
        held like that any more."""

        async def release(connection: AsyncConnection[Any]) -> bool:
            of = {"partition": held.partition, "worker": held.worker, "writer_epoch": held.writer_epoch}
            return (await connection.execute(QUERIES["hand_back_lease"], of)).rowcount > 0

        return await self._session.run(release)
