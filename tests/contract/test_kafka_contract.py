"""What the runtime relies on of Kafka: one suite, on the fake and on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from ops.embedded import EmbeddedStack
from streams.fence.port import Fenced, Positions
from streams.runtime.commit import CUT_KEY_BYTES, LETTER_BYTES
from streams.runtime.hanging import Outcome, Transactions
from streams.runtime.kafka import (
    REQUEST_BYTES,
    IntakeSource,
    JournalProducer,
    JournalReader,
    KafkaEnds,
    KafkaUnavailable,
    Outbox,
    Polled,
    Unrecoverable,
)
from streams.runtime.kafka_producers import KafkaJournalProducer, KafkaOutbox
from streams.runtime.kafka_readers import KafkaIntake, KafkaJournalReader, KafkaReaders
from streams.runtime.kafka_transactions import KafkaTransactions
from streams.topics import Topics, ensure
from tests.support.fake_kafka import FakeKafka, FakeOutbox
from tests.support.waiting import until

LIMIT_S = 5.0


class Cluster(Protocol):
    """The runtime's ports to partition 0, and what a test does behind their back."""

    topics: Topics

    def producer(self) -> JournalProducer: ...
    def reader(self) -> JournalReader: ...
    def intake(self) -> IntakeSource: ...
    def outbox(self) -> Outbox: ...
    def transactions(self) -> Transactions: ...
    async def put(self, topic: str, value: bytes, key: bytes | None = None) -> None: ...
    async def trim(self, topic: str, offset: int) -> None: ...


class Fake:
    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.topics = self.kafka.topics

    def producer(self) -> JournalProducer:
        return self.kafka.producer(0)

    def reader(self) -> JournalReader:
        return self.kafka.reader(0)

    def intake(self) -> IntakeSource:
        return self.kafka.intake(0)

    def outbox(self) -> Outbox:
        return FakeOutbox(self.kafka)

    def transactions(self) -> Transactions:
        return self.kafka.transactions()

    async def put(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        self.kafka.append(topic, 0, key, value)

    async def trim(self, topic: str, offset: int) -> None:
        self.kafka.logs[topic, 0].start = offset


class Real:
    def __init__(self, bootstrap: str, namespace: str, at_end: AsyncExitStack) -> None:
        self.bootstrap = bootstrap
        self.topics = Topics(namespace)
        self._at_end = at_end
        self._readers = KafkaReaders(bootstrap, LIMIT_S)
        self._near = KafkaEnds(bootstrap, LIMIT_S)
        at_end.push_async_callback(self._near.close)
        at_end.push_async_callback(self._readers.close)

    def producer(self) -> JournalProducer:
        made = KafkaJournalProducer(
            self.bootstrap,
            self.topics.conversations,
            0,
            transactional_id=self.topics.transactional_id(0),
            timeout_ms=10_000,
            limit_s=LIMIT_S,
            near=self._near,
        )
        self._at_end.push_async_callback(made.discard)
        return made

    def reader(self) -> JournalReader:
        ends = KafkaEnds(self.bootstrap, LIMIT_S)
        made = KafkaJournalReader(self._readers, ends, self.topics.conversations, 0)
        self._at_end.push_async_callback(ends.close)
        self._at_end.push_async_callback(made.close)
        return made

    def intake(self) -> IntakeSource:
        made = KafkaIntake(self.bootstrap, self._near, self.topics, 0, LIMIT_S, near=self._near)
        self._at_end.push_async_callback(made.close)
        return made

    def outbox(self) -> Outbox:
        made = KafkaOutbox(self.bootstrap, LIMIT_S)
        self._at_end.push_async_callback(made.close)
        return made

    def transactions(self) -> Transactions:
        made = KafkaTransactions(self.bootstrap, self.topics.conversations, LIMIT_S)
        self._at_end.push_async_callback(made.close)
        return made

    async def put(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap) as producer:
            await producer.send_and_wait(topic, value, key, partition=0)

    async def trim(self, topic: str, offset: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)})
        finally:
            await admin.close()


