"""One suite for everything that implements the fence's port: in memory, and on a real Postgres."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Protocol

import psycopg
import pytest

from streams.core.ids import frame_key, run_id
from streams.core.limits import ID_MAX_BYTES
from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.lease import PostgresLeases, lock_key
from streams.fence.memory import MemoryCheckpoints, MemoryLeases, MemoryStore
from streams.fence.migrate import migrate
from streams.fence.port import (
    Checkpoint,
    Checkpoints,
    ConversationRow,
    Fenced,
    FenceUnavailable,
    HeldBy,
    KeyRow,
    Lease,
    Leases,
    Positions,
    Token,
)

TTL_MS = 15_000

pytestmark = pytest.mark.contract


class Store(Protocol):
    """A database as the suite needs it: workers, time that can be moved, processes that can be killed."""

    def leases(self, worker: str) -> Leases: ...

    def checkpoints(self) -> Checkpoints: ...

    def pass_time(self, milliseconds: int) -> None: ...

    def kill(self, worker: str) -> None:
        """The worker's process is gone; its lock is free when this returns."""
        ...

    def lose_checkpoint(self, partition: int, lsn: int) -> None:
        """The database goes back to an older checkpoint, as after a restore."""
        ...

    def lose_leases(self) -> None: ...

    async def close(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def leases(self, worker: str) -> Leases:
        return MemoryLeases(self.store, worker, TTL_MS)

    def checkpoints(self) -> Checkpoints:
        return MemoryCheckpoints(self.store)

    def pass_time(self, milliseconds: int) -> None:
        self.store.advance(milliseconds)

    def kill(self, worker: str) -> None:
        self.store.kill(worker)

    def lose_checkpoint(self, partition: int, lsn: int) -> None:
        old = self.store.checkpoints[partition]
        self.store.checkpoints[partition] = Checkpoint(old.token, lsn, old.journal_offset, old.positions, old.state)

    def lose_leases(self) -> None:
        self.store.leases.clear()

    async def close(self) -> None:
        return None


class OnPostgres:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.opened: list[PostgresLeases] = []
        self.checkpoint_stores: list[PostgresCheckpoints] = []
        self.killed: set[str] = set()
        migrate(dsn)

    def leases(self, worker: str) -> Leases:
        leases = PostgresLeases(self.dsn, worker, ttl_ms=TTL_MS)
        self.opened.append(leases)
        return leases

    def checkpoints(self) -> Checkpoints:
        checkpoints = PostgresCheckpoints(self.dsn)
        self.checkpoint_stores.append(checkpoints)
        return checkpoints

    def pass_time(self, milliseconds: int) -> None:
        # The database's clock cannot be moved; the rows can.
        with psycopg.connect(self.dsn) as connection:
            for table in ("leases", "workers"):
                connection.execute(
                    f"UPDATE {table} SET expires_at = expires_at - %s".encode(), (timedelta(milliseconds=milliseconds),)
                )

    def kill(self, worker: str) -> None:
        key = lock_key(worker)
        with psycopg.connect(self.dsn) as connection:
            # Waits until the server has ended the session, at most 5 s.
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
                " AND ((classid::bigint << 32) | objid::bigint) = %s",
                (key,),
            ).fetchall()
        assert ended == [(True,)]
        self.killed.add(worker)

    def lose_checkpoint(self, partition: int, lsn: int) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("UPDATE checkpoints SET lsn = %s WHERE partition = %s", (lsn, partition))

    def lose_leases(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DELETE FROM leases")

    async def close(self) -> None:
        for leases in self.opened:
            if leases.worker in self.killed:
                with pytest.raises(FenceUnavailable):
                    await leases.close()
            else:
                await leases.close()
        for checkpoints in self.checkpoint_stores:
            await checkpoints.close()


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made: Store = InMemory() if request.param == "memory" else OnPostgres(request.getfixturevalue("fresh_database"))
    yield made
    await made.close()


async def opened(store: Store, *workers: str) -> Sequence[Leases]:
    leases = [store.leases(worker) for worker in workers]
    for each in leases:
        await each.open()
    return leases


async def claimed(leases: Leases, partition: int = 0) -> Lease:
    lease = await leases.claim(partition)
    assert isinstance(lease, Lease)
    return lease


def snapshot(token: Token, lsn: int, *, state: bytes = b"s") -> Checkpoint:
    return Checkpoint(token, lsn, lsn * 2, Positions(turns=lsn, frames=lsn + 1, membership=lsn + 2), state)


def conversation(name: str, lsn: int, state: bytes, *, hot: bool) -> ConversationRow:
    return ConversationRow(name, lsn, hot, state)


# ------------------------------------------------------------------------------------------------ the four cases
async def test_a_partition_nobody_ever_had_is_claimed_with_epoch_1(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    assert await a.claim(3) == Lease(3, Token(1, "wk-a"))


async def test_a_claim_of_my_live_row_extends_it_at_the_same_epoch(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    first = await claimed(a)
    store.pass_time(TTL_MS - 5_000)
    assert await a.claim(0) == first
    store.pass_time(TTL_MS - 5_000)
    await a.confirm(first)


async def test_somebodys_expired_row_is_taken_over_with_a_higher_epoch(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    await claimed(a)
    store.pass_time(TTL_MS)
    assert await b.claim(0) == Lease(0, Token(2, "wk-b"))


async def test_somebodys_live_row_changes_nothing_and_names_the_holder(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    lease = await claimed(a)
    held = await b.claim(0)
    assert isinstance(held, HeldBy)
    assert (held.partition, held.worker, held.writer_epoch, held.live) == (0, "wk-a", 1, True)
    assert 0 < held.expires_in_ms <= TTL_MS
    await a.confirm(lease)


async def test_my_own_expired_row_counts_as_somebodys(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    await claimed(a)
    store.pass_time(TTL_MS)
    assert await a.claim(0) == Lease(0, Token(2, "wk-a"))


# ------------------------------------------------------------------------------------------------ writer epochs
async def test_each_new_epoch_is_one_higher_and_ends_the_former(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    first = await claimed(a)
    second = await a.next_epoch(first)
    assert second == Lease(0, Token(2, "wk-a"))
    with pytest.raises(Fenced):
        await a.next_epoch(first)
    with pytest.raises(Fenced):
        await a.confirm(first)
    assert await a.claim(0) == second


async def test_a_new_epoch_is_above_all_that_the_journal_has_shown(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    assert (await a.next_epoch(await claimed(a), above=41)).token.writer_epoch == 42
    assert (await a.next_epoch(await claimed(a), above=7)).token.writer_epoch == 43


async def test_an_expired_lease_gets_no_new_epoch_and_no_confirmation(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    lease = await claimed(a)
    store.pass_time(TTL_MS)
    with pytest.raises(Fenced):
        await a.next_epoch(lease)
    with pytest.raises(Fenced):
        await a.confirm(lease)


async def test_a_lease_taken_over_is_refused_to_its_former_holder(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    old = await claimed(a)
    store.pass_time(TTL_MS)
    new = await claimed(b)
    with pytest.raises(Fenced):
        await a.confirm(old)
    with pytest.raises(Fenced):
        await a.next_epoch(old)
    await b.confirm(new)


async def test_a_confirmation_keeps_a_lease_for_another_ttl(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    lease = await claimed(a)
    store.pass_time(TTL_MS - 5_000)
    await a.confirm(lease)
    store.pass_time(TTL_MS - 5_000)
    assert isinstance(await b.claim(0), HeldBy)


async def test_a_lease_table_that_lost_its_rows_refuses_the_old_holder(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    lease = await claimed(a)
    store.lose_leases()
    with pytest.raises(Fenced):
        await a.confirm(lease)
    # Its epoch starts again at 1; `above`, from the journal, is what lifts it.
    assert (await a.next_epoch(await claimed(a), above=9)).token.writer_epoch == 10


# ---------------------------------------------------------------------------------------------- handing back
async def test_a_lease_handed_back_is_free_at_once_and_its_epoch_goes_on(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    lease = await claimed(a)
    await a.hand_back(lease)
    [row] = await b.table()
    assert (row.worker, row.writer_epoch, row.live, row.expires_in_ms) == ("wk-a", 1, False, 0)
    assert await b.claim(0) == Lease(0, Token(2, "wk-b"))


async def test_handing_back_what_is_not_mine_changes_nothing(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    old = await claimed(a)
    store.pass_time(TTL_MS)
    new = await claimed(b)
    await a.hand_back(old)
    await b.confirm(new)
    [row] = await b.table()
    assert (row.worker, row.writer_epoch, row.live) == ("wk-b", new.token.writer_epoch, True)


async def test_closing_frees_all_that_a_worker_held_and_may_be_repeated(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    for partition in range(3):
        await claimed(a, partition)
    await a.close()
    await a.close()
    assert [row.live for row in await b.table()] == [False] * 3
    assert [row.worker for row in await b.workers()] == ["wk-b"]
    assert await b.claim(1) == Lease(1, Token(2, "wk-b"))


# ------------------------------------------------------------------------------------------------- workers
async def test_a_worker_without_leases_is_seen_by_others(store: Store) -> None:
    a, _ = await opened(store, "wk-a", "wk-b")
    assert [(row.worker, row.live, row.draining) for row in await a.workers()] == [
        ("wk-a", True, False),
        ("wk-b", True, False),
    ]


async def test_a_draining_worker_says_so(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    await b.set_draining()
    assert [row.draining for row in await a.workers()] == [False, True]


async def test_a_worker_that_never_renewed_is_not_live(store: Store) -> None:
    a, _ = await opened(store, "wk-a", "wk-b")
    store.pass_time(TTL_MS)
    assert [row.live for row in await a.workers()] == [False, False]


# ------------------------------------------------------------------------------------------ fast takeover
async def test_a_dead_workers_lease_is_taken_over_long_before_it_expires(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    await claimed(a)
    assert [row.live for row in await b.table()] == [True]
    store.kill("wk-a")
    assert [row.live for row in await b.table()] == [False]
    assert [(row.worker, row.live) for row in await b.workers()] == [("wk-a", False), ("wk-b", True)]
    assert await b.claim(0) == Lease(0, Token(2, "wk-b"))


async def test_a_claim_alone_notices_that_the_holder_is_dead(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    await claimed(a)
    assert isinstance(await b.claim(0), HeldBy)
    store.kill("wk-a")
    assert await b.claim(0) == Lease(0, Token(2, "wk-b"))


async def test_a_lock_never_seen_held_proves_nothing(store: Store) -> None:
    (a,) = await opened(store, "wk-a")
    await claimed(a)
    store.kill("wk-a")
    (c,) = await opened(store, "wk-c")
    held = await c.claim(0)
    assert isinstance(held, HeldBy)
    assert held.live
    assert [row.live for row in await c.workers()] == [True, True]


async def test_a_death_that_one_has_seen_is_known_to_those_who_start_later(store: Store) -> None:
    """Else the newcomer leaves the dead one a share that nobody runs until its time is up."""
    _, b = await opened(store, "wk-a", "wk-b")
    await b.workers()
    store.kill("wk-a")
    await b.workers()
    (c,) = await opened(store, "wk-c")
    assert [(row.worker, row.live) for row in await c.workers()] == [("wk-a", False), ("wk-b", True), ("wk-c", True)]


# --------------------------------------------------------------------------------- what workers tell each other
async def test_a_worker_reaches_kafka_until_it_says_otherwise_and_counts_anew_when_it_does_again(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    (of_a, _) = await b.workers()
    assert of_a.reaches_kafka_ms is not None
    assert of_a.reaches_kafka_ms >= 3_600_000, "a worker that starts has reached it: it looked at the topics"
    await a.set_reaching(False)
    assert [row.reaches_kafka_ms is None for row in await b.workers()] == [True, False]
    await a.set_reaching(True)
    store.pass_time(2_000)
    await a.set_reaching(True)
    (of_a, _) = await b.workers()
    assert of_a.reaches_kafka_ms is not None
    assert of_a.reaches_kafka_ms < 3_600_000


async def test_a_stopped_partition_is_marked_until_it_is_claimed_anew(store: Store) -> None:
    a, b = await opened(store, "wk-a", "wk-b")
    lease = await claimed(a)
    await b.set_stopped(Lease(0, Token(1, "wk-b")), "not mine to say")
    assert [row.stopped for row in await b.table()] == [False]
    await a.set_stopped(lease, "the journal was cut off")
    assert [row.stopped for row in await b.table()] == [True]
    await a.hand_back(lease)
    await claimed(b)
    assert [row.stopped for row in await b.table()] == [False]


# ------------------------------------------------------------------------------------------ checkpoint fence
async def test_the_first_take_finds_no_checkpoint(store: Store) -> None:
    checkpoints = store.checkpoints()
    assert await checkpoints.take(0, Token(1, "wk-a")) is None
    assert await checkpoints.take(0, Token(1, "wk-a")) is None


async def test_a_saved_checkpoint_comes_back_to_the_next_taker(store: Store) -> None:
    checkpoints = store.checkpoints()
    old, new = Token(1, "wk-a"), Token(2, "wk-b")
    await checkpoints.take(0, old)
    rows = [
        conversation("c-hot", 7, b"\x00\xffhot", hot=True),
        conversation("c-idle", 6, b"idle", hot=False),
    ]
    await checkpoints.save(0, snapshot(old, 7, state=b"\x00\x01"), rows, [], 0)

    assert await checkpoints.take(0, new) == snapshot(new, 7, state=b"\x00\x01")
    assert await checkpoints.load_hot(0, new, 7) == [rows[0]]
    assert await checkpoints.load(0, new, 7, ["c-idle", "c-none", "c-hot"]) == {
        row.conversation_id: row for row in rows
    }


async def test_a_name_that_the_store_has_no_place_for_names_no_conversation(store: Store) -> None:
    checkpoints, token = store.checkpoints(), Token(1, "wk-a")
    await checkpoints.take(0, token)
    row = conversation("c", 1, b"c", hot=False)
    await checkpoints.save(0, snapshot(token, 1), [row], [], 0)
    assert await checkpoints.load(0, token, 1, ["a\0b", "c"]) == {"c": row}


async def test_asking_for_no_conversation_gives_none(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    assert await checkpoints.load(0, token, 0, []) == {}
    assert await checkpoints.load_keys(0, token, 0, [], 0) == []
    assert await checkpoints.load_hot(0, token, 0) == []


async def test_a_zombies_save_is_refused_even_before_the_next_owners_first(store: Store) -> None:
    checkpoints = store.checkpoints()
    zombie, owner = Token(1, "wk-a"), Token(2, "wk-b")
    await checkpoints.take(0, zombie)
    await checkpoints.take(0, owner)
    with pytest.raises(Fenced):
        await checkpoints.save(0, snapshot(zombie, 5), [conversation("c", 5, b"zombie", hot=True)], [], 0)
    assert await checkpoints.load(0, owner, 0, ["c"]) == {}


async def test_a_lower_epoch_and_an_equal_one_of_another_worker_take_nothing(store: Store) -> None:
    checkpoints = store.checkpoints()
    await checkpoints.take(0, Token(5, "wk-a"))
    for refused in (Token(4, "wk-a"), Token(5, "wk-b")):
        with pytest.raises(Fenced) as fenced:
            await checkpoints.take(0, refused)
        assert fenced.value.highest == 5
    await checkpoints.save(0, snapshot(Token(5, "wk-a"), 1), [], [], 0)


async def test_a_zombies_load_is_refused(store: Store) -> None:
    checkpoints = store.checkpoints()
    zombie, owner = Token(1, "wk-a"), Token(2, "wk-b")
    await checkpoints.take(0, zombie)
    await checkpoints.take(0, owner)
    with pytest.raises(Fenced):
        await checkpoints.load_hot(0, zombie, 0)
    with pytest.raises(Fenced):
        await checkpoints.load(0, zombie, 0, ["c"])
    with pytest.raises(Fenced):
        await checkpoints.load_keys(0, zombie, 0, ["c"], 0)


async def test_a_checkpoint_never_goes_back(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    await checkpoints.save(0, snapshot(token, 9), [], [], 0)
    with pytest.raises(Fenced):
        await checkpoints.save(0, snapshot(token, 8), [], [], 0)
    await checkpoints.save(0, snapshot(token, 9), [], [], 0)


async def test_a_store_that_lost_history_is_found_out_by_every_load(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    await checkpoints.save(0, snapshot(token, 9), [], [], 0)
    store.lose_checkpoint(0, 4)
    with pytest.raises(Fenced, match="lost history"):
        await checkpoints.load_hot(0, token, 9)
    with pytest.raises(Fenced, match="lost history"):
        await checkpoints.load(0, token, 9, ["c"])
    with pytest.raises(Fenced, match="lost history"):
        await checkpoints.load_keys(0, token, 9, ["c"], 0)


async def test_a_store_that_lost_history_takes_no_snapshot_of_what_changed_since(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    await checkpoints.save(0, snapshot(token, 9), [conversation("c", 9, b"nine", hot=True)], [], 0)
    store.lose_checkpoint(0, 4)
    with pytest.raises(Fenced):
        await checkpoints.save(0, snapshot(token, 10), [], [], 0, stored_lsn=9)
    await checkpoints.save(0, snapshot(token, 10), [], [], 0, stored_lsn=4)


async def test_a_discarded_checkpoint_is_none_and_a_new_one_takes_nothing_of_its_rows(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    rows = [conversation("c", 9, b"old", hot=True), conversation("d", 9, b"old", hot=True)]
    await checkpoints.save(0, snapshot(token, 9), rows, [], 0)
    await checkpoints.discard(0, token)
    assert await checkpoints.take(0, token) is None
    anew = conversation("c", 4, b"anew", hot=True)
    await checkpoints.save(0, snapshot(token, 4), [anew], [], 0)
    assert await checkpoints.load_hot(0, token, 4) == [anew]
    assert await checkpoints.load(0, token, 4, ["c", "d"]) == {"c": anew}


async def test_a_zombie_discards_nothing(store: Store) -> None:
    checkpoints = store.checkpoints()
    zombie, owner = Token(1, "wk-a"), Token(2, "wk-b")
    await checkpoints.take(0, zombie)
    await checkpoints.save(0, snapshot(zombie, 9), [], [], 0)
    await checkpoints.take(0, owner)
    with pytest.raises(Fenced):
        await checkpoints.discard(0, zombie)
    assert await checkpoints.take(0, owner) == snapshot(owner, 9)


async def test_a_save_without_a_take_is_refused(store: Store) -> None:
    with pytest.raises(Fenced):
        await store.checkpoints().save(0, snapshot(Token(1, "wk-a"), 1), [], [], 0)


async def test_partitions_do_not_see_each_other(store: Store) -> None:
    checkpoints = store.checkpoints()
    a, b = Token(3, "wk-a"), Token(1, "wk-b")
    await checkpoints.take(0, a)
    await checkpoints.take(1, b)
    await checkpoints.save(0, snapshot(a, 2), [conversation("c0", 2, b"0", hot=True)], [], 0)
    await checkpoints.save(1, snapshot(b, 2), [conversation("c1", 2, b"1", hot=True)], [], 0)
    assert [row.conversation_id for row in await checkpoints.load_hot(1, b, 2)] == ["c1"]
    assert await checkpoints.load(1, b, 2, ["c0"]) == {}


async def test_a_conversation_saved_again_is_replaced(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    await checkpoints.save(0, snapshot(token, 1), [conversation("c", 1, b"one", hot=True)], [], 0)
    await checkpoints.save(0, snapshot(token, 2), [conversation("c", 2, b"two", hot=False)], [], 0)
    assert await checkpoints.load_hot(0, token, 2) == []
    assert await checkpoints.load(0, token, 2, ["c"]) == {"c": conversation("c", 2, b"two", hot=False)}


async def test_the_longest_key_that_the_core_lets_through_is_kept(store: Store) -> None:
    def longest() -> str:
        return secrets.token_hex(ID_MAX_BYTES // 2)  # PostgreSQL would compress anything more regular

    checkpoints, token = store.checkpoints(), Token(1, "wk-a")
    await checkpoints.take(0, token)
    name, group = longest(), longest()
    key = frame_key(group, run_id(name, 2**31, group), longest(), 1000)
    row = KeyRow(name, key, 1, longest(), 10, 20)
    await checkpoints.save(0, snapshot(token, 1), [conversation(name, 1, b"", hot=False)], [row], 0)
    assert await checkpoints.load_keys(0, token, 1, [name], 0) == [row]


async def test_older_keys_are_kept_until_they_are_too_old(store: Store) -> None:
    checkpoints = store.checkpoints()
    token = Token(1, "wk-a")
    await checkpoints.take(0, token)
    young, old = KeyRow("c", "user:u:2", 2, "id-2", 5_000, 9_005), KeyRow("c", "user:u:1", 1, "id-1", 1_000, 9_001)
    other = KeyRow("d", "user:u:1", 1, "id-3", 5_000, 9_005)
    await checkpoints.save(0, snapshot(token, 1), [], [old, young, other], 0)
    assert sorted(await checkpoints.load_keys(0, token, 1, ["c"], 0), key=lambda row: row.seq) == [old, young]
    assert await checkpoints.load_keys(0, token, 1, ["c"], 4_000) == [young]
    await checkpoints.save(0, snapshot(token, 2), [], [], 4_000)
    assert await checkpoints.load_keys(0, token, 2, ["c", "d"], 0) in ([young, other], [other, young])
    # A key that a superseded frame gave free is stored anew.
    again = KeyRow("c", "user:u:2", 7, "id-7", 6_000, 9_006)
    await checkpoints.save(0, snapshot(token, 3), [], [again], 4_000)
    assert await checkpoints.load_keys(0, token, 3, ["c"], 0) == [again]
