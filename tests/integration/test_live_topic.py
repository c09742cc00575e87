"""The topic `live` on Kafka: what one gateway says, the others hear; a Kafka that is away costs only the signals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient

from connectors.gateway.live_topic import WAITING_MAX, LiveTopic
from streams.runtime.codec import Codec
from streams.runtime.live import LiveSignal, Typing
from streams.settings import Settings, load_settings
from streams.topics import Topics, ensure
from tests.support.waiting import until

PARTITIONS = 2


def signal(number: int) -> LiveSignal:
    return LiveSignal(conversation_id=f"c{number}", sender="ann", at=1, gateway="gw", signal=Typing(active=True))


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[LiveTopic, list[LiveSignal]]]:
    topic = LiveTopic(settings, Topics(settings.namespace).live, Codec(), PARTITIONS)
    heard: list[LiveSignal] = []
    topic.heard = heard.append
    task = asyncio.create_task(topic.run())
    try:
        yield topic, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_gateway_hears_what_one_says_of_every_conversation(settings: Settings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(settings.namespace), partitions=PARTITIONS)
    finally:
        await admin.close()
    async with running(settings) as (one, heard_one), running(settings) as (_, heard_two):

        async def both_listen() -> bool:
            one.publish(signal(0))  # a reader begins at the end: what was said before, it does not hear
            return bool(heard_one) and bool(heard_two)

        await until(both_listen)
        for number in range(1, 20):
            one.publish(signal(number))
        said = {f"c{number}" for number in range(20)}
        await until(lambda: asyncio.sleep(0, said <= {each.conversation_id for each in heard_two}))


async def test_what_cannot_be_written_is_dropped_and_counted() -> None:
    settings = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none")
    topic = LiveTopic(settings, "live", Codec(), PARTITIONS)
    lost: list[int] = []
    topic.on_lost = lost.append
    for number in range(WAITING_MAX + 3):
        topic.publish(signal(number))
    assert sum(lost) == 3
