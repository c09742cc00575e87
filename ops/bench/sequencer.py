"""How fast one worker is: its own process, on a filled intake, with everything that it does in earnest."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from aiokafka import TopicPartition

from ops.bench.fill import MEMBERS, Filler, producer_to
from ops.bench.floor import CONVERSATIONS
from ops.children import Child, ChildPlan, environment_of
from ops.journal import REQUEST_LIMIT_S
from streams.core.events import ConversationOpened, Event, MemberJoined, TurnCommitted
from streams.runtime.codec import Codec
from streams.runtime.kafka import bounds, consumer
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

LOOK_EVERY_S: Final = 0.02
LEAST_TIMED: Final = 0.5
"""Of the turns, so many must be left to be timed when the last partition is open."""
QUIET_S: Final = 1.0
"""A journal with more records than turns that has not grown for so long is whole; its turns are counted then."""
STALLED_S: Final = 30.0
"""A worker that commits nothing for so long, though there is more, has a problem."""

Notify = Callable[[str], None]
Ends = Mapping[TopicPartition, int]


class BenchFailed(Exception):
    """What was to be measured did not happen; the message says what was missing."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What was measured. The clock runs from when the worker had opened its partitions to its last commit.

    As for the floor, starting up does not count. A partition is opened by its first batch: the turns of those are not
    counted either.
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
    """How many offsets the journal has grown by, all partitions."""
    opened: int
    """Partitions whose journal has grown."""
    ends: Ends


async def measure_sequencer(settings: Settings, turns: int, partitions: int, notify: Notify) -> Sequenced:
    """Time one worker on `turns` turns that wait in the intake of a new deployment (its topics and tables are there).

    A worker before it takes the channels, the members and the conversations, and stores its checkpoints: the one that
    is timed finds what a worker finds that takes over.
    """
    async with AsyncExitStack() as undo:
        producer = producer_to(settings.kafka)
        await producer.start()
        undo.push_async_callback(producer.stop)
        topics = Topics(settings.namespace)
        codec = open_codec(settings.schema_registry, topics)
        journal = await undo.enter_async_context(journal_of(settings, codec, partitions))
        filler = Filler(producer, topics, partitions, codec)
        logs = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="turnlog-bench-")))
        await filler.roster()
        undo.push_async_callback(cancelled, asyncio.create_task(filler.keep_alive()))
        notify(f"opening {min(turns, CONVERSATIONS):,} conversations")
        async with worker_process(settings, logs / "first.log", notify):
            await journal.until(MemberJoined, MEMBERS * partitions)
            conversations = await filler.conversations(min(turns, CONVERSATIONS))
            await journal.until(ConversationOpened, len(conversations))
        notify(f"filling the intake with {turns:,} turns")
        await filler.turns(conversations, turns)
        before = await journal.ends()
        notify("starting the worker")
        async with worker_process(settings, logs / "timed.log", notify) as worker:
            looks = await _watch(worker, journal, before, turns)
        committed = await journal.count(TurnCommitted, before)
        if committed != turns:
            raise BenchFailed(f"{committed:,} of {turns:,} turns were committed, and no more came\n{worker.tail()}")
        begun = _begun(looks, partitions)
        timed = await journal.count(TurnCommitted, begun.ends)
        if timed < turns * LEAST_TIMED:
            raise BenchFailed(
                f"only {timed:,} of {turns:,} turns were left when all partitions were open: give it more"
            )
        return Sequenced(timed, looks[-1].at - begun.at, looks[-1].cpu_seconds - begun.cpu_seconds)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel it, and wait until it has ended."""
    task.cancel()
    await asyncio.wait({task})


@asynccontextmanager
async def worker_process(
    settings: Settings, log: Path, notify: Notify, *, wait: bool = False, **variables: str
) -> AsyncIterator[Child]:
    """A worker's process, from when it is started (`wait`: from when it is ready) until the block is left. `variables`:
    further ones of its environment."""
    environment = {**environment_of(settings), **variables}
    command = [sys.executable, "-m", "ops.cli", "worker", "-o", "json", "--lifeline"]
    worker = Child(ChildPlan(name="worker", command=command, environment=environment, log=log), notify)
    starting = asyncio.create_task(worker.start())
    try:
        if wait:
            await starting
        yield worker
        await starting
    except (BenchFailed, psutil.NoSuchProcess) as failure:
        raise BenchFailed(f"{failure}\n{worker.tail()}") from None
    finally:
        await cancelled(starting)
        await worker.stop(settings.drain_budget_ms / 1000)


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of the deployment, looked at from outside."""

    looker: Any
    """Asks for ends and never fetches: on one connection, a broker answers that only after the fetches before it."""
    reader: Any
    codec: Codec
    partitions: Sequence[TopicPartition]

    async def ends(self) -> Ends:
        """What is committed now."""
        kept = await bounds(self.looker, self.partitions, REQUEST_LIMIT_S)
        return {name: kept[name].end for name in self.partitions}

    async def count(self, kind: type[Event], after: Ends | None = None) -> int:
        """Events of this kind committed so far."""
        ends, found = await self.ends(), 0
        self.reader.assign(list(ends))
        for name in ends:
            self.reader.seek(name, (after or {}).get(name, 0))
        while any([await self.reader.position(name) < end for name, end in ends.items()]):
            for records in (await self.reader.getmany(timeout_ms=200, max_records=4000)).values():
                found += sum(isinstance(self.codec.decode_entry(record.value).event, kind) for record in records)
        return found

    async def until_quiet(self, before: Ends, records: int) -> None:
        """Wait until at least so many records were written since `before`, and no more come."""
        written, changed = -1, time.perf_counter()
        while written < records or time.perf_counter() - changed < QUIET_S:
            await asyncio.sleep(LOOK_EVERY_S)
            ends = await self.ends()
            if (now := sum(ends[name] - before[name] for name in ends)) != written:
                written, changed = now, time.perf_counter()
            elif time.perf_counter() - changed > STALLED_S:
                raise BenchFailed(f"{written:,} of at least {records:,} records were written, and no more came")

    async def until(self, kind: type[Event], number: int) -> None:
        """Wait for so many events of this kind."""
        deadline = time.perf_counter() + STALLED_S
        while (found := await self.count(kind)) < number:
            if time.perf_counter() > deadline:
                raise BenchFailed(f"after {STALLED_S:g} s there were {found:,} of {number:,} {kind.__name__}")


