"""The gateway's ends of Kafka: what it writes lies where it belongs, and what it reads is committed and whole."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from connectors.gateway.intake import KafkaIntake
from connectors.gateway.journal_pages import KafkaPages
from connectors.gateway.ports import Unavailable
from connectors.gateway.protocol.render import encode, numbered
from connectors.gateway.read_model import PostgresReadModel
from connectors.gateway.tail import BrokenJournal, Scan, Tail
from streams.core.commands import CommitTurn
from streams.core.events import (
    BatchCommitted,
    ConversationClosed,
    ConversationOpened,
    Entry,
    Turn,
    WriterOpened,
)
from streams.fence.migrate import migrate
from streams.projector.rows import Rows
from streams.projector.store import Position as Stored
from streams.projector.store import PostgresProjection
from streams.runtime.codec import Codec
from streams.runtime.journal import headers_of
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Heartbeat
from streams.settings import Settings, load_settings
from streams.topics import Topics, ensure
from tests.support.story import long_story
from tests.support.words import PlainWords

PARTITIONS = 2
CODEC = Codec()


@pytest.fixture
async def topics(settings: Settings) -> Topics:
    topics = Topics(settings.namespace)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    await ensure(admin, topics, partitions=PARTITIONS)
    await admin.close()
    return topics


@asynccontextmanager
async def intake(settings: Settings, topics: Topics) -> AsyncIterator[KafkaIntake]:
    opened = KafkaIntake(settings, topics, CODEC, PARTITIONS)
    await opened.start()
    try:
        yield opened
    finally:
        await opened.close()


async def records(settings: Settings, topic: str, partition: int, count: int) -> list[tuple[bytes | None, bytes]]:
    """The first records of a partition: key and value."""
    reader = AIOKafkaConsumer(bootstrap_servers=settings.kafka, auto_offset_reset="earliest")
    await reader.start()
    try:
        reader.assign([TopicPartition(topic, partition)])
        return [(record.key, record.value) for record in [await reader.getone() for _ in range(count)]]
    finally:
        await reader.stop()


def turn(conversation: str, text: str) -> CommitTurn:
    said = Turn(id="i", sender="ann", channel="web", type="text", text=text)
    return CommitTurn(at=0, timestamp=0, ref="r", conversation_id=conversation, turn=said)


def batch(lsn: int) -> Entry:
    return Entry(lsn, 1, 1, 1, BatchCommitted(turns=lsn, frames=0, membership=0))


class Journal:
    """Writes what a sequencer would."""

    def __init__(self, settings: Settings, topics: Topics, partition: int = 0) -> None:
        self._topic = topics.conversations
        self._partition = partition
        self._producer = AIOKafkaProducer(
            bootstrap_servers=settings.kafka, transactional_id=topics.transactional_id(partition)
        )

    async def __aenter__(self) -> Journal:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def write(self, *entries: Entry, commit: bool = True) -> None:
        await self._producer.begin_transaction()
        for entry in entries:
            key = None if entry.event.conversation_id is None else entry.event.conversation_id.encode()
            sent = await self._producer.send(
                self._topic,
                CODEC.encode_entry(entry),
                key=key,
                headers=headers_of(entry, None),
                partition=self._partition,
            )
            await sent
        if commit:
            await self._producer.commit_transaction()
        else:
            await self._producer.abort_transaction()


class Followed:
    """A running tail, and what it showed."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.lsns: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self._news = asyncio.Event()
        tail.apply = self._apply

    def _apply(self, partition: int, entries: Sequence[Entry]) -> None:
        self.lsns[partition] += [entry.lsn for entry in entries]
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def following(settings: Settings, topics: Topics) -> AsyncIterator[Followed]:
    followed = Followed(Tail(settings, topics.conversations, CODEC, PlainWords(), PARTITIONS))
    task = asyncio.create_task(followed.tail.run())
    try:
        async with asyncio.timeout(20):
            await followed.tail.caught_up.wait()
        yield followed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_records_lie_in_their_conversations_partition_in_order(settings: Settings, topics: Topics) -> None:
    conversation = next(f"c{n}" for n in range(99) if partition_of(f"c{n}", PARTITIONS) == 1)
    async with intake(settings, topics) as opened:
        sent = [await opened.send(turn(conversation, f"m{number}")) for number in range(20)]
        written = [await future for future in sent]
    assert [(each.partition, each.offset) for each in written] == [(1, offset) for offset in range(20)]
    stored = await records(settings, topics.turns, 1, 20)
    assert {key for key, _ in stored} == {conversation.encode()}
    assert [value for _, value in stored] == [CODEC.encode_command(turn(conversation, f"m{n}")) for n in range(20)]


