"""The reader for stream consumers on a real broker: committed only, by time, seq and conversation, none missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from ops.embedded import EmbeddedStack
from ops.history.live import SILENCE_S, live_history
from streams.core.events import BatchCommitted, Entry, Event, Turn, TurnCommitted, WriterOpened
from streams.runtime.codec import Codec
from streams.runtime.kafka import KafkaEnds
from streams.settings import load_settings
from streams.topics import Topics, ensure
from tests.support.histories import read_all
from tests.support.waiting import until
from turnlog.data import Journal, JournalUnavailable, MissingRecords, Record
from turnlog.data.events import TurnCommitted as Said

CODEC = Codec()
T0 = 1_700_000_000_000
PARTITIONS = 3


def turn(conversation_id: str, seq: int) -> TurnCommitted:
    said = Turn(id=f"m-{seq}", sender="ana", channel="web", type="text", text=f"hello {seq}")
    return TurnCommitted(conversation_id=conversation_id, seq=seq, turn=said)


class Writer:
    """Writes a journal as a sequencer does: a transaction a batch, the record's key the conversation."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, ends: KafkaEnds) -> None:
        self._producer = producer
        self._ends = ends
        self._topic = topic
        self.lsn: dict[int, int] = {}

    async def write(self, partition: int, *events: Event, commit: bool = True, skip: int = 0) -> None:
        await self._producer.begin_transaction()
        lsn = self.lsn.get(partition, 0) + skip
        for event in events:
            lsn += 1
            key = None if event.conversation_id is None else event.conversation_id.encode()
            await self._producer.send_and_wait(
                self._topic,
                CODEC.encode_entry(Entry(lsn, lsn, T0 + lsn, 1, event)),
                key=key,
                partition=partition,
                timestamp_ms=T0 + lsn,
                headers=[("type", type(event).__name__.encode())],
            )
        if commit:
            await self._producer.commit_transaction()
            self.lsn[partition] = lsn
        else:
            await self._producer.abort_transaction()
        await until(lambda: self._is_ended([TopicPartition(self._topic, partition)]))

    async def _is_ended(self, where: list[TopicPartition]) -> bool:
        """The broker answers before it has written the marker, up to which no reader gets what is committed."""
        return await self._ends.stable(where) == await self._ends.high(where)


@pytest.fixture
async def writer(stack: EmbeddedStack, fresh_namespace: str) -> AsyncIterator[Writer]:
    topic = Topics(fresh_namespace).conversations
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(fresh_namespace), partitions=PARTITIONS)
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=stack.kafka, transactional_id=f"{topic}-writer")
    await producer.start()
    ends = KafkaEnds(stack.kafka, 10.0)
    try:
        yield Writer(producer, topic, ends)
    finally:
        await ends.close()
        await producer.stop()


async def read(journal: Journal, **selection: object) -> list[Record]:
    return [record async for record in journal.records(**selection)]  # type: ignore[arg-type]


def seqs(records: list[Record]) -> list[tuple[str | None, int]]:
    return [(record.entry.event.conversation_id, record.entry.event.seq) for record in records]


async def test_a_journal_is_read_by_conversation_seq_time_and_event(
    stack: EmbeddedStack, fresh_namespace: str, writer: Writer
) -> None:
    async with Journal(stack.kafka, namespace=fresh_namespace) as journal:
        home = journal.partition_of("c-1")
        await writer.write(home, WriterOpened(writer_epoch=1, worker="w"), turn("c-1", 1), turn("c-9", 1))
        await writer.write(home, turn("c-1", 7), commit=False)
        await writer.write(home, turn("c-1", 2), turn("c-1", 3), BatchCommitted(turns=1, frames=0, membership=0))
        await writer.write((home + 1) % PARTITIONS, turn("c-elsewhere", 1))
        everything = await read(journal)
        assert len(everything) == 7
        assert ("c-1", 7) not in seqs(everything)
        assert seqs(await read(journal, conversation="c-1")) == [("c-1", 1), ("c-1", 2), ("c-1", 3)]
        assert seqs(await read(journal, conversation="c-1", seq=2)) == [("c-1", 2), ("c-1", 3)]
        since = datetime.fromtimestamp((T0 + 4) / 1000, UTC)
        assert seqs(await read(journal, since=since, events=[Said])) == [("c-1", 2), ("c-1", 3)]
        assert seqs(await read(journal, until=since, conversation="c-1")) == [("c-1", 1)]
        [first, *_] = await read(journal, conversation="c-1")
        assert isinstance(first.entry.event, Said)
        assert (first.entry.event.turn.text, first.headers["type"]) == ("hello 1", b"TurnCommitted")
        rest = await read(journal, start={home: first.offset + 1}, partitions=[home])
        assert seqs(rest) == [("c-9", 1), ("c-1", 2), ("c-1", 3), (None, 0)]
        assert await journal.missing() == {}


