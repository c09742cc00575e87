"""The canary on fakes: it sees that both fences hold, and it sees when either one does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streams.fence.memory import MemoryCheckpoints, MemoryLeases
from streams.fence.port import Checkpoint, ConversationRow, KeyRow
from streams.runtime import canary as module
from streams.runtime.canary import CouldNotCheck, Parts, Verdict, check
from streams.runtime.kafka import KafkaUnavailable
from tests.support.fake_kafka import FakeProducer
from tests.support.sequencing import World


def parts(world: World) -> Parts:
    return Parts(
        new_leases=lambda worker: MemoryLeases(world.store, worker),
        checkpoints=MemoryCheckpoints(world.store),
        new_producer=lambda: world.kafka.producer(0),
        new_reader=lambda: world.kafka.reader(0),
    )


def failed(verdict: Verdict) -> set[str]:
    return {one.name for one in verdict.checks if not one.ok}


async def test_a_zombie_is_refused_everywhere_and_again_at_the_next_run() -> None:
    world = World()
    for _ in range(2):
        verdict = await check(parts(world))
        assert verdict.ok
        assert [one.name for one in verdict.checks] == ["transaction", "checkpoint", "lease", "visible"]


async def test_without_kafkas_fence_the_canary_dies() -> None:
    class Unfenced(FakeProducer):
        def _require_epoch(self) -> None:
            """Whoever comes may write."""

    world = World()
    verdict = await check(replace(parts(world), new_producer=lambda: Unfenced(world.kafka, 0)))
    assert failed(verdict) == {"transaction", "visible"}
    assert not verdict.ok


async def test_without_the_checkpoints_fence_the_canary_dies() -> None:
    class Unfenced(MemoryCheckpoints):
        async def save(
            self,
            partition: int,
            checkpoint: Checkpoint,
            rows: Sequence[ConversationRow],
            keys: Sequence[KeyRow],
            drop_keys_before: int,
            stored_lsn: int = 0,
        ) -> None:
            """Whoever comes may save."""

    world = World()
    verdict = await check(replace(parts(world), checkpoints=Unfenced(world.store)))
    assert failed(verdict) == {"checkpoint"}


async def test_without_an_answer_there_is_no_verdict() -> None:
    world = World()
    world.kafka.fail("append", KafkaUnavailable("away"))
    with pytest.raises(CouldNotCheck, match="away"):
        await check(parts(world))
    world.store.reachable = False
    with pytest.raises(CouldNotCheck, match="switched off"):
        await check(parts(world))


async def test_where_another_canary_is_at_it_this_one_waits_and_then_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_RETRY_S", 0.001)
    monkeypatch.setattr(module, "BUSY_MAX_S", 0.02)
    world = World()
    other = MemoryLeases(world.store, "canary-other-first")
    await other.open()
    lease = await other.claim(0)
    with pytest.raises(CouldNotCheck, match="another canary"):
        await check(parts(world))
    assert lease == await other.claim(0), "nothing was taken from it"
    world.store.advance(15_000)
    assert (await check(parts(world))).ok
