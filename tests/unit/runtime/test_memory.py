"""What of a partition is in memory: awake, asleep, or in the store alone, and the same answers from each."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from msgspec import structs

from streams.core.events import TurnCommitted
from streams.fence.port import Fenced
from streams.runtime import memory, writer
from streams.runtime.memory import Room
from tests.support.sequencing import LIMITS, World, settle


async def checkpointed(opened: writer.Writer) -> None:
    snapshot = await opened._snapshot()
    await opened._save(snapshot)
    opened._memory.stored(snapshot)


async def opened_with(world: World, conversations: int) -> writer.Writer:
    world.configure()
    opened = await world.writer()
    for number in range(conversations):
        world.converse(f"c{number}")
    await settle(opened)
    await checkpointed(opened)
    return opened


async def test_what_did_not_change_since_the_last_checkpoint_falls_asleep_and_wakes_without_a_query() -> None:
    world = World()
    opened = await opened_with(world, 3)
    assert len(opened._memory.state.conversations) == 3, "changed lately: still awake"
    await checkpointed(opened)
    assert (len(opened._memory.state.conversations), opened._memory.loaded) == (0, 3)
    world.store.reachable = False
    world.converse("c1")
    await settle(opened)
    assert world.kinds()[-2:] == ["Refused", "BatchCommitted"], "it is known to exist"
    assert (list(opened._memory.state.conversations), opened._memory.loaded) == (["c1"], 3)


async def test_of_conversations_that_changed_only_some_stay_awake() -> None:
    world = World()
    with patch.object(memory, "AWAKE_IDLE_MAX", 2):
        opened = await opened_with(world, 5)
        assert (len(opened._memory.state.conversations), opened._memory.loaded) == (2, 5)
        rows = dict(opened._memory._asleep)
        await checkpointed(opened)
        assert rows.items() <= opened._memory._asleep.items()
    assert {name: world.store.conversations[name][1].state for name in opened._memory._asleep} == opened._memory._asleep


async def test_more_idle_ones_than_may_be_in_memory_leave_it_and_come_back() -> None:
    world = World(limits=replace(LIMITS, idle_conversations_max=2))
    opened = await opened_with(world, 6)
    assert opened._memory.loaded == 2
    for number in range(6):
        world.converse(f"c{number}")
    await settle(opened)
    assert world.kinds()[-7:-1] == ["Refused"] * 6


def test_partitions_of_a_worker_share_what_may_be_in_memory() -> None:
    room = Room()
    assert room.share(100) == 100
    for partition in range(4):
        room.enter(partition)
    room.enter(0)
    assert room.share(100) == 25
    room.leave(3)
    room.leave(7)
    assert room.share(100) == 33


async def test_a_long_replay_stores_checkpoints_and_is_not_all_in_memory() -> None:
    world = World()
    opened = await opened_with(world, 30)
    world.join()
    world.turn("c7", "hello", key="k")
    await settle(opened)
    await opened.close()
    live = world.journal()[-1].lsn
    world.store.checkpoints.clear()
    world.store.conversations.clear()
    ports = world.ports("wk-000000000002")
    with patch.object(writer, "REPLAY_UNSAVED_MAX", 10), patch.object(memory, "AWAKE_IDLE_MAX", 2):

        async def lost(lease: object) -> None:
            raise Fenced("taken by another during the replay")

        ports.leases.confirm = lost  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            await world.writer("wk-000000000002", leases=ports.leases)
        assert 10 <= world.store.checkpoints[0].lsn <= live, "the claim failed; what it read need not be read again"
        heir = await world.writer("wk-000000000003")
    assert len(heir._memory.state.conversations) < 30
    world.turn("c7", "hello again", key="k")
    await settle(heir)
    assert world.kinds()[-2:] == ["Duplicate", "BatchCommitted"]


async def test_a_checkpoint_at_the_very_end_of_a_replay_does_not_have_the_intake_read_twice() -> None:
    world = World()
    opened = await opened_with(world, 1)
    world.join()
    world.turn("c0", "without a key")
    await settle(opened)
    await opened.close()
    with patch.object(writer, "REPLAY_UNSAVED_MAX", 0):
        heir = await world.writer("wk-000000000002")
    await settle(heir)
    assert [e.event.turn.text for e in world.journal() if isinstance(e.event, TurnCommitted)] == ["without a key"]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_long_rebuild_from_the_journal_takes_nothing_of_what_could_not_be_read(dies: bool) -> None:
    world = World()
    opened = await opened_with(world, 30)
    world.join()
    world.turn("c29", "waits for its answer")
    await settle(opened)
    await opened.drain()
    await opened.close()
    world.store.checkpoints[0] = structs.replace(world.store.checkpoints[0], state=b"of another release")
    ports = world.ports("wk-000000000002")
    with patch.object(writer, "REPLAY_UNSAVED_MAX", 10), patch.object(memory, "AWAKE_IDLE_MAX", 2):
        if dies:
            with patch.object(memory.Memory, "stored", side_effect=Fenced("it dies here")), pytest.raises(Fenced):
                await world.writer("wk-000000000002", leases=ports.leases)
            assert 0 < world.store.checkpoints[0].lsn < 30
        heir = await world.writer("wk-000000000003")
    world.turn("c29", "and once more")
    await settle(heir)
    given = [e.event.turn.text for e in world.journal() if isinstance(e.event, TurnCommitted)]
    assert given == ["waits for its answer", "and once more"]
    assert [entry.lsn for entry in world.journal()] == list(range(1, len(world.journal()) + 1))
