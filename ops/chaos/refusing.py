"""A topic that takes no record for a while: its broker allows none of their size, but the markers of transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from ops.provision import connected_admin
from streams.runtime.kafka import KafkaUnavailable

MOST_BYTES: Final = "max.message.bytes"
ONLY_MARKERS: Final = "128"
"""A marker is 78 bytes: 61 of the batch, 17 of its record. A batch that opens a writer epoch, the least one, has 200. A
broker that refuses a marker would never try it again, and hold that transaction for open until it starts anew."""
SET_ON_THE_TOPIC: Final = 1
"""DYNAMIC_TOPIC_CONFIG of a setting's source in DescribeConfigs."""


@asynccontextmanager
async def refusing(kafka: str, topic: str) -> AsyncIterator[None]:
    """For as long as the block runs. Raises `KafkaUnavailable` or what Kafka's client raises."""
    async with connected_admin(kafka) as admin:
        kept = await _set_on(admin, topic)
        await _put(admin, topic, {**kept, MOST_BYTES: ONLY_MARKERS})
    try:
        yield
    finally:
        async with connected_admin(kafka) as admin:
            await _put(admin, topic, kept)


async def _set_on(admin: AIOKafkaAdminClient, topic: str) -> Mapping[str, str]:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((code, message, _, _, entries),) = answer.resources
    _require(code, message)
    return {key: value for key, value, _, source, *_ in entries if source == SET_ON_THE_TOPIC}


async def _put(admin: AIOKafkaAdminClient, topic: str, configs: Mapping[str, str]) -> None:
    """Replaces all that is set on the topic."""
    for answer in await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(configs))]):
        for code, message, *_ in answer.resources:
            _require(code, message)


def _require(code: int, message: str | None) -> None:
    if code:
        raise KafkaUnavailable(f"the settings of a topic: {message or for_code(code).__name__}")
