"""Group 1, stream processors: what went wrong for others must not go wrong here."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.consumer import fetcher

from connectors.gateway.tail import BrokenJournal, Tail
from ops.embedded import EmbeddedStack
from streams.core.events import BatchCommitted, Entry
from streams.core.store import dump_partition
from streams.fence.port import Fenced, Positions
from streams.runtime.kafka import Doubt, KafkaEnds, Unrecoverable
from streams.runtime.kafka_producers import KafkaJournalProducer, translated
from streams.runtime.kafka_readers import KafkaIntake, KafkaJournalReader, KafkaReaders
from streams.settings import Settings, load_settings
from streams.topics import Topics, ensure
from tests.support import postgres
from tests.support.deployment import CODEC, MEMBER, Deployment, Talk, deployment, until_shared
from tests.support.program import program
from tests.support.scripted_gateway import scripted_gateway
from tests.support.sequencing import LIMITS, World, settle
from tests.support.waiting import until
from tests.support.words import PlainWords

LIMIT_S = 10.0


# --------------------------------------------------------------- 1, records fetched ahead for an earlier assignment
def record(partition: int, number: int) -> bytes:
    """So long that one fetch (4 MiB) leaves some of them to the next one, which is under way when a replay ends."""
    return (b"%d/%d " % (partition, number)).ljust(60_000, b".")


async def test_a_consumer_that_is_used_again_gives_nothing_that_it_fetched_before(
    stack: EmbeddedStack, admin: AIOKafkaAdminClient, fresh_namespace: str
) -> None:
    """Replays share consumers: each must begin where it was told to, whatever the last one left in them."""
    topics = Topics(fresh_namespace)
    await ensure(admin, topics, partitions=2)
    async with AIOKafkaProducer(bootstrap_servers=stack.kafka) as producer:
        for partition in range(2):
            for number in range(200):
                await producer.send(topics.conversations, record(partition, number), partition=partition)
        await producer.flush()
    ends, readers = KafkaEnds(stack.kafka, LIMIT_S), KafkaReaders(stack.kafka, LIMIT_S, kept=1)
    try:
        for partition, offset in ((0, 0), (0, 100), (1, 50), (0, 0), (0, 199), (1, 0)):
            reader = KafkaJournalReader(readers, ends, topics.conversations, partition)
            await reader.open(offset)
            async with asyncio.timeout(30):
                while not (found := await reader.read())[0]:
                    pass
            records, position = found
            assert [r.value for r in records] == [record(partition, n) for n in range(offset, position)]
            await reader.close()
    finally:
        await readers.close()
        await ends.close()


# ------------------------------------------------------------------- 2, sends beside the transaction, errors that warn
async def test_every_record_of_the_journal_lies_in_a_transaction_of_its_partitions_writer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, refusals, dead letters' notes, checkpoints and the clock: nothing has a way of its own."""
    batches: list[tuple[bool, int]] = []

    class Watched(fetcher.MemoryRecords):  # type: ignore[misc]
        def next_batch(self) -> object:
            batch = super().next_batch()
            if batch is not None:
                batches.append((batch.is_transactional, batch.producer_id))
            return batch

    async with deployment(settings, 1) as place:
        talk = Talk(place, conversations=3, worked=False)
        for _ in range(2):  # the second writer has the first one's transactional id
            async with place.worker() as (running, _):
                await place.garbage(place.topics.turns, 0, b"garbage")
                await talk.some(5)
                assert await running.stop() == 0
        async with place.worker() as (running, _):
            await place.all_taken(await talk.end())
            assert await running.stop() == 0
        monkeypatch.setattr(fetcher, "MemoryRecords", Watched)
        name = TopicPartition(place.topics.conversations, 0)
        async with AIOKafkaConsumer(bootstrap_servers=settings.kafka, auto_offset_reset="earliest") as reader:
            reader.assign([name])
            end = (await reader.end_offsets([name]))[name]
            async with asyncio.timeout(LIMIT_S):
                while await reader.position(name) < end:
                    await reader.getmany(timeout_ms=100)
    assert len(batches) > 5
    assert {transactional for transactional, _ in batches} == {True}
    assert len({producer for _, producer in batches}) == 1


