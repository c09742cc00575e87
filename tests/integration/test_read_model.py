"""The read model on a real Postgres: it says what the journal says, for any split into batches."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import psycopg
import pytest

from streams.core.commands import Drain
from streams.core.events import (
    ConversationHandedBack,
    ConversationHandedOver,
    Entry,
    FrameCommitted,
    MemberJoined,
    PersonFrameCommitted,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
)
from streams.fence.migrate import migrate
from streams.fence.port import Fenced
from streams.projector.read import InvalidCursor, ReadModel
from streams.projector.rows import Rows
from streams.projector.store import Position, PostgresProjection
from tests.support.partition_world import GROUP as GROUP_OF_WORLD
from tests.support.partition_world import World
from tests.support.story import GROUP, Story, long_story

TABLES = ("conversations", "transcript", "runs", "owners", "members", "projector_positions", "run_checkpoints")


@pytest.fixture
def database(fresh_database: str) -> str:
    migrate(fresh_database)
    return fresh_database


@pytest.fixture
async def projection(database: str) -> AsyncIterator[PostgresProjection]:
    store = PostgresProjection(database)
    await store.positions([0])
    yield store
    await store.close()


@pytest.fixture
async def model(database: str) -> AsyncIterator[ReadModel]:
    read = ReadModel(database)
    yield read
    await read.close()


async def project(projection: PostgresProjection, entries: Sequence[Entry], sizes: Sequence[int] = (1_000,)) -> None:
    """Write the entries in batches of these sizes, over and over."""
    position, at = Position(0, 0), 0
    while at < len(entries):
        batch = entries[at : at + sizes[at % len(sizes)]]
        at += len(batch)
        upto = Position(batch[-1].lsn, batch[-1].lsn * 2)
        await projection.write(0, position, Rows(batch), upto)
        position = upto


def dump(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    with psycopg.connect(dsn) as connection:
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2".encode()).fetchall() for name in TABLES}


def empty(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(f"TRUNCATE {', '.join(TABLES)}".encode())


async def test_it_holds_what_the_core_holds(projection: PostgresProjection, model: ReadModel) -> None:
    story = long_story()
    await project(projection, story.entries)
    for name, conversation in story.state.conversations.items():
        row = await model.conversation(name)
        assert row is not None
        assert row.head_seq == conversation.head
        assert (row.status == "open") == conversation.open
        assert await model.owners(name) == conversation.owners
        open_runs = await model.runs(name, open_only=True)
        assert {(run.run_id, run.member, run.run_epoch) for run in open_runs} == {
            (run.id, run.member, run.epoch) for run in conversation.runs.values()
        }
    members = await model.members()
    assert [(member.member, member.group) for member in members] == [
        (member.id, member.group) for member in story.state.members.values()
    ]


async def test_a_transcript_is_gap_free_and_gives_the_journals_events(
    projection: PostgresProjection, model: ReadModel
) -> None:
    story = long_story()
    await project(projection, story.entries)
    for name in story.state.conversations:
        of_it = [entry for entry in story.entries if entry.event.conversation_id == name and entry.event.seq]
        read = await model.activities(name, 0, 1_000)
        assert [activity.entry.event.seq for activity in read] == list(range(1, len(of_it) + 1))
        for entry, activity in zip(of_it, read, strict=True):
            assert (activity.entry.lsn, activity.entry.at, activity.entry.timestamp) == (
                entry.lsn,
                entry.at,
                entry.timestamp,
            )
            assert type(activity.entry.event) is type(entry.event)
            if isinstance(entry.event, TurnCommitted) and isinstance(activity.entry.event, TurnCommitted):
                assert activity.entry.event.turn.text == entry.event.turn.text
                assert activity.entry.event.joins_run == entry.event.joins_run
                assert activity.entry.event.interrupt_id == entry.event.interrupt_id
            elif isinstance(entry.event, FrameCommitted) and isinstance(activity.entry.event, FrameCommitted):
                assert activity.entry.event.frame == entry.event.frame
                assert activity.entry.event.run_epoch == entry.event.run_epoch
            else:
                assert activity.entry.event == entry.event


async def test_an_answer_says_which_channel_it_answers(projection: PostgresProjection, model: ReadModel) -> None:
    def elsewhere(entry: Entry) -> Entry:
        event = entry.event
        if not isinstance(event, FrameCommitted):
            return entry
        return msgspec.structs.replace(entry, event=msgspec.structs.replace(event, origin="lobby"))

    story = long_story()
    await project(projection, [elsewhere(entry) for entry in story.entries])
    read = [each.entry.event for name in story.state.conversations for each in await model.activities(name, 0, 1_000)]
    assert {event.origin for event in read if isinstance(event, FrameCommitted)} == {"lobby"}


async def test_an_edit_a_survey_and_a_handover_are_shown_as_the_journal_has_them(
    projection: PostgresProjection, model: ReadModel
) -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say("Where is ORD-42?")
    world.run("a", "started", delivered=1)
    world.send("a", id="answer", client_id="m1")
    world.run("a", "finished")
    turn = world.of(TurnCommitted)[0].turn.id
    world.edit(turn, "Where is ORD-43?", data='{"text":"Where is ORD-43?","lang":"en"}')
    world.person("survey", data='{"rating":5}')
    world.hand_over()
    world.hand_back()
    await project(projection, world.journal, (3,))
    activities = await model.activities("c", 0, 10)
    said, answer, survey, over, back = [each.entry.event for each in activities]
    edit = next(entry for entry in world.journal if isinstance(entry.event, TurnEdited))
    assert [each.edited_at for each in activities] == [edit.timestamp, None, None, None, None]
    assert await model.last_edited("c", 4) == activities[0]
    assert await model.last_edited("c", 0) is None
    assert isinstance(said, TurnCommitted)
    assert (said.turn.text, said.turn.data) == ("Where is ORD-43?", '{"text":"Where is ORD-43?","lang":"en"}')
    assert isinstance(answer, FrameCommitted)
    assert await model.superseded("c", 10) == [answer.seq]
    assert isinstance(survey, PersonFrameCommitted)
    assert (survey.frame.type, survey.frame.data, survey.sender) == ("survey", '{"rating":5}', "ann")
    assert over == msgspec.structs.replace(world.of(ConversationHandedOver)[0], ref=None)
    assert back == msgspec.structs.replace(world.of(ConversationHandedBack)[0], ref=None)


async def test_what_a_lost_owner_left_half_done_is_marked(projection: PostgresProjection, model: ReadModel) -> None:
    story = long_story()
    await project(projection, story.entries)
    hidden = {
        (entry.event.conversation_id, seq)
        for entry in story.entries
        if isinstance(entry.event, RunMoved | RunEnded)
        for seq in entry.event.superseded
    }
    assert hidden
    read = {
        (name, activity.entry.event.seq)
        for name in story.state.conversations
        for activity in await model.activities(name, 0, 1_000)
        if activity.superseded
    }
    assert read == hidden
    for name in story.state.conversations:
        seqs = sorted(seq for conversation, seq in hidden if conversation == name)
        assert await model.superseded(name, 1_000) == seqs
        assert await model.superseded(name, seqs[0] if seqs else 0) == seqs[:1]


async def test_any_split_into_batches_gives_the_same_rows(database: str, projection: PostgresProjection) -> None:
    entries = long_story().entries
    await project(projection, entries)
    whole = dump(database)
    chance = random.Random(7)
    for sizes in ([1], [2, 5], [chance.randint(1, 9) for _ in range(20)]):
        empty(database)
        await projection.positions([0])
        await project(projection, entries, sizes)
        assert dump(database) == whole


async def test_entries_written_twice_change_nothing(database: str, projection: PostgresProjection) -> None:
    entries = long_story().entries
    await project(projection, entries)
    whole = dump(database)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE projector_positions SET lsn = 0, journal_offset = 0")
    await project(projection, entries, [3])
    assert dump(database) == whole


async def test_a_slower_projector_writes_nothing(database: str, projection: PostgresProjection) -> None:
    entries = long_story().entries
    await projection.write(0, Position(0, 0), Rows(entries[:5]), Position(5, 10))
    before = dump(database)
    with pytest.raises(Fenced):
        await projection.write(0, Position(0, 0), Rows(entries), Position(entries[-1].lsn, 99))
    assert dump(database) == before


async def test_a_write_that_fails_in_the_middle_leaves_nothing(database: str, projection: PostgresProjection) -> None:
    entries = long_story().entries
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE runs ADD CONSTRAINT never CHECK (turn_seq < 0)")
    before = dump(database)
    with pytest.raises(psycopg.errors.CheckViolation):
        await projection.write(0, Position(0, 0), Rows(entries), Position(entries[-1].lsn, 99))
    assert dump(database) == before
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE runs DROP CONSTRAINT never")
    await project(projection, entries)


async def test_text_that_postgres_refuses_is_kept_readable(projection: PostgresProjection, model: ReadModel) -> None:
    story = Story()
    story.open("c")
    story.turn("c", "\U0001f600 \uffff", metadata='{"x":"\\u0000"}')
    *before, last = story.entries
    assert isinstance(last.event, TurnCommitted)
    # The core refuses it; whoever else could write the journal might not.
    turn = msgspec.structs.replace(last.event.turn, text=f"a\0b {last.event.turn.text}")
    event = msgspec.structs.replace(last.event, turn=turn)
    await project(projection, [*before, msgspec.structs.replace(last, event=event)])
    [activity] = await model.activities("c", 0, 10)
    assert isinstance(activity.entry.event, TurnCommitted)
    assert activity.entry.event.turn.text == "a\ufffdb \U0001f600 \uffff"
    assert activity.entry.event.turn.metadata == '{"x":"\\u0000"}'


async def test_the_last_checkpoint_of_a_run_is_kept_while_it_is_open(
    projection: PostgresProjection, model: ReadModel
) -> None:
    story = Story()
    story.join("gw-1.1")
    story.open("c-1")
    run_id = f"c-1/{story.turn('c-1', 'count')}/{GROUP}"
    entries = [story.frame("c-1", "gw-1.1", "checkpoint", data=f'{{"step":{step}}}')[-1] for step in (1, 2)]
    await project(projection, story.entries)
    row = await model.checkpoint(run_id)
    assert row is not None
    assert (row.lsn, row.data) == (entries[-1].lsn, '{"step":2}')
    done = len(story.entries)
    story.answer("c-1", "done")
    await projection.write(0, Position(done, done * 2), Rows(story.entries[done:]), Position(len(story.entries), 1_000))
    assert await model.checkpoint(run_id) is None


@pytest.mark.parametrize("sizes", [(1_000,), (1,)])
async def test_a_call_is_shown_from_its_place_in_line_to_its_end(
    projection: PostgresProjection, model: ReadModel, sizes: tuple[int, ...]
) -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    first, second = f"c/1/{GROUP_OF_WORLD}", f"c/2/{GROUP_OF_WORLD}"
    world.call("i")
    world.call("j", policy="enqueue")
    world.run("a", "started", run=first, epoch=1)
    world.cancel(first)
    before = len(world.journal)
    world.run("a", "aborted", run=first, epoch=1)
    await project(projection, world.journal[:before], sizes)
    running, queued = await model.call("c", "i"), await model.call("c", "j")
    assert running is not None
    assert queued is not None
    assert (running.status, running.cancelling, running.member) == ("open", True, "a")
    assert running.started_at is not None
    assert (queued.run_id, queued.status, queued.member, queued.turn_seq) == (second, "queued", None, 2)
    assert list(await model.open_calls("c")) == ["i", "j"]
    assert await model.given_upto("c", GROUP_OF_WORLD.split("/")[0]) == 2
    assert await model.given_upto("c", "others") == 0
    assert await model.given_upto("none", GROUP_OF_WORLD.split("/")[0]) == 0
    position = Position(world.journal[before - 1].lsn, world.journal[before - 1].lsn * 2)
    last = world.journal[-1].lsn
    await projection.write(0, position, Rows(world.journal[before:]), Position(last, last * 2))
    ended, given = await model.call("c", "i"), await model.call("c", "j")
    assert ended is not None
    assert given is not None
    assert (ended.status, ended.reason, given.status, given.member) == ("cancelled", "aborted", "open", "a")
    assert list(await model.open_calls("c")) == ["j"]
    assert await model.call("c", "k") is None


async def test_a_member_that_drains_is_shown_so(projection: PostgresProjection, model: ReadModel) -> None:
    story = Story()
    story.join("gw-1.1")
    story.join("gw-1.2")
    story.happen(Drain, member="gw-1.2", by="ops", reason="deploy")
    await project(projection, story.entries)
    assert [(member.member, member.draining) for member in await model.members()] == [("gw-1.1", 0), ("gw-1.2", 1)]


async def test_questions_come_with_their_answers(projection: PostgresProjection, model: ReadModel) -> None:
    story = long_story()
    await project(projection, story.entries)
    found = [activity.entry.event for activity in await model.interrupts("c-2")]
    assert isinstance(found[0], FrameCommitted)
    assert found[0].frame.type == "interrupt"
    assert isinstance(found[1], TurnCommitted)
    assert found[1].interrupt_id == found[0].frame.id
    assert await model.interrupts("c-1") == []


async def test_a_conversation_that_nobody_opened_is_none(model: ReadModel) -> None:
    assert await model.conversation("nobody") is None


async def test_pages_of_conversations_leave_none_out(projection: PostgresProjection, model: ReadModel) -> None:
    story = long_story()
    await project(projection, story.entries)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await model.conversations(limit=2, cursor=cursor)
        seen += [row.id for row in page]
        if cursor is None:
            break
    assert sorted(seen) == sorted(story.state.conversations)
    assert len(seen) == 4
    closed, _ = await model.conversations(limit=10, status="closed")
    assert [row.id for row in closed] == ["c-2"]
    by_external, _ = await model.conversations(limit=10, external_id="ext-1", channel="web")
    assert [(row.id, row.metadata) for row in by_external] == [("waits", '{"a":1}')]
    assert (await model.conversations(limit=10, channel="agents"))[0] == []
    named = {"ext-1": ["waits"], "wai": ["waits"], "c-": ["c-1", "c-2", "c-3"], "xt-1": [], "%": []}
    for word, found in named.items():
        rows, _ = await model.conversations(limit=10, named=word)
        assert sorted(row.id for row in rows) == found
    assert len((await model.conversations(limit=10, named="u"))[0]) == 4  # who is in all of them
    made = [base64.urlsafe_b64encode(text).decode() for text in (b"9" * 30 + b" c", b"1 a\0b")]
    for broken in ("?", "bm9wZQ==", "w6TDtg", *made):
        with pytest.raises(InvalidCursor):
            await model.conversations(limit=1, cursor=broken)


async def test_members_of_several_partitions_count_once(database: str, projection: PostgresProjection) -> None:
    for partition in (0, 1):
        await projection.positions([partition])
        joined = [entry for entry in long_story().entries if isinstance(entry.event, MemberJoined)]
        await projection.write(partition, Position(0, 0), Rows(joined), Position(9, 9))
    read = ReadModel(database)
    assert [(member.member, member.group, member.partitions) for member in await read.members()] == [
        ("gw-1.1", GROUP, 2),
        ("gw-1.2", GROUP, 2),
    ]
    await read.close()


async def test_members_that_left_long_ago_are_forgotten(database: str, projection: PostgresProjection) -> None:
    story = Story()
    story.join("gw-1.1")
    story.leave("gw-1.1")
    story.join("gw-1.2")
    await project(projection, story.entries)
    assert [row[1] for row in dump(database)["members"]] == ["gw-1.1", "gw-1.2"]
    before = story.entries[-1]
    story.leave("gw-1.2")
    week_ms = 7 * 24 * 60 * 60 * 1000
    later = [
        msgspec.structs.replace(entry, timestamp=entry.timestamp + week_ms) for entry in story.entries[before.lsn :]
    ]
    await projection.write(0, Position(before.lsn, before.lsn * 2), Rows(later), Position(later[-1].lsn, 999))
    assert [row[1] for row in dump(database)["members"]] == ["gw-1.2"]


async def test_the_position_says_how_far_the_answers_go(projection: PostgresProjection, model: ReadModel) -> None:
    assert await model.position(0) == Position(0, 0)
    assert await model.position(7) == Position(0, 0)
    entries = long_story().entries
    await project(projection, entries)
    assert await model.position(0) == Position(entries[-1].lsn, entries[-1].lsn * 2)
    assert await model.positions() == {0: Position(entries[-1].lsn, entries[-1].lsn * 2)}
