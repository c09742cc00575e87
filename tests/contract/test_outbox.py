"""The outbox is shared by all partitions of a worker: what one of them runs into must not look like more to others."""

from __future__ import annotations

import asyncio

from aiokafka.admin import AIOKafkaAdminClient

from ops.embedded import EmbeddedStack
from streams.runtime.kafka import REQUEST_BYTES, KafkaUnavailable
from streams.runtime.kafka_producers import KafkaOutbox
from streams.topics import Topics, ensure

LIMIT_S = 5.0


async def test_a_send_that_ends_with_anothers_error_is_unavailable_and_the_next_one_is_written(
    stack: EmbeddedStack, fresh_namespace: str
) -> None:
    topics = Topics(fresh_namespace)
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await admin.start()
    await ensure(admin, topics, partitions=1)
    await admin.close()
    outbox = KafkaOutbox(stack.kafka, LIMIT_S)
    try:
        # Both topics are known from here on, so that the next two meet in the producer at the same moment.
        await outbox.send(topics.membership, 0, b"first")
        await outbox.send(topics.dead_letters, 0, b"first")
        outcomes = await asyncio.gather(
            outbox.send(topics.membership, 0, b"tick"),
            outbox.send(topics.dead_letters, 0, bytes(REQUEST_BYTES + 1)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [KafkaUnavailable, KafkaUnavailable]
        assert await outbox.send(topics.membership, 0, b"next") > 0
    finally:
        await outbox.close()