async def test_membership_goes_to_the_partition_that_is_named_without_a_key(settings: Settings, topics: Topics) -> None:
    beat = Heartbeat(gateway="gw-1", n=0, config_version=0)
    async with intake(settings, topics) as opened:
        for partition in range(PARTITIONS):
            written = await (await opened.send(beat, partition=partition))
            assert (written.partition, written.offset) == (partition, 0)
    assert (await records(settings, topics.membership, 1, 1))[0] == (None, CODEC.encode_command(beat))


async def test_a_kafka_that_is_away_is_unavailable_within_the_time_limit() -> None:
    away = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none", request_timeout_ms=300)
    opened = KafkaIntake(away, Topics("x"), CODEC, PARTITIONS)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await opened.send(turn("c1", "x"))
    await opened.close()


async def test_only_what_was_committed_is_shown_each_entry_once(settings: Settings, topics: Topics) -> None:
    async with Journal(settings, topics) as journal:
        await journal.write(batch(1), batch(2))
        async with following(settings, topics) as followed:
            await journal.write(batch(3), commit=False)
            await journal.write(batch(3), batch(4))
            await followed.until(lambda: followed.lsns[0][-1:] == [4])
            assert followed.lsns == {0: [1, 2, 3, 4], 1: []}


async def test_a_tail_is_caught_up_though_the_journal_ends_in_markers(settings: Settings, topics: Topics) -> None:
    """The last offsets of a log with transactions are given to no reader."""
    async with Journal(settings, topics) as journal:
        await journal.write(batch(1))
        for _ in range(3):
            await journal.write(batch(2), commit=False)
    async with following(settings, topics) as followed:
        assert followed.lsns[0] == [1]
        await followed.tail.catch_up(0)
        await followed.tail.catch_up(1)


