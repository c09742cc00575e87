"""Balancers on one lease table in memory: what is claimed, handed over and taken up again, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from streams.fence.memory import MemoryLeases
from streams.fence.port import FenceUnavailable, HeldBy, Lease
from streams.runtime import balancer as module
from streams.runtime.balance import CUT_OFF_MS, STEADY_MS
from streams.runtime.balancer import HANDED_OVER_AT_ONCE, Balancer
from streams.runtime.partition import PartitionState
from streams.runtime.ports import Ports
from tests.support.sequencing import World
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BALANCE_EVERY_S", 0.01)


@dataclass(slots=True)
class Link:
    """How long a worker has known that it does not reach Kafka."""

    cut_off_s: float = 0.0


CUT = 0.001
"""Just found out."""
FOR_LONG = CUT_OFF_MS / 1000


@asynccontextmanager
async def balancing(
    world: World, worker: str, link: Link, *, drain_s: float = 1.0, **changes: object
) -> AsyncIterator[Balancer]:
    ports: Ports = replace(world.ports(worker), **changes)  # type: ignore[arg-type]
    await ports.leases.open()
    balancer = Balancer(ports, lambda: link.cut_off_s, drain_s=drain_s)
    await balancer.start()
    try:
        yield balancer
    finally:
        await ports.leases.set_draining()
        await balancer.stop()


def runs(balancer: Balancer) -> set[int]:
    return {number for number, of in balancer.sequencers.items() if of.phase is PartitionState.RUNNING}


async def test_a_claim_whose_answer_was_lost_is_made_good_long_before_the_lease_ends() -> None:
    class Forgetful(MemoryLeases):
        lose = 1

        async def claim(self, partition: int) -> Lease | HeldBy:
            claimed = await super().claim(partition)
            if self.lose:
                self.lose -= 1
                raise FenceUnavailable("the answer was lost")
            return claimed

    world = World(partitions=2)
    leases = Forgetful(world.store, "wk-000000000001")
    async with balancing(world, leases.worker, Link(), leases=leases) as balancer:
        await until(lambda: runs(balancer) == {0, 1})
        epochs = sorted(of.lease.token.writer_epoch for of in balancer.sequencers.values())
        assert epochs == [1, 2], "the lost one has a new epoch: nobody knows what was done under the first"


async def test_who_is_cut_off_from_kafka_hands_over_and_gets_its_share_back_later() -> None:
    world, here, there = World(partitions=4), Link(), Link()
    async with balancing(world, "wk-here", here) as mine, balancing(world, "wk-there", there) as others:
        await until(lambda: (len(runs(mine)), len(runs(others))) == (2, 2))
        here.cut_off_s = FOR_LONG
        await until(lambda: runs(others) == {0, 1, 2, 3})
        assert not mine.sequencers
        here.cut_off_s = 0
        await until(lambda: world.store.reaching["wk-here"] is not None)
        assert len(runs(others)) == 4
        world.store.advance(STEADY_MS)
        for lease in world.store.leases.values():
            lease.expires_at += STEADY_MS
        await until(lambda: (len(runs(mine)), len(runs(others))) == (2, 2))


async def test_where_nobody_reaches_kafka_everybody_keeps_its_partitions() -> None:
    world, here, there = World(partitions=4), Link(), Link()
    async with balancing(world, "wk-here", here) as mine, balancing(world, "wk-there", there) as others:
        await until(lambda: (len(runs(mine)), len(runs(others))) == (2, 2))
        epochs = {number: lease.writer_epoch for number, lease in world.store.leases.items()}
        here.cut_off_s = there.cut_off_s = CUT
        await until(lambda: [*world.store.reaching.values()] == [None, None])
        here.cut_off_s = there.cut_off_s = FOR_LONG
        here.cut_off_s = 0
        await until(lambda: world.store.reaching["wk-here"] is not None)
        there.cut_off_s = 0
        await until(lambda: world.store.reaching["wk-there"] is not None)
        assert {number: lease.writer_epoch for number, lease in world.store.leases.items()} == epochs


class Held(MemoryLeases):
    """Hand-backs wait until they may go on."""

    def __init__(self, world: World, worker: str) -> None:
        super().__init__(world.store, worker)
        self.may = asyncio.Event()
        self.waiting = 0

    async def hand_back(self, lease: Lease) -> None:
        self.waiting += 1
        await self.may.wait()
        await super().hand_back(lease)


async def test_a_worker_that_drains_goes_on_running_what_it_has_not_begun_to_hand_over() -> None:
    world = World(partitions=12)
    leases = Held(world, "wk-000000000001")
    async with balancing(world, leases.worker, Link(), drain_s=60.0, leases=leases) as balancer:
        await until(lambda: len(runs(balancer)) == 12)
        stopping = asyncio.create_task(balancer.stop())
        await until(lambda: leases.waiting == HANDED_OVER_AT_ONCE)
        assert len(runs(balancer)) == 12 - HANDED_OVER_AT_ONCE
        leases.may.set()
        await stopping
        assert not [row for row in await leases.table() if row.live]


async def test_a_newcomers_share_is_handed_over_some_at_a_time() -> None:
    world = World(partitions=12)
    leases = Held(world, "wk-here")
    async with balancing(world, leases.worker, Link(), leases=leases) as mine:
        await until(lambda: len(runs(mine)) == 12)
        async with balancing(world, "wk-there", Link()) as others:
            await until(lambda: leases.waiting == HANDED_OVER_AT_ONCE)
            assert len(runs(mine)) == 12 - HANDED_OVER_AT_ONCE
            leases.may.set()
            await until(lambda: (len(runs(mine)), len(runs(others))) == (6, 6))
