"""Open transactions of others, on real brokers: what an operator sees of them, and how they are ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from ops.embedded import EmbeddedStack
from streams.runtime.kafka import KafkaEnds
from streams.settings import Settings, load_settings
from tests.support.command import Ended, turnlog_async
from tests.support.deployment import Deployment, deployment
from tests.support.hanging import Forgotten, take_unverified

STRANGER = "somebody-elses"


async def command(place: Deployment, *arguments: str) -> Ended:
    return await turnlog_async("transaction", *arguments, "-o", "json", environment=place.environment)


async def readable(place: Deployment, topic: str, partition: int) -> bool:
    name, ends = TopicPartition(topic, partition), KafkaEnds(place.settings.kafka, 5.0)
    try:
        return (await ends.stable([name]))[name] == (await ends.bounds([name]))[name].end
    finally:
        await ends.close()


@asynccontextmanager
async def silent_stranger(place: Deployment, topic: str, partition: int) -> AsyncIterator[None]:
    """A client that began a transaction with a time-out of 15 minutes, wrote one record, and says no more."""
    stranger = AIOKafkaProducer(
        bootstrap_servers=place.settings.kafka, transactional_id=STRANGER, transaction_timeout_ms=900_000
    )
    await stranger.start()
    await stranger.begin_transaction()
    await stranger.send_and_wait(topic, b"1", partition=partition)
    try:
        yield
    finally:
        await stranger.client.close()
        await stranger.stop()


async def test_a_strangers_silent_transaction_is_shown_and_ended_only_by_force(settings: Settings) -> None:
    async with deployment(settings, 2) as place:
        turns = place.topics.turns
        async with silent_stranger(place, turns, 1):
            (shown,) = (await command(place, "list")).document
            assert (shown["topic"], shown["partition"], shown["start_offset"]) == (turns, 1, 0)
            assert (shown["transactional_id"], shown["state"]) == (STRANGER, "Ongoing")
            assert (shown["own"], shown["hanging"]) == (False, False)
            here = ("abort", "--topic", turns, "--partition", "1", "--yes")
            refused = await command(place, *here)
            assert refused.code == 1
            assert f"{STRANGER} is alive (Ongoing)" in refused.err
            assert (await command(place, *here, "--force", "--dry-run")).document[0]["aborted"] is False
            assert not await readable(place, turns, 1)
            done = await command(place, *here, "--force")
            assert (done.code, done.document[0]["aborted"]) == (0, True)
            assert await readable(place, turns, 1)
            assert (await command(place, "list")).document == []
            assert (await command(place, *here)).code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--partition", "2"), "--partition must be below 2"),
        (("--partition", "0", "--topic", "no-such"), "--topic must be one of"),
    ],
)
async def test_what_is_not_there_is_named(settings: Settings, arguments: tuple[str, ...], said: str) -> None:
    async with deployment(settings, 2) as place:
        ended = await command(place, "abort", *arguments, "--yes")
        assert ended.code == 64
        assert said in ended.err


@pytest.fixture
async def unverified(private_stack: EmbeddedStack) -> EmbeddedStack:
    await take_unverified(private_stack.kafka)
    return private_stack


async def test_a_hanging_transaction_is_aborted_and_a_workers_own_only_by_force(unverified: EmbeddedStack) -> None:
    settings = load_settings(kafka=unverified.kafka, postgres=unverified.postgres, namespace="hanging")
    async with deployment(settings, 2) as place:
        for partition, transactional_id in ((0, None), (1, STRANGER)):
            forgotten = Forgotten(settings, partition, transactional_id=transactional_id)
            await forgotten.start()
            batch = forgotten.new_batch()
            batch.add(None, b"1", [])
            await forgotten.begin()
            await forgotten.append(batch)
            await forgotten.discard()
        own, stranger = (await command(place, "list")).document
        assert (own["partition"], own["own"], own["hanging"], own["state"]) == (0, True, True, "Empty")
        assert (stranger["partition"], stranger["own"], stranger["hanging"]) == (1, False, True)
        done = await command(place, "abort", "--partition", "1", "--yes")
        assert (done.code, done.document[0]["aborted"]) == (0, True)
        refused = await command(place, "abort", "--partition", "0", "--yes")
        assert refused.code == 1
        assert "restart the worker" in refused.err
        assert (await command(place, "abort", "--partition", "0", "--yes", "--force")).code == 0
        assert [await readable(place, place.topics.conversations, partition) for partition in (0, 1)] == [True, True]
