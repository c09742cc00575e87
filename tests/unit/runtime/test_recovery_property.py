"""Whatever dies and wherever batches are cut, the journal says the same: invariants 1, 5, 7, 9, 10 and 11."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from streams.core.events import BatchCommitted, Entry, WriterOpened
from streams.core.fold import evolve
from streams.core.state import Partition
from streams.core.store import dump_conversation, dump_partition
from streams.runtime.kafka import Doubt
from streams.runtime.writer import Writer
from tests.support.sequencing import GATEWAY, LIMITS, World, settle

Said = tuple[str, str, str | None]
# Step, before or after it took effect, and how many of its calls go well first: opening a writer is one of each.
Crash = tuple[str, Literal["before", "after"], int]

CONVERSATIONS = ("c0", "c1", "c2")
said = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(CONVERSATIONS), st.none()),
        st.tuples(st.just("turn"), st.sampled_from(CONVERSATIONS), st.sampled_from(["k1", "k2", "k3", None])),
    ),
    max_size=25,
)
crashes = st.lists(
    st.tuples(
        st.sampled_from(["init", "begin", "append", "commit"]), st.sampled_from(["before", "after"]), st.integers(0, 4)
    ),
    max_size=6,
)


def world_of(lines: Sequence[Said], **limits: int) -> World:
    world = World(limits=replace(LIMITS, **limits))
    world.configure()
    for number in (1, 2):
        world.join(f"{GATEWAY}.{number}")
    for number, (what, conversation, key) in enumerate(lines):
        if what == "open":
            world.converse(conversation)
        else:
            world.turn(conversation, f"t{number}", key=key, ref=f"r{number}")
    return world


async def opened(world: World) -> Writer:
    while True:
        try:
            return await world.writer()
        except Doubt:
            continue


async def run(world: World, faults: Sequence[Crash]) -> None:
    """Take the whole intake, starting over after each of the crashes, which come in this order."""
    for step, when, skip in faults:
        world.kafka.fail(step, Doubt("crash"), when, skip)
    writer = await opened(world)
    while True:
        try:
            await settle(writer)
            await settle(writer)  # a checkpoint that is under way ends, idle conversations leave
            break
        except Doubt:
            await writer.close()
            writer = await opened(world)
    await writer.drain()
    await writer.close()


def decided(world: World) -> list[dict[str, Any]]:
    """What was decided, without what depends on how it came about: places in the log, times, writers, positions."""
    return [
        {"type": type(entry.event).__name__, **msgspec.to_builtins(entry.event), "since": None}
        for entry in world.journal()
        if not isinstance(entry.event, WriterOpened | BatchCommitted)
    ]


def folded(entries: Sequence[Entry]) -> Partition:
    state = Partition(0)
    for entry in entries:
        evolve(state, entry)
    return state


@given(said, crashes, st.integers(1, 30), st.integers(0, 3), st.sampled_from([1, 7, 1_000_000]))
def test_crashes_cuts_and_evictions_change_no_decision(
    lines: Sequence[Said], faults: Sequence[Crash], batch_max: int, idle: int, every: int
) -> None:
    straight, rough = (
        world_of(lines),
        world_of(lines, batch_max=batch_max, idle_conversations_max=idle, checkpoint_every_events=every),
    )
    asyncio.run(run(straight, []))
    asyncio.run(run(rough, faults))
    assert decided(rough) == decided(straight)


@given(said, crashes, st.integers(1, 30), st.integers(0, 3), st.sampled_from([1, 7, 1_000_000]))
def test_the_last_checkpoint_is_the_fold_of_the_journal(
    lines: Sequence[Said], faults: Sequence[Crash], batch_max: int, idle: int, every: int
) -> None:
    world = world_of(lines, batch_max=batch_max, idle_conversations_max=idle, checkpoint_every_events=every)
    asyncio.run(run(world, faults))
    state = folded(world.journal())
    stored = world.store.checkpoints[0]
    assert (stored.lsn, stored.state) == (state.lsn, dump_partition(state))
    rows = {name: row.state for name, (_, row) in world.store.conversations.items()}
    assert rows == {name: dump_conversation(conversation)[0] for name, conversation in state.conversations.items()}
