"""How long a worker takes to go on where another was killed, and what conversations cost it in memory.

Recovery is timed where it is longest: one partition has all of the conversations, its checkpoint is the one from before
the events, and so all of them are replayed. The clock runs from the kill to the heir's first commit.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil

from ops.bench.fill import DOCUMENT, GATEWAY, GROUP, MEMBERS, Filler, producer_to
from ops.bench.sequencer import (
    LOOK_EVERY_S,
    BenchFailed,
    Journal,
    Notify,
    cancelled,
    cpu_seconds,
    journal_of,
    worker_process,
)
from ops.children import Child
from streams.core.commands import ApplyConfig, Command, CommitFrame, CommitTurn, Join, OpenConversation, OpenWriter
from streams.core.events import Frame, MemberJoined, Turn
from streams.core.fold import step
from streams.core.ids import message_id, turn_key
from streams.core.state import KEYS_IN_ROW, Partition
from streams.fence.memory import MemoryCheckpoints, MemoryStore
from streams.fence.port import Positions, Token
from streams.runtime.memory import Memory
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

NEVER: Final = {"TURNLOG_CHECKPOINT_EVERY_EVENTS": str(10**9), "TURNLOG_CHECKPOINT_EVERY_MS": str(24 * 3600 * 1000)}
PATIENCE_S: Final = 60.0
WEIGHED_EVERY_S: Final = 0.1
WEIGHED_AT_ONCE: Final = 250
"""Conversations that are decoded at the same time while others are weighed asleep."""
BEGAN_AT: Final = 1_700_000_000_000
MEMBER: Final = f"{GATEWAY}.1"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was measured. `cpu_s`: of the heir, meanwhile. `worker_rss_bytes`: the most that a worker had at any time:
    the one that opened all of the conversations, the one that was killed, its heir. `resident`: of how many
    conversations the first of them had something in memory at its end; the others were in PostgreSQL alone."""

    recovery_s: float
    cpu_s: float
    worker_rss_bytes: int
    resident: int


async def measure_recovery(settings: Settings, conversations: int, events: int, logs: Path, notify: Notify) -> Recovery:
    """On a new deployment of one partition (its topics and tables are there). `logs`: where its workers write."""
    weights: list[int] = []
    async with AsyncExitStack() as undo:
        producer = producer_to(settings.kafka)
        await producer.start()
        undo.push_async_callback(producer.stop)
        topics = Topics(settings.namespace)
        codec = open_codec(settings.schema_registry, topics)
        journal = await undo.enter_async_context(journal_of(settings, codec, partitions=1))
        filler = Filler(producer, topics, 1, codec)
        await filler.roster()
        undo.push_async_callback(cancelled, asyncio.create_task(filler.keep_alive()))
        async with (
            worker_process(settings, logs / "first.log", notify, wait=True) as first,
            _weighed(first, weights),
        ):
            await journal.until(MemberJoined, MEMBERS)
            notify(f"opening {conversations:,} conversations")
            before = await journal.ends()
            ids = await filler.conversations(conversations)
            await journal.until_quiet(before, conversations)
            resident = await _resident_at(str(first.ready["metrics"]))
        async with (
            worker_process(settings, logs / "victim.log", notify, wait=True, **NEVER) as victim,
            worker_process(settings, logs / "heir.log", notify, wait=True) as heir,
            _weighed(victim, weights),
            _weighed(heir, weights),
        ):
            notify(f"writing {events:,} turns that no checkpoint holds")
            before = await journal.ends()
            await filler.turns(ids, events)
            await journal.until_quiet(before, events)
            notify("killing their worker")
            cpu_s = cpu_seconds(heir.pid)
            recovery_s = await _recovered(journal, victim.kill)
            cpu_s = cpu_seconds(heir.pid) - cpu_s
    return Recovery(recovery_s, cpu_s, max(weights), resident)


@asynccontextmanager
async def _weighed(worker: Child, weights: list[int]) -> AsyncIterator[None]:
    """Note the worker's resident bytes again and again for as long as the block runs, or the worker lives."""

    async def weigh_it() -> None:
        with suppress(psutil.NoSuchProcess):  # it was killed, which is what this bench does
            process = psutil.Process(worker.pid)
            while True:
                weights.append(process.memory_info().rss)
                await asyncio.sleep(WEIGHED_EVERY_S)

    weighing = asyncio.create_task(weigh_it())
    try:
        yield
    finally:
        await cancelled(weighing)


