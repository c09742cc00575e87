"""A worker killed, or stopped past its lease and woken, while people talk: nothing is lost, doubled, or seen of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from streams.core.events import WriterOpened
from streams.runtime.codec import Codec
from streams.runtime.kafka import bounds, consumer
from streams.settings import Settings
from streams.topics import Topics
from tests.support.command import turnlog_async
from tests.support.people import Dialogue, agents, dialogues, given, hold_all
from tests.support.up import Up, turnlog_up
from tests.support.waiting import until

DIALOGUES = 60
LEASES_LAST_MS = Settings.model_fields["lease_ttl_ms"].default - Settings.model_fields["lease_heartbeat_ms"].default
"""A killed worker's leases have at least so long to live: what runs elsewhere sooner was not taken because they ended.
How soon it is on a quiet machine is measured by `turnlog bench takeover`."""
PARTITIONS = 8
REQUEST_S = 10.0
SHORT_LEASES = {"TURNLOG_LEASE_TTL_MS": "3000", "TURNLOG_LEASE_HEARTBEAT_MS": "1000"}


@contextmanager
def two_workers(tmp_path: Path, **environment: str) -> Iterator[Up]:
    options = ("--workers", "2", "--partitions", str(PARTITIONS))
    with turnlog_up(tmp_path / "data", *options, environment=environment) as running:
        yield running


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with two_workers(tmp_path) as running:
        yield running


@pytest.fixture
def up_with_short_leases(tmp_path: Path) -> Iterator[Up]:
    """Leases that a paused process outlives within the length of a test."""
    with two_workers(tmp_path, **SHORT_LEASES) as running:
        yield running


async def leases(up: Up) -> list[dict[str, Any]]:
    ended = await turnlog_async("lease", "list", "-o", "json", environment=up.environment)
    return list(ended.document)


def holders(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["worker"] for row in rows if row["live"]}


async def openings(up: Up) -> list[tuple[int, int, WriterOpened]]:
    """(partition, when it was written in ms, event) of every writer epoch in the journal."""
    names = [TopicPartition(Topics().conversations, partition) for partition in range(PARTITIONS)]
    codec, found = Codec(), []
    reader = consumer(up.document["kafka"], REQUEST_S)
    await reader.start()
    try:
        kept = await bounds(reader, names, REQUEST_S)
        reader.assign(names)
        await reader.seek_to_beginning(*names)
        while any([await reader.position(name) < kept[name].end for name in names]):
            for name, records in (await reader.getmany(timeout_ms=200)).items():
                for record in records:
                    event = codec.decode_entry(record.value).event
                    if isinstance(event, WriterOpened):
                        found.append((name.partition, record.timestamp, event))
    finally:
        await reader.stop()
    return found


async def talk(up: Up, disturb: Any) -> list[Dialogue]:
    """People talk with four agents all through `disturb`, and everything that they said was answered once, in order."""
    all_of = dialogues(DIALOGUES)
    async with agents(up, f"g{uuid.uuid4().hex[:8]}", 4, "--delay-ms", "20") as four:
        talking = asyncio.create_task(hold_all(up, all_of, at_once=20))
        try:
            await until(lambda: len(given(four)) > DIALOGUES or talking.done())
            await disturb()
            held = await talking
        finally:
            talking.cancel()
        took = Counter((turn["conversation"], turn["seq"]) for turn in given(four))
    for each in held:
        texts = [text for _, _, text in each.heard]
        assert texts == [spoken for line in each.dialogue.lines for spoken in (line, f"answer to {line}")]
        assert [seq for seq, _, _ in each.heard] == list(range(1, len(texts) + 1))
    assert took.most_common(1)[0][1] == 1
    return all_of


async def require_sound(up: Up, said: Sequence[Dialogue]) -> None:
    verdict = await turnlog_async("audit", "verify", "-o", "json", environment=up.environment)
    assert (verdict.code, verdict.document["violations"]) == (0, []), (verdict.err, verdict.document["violations"][:3])
    turns = sum(len(dialogue.lines) for dialogue in said)
    assert (verdict.document["turns"], verdict.document["answered"]) == (turns, turns)


async def test_a_killed_workers_partitions_run_elsewhere_before_its_leases_end_and_no_turn_is_lost_or_doubled(
    up: Up,
) -> None:
    victim = up.document["workers"][0]
    killed: list[tuple[int, set[int]]] = []

    async def kill() -> None:
        held = {row["partition"] for row in await leases(up) if row["worker"] == victim["id"]}
        killed.append((time.time_ns() // 1_000_000, held))
        os.kill(victim["pid"], signal.SIGKILL)

    said = await talk(up, kill)
    ((at, partitions),) = killed
    assert partitions
    after: dict[int, int] = {}

    async def opened_elsewhere() -> bool:
        found = reversed(await openings(up))
        later = ((partition, when) for partition, when, event in found if when >= at and event.worker != victim["id"])
        after.update({partition: when - at for partition, when in later if partition in partitions})
        return set(after) == partitions

    await until(opened_elsewhere)  # all that was said may have been answered before
    assert max(after.values()) < LEASES_LAST_MS, after
    await require_sound(up, said)


async def test_a_worker_stopped_past_its_lease_and_woken_stands_down_and_nothing_of_it_is_visible(
    up_with_short_leases: Up,
) -> None:
    up = up_with_short_leases
    sleeper, other = up.document["workers"]
    asleep: list[set[int]] = []

    async def stop_and_wake() -> None:
        asleep.append({row["partition"] for row in await leases(up) if row["worker"] == sleeper["id"]})
        os.kill(sleeper["pid"], signal.SIGSTOP)
        try:

            async def taken_over() -> bool:
                return holders(await leases(up)) == {other["id"]}

            await until(taken_over)
        finally:
            os.kill(sleeper["pid"], signal.SIGCONT)

        async def back() -> bool:
            return sleeper["id"] in holders(await leases(up))

        await until(back)  # it has stood down, whatever told it first, and has its share again

    said = await talk(up, stop_and_wake)
    (partitions,) = asleep
    assert partitions
    epochs = {partition: [] for partition in partitions}  # type: dict[int, list[WriterOpened]]
    for partition, _, event in await openings(up):
        if partition in partitions:
            epochs[partition].append(event)
    for opened in epochs.values():
        numbers = [event.writer_epoch for event in opened]
        assert numbers == sorted(set(numbers))
        assert (sleeper["id"], other["id"]) in pairwise(event.worker for event in opened)
    await require_sound(up, said)
