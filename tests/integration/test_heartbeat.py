"""The heartbeat on a real Postgres: what it renews, what it withholds, and how it reports a loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count

import psycopg
import pytest

from streams.fence.clock import monotonic_s
from streams.fence.heartbeat import Heartbeat
from streams.fence.lease import PostgresLeases
from streams.fence.migrate import migrate
from streams.fence.port import Lease
from tests.support.waiting import until

TTL_MS = 3_000
EVERY_MS = 100
LIMIT_S = 20


class Watch:
    """A worker with its heartbeat, and the losses it was told of."""

    def __init__(self, dsn: str, leases: PostgresLeases) -> None:
        self.leases = leases
        self.ticks = count()
        self.stuck = False
        self.last = 0
        self.losses: asyncio.Queue[tuple[Lease, str]] = asyncio.Queue()
        self.heartbeat = Heartbeat(
            dsn,
            leases.worker,
            ttl_ms=TTL_MS,
            every_ms=EVERY_MS,
            progress=self.progress,
            on_lost=lambda lease, why: self.losses.put_nowait((lease, why)),
        )

    def progress(self) -> int:
        if not self.stuck:
            self.last = next(self.ticks)
        return self.last

    async def claim(self, partition: int = 0) -> Lease:
        asked_at = monotonic_s()
        lease = await self.leases.claim(partition)
        assert isinstance(lease, Lease)
        self.heartbeat.watch(lease, asked_at)
        return lease

    async def renewed(self, lease: Lease) -> None:
        """Returns once a renewal of this lease has been counted."""
        before = self.heartbeat.deadline(lease.partition)
        await until(lambda: self.heartbeat.deadline(lease.partition) > before, limit_s=LIMIT_S)


@asynccontextmanager
async def watching(dsn: str, worker: str) -> AsyncIterator[Watch]:
    leases = PostgresLeases(dsn, worker, ttl_ms=TTL_MS)
    await leases.open()
    watch = Watch(dsn, leases)
    watch.heartbeat.start()
    try:
        yield watch
    finally:
        await watch.heartbeat.stop()
        await leases.close()


@pytest.fixture
def database(fresh_database: str) -> str:
    migrate(fresh_database)
    return fresh_database


def expire(dsn: str, *, by_ms: int) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE leases SET expires_at = expires_at - %s", (timedelta(milliseconds=by_ms),))


async def test_it_renews_what_it_watches_while_the_event_loop_is_blocked_by_nothing(database: str) -> None:
    async with watching(database, "wk-a") as a:
        lease = await a.claim()
        await a.renewed(lease)
        expire(database, by_ms=TTL_MS - 500)
        await a.renewed(lease)
        await a.renewed(lease)
        [row] = await a.leases.table()
        assert row.live
        assert row.expires_in_ms > TTL_MS - 1_500
        assert a.heartbeat.may_write(lease)
        assert a.losses.empty()


async def test_the_deadline_is_never_later_than_the_row_in_the_database(database: str) -> None:
    async with watching(database, "wk-a") as a:
        lease = await a.claim()
        await a.renewed(lease)
        await a.heartbeat.stop()
        [row] = await a.leases.table()
        assert a.heartbeat.deadline(0) - monotonic_s() < row.expires_in_ms / 1000


async def test_a_lease_that_another_worker_took_is_reported_once(database: str) -> None:
    async with watching(database, "wk-a") as a:
        lease = await a.claim()
        await a.renewed(lease)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE leases SET owner = 'wk-b', writer_epoch = writer_epoch + 1")
        lost, _ = await asyncio.wait_for(a.losses.get(), LIMIT_S)
        assert lost == lease
        assert not a.heartbeat.may_write(lease)
        assert a.heartbeat.deadline(0) == float("-inf")
        kept = await a.claim(1)
        await a.renewed(kept)
        assert a.losses.empty()


async def test_a_database_restored_to_an_older_epoch_loses_the_lease(database: str) -> None:
    async with watching(database, "wk-a") as a:
        lease = await a.leases.next_epoch(await a.claim(), above=7)
        a.heartbeat.rename(lease)
        await a.renewed(lease)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE leases SET writer_epoch = 3")
        lost, _ = await asyncio.wait_for(a.losses.get(), LIMIT_S)
        assert lost == lease


async def test_a_new_epoch_is_no_loss_and_ends_the_right_of_the_old(database: str) -> None:
    async with watching(database, "wk-a") as a:
        old = await a.claim()
        for _ in range(20):
            new = await a.leases.next_epoch(old)
            a.heartbeat.rename(new)
            assert a.heartbeat.may_write(new)
            assert not a.heartbeat.may_write(old)
            old = new
        await a.renewed(old)
        assert a.losses.empty()


async def test_an_event_loop_that_makes_no_progress_loses_its_leases(database: str) -> None:
    async with watching(database, "wk-a") as a, watching(database, "wk-b") as b:
        lease = await a.claim()
        await a.renewed(lease)
        a.stuck = True
        lost, why = await asyncio.wait_for(a.losses.get(), LIMIT_S)
        assert lost == lease
        assert "in time" in why

        async def claimed_by_b() -> Lease | None:
            claim = await b.leases.claim(0)
            return claim if isinstance(claim, Lease) else None

        taken = await until(claimed_by_b, limit_s=LIMIT_S)
        assert taken.token.writer_epoch == lease.token.writer_epoch + 1


async def test_a_lease_forgotten_and_handed_back_is_not_renewed_to_life(database: str) -> None:
    async with watching(database, "wk-a") as a:
        lease, other = await a.claim(0), await a.claim(1)
        a.heartbeat.forget(0)
        await a.leases.hand_back(lease)
        await a.renewed(other)
        await a.renewed(other)
        assert [row.live for row in await a.leases.table()] == [False, True]
        assert a.losses.empty()


async def test_a_heartbeat_whose_session_was_ended_goes_on_in_a_new_one(database: str) -> None:
    async with watching(database, "wk-a") as a:
        lease = await a.claim()
        await a.renewed(lease)
        with psycopg.connect(database) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '%% heartbeat %%'"
            ).fetchall()
        assert ended == [(True,)]
        await a.renewed(lease)
        assert a.losses.empty()


async def test_a_heartbeat_that_cannot_reach_the_database_reports_before_the_lease_ends(fresh_database: str) -> None:
    migrate(fresh_database)
    leases = PostgresLeases(fresh_database, "wk-a", ttl_ms=TTL_MS)
    await leases.open()
    losses: asyncio.Queue[tuple[Lease, str]] = asyncio.Queue()
    heartbeat = Heartbeat(
        "host=127.0.0.1 port=1 dbname=none user=none",
        "wk-a",
        ttl_ms=TTL_MS,
        every_ms=EVERY_MS,
        progress=count().__next__,
        on_lost=lambda lease, why: losses.put_nowait((lease, why)),
    )
    asked_at = monotonic_s()
    lease = await leases.claim(0)
    assert isinstance(lease, Lease)
    heartbeat.watch(lease, asked_at)
    heartbeat.start()
    try:
        assert (await asyncio.wait_for(losses.get(), LIMIT_S))[0] == lease
        [row] = await leases.table()
        assert row.expires_in_ms > 0
    finally:
        await heartbeat.stop()
        await leases.close()
