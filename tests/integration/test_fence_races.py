"""The fence on a real Postgres, where a fake shows nothing: races, killed and stopped processes, slow networks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.connection import Session, SessionPool
from streams.fence.lease import PostgresLeases
from streams.fence.migrate import migrate
from streams.fence.port import (
    Checkpoint,
    ConversationRow,
    Fenced,
    FenceUnavailable,
    HeldBy,
    Lease,
    Positions,
    Token,
)
from tests.support.tcp_proxy import TcpProxy, proxy_to
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
TTL_MS = 60_000
A, B = Token(1, "wk-a"), Token(2, "wk-b")


@pytest.fixture
def database(fresh_database: str) -> str:
    migrate(fresh_database)
    return fresh_database


@pytest.fixture
async def exits() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened_here:
        yield opened_here


async def opened(exits: AsyncExitStack, dsn: str, worker: str, ttl_ms: int = TTL_MS) -> PostgresLeases:
    leases = PostgresLeases(dsn, worker, ttl_ms=ttl_ms)
    await leases.open()
    exits.push_async_callback(leases.close)
    return leases


def checkpoints(
    exits: AsyncExitStack, dsn: str, *, limit_s: float = 5.0, save_limit_s: float = 30
) -> PostgresCheckpoints:
    store = PostgresCheckpoints(dsn, limit_s=limit_s, save_limit_s=save_limit_s)
    exits.push_async_callback(store.close)
    return store


def through(dsn: str, proxy: TcpProxy) -> str:
    return make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=str(proxy.port))


async def proxied(exits: AsyncExitStack, dsn: str) -> TcpProxy:
    address = conninfo_to_dict(dsn)
    return await exits.enter_async_context(proxy_to(str(address["host"]), int(str(address["port"]))))


def snapshot(token: Token, lsn: int) -> Checkpoint:
    return Checkpoint(token, lsn, lsn, Positions(), b"state")


def conversation(lsn: int, state: bytes) -> ConversationRow:
    return ConversationRow("c", lsn, hot=True, state=state)


@contextmanager
def holder(dsn: str, worker: str, partitions: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.lease_holder", dsn, worker, str(TTL_MS), str(partitions)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holding\n"
            yield process
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------------ races
async def test_of_workers_that_claim_the_same_free_partitions_each_gets_its_own(
    database: str, exits: AsyncExitStack
) -> None:
    workers = [await opened(exits, database, f"wk-{number}") for number in range(4)]
    for partition in range(25):
        outcomes = await asyncio.gather(*(worker.claim(partition) for worker in workers))
        winners = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
        assert [winner.token.writer_epoch for winner in winners] == [1]
        held = {outcome.worker for outcome in outcomes if isinstance(outcome, HeldBy)}
        assert held == {winners[0].token.worker}


async def test_of_workers_that_take_over_the_same_expired_lease_one_does(database: str, exits: AsyncExitStack) -> None:
    workers = [await opened(exits, database, f"wk-{number}") for number in range(4)]
    await workers[0].claim(0)
    for epoch in range(2, 20):
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE leases SET expires_at = expires_at - %s", (timedelta(milliseconds=TTL_MS),))
        outcomes = await asyncio.gather(*(worker.claim(0) for worker in workers))
        winners = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
        assert [winner.token.writer_epoch for winner in winners] == [epoch]


async def test_a_claim_that_waited_for_a_row_judges_by_the_time_after_the_wait(
    database: str, exits: AsyncExitStack
) -> None:
    a, b = await opened(exits, database, "wk-a"), await opened(exits, database, "wk-b")
    lease = await a.claim(0)
    assert isinstance(lease, Lease)
    with psycopg.connect(database) as connection:
        # Somebody holds the row: the claim waits, and the lease is renewed before it gets its turn.
        connection.execute("UPDATE leases SET expires_at = clock_timestamp() - interval '1 s'")
        connection.commit()
        connection.execute("UPDATE leases SET expires_at = clock_timestamp() + interval '60 s'")
        claim = asyncio.create_task(b.claim(0))
        await until(lambda: _waiting_for_lock(database))
        connection.commit()
    assert isinstance(await claim, HeldBy)


def _waiting_for_lock(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    return row is not None and row[0] > 0


async def test_of_a_take_and_a_save_at_the_same_moment_one_order_holds(database: str, exits: AsyncExitStack) -> None:
    zombie, owner = checkpoints(exits, database), checkpoints(exits, database)
    await zombie.take(0, A)
    for epoch in range(2, 30, 2):
        old, new = Token(epoch - 1, "wk-a"), Token(epoch, "wk-b")
        await zombie.take(0, old)
        saved, taken = await asyncio.gather(
            zombie.save(0, snapshot(old, epoch), [conversation(epoch, b"%d" % epoch)], [], 0),
            owner.take(0, new),
            return_exceptions=True,
        )
        [row] = (await owner.load(0, new, 0, ["c"])).values() or [None]
        if isinstance(saved, Fenced):
            assert row is None or row.lsn < epoch
        else:
            assert saved is None
            assert isinstance(taken, Checkpoint)
            assert (taken.lsn, row and row.lsn) == (epoch, epoch)


# ----------------------------------------------------------------------------------- killed and stopped processes
async def test_a_killed_process_is_replaced_long_before_its_leases_end(database: str, exits: AsyncExitStack) -> None:
    b = await opened(exits, database, "wk-b")
    with holder(database, "wk-a", partitions=8) as process:
        assert all(row.live for row in await b.table())
        process.kill()
        killed_at = time.monotonic()

        async def all_mine() -> bool:
            free = [row.partition for row in await b.table() if not row.live]
            for partition in free:
                await b.claim(partition)
            return all(row.worker == "wk-b" for row in await b.table())

        await until(all_mine)
        assert time.monotonic() - killed_at < 2
    assert [row.writer_epoch for row in await b.table()] == [2] * 8


async def test_a_stopped_process_keeps_its_leases_until_they_end(database: str, exits: AsyncExitStack) -> None:
    b = await opened(exits, database, "wk-b")
    with holder(database, "wk-a", partitions=1) as process:
        assert isinstance(await b.claim(0), HeldBy)
        process.send_signal(signal.SIGSTOP)
        assert isinstance(await b.claim(0), HeldBy)
        assert [row.live for row in await b.workers()] == [True, True]
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE leases SET expires_at = expires_at - %s", (timedelta(milliseconds=TTL_MS),))
        taken = await b.claim(0)
        assert isinstance(taken, Lease)
        process.send_signal(signal.SIGCONT)
        await b.confirm(taken)


def end_sessions(dsn: str, purpose: str) -> None:
    """The server ends the sessions of this purpose, as it does when it restarts; they are gone when this returns."""
    with psycopg.connect(dsn) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            (f"%{purpose}%",),
        ).fetchall()
    assert ended
    assert all(row[0] for row in ended)


async def test_what_a_broken_session_had_seen_proves_nothing_in_the_next(database: str, exits: AsyncExitStack) -> None:
    """After a failover every lock is gone, and every worker may be well."""
    a, b = await opened(exits, database, "wk-a"), await opened(exits, database, "wk-b")
    lease = await a.claim(0)
    assert isinstance(lease, Lease)
    assert isinstance(await b.claim(0), HeldBy)
    end_sessions(database, "lease wk-")
    with pytest.raises(FenceUnavailable):
        await b.claim(0)
    held = await b.claim(0)
    assert isinstance(held, HeldBy)
    assert held.live
    with pytest.raises(FenceUnavailable):
        await a.confirm(lease)
    await a.confirm(lease)


async def test_a_worker_that_was_cut_off_and_came_back_is_alive_again(database: str, exits: AsyncExitStack) -> None:
    a, b = await opened(exits, database, "wk-a"), await opened(exits, database, "wk-b")
    await a.claim(0)
    assert [row.live for row in await b.table()] == [True]
    end_sessions(database, "lease wk-a")
    assert [row.live for row in await b.table()] == [False]
    with pytest.raises(FenceUnavailable):
        await a.table()
    await a.table()
    assert [row.live for row in await b.table()] == [True]
    assert isinstance(await b.claim(0), HeldBy)


# ------------------------------------------------------------------------------------------------ slow networks
async def test_a_save_delayed_on_its_way_is_refused_after_a_take(database: str, exits: AsyncExitStack) -> None:
    proxy = await proxied(exits, database)
    slow, owner = checkpoints(exits, through(database, proxy)), checkpoints(exits, database)
    await slow.take(0, A)
    await slow.save(0, snapshot(A, 1), [conversation(1, b"mine")], [], 0)
    proxy.freeze()
    save = asyncio.create_task(slow.save(0, snapshot(A, 2), [conversation(2, b"zombie")], [], 0))
    await proxy.held()
    taken = await owner.take(0, B)
    assert taken is not None
    assert taken.lsn == 1
    proxy.thaw()
    with pytest.raises(Fenced):
        await save
    assert (await owner.load(0, B, 1, ["c"]))["c"].state == b"mine"


async def test_a_save_frozen_in_its_middle_holds_a_take_no_longer_than_its_limit(
    database: str, exits: AsyncExitStack
) -> None:
    proxy = await proxied(exits, database)
    slow = checkpoints(exits, through(database, proxy), save_limit_s=1.0)
    owner = checkpoints(exits, database, limit_s=10.0)
    await slow.take(0, A)
    await slow.save(0, snapshot(A, 1), [], [], 0)
    # The fence's row is updated and locked by then; the staged rows never arrive.
    proxy.freeze_at(b"COPY staged_states")
    save = asyncio.create_task(slow.save(0, snapshot(A, 2), [conversation(2, b"zombie")], [], 0))
    await proxy.held()
    taken = await owner.take(0, B)
    assert taken is not None
    assert taken.lsn == 1
    with pytest.raises(FenceUnavailable):
        await save
    proxy.thaw()
    with pytest.raises(Fenced):
        await slow.save(0, snapshot(A, 2), [], [], 0)
    assert await owner.load(0, B, 1, ["c"]) == {}


async def test_a_database_that_hangs_costs_a_caller_its_limit_and_no_more(database: str, exits: AsyncExitStack) -> None:
    proxy = await proxied(exits, database)
    leases = PostgresLeases(through(database, proxy), "wk-a", ttl_ms=TTL_MS, limit_s=0.5)
    await leases.open()
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(FenceUnavailable, match=r"within 0\.5 s"):
        await leases.claim(0)
    assert time.monotonic() - began < 5
    proxy.thaw()
    assert isinstance(await leases.claim(0), Lease)
    await leases.close()


async def test_callers_of_a_pool_that_hangs_are_all_let_go(database: str) -> None:
    pool = SessionPool(database, "test", size=1, limit_s=0.5)

    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    outcomes = await asyncio.wait_for(asyncio.gather(*(pool.run(hang) for _ in range(3)), return_exceptions=True), 20)
    assert [type(outcome) for outcome in outcomes] == [FenceUnavailable] * 3
    assert any("connections were busy" in str(outcome) for outcome in outcomes)
    await pool.run(lambda connection: connection.execute("SELECT 1"))
    await pool.close()


async def test_a_cancelled_caller_is_let_go_though_the_database_hangs(database: str, exits: AsyncExitStack) -> None:
    proxy = await proxied(exits, database)
    session = Session(through(database, proxy), "test", limit_s=60)
    await session.run(lambda connection: connection.execute("SELECT 1"))
    proxy.freeze()
    call = asyncio.create_task(session.run(lambda connection: connection.execute("SELECT 2")))
    await proxy.held()
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=10)
    assert done
    assert call.cancelled()
    proxy.thaw()
    await session.run(lambda connection: connection.execute("SELECT 3"))
    await session.close()
