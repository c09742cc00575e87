"""The projector process on real Kafka and Postgres: nothing aborted, nothing twice, nothing left out."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import psycopg
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from streams.core.events import Entry, TurnCommitted
from streams.fence.migrate import migrate
from streams.projector.read import ReadModel
from streams.settings import Settings
from streams.topics import Topics, ensure
from tests.support.projector import ProjectorProcess, journal_writer
from tests.support.story import Story, long_story
from tests.support.waiting import until

PARTITIONS = 2


@pytest.fixture
async def deployed(settings: Settings) -> Settings:
    migrate(settings.postgres)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(settings.namespace), partitions=PARTITIONS)
    finally:
        await admin.close()
    return settings


@pytest.fixture
async def model(deployed: Settings) -> AsyncIterator[ReadModel]:
    read = ReadModel(deployed.postgres)
    yield read
    await read.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "projector.log"


async def reached(model: ReadModel, entries: list[Entry], partition: int = 0) -> None:
    async def is_there() -> bool:
        return (await model.position(partition)).lsn == entries[-1].lsn

    await until(is_there)


async def texts(model: ReadModel, conversation: str) -> list[str | None]:
    events = [activity.entry.event for activity in await model.activities(conversation, 0, 1_000)]
    return [event.turn.text for event in events if isinstance(event, TurnCommitted)]


def forged(entries: list[Entry]) -> list[Entry]:
    """The same entries with other texts: what a fenced writer would have committed."""
    changed = []
    for entry in entries:
        event = entry.event
        if isinstance(event, TurnCommitted):
            event = msgspec.structs.replace(event, turn=msgspec.structs.replace(event.turn, text="never said"))
        changed.append(msgspec.structs.replace(entry, event=event))
    return changed


async def test_an_aborted_record_reaches_nothing(deployed: Settings, model: ReadModel, log: Path) -> None:
    story = long_story()
    half = len(story.entries) // 2
    with ProjectorProcess(deployed, log) as projector:
        async with journal_writer(deployed) as journal:
            await journal.abort(forged(story.entries))
            await journal.commit(story.entries[:half])
            projector.ready()
            await reached(model, story.entries[:half])
            # While it reads: the very entries that come next, of a writer that never commits.
            await journal.abort(forged(story.entries[half:]))
            await journal.commit(story.entries[half:])
            await reached(model, story.entries)
        said = [text for name in story.state.conversations for text in await texts(model, name)]
        assert "never said" not in said
        assert "tell me more" in said


async def test_sigterm_ends_it_at_once_and_the_next_one_goes_on(
    deployed: Settings, model: ReadModel, log: Path
) -> None:
    story = long_story()
    async with journal_writer(deployed) as journal:
        with ProjectorProcess(deployed, log) as first:
            document = first.ready()
            assert document["pid"] == first.process.pid
            async with httpx.AsyncClient() as client:
                metrics = (await client.get(document["metrics"])).text
            assert "turnlog_projector_healthy 1.0" in metrics
            await journal.commit(story.entries[:9])
            await reached(model, story.entries[:9])
            assert first.stop() == 0
        await journal.commit(story.entries[9:])
        with ProjectorProcess(deployed, log) as second:
            second.ready()
            await reached(model, story.entries)
            assert second.stop() == 0
    row = await model.conversation("c-1")
    assert row is not None
    assert row.head_seq == story.state.conversations["c-1"].head


async def test_the_groups_own_offsets_decide_nothing(deployed: Settings, model: ReadModel, log: Path) -> None:
    """faust commits what it delivered. Rows that were lost behind that come back all the same."""
    story = long_story()
    async with journal_writer(deployed) as journal:
        await journal.commit(story.entries)
        with ProjectorProcess(deployed, log) as first:
            await reached(model, story.entries)
            assert first.stop() == 0
        with psycopg.connect(deployed.postgres) as connection:
            connection.execute("TRUNCATE projector_positions, conversations, transcript, runs, owners, members")
        with ProjectorProcess(deployed, log):
            await reached(model, story.entries)
    assert await texts(model, "c-2") == ["hello from c-2", "a question?", "that one"]


async def test_emptied_tables_are_built_again_while_it_runs(deployed: Settings, model: ReadModel, log: Path) -> None:
    story = long_story()
    async with journal_writer(deployed) as journal:
        with ProjectorProcess(deployed, log):
            await journal.commit(story.entries[:20])
            await reached(model, story.entries[:20])
            with psycopg.connect(deployed.postgres) as connection:
                connection.execute("TRUNCATE projector_positions, conversations, transcript, runs, owners, members")
            await journal.commit(story.entries[20:])
            await reached(model, story.entries)
    assert await texts(model, "c-2") == ["hello from c-2", "a question?", "that one"]


async def test_a_projector_killed_at_any_moment_leaves_nothing_half_done(
    deployed: Settings, model: ReadModel, log: Path
) -> None:
    story = Story()
    story.join("gw-1.1")
    for number in range(40):
        story.open(f"c-{number}")
        story.turn(f"c-{number}", "hello")
        story.answer(f"c-{number}", "hi")
    async with journal_writer(deployed) as journal:
        await journal.commit(story.entries[:100])
        with ProjectorProcess(deployed, log) as first:
            await until(lambda: _lsn_at_least(model, 1))
            await journal.commit(story.entries[100:])
            first.kill()
        with ProjectorProcess(deployed, log):
            await reached(model, story.entries)
    for name, conversation in story.state.conversations.items():
        seqs = [activity.entry.event.seq for activity in await model.activities(name, 0, 100)]
        assert seqs == list(range(1, conversation.head + 1))


async def test_two_share_the_partitions_and_the_one_left_takes_over(
    deployed: Settings, model: ReadModel, log: Path
) -> None:
    stories = [long_story(), Story(1)]
    stories[1].open("d-1")
    stories[1].turn("d-1", "hello")
    async with journal_writer(deployed, 0) as zero, journal_writer(deployed, 1) as one:
        with ProjectorProcess(deployed, log) as first, ProjectorProcess(deployed, log) as second:
            first.ready()
            second.ready()
            await zero.commit(stories[0].entries)
            await one.commit(stories[1].entries)
            await reached(model, stories[0].entries, 0)
            await reached(model, stories[1].entries, 1)
            first.kill()
            stories[1].turn("d-1", "anybody?")
            stories[0].turn("c-3", "anybody?")
            await zero.commit(stories[0].entries[-1:])
            await one.commit(stories[1].entries[-1:])
            # The group notices after its session time-out.
            await reached(model, stories[0].entries, 0)
            await reached(model, stories[1].entries, 1)
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait(20) == 0
    assert await texts(model, "d-1") == ["hello", "anybody?"]


async def _lsn_at_least(model: ReadModel, lsn: int) -> bool:
    return (await model.position(0)).lsn >= lsn


async def test_it_does_not_start_without_its_topics(settings: Settings, log: Path) -> None:
    migrate(settings.postgres)
    with ProjectorProcess(settings, log) as projector:
        assert projector.process.wait(60) != 0
    assert f"{settings.namespace}.turns" in projector.said()


async def test_it_does_not_start_on_tables_of_another_release(deployed: Settings, log: Path) -> None:
    with psycopg.connect(deployed.postgres) as connection:
        connection.execute("INSERT INTO schema_migrations (number, name, sha256) VALUES (9999, 'later', '')")
    with ProjectorProcess(deployed, log) as projector:
        assert projector.process.wait(60) != 0
    assert "newer than this release" in projector.said()