@pytest.fixture(params=["fake", "real"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "fake":
        yield Fake()
        return
    stack: EmbeddedStack = request.getfixturevalue("stack")
    namespace: str = request.getfixturevalue("fresh_namespace")
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    await ensure(admin, Topics(namespace), partitions=1)
    await admin.close()
    async with AsyncExitStack() as at_end:
        yield Real(stack.kafka, namespace, at_end)


async def write(producer: JournalProducer, *values: bytes) -> int:
    """Begin and append; the transaction stays open."""
    batch = producer.new_batch()
    for value in values:
        assert batch.add(b"c1", value, [("type", b"Test")])
    await producer.begin()
    return await producer.append(batch)


async def read_all(reader: JournalReader, offset: int = 0) -> list[bytes | None]:
    """Everything from `offset` to the high watermark."""
    end, position, found = await reader.open(offset), offset, list[bytes | None]()
    async with asyncio.timeout(10):
        while position < end:
            records, position = await reader.read()
            found += [record.value for record in records]
    return found


async def poll_until(source: IntakeSource, count: int) -> list[Polled]:
    polled: list[Polled] = []
    async with asyncio.timeout(10):
        while sum(map(len, polled)) < count:
            polled.append(await source.poll(100, 200, membership=True))
    return polled


async def test_a_committed_transaction_is_read_whole_and_the_position_passes_its_marker(cluster: Cluster) -> None:
    producer = cluster.producer()
    await producer.start()
    assert await write(producer, b"one", b"two") == 2
    await producer.commit()
    reader = cluster.reader()
    assert await read_all(reader) == [b"one", b"two"]
    assert await cluster.reader().open(0) == 3, "the marker is the last thing in the log"


async def test_a_reader_after_a_closed_one_reads_from_its_own_position_and_gets_nothing_twice(cluster: Cluster) -> None:
    producer = cluster.producer()
    await producer.start()
    await write(producer, b"one", b"two")
    await producer.commit()
    first = cluster.reader()
    assert await read_all(first) == [b"one", b"two"]
    await first.close()
    await write(producer, b"three")
    await producer.commit()
    second = cluster.reader()
    assert await read_all(second) == [b"one", b"two", b"three"]
    await second.close()
    assert await read_all(cluster.reader(), 3) == [b"three"]


# ------------------------------------------------------------------------------------------- open transactions
async def test_each_start_of_a_transactional_id_has_the_same_producer_and_a_higher_epoch(cluster: Cluster) -> None:
    first, second = cluster.producer(), cluster.producer()
    await first.start()
    await second.start()
    assert first.identity.producer_id == second.identity.producer_id
    assert first.identity.producer_epoch < second.identity.producer_epoch


async def test_an_open_transaction_is_shown_with_its_producer_and_readers_stop_before_it(cluster: Cluster) -> None:
    producer, reader, transactions = cluster.producer(), cluster.reader(), cluster.transactions()
    await producer.start()
    await write(producer, b"one")
    await producer.commit()

    async def ended() -> bool:
        return await transactions.unfinished(0) == []

    await until(ended)  # the coordinator answers once the outcome is certain, and then writes the markers
    assert await reader.open(0) == await reader.stable_end() == 2
    await write(producer, b"open", b"as well")
    (found,) = await transactions.unfinished(0)
    assert (found.producer_id, found.producer_epoch) == (
        producer.identity.producer_id,
        producer.identity.producer_epoch,
    )
    assert (found.start, await reader.stable_end(), await cluster.reader().open(0)) == (2, 2, 4)
    await producer.commit()
    await until(ended)
    assert await reader.stable_end() == await cluster.reader().open(0) == 5


@pytest.mark.parametrize(("outcome", "seen"), [(Outcome.COMMITTED, [b"one", b"two"]), (Outcome.ABORTED, [])])
async def test_a_marker_ends_an_open_transaction_for_every_reader(
    cluster: Cluster, outcome: Outcome, seen: list[bytes]
) -> None:
    producer, transactions = cluster.producer(), cluster.transactions()
    await producer.start()
    await write(producer, b"one", b"two")
    (found,) = await transactions.unfinished(0)
    await transactions.end(0, found, found.producer_epoch, outcome)
    assert await transactions.unfinished(0) == []
    assert await read_all(cluster.reader()) == seen


async def test_a_marker_under_a_lower_epoch_than_has_written_is_refused(cluster: Cluster) -> None:
    zombie, heir, transactions = cluster.producer(), cluster.producer(), cluster.transactions()
    await zombie.start()
    await write(zombie, b"zombie's")
    await heir.start()
    await write(heir, b"heir's")
    (found,) = await transactions.unfinished(0)
    with pytest.raises(Fenced):
        await transactions.end(0, found, zombie.identity.producer_epoch, Outcome.ABORTED)
    await heir.commit()
    assert await read_all(cluster.reader()) == [b"heir's"]


async def test_offsets_after_a_second_transaction_count_the_first_ones_marker(cluster: Cluster) -> None:
    producer = cluster.producer()
    await producer.start()
    await write(producer, b"one")
    await producer.commit()
    assert await write(producer, b"two") == 3
    await producer.commit()


async def test_a_start_aborts_the_predecessors_open_transaction(cluster: Cluster) -> None:
    first, second = cluster.producer(), cluster.producer()
    await first.start()
    await write(first, b"never")
    await second.start()
    assert await read_all(cluster.reader()) == []
    await write(second, b"one")
    await second.commit()
    assert await read_all(cluster.reader()) == [b"one"]


@pytest.mark.parametrize("step", ["append", "commit"])
async def test_a_start_fences_the_predecessor(cluster: Cluster, step: str) -> None:
    first, second = cluster.producer(), cluster.producer()
    await first.start()
    if step == "commit":
        await write(first, b"never")
    await second.start()
    late: Awaitable[Any] = first.commit() if step == "commit" else write(first, b"never")
    with pytest.raises(Fenced):
        await late
    await write(second, b"one")
    await second.commit()
    assert await read_all(cluster.reader()) == [b"one"]


async def test_a_full_batch_takes_no_more_and_keeps_what_it_has(cluster: Cluster) -> None:
    producer = cluster.producer()
    await producer.start()
    batch = producer.new_batch()
    assert batch.add(b"c1", b"x" * 700_000, [])
    assert not batch.add(b"c1", b"x" * 700_000, [])
    await producer.begin()
    await producer.append(batch)
    await producer.commit()
    assert [len(value or b"") for value in await read_all(cluster.reader())] == [700_000]


async def test_discarding_in_the_middle_of_a_transaction_waits_for_nobody(cluster: Cluster) -> None:
    producer = cluster.producer()
    await producer.start()
    await write(producer, b"never")
    async with asyncio.timeout(3):
        await producer.discard()
    successor = cluster.producer()
    await successor.start()
    assert await read_all(cluster.reader()) == []


async def test_headers_and_keys_arrive_as_they_were_given(cluster: Cluster) -> None:
    producer = cluster.producer()
    await producer.start()
    await write(producer, b"one")
    await producer.commit()
    reader = cluster.reader()
    await reader.open(0)
    records: Any = ()
    while not records:
        records, _ = await reader.read()
    assert (records[0].key, tuple(records[0].headers)) == (b"c1", (("type", b"Test"),))


async def test_a_journal_position_outside_is_refused_by_name(cluster: Cluster) -> None:
    with pytest.raises(
        Unrecoverable, match=r"conversations\[0\]: the next offset to read is 4, but the topic ends at 0"
    ):
        await cluster.reader().open(4)


async def test_the_intake_is_read_from_its_positions_with_the_brokers_times(cluster: Cluster) -> None:
    topics = cluster.topics
    for topic in (topics.turns, topics.frames, topics.membership):
        await cluster.put(topic, b"old", b"c1")
        await cluster.put(topic, b"new", b"c1")
    source = cluster.intake()
    await source.open(Positions(1, 1, 2))
    polled = await poll_until(source, 2)
    assert [r.value for p in polled for r in p.turns] == [b"new"]
    assert [r.value for p in polled for r in p.frames] == [b"new"]
    assert [r.value for p in polled for r in p.membership] == []
    assert polled[-1].read == Positions(2, 2, 2)
    assert all(r.timestamp > 1_600_000_000_000 for p in polled for r in (*p.turns, *p.frames))
    assert await source.ends() == Positions(2, 2, 2)


async def test_membership_is_left_unread_when_it_is_not_wanted(cluster: Cluster) -> None:
    await cluster.put(cluster.topics.membership, b"waits")
    source = cluster.intake()
    await source.open(Positions())
    assert len(await source.poll(100, 300, membership=False)) == 0
    (polled,) = [p for p in await poll_until(source, 1) if p]
    assert [r.value for r in polled.membership] == [b"waits"]


async def test_what_membership_held_at_the_opening_comes_before_any_turn(cluster: Cluster) -> None:
    for number in range(20):
        await cluster.put(cluster.topics.turns, b"turn %d" % number, b"c1")
        await cluster.put(cluster.topics.frames, b"frame %d" % number, b"c1")
    for number in range(5):
        await cluster.put(cluster.topics.membership, b"change %d" % number)
    source = cluster.intake()
    await source.open(Positions())
    changes, keyed = 0, 0
    async with asyncio.timeout(10):
        while keyed < 40:
            polled = await source.poll(3, 200, membership=True)
            changes += len(polled.membership)
            if polled.turns or polled.frames:
                assert changes == 5
            keyed += len(polled.turns) + len(polled.frames)


async def test_a_turn_never_comes_before_a_change_that_was_there_first_however_busy_the_reader(
    cluster: Cluster,
) -> None:
    source = cluster.intake()
    await source.open(Positions())
    await cluster.put(cluster.topics.membership, b"early")
    await asyncio.sleep(0.4)  # a reader that is busy with a batch: what was fetched meanwhile waits
    await cluster.put(cluster.topics.membership, b"change")
    await cluster.put(cluster.topics.turns, b"turn", b"c1")
    await asyncio.sleep(0.4)
    changes: list[bytes | None] = []
    async with asyncio.timeout(10):
        while not (polled := await source.poll(100, 200, membership=True)).turns:
            changes += [r.value for r in polled.membership]
    assert [*changes, *(r.value for r in polled.membership)] == [b"early", b"change"]


async def test_turns_are_read_although_membership_is_behind_when_it_is_not_wanted(cluster: Cluster) -> None:
    await cluster.put(cluster.topics.turns, b"turn", b"c1")
    await cluster.put(cluster.topics.membership, b"change")
    source = cluster.intake()
    await source.open(Positions())
    async with asyncio.timeout(10):
        while not (polled := await source.poll(100, 200, membership=False)):
            pass
    assert [r.value for r in polled.turns] == [b"turn"]


async def test_a_poll_brings_no_more_than_its_limit(cluster: Cluster) -> None:
    for number in range(5):
        await cluster.put(cluster.topics.turns, b"%d" % number, b"c1")
    source = cluster.intake()
    await source.open(Positions())
    seen: list[bytes | None] = []
    async with asyncio.timeout(10):
        while len(seen) < 5:
            polled = await source.poll(2, 200, membership=True)
            assert len(polled) <= 2
            seen += [r.value for r in polled.turns]
            assert polled.read.turns == len(seen)
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("topic", ["turns", "frames", "membership"])
async def test_intake_positions_outside_are_refused_by_name(cluster: Cluster, topic: str) -> None:
    name = getattr(cluster.topics, topic)
    for _ in range(3):
        await cluster.put(name, b"gone", b"c1")
    await cluster.trim(name, 2)
    with pytest.raises(Unrecoverable, match=rf"{topic}\[0\]: the next offset to read is 0, but the topic starts at 2"):
        await cluster.intake().open(Positions())
    ahead = {"turns": Positions(9, 0, 0), "frames": Positions(0, 9, 0), "membership": Positions(0, 0, 9)}[topic]
    with pytest.raises(Unrecoverable, match=rf"{topic}\[0\]: the next offset to read is 9, but the topic ends at 3"):
        await cluster.intake().open(ahead)


async def test_the_outbox_tells_the_brokers_time(cluster: Cluster) -> None:
    outbox = cluster.outbox()
    first = await outbox.send(cluster.topics.membership, 0, b"tick")
    second = await outbox.send(cluster.topics.membership, 0, b"tick")
    assert 1_600_000_000_000 < first <= second
    source = cluster.intake()
    await source.open(Positions())
    records = [r for p in await poll_until(source, 2) for r in p.membership]
    assert [r.timestamp for r in records] == [first, second]


async def test_the_outbox_takes_the_largest_dead_letter_and_refuses_what_no_request_can_carry(cluster: Cluster) -> None:
    outbox, topic = cluster.outbox(), cluster.topics.dead_letters
    key = b"k" * CUT_KEY_BYTES
    assert await outbox.send(topic, 0, bytes(LETTER_BYTES - len(key)), key=key, headers=[("error", b"too_large")])
    with pytest.raises(KafkaUnavailable, match=topic):
        await outbox.send(topic, 0, bytes(REQUEST_BYTES + 1))