async def test_a_follower_is_given_what_comes(stack: EmbeddedStack, fresh_namespace: str, writer: Writer) -> None:
    async with Journal(stack.kafka, namespace=fresh_namespace) as journal:
        await writer.write(0, turn("c-1", 1))
        follower = journal.records(follow=True)
        assert (await anext(follower)).entry.event.seq == 1
        following = asyncio.ensure_future(anext(follower))
        await writer.write(0, turn("c-1", 2))
        assert (await asyncio.wait_for(following, 20)).entry.event.seq == 2
        await follower.aclose()


async def test_a_journal_that_ends_with_what_was_aborted_is_read_at_once(
    stack: EmbeddedStack, fresh_namespace: str, writer: Writer
) -> None:
    await writer.write(0, turn("c-1", 1))
    await writer.write(0, turn("c-1", 2), turn("c-1", 3), commit=False)
    settings = load_settings(kafka=stack.kafka, postgres="postgresql://nobody", namespace=fresh_namespace)
    async with Journal(stack.kafka, namespace=fresh_namespace) as journal, live_history(settings) as history:
        for _ in range(2):  # the first one may wait for metadata
            started = asyncio.get_running_loop().time()
            assert seqs(await read(journal)) == [("c-1", 1)]
            assert len(await read_all(history, 0)) == 1
            took_s = asyncio.get_running_loop().time() - started
        assert took_s < SILENCE_S, "the tail was waited for as if it were a broker that is silent"


async def test_arrow_tables_come_in_increments(stack: EmbeddedStack, fresh_namespace: str, writer: Writer) -> None:
    async with Journal(stack.kafka, namespace=fresh_namespace) as journal:
        await writer.write(0, WriterOpened(writer_epoch=1, worker="w"), turn("c-1", 1), turn("c-1", 2))
        await writer.write(1, turn("c-2", 1))
        turns = [part["turns"].to_pylist() async for part in journal.tables("turns")]
        rows = sorted((row["partition"], row["seq"], row["text"]) for part in turns for row in part)
        assert rows == [(0, 1, "hello 1"), (0, 2, "hello 2"), (1, 1, "hello 1")]
        events = [row for part in [t async for t in journal.batches()] for row in part.to_pylist()]
        assert sorted(row["event"] for row in events) == ["TurnCommitted"] * 3 + ["WriterOpened"]


async def test_what_is_gone_or_skipped_is_said(stack: EmbeddedStack, fresh_namespace: str, writer: Writer) -> None:
    async with Journal(stack.kafka, namespace=fresh_namespace) as journal:
        await writer.write(0, turn("c-1", 1), turn("c-1", 2), turn("c-1", 3))
        await writer.write(1, turn("c-2", 1))
        await writer.write(1, turn("c-2", 2), skip=1)
        with pytest.raises(MissingRecords, match="has lsn 3, where 2 is next"):
            await read(journal, partitions=[1])
        admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(journal.topic, 0): RecordsToDelete(before_offset=2)})
        finally:
            await admin.close()
        assert await journal.missing() == {0: 2}
        with pytest.raises(MissingRecords, match="offsets 0 to 1 are gone"):
            await read(journal, partitions=[0])
        assert seqs(await read(journal, partitions=[0], start={0: 2})) == [("c-1", 3)]


async def test_what_is_not_there_is_named(stack: EmbeddedStack, fresh_namespace: str) -> None:
    with pytest.raises(JournalUnavailable, match=f"no topic {fresh_namespace}.conversations"):
        async with Journal(stack.kafka, namespace=fresh_namespace):
            pass
    with pytest.raises(JournalUnavailable, match="no Kafka answers at 127"):
        async with Journal("127.0.0.1:1"):
            pass


def test_nobody_reads_what_is_not_committed() -> None:
    with pytest.raises(ValueError, match="isolation_level"):
        Journal("127.0.0.1:1", isolation_level="read_uncommitted")
