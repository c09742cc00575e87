"""The floor: what consuming, decoding, encoding, producing and committing cost when nothing at all is decided.

One consumer reads the intake of all partitions; per partition one transactional producer writes what it read to a
journal, one transaction a fetch, batches built with aiokafka's batch API. A turn is seven plain fields, decoded and
encoded by fastavro. No sequencer built of these parts can be faster, so its speed is given as a ratio to this one.
"""

from __future__ import annotations

import asyncio
import gc
import io
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import fastavro
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.runtime.partitioning import partition_of

CONVERSATIONS = 5_000
FETCH_MAX_RECORDS = 4_000
BATCH_BYTES = 1 << 20
QUEUED_FETCHES = 2
"""Fetches that wait for a partition's producer: one being written, one ready, so that neither side idles."""

TEXT = "hello there, could you please help me with my order number 12345? " * 2
"""132 characters: a usual message of a person."""

TURN = fastavro.parse_schema(
    {
        "type": "record",
        "name": "FloorTurn",
        "fields": [
            {"name": "turn_id", "type": "string"},
            {"name": "conversation_id", "type": "string"},
            {"name": "participant", "type": "string"},
            {"name": "source_channel_id", "type": "string"},
            {"name": "inserted_at", "type": "long"},
            {"name": "text", "type": "string"},
            {"name": "seq", "type": "long"},
        ],
    }
)


@dataclass(frozen=True, slots=True)
class Floor:
    """What was measured. `cpu_us_per_turn`: CPU of this process alone, µs."""

    turns: int
    floor_per_s: float
    cpu_us_per_turn: float
    transactions: int


@dataclass(slots=True)
class _Counts:
    turns: int = 0
    transactions: int = 0


def _encoded(turn: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, TURN, turn)
    return buffer.getvalue()


def _decoded(value: bytes) -> dict[str, Any]:
    turn: Any = fastavro.schemaless_reader(io.BytesIO(value), TURN, None)
    return cast("dict[str, Any]", turn)


async def measure_floor(kafka: str, turns: int, partitions: int) -> Floor:
    """Copy `turns` turns from an intake of its own to a journal of its own (both removed after), and time it."""
    async with _topics(kafka, partitions) as (intake, journal):
        await _fill(kafka, intake, turns, partitions)
        return await _copy(kafka, intake, journal, turns, partitions)


@asynccontextmanager
async def _topics(kafka: str, partitions: int) -> AsyncIterator[tuple[str, str]]:
    run = uuid.uuid4().hex[:8]
    names = f"bench-floor-intake-{run}", f"bench-floor-journal-{run}"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1) for name in names])
        try:
            await _led(kafka, names, partitions)
            yield names
        finally:
            await admin.delete_topics(list(names))
    finally:
        await admin.close()


async def _led(kafka: str, names: Sequence[str], partitions: int) -> None:
    """Returns once every partition has a leader that answers: a new topic is announced before it has."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka)
    await consumer.start()
    try:
        await consumer.end_offsets([TopicPartition(name, p) for name in names for p in range(partitions)])
    finally:
        await consumer.stop()


async def _fill(kafka: str, intake: str, turns: int, partitions: int) -> None:
    ids = [f"c{n:06d}" for n in range(min(turns, CONVERSATIONS))]
    where = [partition_of(conversation, partitions) for conversation in ids]
    keys = [conversation.encode() for conversation in ids]
    producer = AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=20, max_batch_size=1 << 17)
    await producer.start()
    try:
        for n in range(turns):
            at = n % len(ids)
            turn = {
                "turn_id": f"t{n:012d}",
                "conversation_id": ids[at],
                "participant": "user",
                "source_channel_id": "web",
                "inserted_at": 1_700_000_000_000 + n,
                "text": TEXT,
                "seq": 0,
            }
            await producer.send(intake, _encoded(turn), keys[at], partition=where[at])
        await producer.flush()
    finally:
        await producer.stop()


async def _copy(kafka: str, intake: str, journal: str, turns: int, partitions: int) -> Floor:
    queues: list[asyncio.Queue[Sequence[Any]]] = [asyncio.Queue(QUEUED_FETCHES) for _ in range(partitions)]
    counts = _Counts()
    producers = [await _producer(kafka, journal, partition) for partition in range(partitions)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(intake, partition) for partition in range(partitions)])
        await consumer.seek_to_beginning()
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as tasks:
            for partition, producer in enumerate(producers):
                tasks.create_task(_write(producer, journal, partition, queues[partition], counts))
            await _read(consumer, turns, queues)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        await consumer.stop()
        await asyncio.gather(*(producer.stop() for producer in producers))
    return Floor(counts.turns, counts.turns / wall, cpu / counts.turns * 1e6, counts.transactions)


async def _producer(kafka: str, journal: str, partition: int) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka,
        linger_ms=0,
        max_batch_size=BATCH_BYTES,
        max_request_size=2 * BATCH_BYTES,
        transactional_id=f"{journal}-{partition}",
    )
    await producer.start()
    return producer


async def _read(consumer: AIOKafkaConsumer, turns: int, queues: Sequence[asyncio.Queue[Sequence[Any]]]) -> None:
    read = 0
    while read < turns:
        fetched = await consumer.getmany(timeout_ms=1000, max_records=FETCH_MAX_RECORDS)
        for where, records in fetched.items():
            read += len(records)
            await queues[where.partition].put(records)
    for queue in queues:
        await queue.put(())


async def _write(
    producer: AIOKafkaProducer, journal: str, partition: int, queue: asyncio.Queue[Sequence[Any]], counts: _Counts
) -> None:
    while records := await queue.get():
        async with producer.transaction():
            sent = []
            batch = producer.create_batch()
            for record in records:
                turn = _decoded(record.value)
                turn["seq"] += 1
                value = _encoded(turn)
                if batch.append(key=record.key, value=value, timestamp=None) is None:
                    batch.close()
                    sent.append(await producer.send_batch(batch, journal, partition=partition))
                    batch = producer.create_batch()
                    batch.append(key=record.key, value=value, timestamp=None)
            batch.close()
            sent.append(await producer.send_batch(batch, journal, partition=partition))
            await asyncio.gather(*sent)
        counts.turns += len(records)
        counts.transactions += 1
