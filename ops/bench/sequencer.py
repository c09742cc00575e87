"""How fast one worker is: its own process, on a filled intake, with everything that it does in earnest."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from aiokafka import TopicPartition

from ops.bench.fill import Filler, producer_to
from ops.children import Child, ChildPlan
from ops.journal import REQUEST_LIMIT_S
from streams.core.events import TurnCommitted
from streams.runtime.codec import Codec
from streams.runtime.kafka import bounds, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

LOOK_EVERY_S: Final = 0.02
OPENING_RECORDS: Final = 16
"""Opening a partition writes at most so many records (WriterOpened, channels, members, positions, markers)."""
QUIET_S: Final = 1.0
"""A journal with more records than turns that has not grown for so long is whole; its turns are counted then."""
STALLED_S: Final = 30.0
"""A worker that commits nothing for so long, though there is more, has a problem."""

Notify = Callable[[str], None]


class BenchFailed(Exception):
    """What was to be measured did not happen; the message says what was missing."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What was measured. The clock runs from when the worker had opened its partitions to its last commit.

    As for the floor, starting up does not count; were a turn committed before the last partition was open, the clock
    would run from before that.
    """

    turns: int
    seconds: float
    cpu_seconds: float
    """User and system time of the worker's process in that time, all threads."""

    @property
    def turns_per_s(self) -> float:
        """Committed turns a second."""
        return self.turns / self.seconds

    @property
    def cpu_us_per_turn(self) -> float:
        """The worker's CPU, µs."""
        return self.cpu_seconds / self.turns * 1e6


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    cpu_seconds: float
    written: int
    """Offsets of the journal, all partitions."""
    opened: int
    """Partitions whose journal has begun."""


async def measure_sequencer(settings: Settings, turns: int, partitions: int, notify: Notify) -> Sequenced:
    """Fill the intake of a new deployment (its topics and tables are there), run one worker through it, and time it."""
    topics = Topics(settings.namespace)
    codec = open_codec(settings.schema_registry, topics)
    producer = producer_to(settings.kafka)
    await producer.start()
    try:
        filler = Filler(producer, topics, partitions, codec)
        notify(f"filling the intake with {turns:,} turns")
        await filler.roster()
        await filler.turns(await filler.conversations(turns), turns)
        alive = asyncio.create_task(filler.keep_alive())
        try:
            notify("starting the worker")
            with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as logs:
                return await _run_worker(settings, Path(logs), turns, partitions, notify)
        finally:
            alive.cancel()
            await asyncio.wait({alive})
    finally:
        await producer.stop()


async def _run_worker(settings: Settings, logs: Path, turns: int, partitions: int, notify: Notify) -> Sequenced:
    """One worker from its start to its last commit, timed."""
    environment = {
        "TURNLOG_KAFKA": settings.kafka,
        "TURNLOG_POSTGRES": settings.postgres,
        "TURNLOG_NAMESPACE": settings.namespace,
    }
    command = [sys.executable, "-m", "ops.cli", "worker", "-o", "json", "--lifeline"]
    worker = Child(ChildPlan(name="worker", command=command, environment=environment, log=logs / "worker.log"), notify)
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    await reader.start()
    starting = asyncio.create_task(worker.start())
    try:
        topics = Topics(settings.namespace)
        codec = open_codec(settings.schema_registry, topics)
        journal = [TopicPartition(topics.conversations, partition) for partition in range(partitions)]
        return await _watch(worker, reader, codec, journal, turns)
    except BenchFailed as failure:
        raise BenchFailed(f"{failure}\n{worker.tail()}") from None
    except psutil.NoSuchProcess:
        raise BenchFailed(f"the worker ended\n{worker.tail()}") from None
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await worker.stop(settings.drain_budget_ms / 1000)
        await reader.stop()


async def _watch(worker: Child, reader: Any, codec: Codec, journal: list[TopicPartition], turns: int) -> Sequenced:
    """Look at the journal's ends and the worker's CPU until it writes no more, then whether it wrote everything."""
    looks: list[_Look] = []
    changed = time.perf_counter()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if not worker.started:
            continue
        ends = await bounds(reader, journal, REQUEST_LIMIT_S)
        written = [kept.end for kept in ends.values()]
        look = _Look(time.perf_counter(), _cpu_seconds(worker.pid), sum(written), sum(map(bool, written)))
        if not looks or look.written != looks[-1].written:
            looks.append(look)
            changed = look.at
        if look.at - changed > (QUIET_S if look.written > turns else STALLED_S):
            committed = await _committed_turns(reader, codec, {name: kept.end for name, kept in ends.items()})
            if committed != turns:
                raise BenchFailed(f"{committed:,} of {turns:,} turns were committed, and no more came")
            return _timed(looks, turns, len(journal))


def _cpu_seconds(pid: int) -> float:
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


async def _committed_turns(reader: Any, codec: Codec, ends: Mapping[TopicPartition, int]) -> int:
    """Turns in the journal up to these ends."""
    turns = 0
    reader.assign(list(ends))
    await reader.seek_to_beginning(*ends)
    while any([await reader.position(name) < end for name, end in ends.items()]):
        for records in (await reader.getmany(timeout_ms=1000, max_records=4000)).values():
            turns += sum(isinstance(codec.decode_entry(record.value).event, TurnCommitted) for record in records)
    return turns


def _timed(looks: Sequence[_Look], turns: int, partitions: int) -> Sequenced:
    """`looks`: each the first to see what it saw, all of them in order."""
    before_turns = [look for look in looks if look.written <= OPENING_RECORDS * partitions]
    if not before_turns or before_turns[0].written:
        raise BenchFailed("the worker wrote before it was first looked at: nothing can be said about its speed")
    begun = next((look for look in before_turns if look.opened == partitions), before_turns[-1])
    return Sequenced(turns, looks[-1].at - begun.at, looks[-1].cpu_seconds - begun.cpu_seconds)