async def _resident_at(metrics: str) -> int:
    """What `turnlog_conversations_resident` says, over all partitions."""
    async with httpx.AsyncClient() as client:
        page = (await client.get(metrics)).raise_for_status().text
    lines = [line for line in page.splitlines() if line.startswith("turnlog_conversations_resident{")]
    return round(sum(float(line.rpartition(" ")[2]) for line in lines))


async def _recovered(journal: Journal, kill: Callable[[], None]) -> float:
    before = sum((await journal.ends()).values())
    begun = time.perf_counter()
    kill()
    while sum((await journal.ends()).values()) == before:
        if time.perf_counter() - begun > PATIENCE_S:
            raise BenchFailed(f"nothing was committed within {PATIENCE_S:g} s")
        await asyncio.sleep(LOOK_EVERY_S)
    return time.perf_counter() - begun


async def weigh(conversations: int) -> float:
    """Resident bytes of this process for each of so many idle conversations with their 64 newest keys and last 16 runs,
    as a worker keeps them: the real core and the real memory, without a store."""
    state = Partition(0)
    unused = MemoryCheckpoints(MemoryStore())
    memory = Memory(state, unused, Token(1, "weigher"), stored_lsn=0, idle_max=lambda: 2 * conversations)
    for command in _furniture():
        step(state, command, 1)
    await _rest_some(memory, WEIGHED_AT_ONCE)
    before = _resident()
    for _ in range(conversations // WEIGHED_AT_ONCE):
        await _rest_some(memory, WEIGHED_AT_ONCE)
    if state.conversations:
        raise BenchFailed(f"{len(state.conversations)} conversations did not fall asleep")
    weighed = conversations // WEIGHED_AT_ONCE * WEIGHED_AT_ONCE
    return (_resident() - before) / weighed


def _resident() -> int:
    """Without pages of files, as of the interpreter's code: the kernel takes and gives them when it likes."""
    gc.collect()
    memory = psutil.Process(os.getpid()).memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))  # only Linux tells


async def _rest_some(memory: Memory, number: int) -> None:
    """So many new conversations, each with more keys than a row holds, until they are asleep."""
    for _ in range(number):
        for command in _dialogue(str(uuid.uuid4())):
            step(memory.state, command, 1)
    for _ in range(2):  # what changed since the last checkpoint may stay awake
        memory.stored(await memory.snapshot(0, Positions()))


def _furniture() -> list[Command]:
    at = BEGAN_AT
    join = Join(at=at, timestamp=at, gateway=GATEWAY, n=1, member=MEMBER, channel="agents", group=GROUP)
    return [
        OpenWriter(at=at, timestamp=at, writer_epoch=1, worker="weigher"),
        ApplyConfig(at=at, timestamp=at, version=1, document=DOCUMENT),
        join,
    ]


def _dialogue(conversation: str) -> Iterator[Command]:
    """A conversation that somebody opens and talks in, and is answered, until it has a row full of keys and more."""
    at = BEGAN_AT
    yield OpenConversation(at=at, timestamp=at, conversation_id=conversation, channel="web", key=uuid.uuid4().hex)
    for number in range(KEYS_IN_ROW // 2 + 1):
        timestamp = at + 700
        key = uuid.uuid4().hex
        id_ = message_id(conversation, turn_key("user", key))
        turn = Turn(id=id_, sender="user", channel="web", type="text", key=key, text="hello")
        yield CommitTurn(at=at, timestamp=timestamp, conversation_id=conversation, turn=turn)
        yield CommitFrame(
            at=at,
            timestamp=timestamp,
            conversation_id=conversation,
            frame=Frame(id=uuid.uuid4().hex, type="text", client_id=f"agent.{id_}.m1", text="noted"),
            sender="agent",
            channel="agents",
            group=GROUP,
            member=MEMBER,
            gateway=GATEWAY,
            delivered_seq=2 * number + 1,
        )
