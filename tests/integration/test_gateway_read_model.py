"""The gateway's view of the read model: its own words, its own errors."""

from __future__ import annotations

import pytest

from connectors.gateway.ports import ListQuery, Position, Unavailable
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.read_model import PostgresReadModel
from streams.core.events import FrameCommitted, TurnCommitted, TurnEdited
from streams.fence.lease import PostgresLeases
from streams.fence.migrate import migrate
from streams.projector.rows import Rows
from streams.projector.store import Position as Stored
from streams.projector.store import PostgresProjection
from tests.support.partition_world import World
from tests.support.story import GROUP, Story, long_story
from tests.support.words import PlainWords


@pytest.fixture
async def told(fresh_database: str) -> tuple[str, Story]:
    migrate(fresh_database)
    story = long_story()
    projection = PostgresProjection(fresh_database)
    await projection.positions([0])
    await projection.write(0, Stored(0, 0), Rows(story.entries), Stored(story.state.lsn, 77))
    await projection.close()
    return fresh_database, story


async def test_it_answers_in_the_gateways_words(told: tuple[str, Story]) -> None:
    dsn, story = told
    model = PostgresReadModel(dsn, PlainWords())
    assert await model.position(0) == Position(story.state.lsn, 77)
    assert await model.position(5) == Position()

    info = await model.conversation("waits")
    assert info is not None
    assert (info.channel, info.external_id, info.status) == ("web", "ext-1", "open")
    assert await model.conversation("nobody") is None

    first, *_ = await model.transcript("c-1", 0, 2)
    assert isinstance(first.entry.event, TurnCommitted)
    assert first.entry.event.turn.text == "hello from c-1"
    asked, answered, *_ = await model.interrupts("c-2")
    assert isinstance(asked.entry.event, FrameCommitted)
    assert isinstance(answered.entry.event, TurnCommitted)

    conversation = story.state.conversations["c-1"]
    assert await model.owners("c-1") == conversation.owners
    assert [(run.run_id, run.member, run.group) for run in await model.open_runs("c-1")] == [
        (run.id, run.member, GROUP) for run in conversation.runs.values()
    ]
    [member] = await model.members()
    assert (member.group, member.partitions) == (GROUP, 1)

    page, cursor = await model.conversations(ListQuery(limit=3))
    rest, end = await model.conversations(ListQuery(limit=3, cursor=cursor))
    assert sorted(row.id for row in [*page, *rest]) == sorted(story.state.conversations)
    assert end is None
    await model.close()


async def test_what_a_turn_says_since_it_was_edited_is_found_with_when(fresh_database: str) -> None:
    migrate(fresh_database)
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say("Where is ORD-42?")
    world.edit(world.of(TurnCommitted)[0].turn.id, "Where is ORD-43?")
    projection = PostgresProjection(fresh_database)
    await projection.positions([0])
    await projection.write(0, Stored(0, 0), Rows(world.journal), Stored(world.journal[-1].lsn, 77))
    await projection.close()
    model = PostgresReadModel(fresh_database, PlainWords())
    found = await model.last_edited("c", 1)
    assert found is not None
    assert isinstance(found.entry.event, TurnCommitted)
    edit = next(entry for entry in world.journal if isinstance(entry.event, TurnEdited))
    assert (found.entry.event.turn.text, found.edited_at) == ("Where is ORD-43?", edit.timestamp)
    assert [each.edited_at for each in await model.transcript("c", 0, 5)] == [edit.timestamp]
    assert await model.last_edited("c", 0) is None
    await model.close()


async def test_leases_are_shown_as_they_are(told: tuple[str, Story]) -> None:
    dsn, _ = told
    leases = PostgresLeases(dsn, "wk-a", ttl_ms=60_000)
    await leases.open()
    await leases.claim(3)
    model = PostgresReadModel(dsn, PlainWords())
    [lease] = await model.leases()
    assert (lease.partition, lease.worker, lease.writer_epoch, lease.live) == (3, "wk-a", 1, True)
    await leases.close()
    [lease] = await model.leases()
    assert (lease.live, lease.expires_in_ms) == (False, 0)
    await model.close()


async def test_a_cursor_of_somebody_elses_making_is_a_bad_request(told: tuple[str, Story]) -> None:
    model = PostgresReadModel(told[0], PlainWords())
    with pytest.raises(ProtocolError) as refused:
        await model.conversations(ListQuery(limit=1, cursor="???"))
    assert "cursor" in str(refused.value)
    await model.close()


async def test_a_database_that_cannot_be_reached_is_unavailable() -> None:
    model = PostgresReadModel("host=127.0.0.1 port=1 user=none dbname=none", PlainWords())
    with pytest.raises(Unavailable):
        await model.conversation("c")
    with pytest.raises(Unavailable):
        await model.leases()
    await model.close()
