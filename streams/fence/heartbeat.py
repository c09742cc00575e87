"""Renews a worker's leases from a thread of its own, on a connection of its own, which a busy event loop cannot delay.

A renewal says "this worker still works": it is sent only when the event loop's progress counter moved since the last.
What a renewal promises is counted from before it was sent, on this process's clock: the deadline is never later than
the row's end in the database, however long the answer took.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from psycopg import AsyncConnection

from streams.fence.clock import monotonic_s
from streams.fence.connection import Session
from streams.fence.lease import QUERIES, lock_key
from streams.fence.port import FenceUnavailable, Lease

log = structlog.get_logger(__name__)

# A beat that failed is tried again this soon (or sooner, for a short heartbeat): several tries fit before the deadline.
RETRY_S = 0.5

OnLost = Callable[[Lease, str], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """A lease and the moment (`monotonic_s`) at which this worker must have stopped writing under it."""

    lease: Lease
    deadline: float


class Heartbeat:
    """The heartbeat of one worker process. Made and used in the event loop's thread; beats in its own.

    ttl_ms, every_ms: how long a renewal lasts, and the time between two. margin_ms: the deadline is that much earlier
        than the row's end, for a write that is under way; a fifth of the TTL unless given.
    progress: a number that the event loop moves while it works (say, once every 100 ms); read from the other thread.
    on_lost: called in the event loop with a watched lease that is lost, and why; not called again for the same lease.
        The deadline has the last word: whoever is about to write asks `may_write`, whether or not this call came.
    """

    def __init__(
        self,
        dsn: str,
        worker: str,
        *,
        ttl_ms: int,
        every_ms: int,
        margin_ms: int | None = None,
        progress: Callable[[], int],
        on_lost: OnLost,
    ) -> None:
        self._worker = worker
        self._ttl = timedelta(milliseconds=ttl_ms)
        self._every_s = every_ms / 1000
        self._promise_s = (ttl_ms - (ttl_ms // 5 if margin_ms is None else margin_ms)) / 1000
        self._progress = progress
        self._on_lost = on_lost
        # A beat that hangs is given up early enough for two more tries, on new connections, before a lease ends.
        self._session = Session(dsn, f"heartbeat {worker}", limit_s=self._every_s / 2)
        self._watched: dict[int, Watched] = {}
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {worker}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = threading.Event()
        self._wake: Callable[[], object] | None = None
        self._seen_progress: int | None = None

    # ------------------------------------------------------------------------------ called in the event loop's thread
    def start(self) -> None:
        """Start beating, the first beat at once. Call it in the event loop that `on_lost` is to be called in."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Stop beating and wait for the thread, at most one call's limit: no renewal is sent after this returns."""
        self._stop_asked.set()
        with self._guard:
            if self._wake is not None:
                self._wake()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def watch(self, lease: Lease, asked_at: float) -> None:
        """Renew this lease from now on. `asked_at`: `monotonic_s()` from before the claim or confirmation was sent."""
        with self._guard:
            self._watched[lease.partition] = Watched(lease, asked_at + self._promise_s)

    def rename(self, lease: Lease) -> None:
        """The watched lease of this partition got a new epoch; its deadline stays, for an epoch extends nothing."""
        with self._guard:
            known = self._watched.get(lease.partition)
            if known is not None:
                self._watched[lease.partition] = Watched(lease, known.deadline)

    def forget(self, partition: int) -> None:
        """Renew it no more. Call it before the lease is handed back."""
        with self._guard:
            self._watched.pop(partition, None)

    def deadline(self, partition: int) -> float:
        """The `monotonic_s` from which nothing may be written to the partition; in the past if not watched."""
        with self._guard:
            known = self._watched.get(partition)
        return float("-inf") if known is None else known.deadline

    def may_write(self, lease: Lease) -> bool:
        """Whether a write under this very lease is still allowed, now."""
        with self._guard:
            known = self._watched.get(lease.partition)
        return known is not None and known.lease == lease and monotonic_s() < known.deadline

    # ------------------------------------------------------------------------------------------ the heartbeat's thread
    def _run(self) -> None:
        asyncio.run(self._beat_until_stopped())

    async def _beat_until_stopped(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        with self._guard:
            self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        try:
            while not self._stop_asked.is_set():
                wait_s = await self._beat()
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), wait_s)
        finally:
            with self._guard:
                self._wake = None
            await self._session.close()

    async def _beat(self) -> float:
        """One beat; returns the seconds to wait until the next."""
        progress = self._progress()
        if progress == self._seen_progress:
            log.warning("heartbeat_withheld", worker=self._worker, reason="the event loop made no progress")
            self._report_overdue()
            return min(RETRY_S, self._every_s)
        with self._guard:
            sent = dict(self._watched)
        sent_at = monotonic_s()
        try:
            renewed = await self._session.run(lambda connection: self._renew(connection, sent))
        except FenceUnavailable as error:
            log.warning("heartbeat_failed", worker=self._worker, reason=str(error))
            self._report_overdue()
            return min(RETRY_S, self._every_s)
        self._seen_progress = progress
        self._take(sent, renewed, sent_at)
        self._report_overdue()
        return self._every_s

    async def _renew(self, connection: AsyncConnection[Any], sent: Mapping[int, Watched]) -> Mapping[int, int]:
        parameters = {
            "worker": self._worker,
            "lock_key": lock_key(self._worker),
            "ttl": self._ttl,
            "partitions": list(sent),
        }
        cursor = await connection.execute(QUERIES["renew"], parameters)
        return dict(await cursor.fetchall())

    def _take(self, sent: Mapping[int, Watched], renewed: Mapping[int, int], sent_at: float) -> None:
        """Extend what was renewed, and report what was not; what changed hands meanwhile was not asked about."""
        lost: list[Lease] = []
        with self._guard:
            for partition, asked in sent.items():
                known = self._watched.get(partition)
                if known is None:
                    continue
                stored_epoch = renewed.get(partition)
                if stored_epoch is not None and stored_epoch >= asked.lease.token.writer_epoch:
                    deadline = max(known.deadline, sent_at + self._promise_s)
                    self._watched[partition] = Watched(known.lease, deadline)
                elif known == asked:
                    del self._watched[partition]
                    lost.append(known.lease)
        for lease in lost:
            self._tell(lease, "another worker took it, or it ended before it was renewed")

    def _report_overdue(self) -> None:
        now = monotonic_s()
        with self._guard:
            overdue = [known for known in self._watched.values() if known.deadline <= now]
            for known in overdue:
                del self._watched[known.lease.partition]
        for known in overdue:
            self._tell(known.lease, "it could not be renewed in time")

    def _tell(self, lease: Lease, why: str) -> None:
        epoch = lease.token.writer_epoch
        log.warning("lease_lost", worker=self._worker, partition=lease.partition, writer_epoch=epoch, reason=why)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_lost, lease, why)
