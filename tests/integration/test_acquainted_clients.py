"""A client that is told of the cluster by another one: it asks for nothing that is known there, and finds out what has
changed since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection

from ops.embedded import EmbeddedStack
from streams.fence.port import Positions
from streams.runtime.kafka import KafkaEnds
from streams.runtime.kafka_producers import KafkaJournalProducer
from streams.runtime.kafka_readers import KafkaIntake
from streams.topics import Topics, ensure

LIMIT_S = 10.0
AWAY = 4711
"""No broker has this id."""


@pytest.fixture
async def topics(stack: EmbeddedStack, fresh_namespace: str) -> Topics:
    made = Topics(fresh_namespace)
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    await ensure(admin, made, partitions=2)
    await admin.close()
    return made


@pytest.fixture
async def near(stack: EmbeddedStack, topics: Topics) -> AsyncIterator[KafkaEnds]:
    """It was asked about every topic."""
    known = KafkaEnds(stack.kafka, LIMIT_S)
    names = (topics.turns, topics.frames, topics.membership, topics.conversations)
    await known.stable([TopicPartition(name, 1) for name in names])
    yield known
    await known.close()


async def mislead(near: KafkaEnds) -> None:
    """What it knows is old: the leaders have moved."""
    cluster = (await near._client("read_committed"))._client.cluster
    for partitions in cluster._partitions.values():
        for number, known in partitions.items():
            partitions[number] = known._replace(leader=AWAY)


async def use(stack: EmbeddedStack, topics: Topics, near: KafkaEnds, ends: KafkaEnds) -> None:
    """Commit to the journal and read the intake, on clients that `near` has told of the cluster."""
    async with AsyncExitStack() as undo:
        producer = KafkaJournalProducer(
            stack.kafka,
            topics.conversations,
            1,
            transactional_id=topics.transactional_id(1),
            timeout_ms=10_000,
            limit_s=LIMIT_S,
            near=near,
        )
        undo.push_async_callback(producer.discard)
        await producer.start()
        batch = producer.new_batch()
        assert batch.add(b"c", b"entry", [])
        await producer.begin()
        assert await producer.append(batch) == 1
        await producer.commit()
        intake = KafkaIntake(stack.kafka, ends, topics, 1, LIMIT_S, near=near)
        undo.push_async_callback(intake.close)
        await intake.open(Positions())
        async with asyncio.timeout(LIMIT_S):
            while not (polled := await intake.poll(10, 200, membership=True)).turns:
                pass
        assert [record.value for record in polled.turns] == [b"turn"]


async def put_a_turn(stack: EmbeddedStack, topics: Topics) -> None:
    """In a transaction: of the first one a broker knows no coordinator yet, and whoever begins it asks for metadata."""
    async with (
        AIOKafkaProducer(bootstrap_servers=stack.kafka, transactional_id=f"{topics.turns}-before") as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait(topics.turns, b"turn", b"c", partition=1)


async def test_it_asks_for_no_metadata_that_is_known_already(
    stack: EmbeddedStack, topics: Topics, near: KafkaEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takeover opens dozens of clients: each answer names every partition of the topic."""
    await put_a_turn(stack, topics)
    asked: list[str] = []
    send = AIOKafkaConnection.send

    def noted(self: Any, request: Any, expect_response: bool = True) -> Any:
        asked.append(type(request).__name__)
        return send(self, request, expect_response)

    monkeypatch.setattr(AIOKafkaConnection, "send", noted)
    await use(stack, topics, near, near)
    assert "ProduceRequest" in asked
    assert "MetadataRequest" not in asked


async def test_it_finds_out_that_leaders_have_moved(stack: EmbeddedStack, topics: Topics, near: KafkaEnds) -> None:
    await put_a_turn(stack, topics)
    await mislead(near)
    ends = KafkaEnds(stack.kafka, LIMIT_S)
    await use(stack, topics, near, ends)
    await ends.close()