@asynccontextmanager
async def journal_of(settings: Settings, codec: Codec, partitions: int) -> AsyncIterator[Journal]:
    """The journal of a deployment for as long as the block runs."""
    async with AsyncExitStack() as undo:
        looker, reader = (consumer(settings.kafka, REQUEST_LIMIT_S) for _ in range(2))
        for client in (looker, reader):
            await client.start()
            undo.push_async_callback(client.stop)
        topic = Topics(settings.namespace).conversations
        yield Journal(looker, reader, codec, [TopicPartition(topic, partition) for partition in range(partitions)])


async def _watch(worker: Child, journal: Journal, before: Ends, turns: int) -> list[_Look]:
    """Look at the journal's ends and the worker's CPU, without reading it, until it grows no more."""
    looks: list[_Look] = []
    changed = time.perf_counter()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        if not worker.started:
            continue
        ends = await journal.ends()
        written = [ends[name] - before[name] for name in ends]
        look = _Look(time.perf_counter(), cpu_seconds(worker.pid), sum(written), sum(map(bool, written)), ends)
        if not looks or look.written != looks[-1].written:
            looks.append(look)
            changed = look.at
        if look.at - changed > (QUIET_S if look.written > turns else STALLED_S):
            return looks


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all threads."""
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


def _begun(looks: Sequence[_Look], partitions: int) -> _Look:
    """The first of `looks`, each the first to see what it saw, that saw all partitions open."""
    if not looks or looks[0].written:
        raise BenchFailed("the worker wrote before it was first looked at: nothing can be said about its speed")
    begun = next((look for look in looks if look.opened == partitions), None)
    if begun is None:
        raise BenchFailed(f"the worker opened {looks[-1].opened} of {partitions} partitions")
    return begun