def test_whatever_a_broker_answers_a_producer_ends_its_epoch() -> None:
    """No error is logged and passed over: each is a fence or a doubt, and after both comes a new start."""
    named: list[Any] = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    kinds = [kind for kind in named if issubclass(kind, errors.KafkaError) and kind is not errors.BrokerResponseError]
    assert len(kinds) > 60
    certain = {kind for kind in kinds if isinstance(translated(kind()), Fenced)}
    assert certain == {errors.ProducerFenced, errors.InvalidProducerEpoch}
    assert all(isinstance(translated(kind()), Fenced | Doubt) for kind in kinds)


# ------------------------------------------------------------------------- 4, ends that no reader is ever given
async def test_a_worker_opens_whatever_its_logs_end_in(settings: Settings) -> None:
    """Partition 0 ends in a marker, 1 in aborted records, 2 has intake without any record left, 3 never had any."""
    async with deployment(settings, 4) as place:
        home = [next(f"c{n}" for n in range(1000) if place.home(f"c{n}") == partition) for partition in range(4)]
        async with place.worker() as (running, _):
            await place.furnish(MEMBER)
            await place.furnished(MEMBER)
            for conversation in home[:3]:
                await place.open(conversation)
                await place.turn(conversation, "before")
            await place.all_taken({conversation: ["before"] for conversation in home[:3]})
            assert await running.stop() == 0
        await aborted(place, 1, records=50)
        await trimmed(place, 2, place.topics.turns, place.topics.frames)
        async with place.worker() as (running, worker):
            asked_at = time.monotonic()
            await until_shared(place, {worker: 4})
            assert time.monotonic() - asked_at < 5
            await place.open(home[3])
            for conversation in home:
                await place.turn(conversation, "after")
            expected = {conversation: ["before", "after"] for conversation in home[:3]}
            await place.all_taken({**expected, home[3]: ["after"]})
            assert await running.stop() == 0
        await place.require_sound()


async def aborted(place: Deployment, partition: int, records: int) -> None:
    """A transaction of the partition's own producer that its successor aborts."""

    def producer() -> KafkaJournalProducer:
        return KafkaJournalProducer(
            place.settings.kafka,
            place.topics.conversations,
            partition,
            transactional_id=place.topics.transactional_id(partition),
            timeout_ms=10_000,
            limit_s=LIMIT_S,
        )

    doomed, successor = producer(), producer()
    try:
        await doomed.start()
        batch = doomed.new_batch()
        for _ in range(records):
            assert batch.add(None, b"never", [])
        await doomed.begin()
        await doomed.append(batch)
        await successor.start()
    finally:
        await doomed.discard()
        await successor.discard()


async def trimmed(place: Deployment, partition: int, *topics: str, before: int = -1) -> None:
    """Retention has left nothing of these topics' partition, or nothing `before` an offset."""
    admin = AIOKafkaAdminClient(bootstrap_servers=place.settings.kafka)
    await admin.start()
    try:
        await admin.delete_records(
            {TopicPartition(topic, partition): RecordsToDelete(before_offset=before) for topic in topics}
        )
    finally:
        await admin.close()


# ------------------------------------------------------------------------------- 5, a log trimmed while it is read
@pytest.mark.parametrize("log", ["journal", "intake"])
async def test_a_log_that_is_trimmed_while_it_is_read_stops_its_reader_loudly(
    stack: EmbeddedStack, admin: AIOKafkaAdminClient, fresh_namespace: str, log: str
) -> None:
    topics = Topics(fresh_namespace)
    await ensure(admin, topics, partitions=1)
    topic = topics.conversations if log == "journal" else topics.turns
    # More than one fetch holds (4 MiB), so that the reader must come back for the rest.
    async with AIOKafkaProducer(bootstrap_servers=stack.kafka) as producer:
        for _ in range(250):
            await producer.send(topic, os.urandom(60_000), partition=0)
        await producer.flush()
    ends = KafkaEnds(stack.kafka, LIMIT_S)
    readers = KafkaReaders(stack.kafka, LIMIT_S)
    reader = KafkaJournalReader(readers, ends, topics.conversations, 0)
    intake = KafkaIntake(stack.kafka, ends, topics, 0, LIMIT_S)

    async def read() -> int:
        if log == "journal":
            return (await reader.read())[1]
        return (await intake.poll(20, 200, membership=True)).read.turns

    async def to_the_end() -> None:
        while (position := await read()) < 250:
            assert position < 240, "it jumped over what was gone"

    try:
        await (reader.open(0) if log == "journal" else intake.open(Positions()))
        async with asyncio.timeout(30):
            while not await read():
                pass
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=240)})
            with pytest.raises(Unrecoverable, match="cut off while it was"):
                await to_the_end()
    finally:
        await reader.close()
        await intake.close()
        await readers.close()
        await ends.close()


