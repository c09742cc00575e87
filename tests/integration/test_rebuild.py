"""Tables made anew from the journal are those that were there, byte for byte, whatever was lost of them before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ops.audit.verify import Scope, verify_cluster
from ops.history import open_history
from ops.rebuild.beside import TABLES, Beside, CannotRebuild, Group
from ops.rebuild.fill import fill_read_model
from ops.rebuild.run import planned, rebuild
from streams.core.commands import EraseConversation
from streams.fence.migrate import migrate
from streams.fence.topics import kept_topics
from streams.projector.rows import Rows
from streams.projector.store import Position, PostgresProjection
from streams.settings import Settings
from tests.support.command import turnlog_async
from tests.support.deployment import Deployment, Talk, deployment
from tests.support.histories import Interrupting, one_partition
from tests.support.journals import CONVERSATION, ready
from tests.support.postgres import backups

PARTITIONS = 2
# What no journal says: when a row was written, and by which snapshot; and what was consumed without consequence.
NOT_DERIVED = {
    "checkpoints": {"updated_at", "journal_offset", "frames", "membership"},
    "conversation_states": {"lsn"},
    "projector_positions": {"journal_offset"},
}
EVERYTHING = [Group.READ_MODEL, Group.CHECKPOINTS]


def quiet(_: str) -> None:
    """No progress wanted."""


def dumped(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """All derived tables, each in the order of its rows."""
    found = {}
    with psycopg.connect(settings.postgres) as connection:
        for table in (table for group in EVERYTHING for table in TABLES[group]):
            cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            assert cursor.description is not None
            names = [column.name for column in cursor.description]
            kept = [at for at, name in enumerate(names) if name not in NOT_DERIVED.get(table, set())]
            found[table] = sorted((tuple(row[at] for at in kept) for row in cursor.fetchall()), key=repr)
    return found


async def project(place: Deployment, batch: int) -> None:
    """Write the read model as a projector does, in batches of this size, from where it is."""
    store = PostgresProjection(place.settings.postgres)
    try:
        async with open_history(place.settings) as history:
            for partition in range(PARTITIONS):
                position = (await store.positions([partition]))[partition]
                async for chunk in history.read(partition, position.journal_offset):
                    for start in range(0, len(chunk), batch):
                        part = chunk[start : start + batch]
                        entries = history.decode_all(part)
                        upto = Position(entries[-1].lsn, part[-1].offset + 1)
                        await store.write(partition, position, Rows(entries), upto)
                        position = upto
    finally:
        await store.close()


async def rebuilt(place: Deployment, *, interrupted_after: int | None = None) -> bool:
    """Rebuild everything; whether it went on with an interrupted one."""
    beside = await Beside.connect(place.settings.postgres)
    try:
        async with open_history(place.settings) as history:
            plan = await planned(history, beside, EVERYTHING)
            chosen: Any = history if interrupted_after is None else Interrupting(history, interrupted_after)
            await rebuild(chosen, beside, plan, quiet)
            return plan.goes_on
    finally:
        await beside.close()


async def test_a_rebuild_gives_the_same_tables_after_an_older_backup_was_restored_and_while_others_run(
    settings: Settings,
) -> None:
    async with deployment(settings, PARTITIONS) as place:
        async with place.worker() as (running, _):
            talk = Talk(place)
            await talk.some(5)
            said = await talk.end()
            await place.all_taken(said)
            assert await running.stop() == 0
        await project(place, 7)
        with backups(settings.postgres) as kept:
            await asyncio.to_thread(kept.make)
            async with place.worker() as (running, _):
                await place.open("later")
                await place.turn("later", "one", key="one")
                said = {**said, "later": ["one"]}
                await place.all_taken(said)
                assert await running.stop() == 0
            await project(place, 3)
            before = dumped(settings)
            assert len(before["transcript"]) == sum(map(len, said.values()))
            await asyncio.to_thread(kept.restore)
            assert dumped(settings) != before
        with pytest.raises(asyncio.CancelledError):
            await rebuilt(place, interrupted_after=30)
        assert await rebuilt(place)
        # The fence is the restored backup's: no rebuild lowers or raises it.
        assert without_tokens(dumped(settings)) == without_tokens(before)
        await others_run(place, said)


def without_tokens(tables: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {**tables, "checkpoints": [(row[0], *row[3:]) for row in tables["checkpoints"]]}


async def others_run(place: Deployment, said: dict[str, list[str]]) -> None:
    """A worker goes on from what was rebuilt, keeps checkpoints from being replaced, and the read model is not in its
    way."""
    environment = place.environment
    async with place.worker() as (running, worker):
        await place.turn("later", "two", key="two")
        await place.all_taken({**said, "later": ["one", "two"]})
        refused = await turnlog_async("rebuild", "--yes", environment=environment)
        assert (refused.code, refused.out) == (2, "")
        assert worker in refused.err
        looked = await turnlog_async("rebuild", "--dry-run", "-o", "json", environment=environment)
        assert looked.document["workers"] == [worker]
        done = await turnlog_async("rebuild", "--table", "read-model", "--yes", "-o", "json", environment=environment)
        assert done.code == 0, done.err
        assert done.document["tables"]["transcript"]["after"] == sum(map(len, said.values())) + 1
        assert await running.stop() == 0
    verdict = await verify_cluster(place.settings, Scope(), quiet)
    assert verdict.ok, verdict.findings.shown


async def test_an_erasure_is_read_beside_and_destroys_the_keys_in_use(fresh_database: str) -> None:
    await asyncio.to_thread(migrate, fresh_database)
    journal = ready()
    journal.say("my secret is tulip")
    erase = {"conversation_id": CONVERSATION, "by": "ops", "reason": "asked", "id": "erased-1"}
    journal.take(EraseConversation(at=journal.at, timestamp=journal.at, ref=journal.ref(), **erase))
    with psycopg.connect(fresh_database) as connection:
        key = (
            "INSERT INTO data_keys (key_id, conversation_id, wrapped, current, copied) VALUES (%s, %s, 'k', true, true)"
        )
        connection.execute(key, ("key-1", CONVERSATION))
        connection.execute(key, ("key-2", "another"))
    beside = await Beside.connect(fresh_database)
    try:
        await beside.begin("topic-1")
        read = await fill_read_model(one_partition(journal.entries), beside.dsn, 0, quiet)
        await beside.replace_read_model()
    finally:
        await beside.close()
    assert read == len(journal.entries)
    with psycopg.connect(fresh_database) as connection:
        left = connection.execute("SELECT key_id FROM data_keys WHERE wrapped IS NOT NULL").fetchall()
        words = connection.execute("SELECT DISTINCT text FROM transcript WHERE kind <> 'update'").fetchall()
    assert left == [("key-2",)]
    assert words == [("[erased]",)]


async def test_two_rebuilds_do_not_write_the_same_tables(fresh_database: str) -> None:
    await asyncio.to_thread(migrate, fresh_database)
    first, second = await Beside.connect(fresh_database), await Beside.connect(fresh_database)
    try:
        await first.take()
        with pytest.raises(CannotRebuild, match="another rebuild"):
            await second.take()
        await first.close()
        await second.take()
    finally:
        await first.close()
        await second.close()


async def test_a_database_is_not_filled_from_a_journal_that_it_does_not_belong_to(fresh_database: str) -> None:
    await asyncio.to_thread(migrate, fresh_database)
    beside = await Beside.connect(fresh_database)
    try:
        theirs: Any = SimpleNamespace(identity="their-id", partitions=0)
        assert (await planned(theirs, beside, EVERYTHING)).partitions == 0, "it belongs to none yet"
        await asyncio.to_thread(kept_topics, fresh_database, {"shop.turns": "turns-id", "shop.conversations": "our-id"})
        with pytest.raises(CannotRebuild, match="topic id our-id, not to this one, their-id"):
            await planned(theirs, beside, EVERYTHING)
        ours: Any = SimpleNamespace(identity="our-id", partitions=0)
        await planned(ours, beside, EVERYTHING)
    finally:
        await beside.close()