async def test_a_window_without_entries_is_made_larger(
    settings: Settings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.gateway.tail.WINDOW", 2)
    async with Journal(settings, topics) as journal:
        await journal.write(*(batch(lsn) for lsn in range(1, 31)))
        for _ in range(5):
            await journal.write(batch(31), commit=False)
    async with following(settings, topics) as followed:
        shown = followed.lsns[0]
        assert shown[-1] == 30
        assert shown == list(range(shown[0], 31))
        assert len(shown) < 30


async def test_what_another_gateway_has_seen_is_here_after_catching_up(settings: Settings, topics: Topics) -> None:
    async with (
        Journal(settings, topics) as journal,
        following(settings, topics) as other,
        following(settings, topics) as followed,
    ):
        for lsn in range(1, 20):
            await journal.write(batch(lsn))
            await other.until(lambda lsn=lsn: other.lsns[0][-1:] == [lsn])  # type: ignore[misc]
            await followed.tail.catch_up(0)
            assert followed.lsns[0][-1] == lsn


async def test_a_record_that_is_no_entry_stops_nobody(settings: Settings, topics: Topics) -> None:
    async with Journal(settings, topics) as journal, following(settings, topics) as followed:
        await journal.write(batch(1))
        async with plain_producer(settings) as stray:
            for garbage in (b"garbage", None):
                await stray.send_and_wait(topics.conversations, garbage, key=b"stray", partition=0)
        await journal.write(batch(2))
        await followed.until(lambda: followed.lsns[0] == [1, 2])
        assert [
            entry.lsn async for entry in Scan(settings, topics.conversations, CODEC, PlainWords()).read(0, 0, 9)
        ] == [1, 2]


@asynccontextmanager
async def plain_producer(settings: Settings) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def test_a_gap_in_the_journal_ends_the_tail_loudly(settings: Settings, topics: Topics) -> None:
    async with Journal(settings, topics) as journal:
        await journal.write(batch(1), batch(3))
    with pytest.raises(BrokenJournal, match="lsn 3 follows lsn 1"):
        await Tail(settings, topics.conversations, CODEC, PlainWords(), PARTITIONS).run()


async def test_a_scan_reads_committed_entries_up_to_where_memory_begins(settings: Settings, topics: Topics) -> None:
    opened = Entry(1, 1, 1, 1, WriterOpened(writer_epoch=1, worker="wk-1"))
    async with Journal(settings, topics) as journal:
        await journal.write(opened, batch(2))
        await journal.write(batch(3), commit=False)
        await journal.write(batch(3), batch(4), batch(5))
    scan = Scan(settings, topics.conversations, CODEC, PlainWords())
    assert [entry.lsn async for entry in scan.read(0, 0, 5)] == [1, 2, 3, 4]
    assert [entry.lsn async for entry in scan.read(0, 1, 99)] == [2, 3, 4, 5]
    assert [entry.lsn async for entry in scan.read(1, 0, 99)] == []


async def test_a_conversations_pages_have_all_that_is_its_own_and_nothing_else(
    settings: Settings, topics: Topics
) -> None:
    opened = ConversationOpened(conversation_id="mine", channel="web")
    other = ConversationOpened(conversation_id="other", channel="web")
    closed = ConversationClosed(conversation_id="mine", seq=1, by="ann", reason="done", id="x")
    async with Journal(settings, topics) as journal:
        await journal.write(Entry(1, 1, 1, 1, WriterOpened(writer_epoch=1, worker="wk-1")), Entry(2, 1, 1, 1, other))
        await journal.write(Entry(3, 1, 1, 1, opened), batch(4))
        await journal.write(Entry(5, 1, 1, 1, closed), commit=False)
        await journal.write(Entry(5, 1, 1, 1, closed), batch(6))
        await journal.write(Entry(7, 1, 1, 2, WriterOpened(writer_epoch=2, worker="wk-2")))
    since = int(time.time() * 1000)
    for read_through in (1, 100):
        pages = KafkaPages(settings, topics.conversations, CODEC, PlainWords(), read_through=read_through)
        found, offset = list[int](), None
        while True:
            page = await pages.page(0, "mine", offset=offset, since_ms=since, limit=2, opened=offset is not None)
            assert len(page.found) <= 2
            found += [each.entry.lsn for each in page.found]
            if page.next >= page.end:
                break
            offset = page.next
        assert found == [1, 3, 5, 7]
    late = await KafkaPages(settings, topics.conversations, CODEC, PlainWords()).page(
        0, "mine", offset=None, since_ms=since + 3_600_000, limit=9, opened=False
    )
    assert [each.entry.lsn for each in late.found] == [1, 3, 5, 7]  # by a clock that is wrong nothing is lost


async def test_a_scan_of_a_kafka_that_is_away_is_unavailable() -> None:
    away = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none", request_timeout_ms=300)
    with pytest.raises(Unavailable):
        [entry async for entry in Scan(away, "journal", CODEC, PlainWords()).read(0, 0, 1)]


async def test_what_is_stored_is_shown_as_it_was_live(fresh_database: str) -> None:
    """One renderer serves live delivery and replay: nothing may be lost on the way through the tables."""
    migrate(fresh_database)
    story = long_story()
    projection = PostgresProjection(fresh_database)
    await projection.positions([0])
    await projection.write(0, Stored(0, 0), Rows(story.entries), Stored(story.state.lsn, 1))
    await projection.close()
    model = PostgresReadModel(fresh_database, PlainWords())
    compared = 0
    for conversation in story.state.conversations:
        live = [e for e in story.entries if e.event.conversation_id == conversation and e.event.seq]
        stored = await model.transcript(conversation, 0, 10_000)
        assert [json.loads(encode(numbered(item.entry) or {})) for item in stored] == [
            json.loads(encode(numbered(entry) or {})) for entry in live
        ]
        compared += len(live)
    assert compared > 5
    await model.close()