async def test_a_gateway_whose_journal_was_trimmed_under_it_ends_loudly_and_never_goes_on_behind_the_gap(
    settings: Settings,
) -> None:
    async with deployment(settings, 1) as place:
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka) as producer:
            for lsn in range(1, 11):
                entry = Entry(lsn, 1, 1, 1, BatchCommitted(turns=lsn, frames=0, membership=0))
                await producer.send_and_wait(place.topics.conversations, CODEC.encode_entry(entry), partition=0)
        tail = Tail(settings, place.topics.conversations, CODEC, PlainWords(), 1)
        shown = list[int]()
        tail.apply = lambda _, entries: shown.extend(entry.lsn for entry in entries)
        # As if it had been away since it read the first three.
        tail._positions = {TopicPartition(place.topics.conversations, 0): 3}
        await trimmed(place, 0, place.topics.conversations, before=8)
        async with asyncio.timeout(30):
            with pytest.raises(BrokenJournal, match="cut off or made anew"):
                await tail.run()
    assert shown == []


# ------------------------------------------------------------------------------------- 7, a shutdown that never ends
@pytest.fixture
async def doomed(private_stack: EmbeddedStack) -> AsyncIterator[Deployment]:
    """A deployment on servers that may be stopped; short limits."""
    with postgres.database(private_stack.postgres) as dsn:
        settings = load_settings(
            kafka=private_stack.kafka,
            postgres=dsn,
            namespace=dsn.rsplit("/", 1)[1].replace("_", "-"),
            request_timeout_ms=2_000,
            drain_budget_ms=6_000,
        )
        async with deployment(settings, 8) as place:
            yield place


@pytest.mark.parametrize("server", ["kafka", "postgres"])
async def test_a_worker_asked_to_stop_ends_in_its_budget_though_a_server_hangs(
    doomed: Deployment, private_stack: EmbeddedStack, server: str
) -> None:
    root = psutil.Process(private_stack.kafka_pid if server == "kafka" else private_stack.postgres_pid)
    async with doomed.worker() as (running, _):
        talk = Talk(doomed, conversations=2)
        await talk.some(3)
        await talk.end()
        frozen = [root, *root.children(recursive=True)]
        for process in frozen:
            process.suspend()
        try:
            asked_at = time.monotonic()
            await running.stop()
            took_s = time.monotonic() - asked_at
        finally:
            for process in frozen:
                process.resume()
    # The budget, requests of 3 s that nobody answers (it drains, it leaves), and what a busy machine takes; but none a
    # partition, one behind the other.
    assert took_s < 6 + 2 * 3 + 8 < 8 * 3


EXITS = """
import asyncio, sys
from turnlog import Agent
agent = Agent(sys.argv[1], token="t")

@agent.on_turn
async def answer(turn):
    sys.exit(3)

asyncio.run(agent.run())
"""


async def test_an_agent_that_exits_inside_its_handler_is_gone_at_once_and_its_gateway_told() -> None:
    async with scripted_gateway() as gateway:
        command = (sys.executable, "-c", EXITS, gateway.url)
        async with program(*command, environment={}) as running:
            peer = await gateway.welcomed()
            await peer.turn("c1", "hi", seq=1)
            async with asyncio.timeout(10):
                assert await running.process.wait() == 3
            assert await peer.closed() is not None


# ----------------------------------------------------------------------------------------- 9, memory that only grows
async def test_a_partitions_memory_is_that_of_its_limit_however_many_conversations_there_were() -> None:
    limits = replace(LIMITS, idle_conversations_max=50, checkpoint_every_events=100)
    world = World(limits=limits)
    world.configure()
    world.join()
    writer = await world.writer()
    sizes = list[int]()
    for round_ in range(30):
        for number in range(100):
            world.converse(f"c{round_}-{number}")
        await settle(writer)
        # One checkpoint is under way while the next batches are decided: what it holds may go when it is stored.
        await until(lambda: writer._saving is None or writer._saving.task.done())
        await settle(writer)
        await settle(writer)
        assert writer._memory.loaded <= 50 + 100
        sizes.append(len(dump_partition(writer._memory.state)))
    assert sizes[-1] <= sizes[2] * 1.1, "the partition's own state does not grow with its conversations"
    await writer.close()
