"""Workers as processes, on real Kafka and Postgres: shares, deaths, pauses, drains."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator

import pytest

from streams.settings import Settings
from tests.support.deployment import Deployment, Talk, deployment, page, shares, until_shared
from tests.support.program import Program
from tests.support.sequencing import GATEWAY
from tests.support.waiting import until

PARTITIONS = 4
MEMBER = f"{GATEWAY}.1"


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Deployment]:
    async with deployment(settings, PARTITIONS) as made:
        yield made


async def end_well(running: Program) -> None:
    assert await running.stop() == 0


async def test_turns_come_out_in_order_once_and_gap_free(place: Deployment) -> None:
    async with place.worker() as (running, _):
        talk = Talk(place)
        await talk.some(10)
        said = await talk.end()
        await place.all_taken(said)
        await end_well(running)
    await place.require_sound()


async def test_the_pages_of_a_worker_tell_how_it_is(place: Deployment) -> None:
    async with place.worker() as (running, worker):
        url = (await running.until("ready"))["metrics"].removesuffix("/metrics")
        status, text = await asyncio.to_thread(page, f"{url}/readyz")
        ready = json.loads(text)
        assert (status, ready["id"]) == (200, worker)
        assert {one["state"] for one in ready["partitions"].values()} == {"running"}
        status, text = await asyncio.to_thread(page, f"{url}/metrics")
        assert status == 200
        assert f"turnlog_leases_held {float(PARTITIONS)}" in text
        assert (await asyncio.to_thread(page, f"{url}/healthz"))[0] == 200
        assert (await asyncio.to_thread(page, f"{url}/other"))[0] == 404


async def test_two_workers_share_a_third_gets_its_part_and_one_that_leaves_hands_its_part_back(
    place: Deployment,
) -> None:
    talk = Talk(place, worked=False)
    async with place.worker() as (_, first):
        await until_shared(place, {first: 4})
        async with place.worker() as (_, second):
            await until_shared(place, {first: 2, second: 2})
            async with place.worker() as (third_running, third):
                await until(lambda: _is_fair(place, {first, second, third}))
                await end_well(third_running)
                await until_shared(place, {first: 2, second: 2})
            said = await talk.end()
            await place.all_taken(said)
    await place.require_sound()


async def _is_fair(place: Deployment, workers: set[str]) -> bool:
    counts = await shares(place)
    return set(counts) == workers and max(counts.values()) - min(counts.values()) <= 1


async def test_a_killed_workers_partitions_run_elsewhere_before_its_leases_end(
    place: Deployment, settings: Settings
) -> None:
    async with place.worker() as (doomed, first), place.worker() as (_, second):
        await until_shared(place, {first: 2, second: 2})
        talk = Talk(place)
        await talk.some(10)
        doomed.kill()
        killed_at = time.monotonic()
        await until_shared(place, {second: 4})
        took_s = time.monotonic() - killed_at
        await talk.some(10)
        said = await talk.end()
        await place.all_taken(said)
        assert took_s < (settings.lease_ttl_ms - settings.lease_heartbeat_ms) / 1000, "they were not waited for"
    await place.require_sound()


async def test_a_worker_stopped_past_its_lease_and_woken_stands_down_and_nothing_of_it_is_seen(
    settings: Settings,
) -> None:
    short = settings.model_copy(update={"lease_ttl_ms": 2_000, "lease_heartbeat_ms": 500})
    async with deployment(short, PARTITIONS) as place:
        async with place.worker() as (paused, first), place.worker() as (_, second):
            await until_shared(place, {first: 2, second: 2})
            talk = Talk(place)
            await talk.some(5)
            paused.process.send_signal(signal.SIGSTOP)
            await until_shared(place, {second: 4})
            before = await place.writers()
            paused.process.send_signal(signal.SIGCONT)
            await talk.some(20)
            # Awake again it is a live worker like any other: it gets its share back, with higher epochs.
            await until_shared(place, {first: 2, second: 2})
            after = await place.writers()
            said = await talk.end()
            await place.all_taken(said)
        assert all(after[p][1] > before[p][1] for p, (worker, _) in after.items() if worker == first)
        await place.require_sound()


async def test_garbage_in_each_intake_topic_becomes_dead_letters_and_the_partition_goes_on(place: Deployment) -> None:
    async with place.worker() as (running, _):
        topics = place.topics
        await place.furnish(MEMBER)
        await place.furnished(MEMBER)
        await place.open("c1")
        home = place.home("c1")
        for topic in (topics.turns, topics.frames, topics.membership):
            await place.garbage(topic, home, b"garbage")
            await place.garbage(topic, home, None)
            await place.garbage(topic, home, b"x" * 900_000)
        await place.garbage(topics.turns, (home + 1) % PARTITIONS, b"c1's record", key=b"c1")
        await place.turn("c1", "after all that")
        await place.all_taken({"c1": ["after all that"]})

        async def rejected() -> int:
            entries = [e for all_of in (await place.journal()).values() for e in all_of]
            return sum(type(e.event).__name__ == "Rejected" for e in entries) == 10

        await until(rejected)
        url = (await running.until("ready"))["metrics"]
        _, text = await asyncio.to_thread(page, url)
        assert 'turnlog_dead_letters_total{reason="too_large"} 2.0' in text
    await place.require_sound()


async def test_sigterm_twice_ends_it_at_once(place: Deployment) -> None:
    async with place.worker() as (running, _):
        running.process.send_signal(signal.SIGSTOP)
        running.process.send_signal(signal.SIGTERM)
        running.process.send_signal(signal.SIGINT)
        running.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(5):
            assert await running.process.wait() == 130  # it has not drained, and says so
