"""A projector through outages of its servers: it waits, says so, and goes on where the rows are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from ops.embedded import EmbeddedStack
from streams.fence.migrate import migrate
from streams.fence.port import FenceUnavailable
from streams.projector.read import ReadModel
from streams.settings import Settings, load_settings
from streams.topics import Topics, ensure
from tests.support.projector import ProjectorProcess, journal_writer
from tests.support.story import long_story
from tests.support.waiting import until

OUTAGE_WITHIN_S = 60


@pytest.fixture
async def deployed(private_stack: EmbeddedStack) -> Settings:
    settings = load_settings(kafka=private_stack.kafka, postgres=private_stack.postgres, namespace="outages")
    migrate(settings.postgres)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, Topics(settings.namespace), partitions=1)
    finally:
        await admin.close()
    return settings


@pytest.fixture
async def model(deployed: Settings) -> AsyncIterator[ReadModel]:
    read = ReadModel(deployed.postgres)
    yield read
    await read.close()


async def reached(model: ReadModel, lsn: int) -> None:
    async def is_there() -> bool:
        try:
            return (await model.position(0)).lsn == lsn
        except FenceUnavailable:
            return False

    await until(is_there, limit_s=OUTAGE_WITHIN_S)


async def answer(url: str) -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).status_code


async def test_it_outlives_both_servers_and_ends_at_once_without_them(
    private_stack: EmbeddedStack, deployed: Settings, model: ReadModel, tmp_path: Path
) -> None:
    entries = long_story().entries
    with ProjectorProcess(deployed, tmp_path / "projector.log") as projector:
        healthz = projector.ready()["metrics"].replace("/metrics", "/healthz")
        async with journal_writer(deployed) as journal:
            await journal.commit(entries[:10])
            await reached(model, 10)
            assert await answer(healthz) == 200

            await asyncio.to_thread(private_stack.kill_postgres)
            await journal.commit(entries[10:20])
            await until(lambda: _is(healthz, 503))
            await asyncio.to_thread(private_stack.restart_postgres)
            await reached(model, 20)
            await until(lambda: _is(healthz, 200))

        await asyncio.to_thread(private_stack.kill_kafka)
        await asyncio.to_thread(private_stack.restart_kafka)
        async with journal_writer(deployed) as journal:
            await journal.commit(entries[20:])
        await reached(model, entries[-1].lsn)

        await asyncio.to_thread(private_stack.kill_postgres)
        assert await asyncio.to_thread(projector.stop) == 0
    await asyncio.to_thread(private_stack.restart_postgres)


async def _is(url: str, code: int) -> bool:
    return await answer(url) == code
