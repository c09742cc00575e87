"""What channels keep no longer, asked of a real Postgres: all of it, nothing else, and by an index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest

from streams.core.erasure import DAY_MS
from streams.core.events import ConversationErased
from streams.fence.migrate import migrate
from streams.projector.retention import DueConversation, IdleConversations
from streams.projector.rows import Rows
from streams.projector.store import Position, PostgresProjection
from tests.support.partition_world import World

WEB, LOBBY = {"web": 30}, {"lobby": 30}
ALL = 1_000


class Place:
    """A partition whose journal is in the read model of a database, and who looks there."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.world = World()
        self.idle = IdleConversations(dsn)
        self._projection = PostgresProjection(dsn)

    async def close(self) -> None:
        await self.idle.close()
        await self._projection.close()

    async def project(self) -> None:
        """The read model knows all that was decided so far."""
        known = (await self._projection.positions([0]))[0]
        entries = self.world.journal[known.lsn :]
        upto = Position(self.world.state.lsn, self.world.state.lsn)
        await self._projection.write(0, known, Rows(entries), upto)

    async def due(self, rules: dict[str, int] = WEB, **given: Any) -> list[DueConversation]:
        """What is due now, after all is projected."""
        await self.project()
        partitions = given.pop("partitions", None)
        return list(await self.idle.due(rules, self.world.wall, partitions, **{"each": ALL, "most": ALL, **given}))

    async def ids(self, rules: dict[str, int] = WEB, **given: Any) -> list[str]:
        return [each.id for each in await self.due(rules, **given)]


@pytest.fixture
async def place(fresh_database: str) -> AsyncIterator[Place]:
    migrate(fresh_database)
    place = Place(fresh_database)
    yield place
    await place.close()


async def test_what_was_idle_for_so_long_is_found_with_what_is_known_of_it(place: Place) -> None:
    world = place.world
    world.open("old")
    world.say(id_="old")
    said_at, said = world.at, world.wall
    world.open("empty")
    opened = world.wall
    world.at += 10 * DAY_MS
    world.open("new")
    world.say(id_="new")
    world.at += 20 * DAY_MS
    assert await place.ids() == [], "not a moment before"
    world.at += 1
    last = world.state.lsn
    assert await place.due() == [
        DueConversation("empty", 0, "web", "open", 0, as_of_lsn=last, idle_since=opened, updated_at=opened),
        DueConversation("old", 0, "web", "open", 1, as_of_lsn=last, idle_since=said_at, updated_at=said),
    ]
    assert await place.ids({"web": 20}) == ["empty", "old", "new"], "the longest idle first"


async def test_it_is_found_by_its_own_channel_and_partition(place: Place) -> None:
    world = place.world
    world.open("w")
    world.open("l", channel="lobby")
    world.at += 31 * DAY_MS
    assert await place.ids() == ["w"]
    assert await place.ids(LOBBY) == ["l"]
    assert await place.ids({"web": 31, "lobby": 30}) == ["l"]
    assert await place.ids({"lobby": 1, "web": 30}) == ["l", "w"], "the longest overdue first"
    assert (await place.ids(partitions=[0]), await place.ids(partitions=[1])) == (["w"], [])


async def test_a_closed_one_is_found_and_an_erased_one_is_not(place: Place) -> None:
    world = place.world
    for id_ in ("closed", "erased"):
        world.open(id_)
    world.close("closed")
    world.erase("erased")
    world.at += 31 * DAY_MS
    assert await place.ids() == ["closed"]


async def test_one_that_somebody_works_in_or_edited_lately_is_not_found(place: Place) -> None:
    world = place.world
    for id_ in ("worked", "edited", "left alone"):
        world.open(id_)
        world.say(id_=id_, id=f"m-{id_}")
    world.join("a", settle=True)
    world.run("a", "started", id_="worked", delivered=1)
    world.run("a", "started", id_="edited", delivered=1)
    world.run("a", "finished", id_="edited", delivered=1)
    world.at += 31 * DAY_MS
    assert await place.ids() == ["edited", "left alone"]
    world.edit("m-edited", id_="edited")
    assert await place.ids() == ["left alone"]
    world.configure(2, retain_days=30)
    for found in await place.due():
        world.do(msgspec.structs.replace(found.command(), at=world.at, timestamp=world.wall))
    assert [event.conversation_id for event in world.of(ConversationErased)] == ["left alone"]
    assert await place.ids() == []


async def test_no_more_than_so_many_are_found_of_a_channel_and_in_all(place: Place) -> None:
    world = place.world
    for number in range(4):
        for channel in ("web", "lobby"):
            world.open(f"{channel}-{number}", channel=channel)
            world.at += 1
    world.at += 31 * DAY_MS
    both = WEB | LOBBY
    assert await place.ids(both, each=2) == ["web-0", "lobby-0", "web-1", "lobby-1"]
    assert await place.ids(both, most=3) == ["web-0", "lobby-0", "web-1"]


async def test_it_is_known_whether_anybody_seals(place: Place) -> None:
    assert not await place.idle.seals()
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO data_keys VALUES ('k', 'c', '1', true, true)")
    assert await place.idle.seals()


def test_those_that_are_kept_are_not_looked_at(fresh_database: str) -> None:
    migrate(fresh_database)
    statement = (
        "EXPLAIN SELECT id FROM conversations WHERE partition = 3 AND channel = 'web' AND status <> 'erased'"
        " AND updated_at < 5 ORDER BY updated_at, id LIMIT 100"
    )
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO conversations (id, partition, channel, status, head_seq, opened_at, updated_at, last_lsn)"
            " SELECT 'c' || n, n % 8, 'web', 'open', 1, n, n, n FROM generate_series(1, 20000) n"
        )
        connection.execute("ANALYZE conversations")
        plan = "\n".join(row[0] for row in connection.execute(statement).fetchall())
    assert "conversations_idle" in plan
    assert "Sort" not in plan
