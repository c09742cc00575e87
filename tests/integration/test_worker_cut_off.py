"""A worker that alone cannot reach Kafka, and all of them: on real servers, the network as if packets were dropped."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streams.settings import Settings, load_settings
from tests.support.deployment import Deployment, Talk, deployment, page, until_shared
from tests.support.program import Program, program
from tests.support.waiting import until

PARTITIONS = 4
REQUEST_TIMEOUT_MS = 2_000
LEASE_TTL_S = 15.0


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Deployment]:
    impatient = load_settings(
        kafka=settings.kafka,
        postgres=settings.postgres,
        namespace=settings.namespace,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        transaction_timeout_ms=5_000,
    )
    async with deployment(impatient, PARTITIONS) as made:
        yield made


@asynccontextmanager
async def cuttable(place: Deployment) -> AsyncIterator[tuple[Program, str]]:
    command = (sys.executable, "-m", "tests.support.cut_off", "worker", "-o", "json")
    async with program(*command, environment=place.environment) as running:
        ready = await running.until("ready")
        yield running, ready["id"]


async def readiness(running: Program) -> tuple[int, Any]:
    url = (await running.until("ready"))["metrics"].removesuffix("/metrics")
    status, text = await asyncio.to_thread(page, f"{url}/readyz")
    return status, json.loads(text)


async def test_who_alone_is_cut_off_from_kafka_hands_over_within_its_lease_and_comes_back(place: Deployment) -> None:
    async with cuttable(place) as (mine, me), place.worker() as (others, other):
        await until_shared(place, {me: 2, other: 2})
        talk = Talk(place)
        await talk.some(5)
        mine.process.send_signal(signal.SIGUSR1)
        began = time.monotonic()
        await until_shared(place, {other: PARTITIONS})
        assert time.monotonic() - began < LEASE_TTL_S
        await talk.some(5)
        status, document = await readiness(mine)
        assert (status, document["ready"]) == (503, False)
        assert {name: one["ok"] for name, one in document["dependencies"].items()} == {"kafka": False, "postgres": True}
        mine.process.send_signal(signal.SIGUSR2)
        await until_shared(place, {me: 2, other: 2})
        await until(lambda: is_ready(mine))
        said = await talk.end()
        await place.all_taken(said)
        assert (await mine.stop(), await others.stop()) == (0, 0)
    await place.require_sound()


async def is_ready(running: Program) -> bool:
    return (await readiness(running))[0] == 200


async def test_where_all_are_cut_off_nothing_changes_hands(place: Deployment) -> None:
    async with cuttable(place) as (first, me), cuttable(place) as (second, other):
        await until_shared(place, {me: 2, other: 2})
        owners = {partition: worker for partition, (worker, _) in (await place.writers()).items()}
        talk = Talk(place)
        await talk.some(5)
        for running in (first, second):
            running.process.send_signal(signal.SIGUSR1)
        await until(lambda: all_cut_off(first, second), limit_s=LEASE_TTL_S)
        await asyncio.sleep(
            4
        )  # how long the cut lasts beyond its being known, longer than a lone one would keep its own
        for running in (first, second):
            running.process.send_signal(signal.SIGUSR2)
        said = await talk.end()
        await place.all_taken(said)
        assert {partition: worker for partition, (worker, _) in (await place.writers()).items()} == owners
        assert (await first.stop(), await second.stop()) == (0, 0)
    await place.require_sound()


async def all_cut_off(*workers: Program) -> bool:
    return not any([(await readiness(running))[1]["dependencies"]["kafka"]["ok"] for running in workers])
