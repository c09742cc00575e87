"""Group 2, Kafka's transactions and limits: what went wrong for others must not go wrong here."""

from __future__ import annotations

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streams.topics import Topics, TopicsError, ensure, settings_of, verify
from tests.support.waiting import until


# ------------------------------------------------------------------------------------------- 17, an oversized frame
@pytest.mark.parametrize("name", ["turns", "frames", "membership", "conversations", "dead_letters"])
async def test_a_topic_that_takes_less_than_what_is_written_to_it_is_refused_at_start(
    admin: AIOKafkaAdminClient, fresh_namespace: str, name: str
) -> None:
    """Else the first batch above the limit is refused for ever, and its partition stands still behind it."""
    topics = Topics(fresh_namespace)
    await ensure(admin, topics, partitions=1)
    topic = getattr(topics, name)
    lowered = {**settings_of(topics, 1)[topic].fixed, "max.message.bytes": "100000"}
    small = ConfigResource(ConfigResourceType.TOPIC, topic, configs=lowered)
    await admin.alter_configs([small])

    async def refused() -> bool:
        try:
            await verify(admin, topics)
        except TopicsError as error:
            return f"{topic} has max.message.bytes=100000" in str(error)
        return False

    await until(refused)
    changes = await ensure(admin, topics)
    assert [(change.topic, change.setting) for change in changes] == [(topic, "max.message.bytes")]
    assert await verify(admin, topics) == 1
