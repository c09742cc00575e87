"""Fixtures of the field reports' tests: a gateway in memory, and an admin client of the session's brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from ops.embedded import EmbeddedStack
from tests.support.gateway_world import Served, World, serve


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def served(world: World) -> AsyncIterator[Served]:
    """A gateway of `world`."""
    async with serve(world) as running:
        yield running


@pytest.fixture
async def admin(stack: EmbeddedStack) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await client.start()
    yield client
    await client.close()
