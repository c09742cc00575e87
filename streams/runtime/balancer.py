"""Claims a worker's share of the partitions and hands surplus back, as `balance` decides from the lease table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from mode import Service

from streams.fence.clock import monotonic_s
from streams.fence.port import FenceUnavailable, HeldBy, Lease
from streams.runtime.balance import View, moves
from streams.runtime.partition import PartitionState, Sequencer
from streams.runtime.ports import Ports

log = structlog.get_logger(__name__)

# How often the lease table is looked at: half of it is lost before a death is noticed. A look is one round trip to
# PostgreSQL, of 0.3 ms.
BALANCE_EVERY_S = 0.05
# A partition that is handed over stands still until its next owner has opened it. In turn, each does so for as long as
# its own handing over takes; all at once, each for as long as all of them take.
HANDED_OVER_AT_ONCE = 4


class Balancer(Service):
    """Keeps this worker's share of the partitions running."""

    mundane_level = "debug"

    def __init__(self, ports: Ports, cut_off_s: Callable[[], float], *, drain_s: float, **kwargs: Any) -> None:
        """`cut_off_s`: for how long it has been known that this worker does not reach Kafka; 0: it does."""
        super().__init__(**kwargs)
        self.sequencers: dict[int, Sequencer] = {}
        self.settled = asyncio.Event()
        """Set once the first claims of this worker run, or could not be made."""
        self.error = ""
        """Why the lease table could not be looked at; empty: it could."""
        self._ports = ports
        self._cut_off_s = cut_off_s
        self._drain_s = drain_s
        self._leaving: dict[int, asyncio.Future[None]] = {}
        self._looked = False

    def lost(self, lease: Lease, why: str) -> None:
        """The heartbeat's message."""
        sequencer = self.sequencers.get(lease.partition)
        if sequencer is not None:
            sequencer.lose(lease, why)

    def held_back(self, partition: int) -> None:
        """The watch's message."""
        sequencer = self.sequencers.get(partition)
        if sequencer is not None:
            sequencer.held_back()

    @Service.task
    async def _balance(self) -> None:
        while not self.should_stop:
            try:
                await self._step()
                self.error = ""
            except FenceUnavailable as error:
                self.error = str(error)
                log.warning("cannot look at the lease table", error=str(error))
            await self.sleep(BALANCE_EVERY_S)

    async def _step(self) -> None:
        for partition, sequencer in list(self.sequencers.items()):
            if sequencer.over and partition not in self._leaving:
                await self._forget(partition)
        leases = self._ports.leases
        workers, table = await leases.view()
        cut_off_ms = round(self._cut_off_s() * 1000)
        reaches = cut_off_ms == 0
        for row in workers:
            if row.worker == self._ports.worker and (row.reaches_kafka_ms is not None) is not reaches:
                log.warning("Kafka can be reached again" if reaches else "Kafka cannot be reached from here")
                await leases.set_reaching(reaches)
        mine, leaving = frozenset(self.sequencers), frozenset(self._leaving)
        plan = moves(View(self._ports.worker, mine, leaving, workers, table, self._ports.partitions, cut_off_ms))
        # Who is cut off keeps nothing running by waiting.
        room = max(HANDED_OVER_AT_ONCE - len(leaving), 0) if reaches else len(plan.hand_back)
        for partition in plan.hand_back[:room]:
            epoch = self.sequencers[partition].lease.token.writer_epoch
            log.info("handing back", partition=partition, writer_epoch=epoch)
            self._leaving[partition] = self.add_future(self._forget(partition))
        claims = [*map(self._claim, plan.claim), *map(self._resume, plan.resume)]
        # All of them end before the next look at the table, which must not find one half done.
        for problem in await asyncio.gather(*claims, return_exceptions=True):
            if problem is not None:
                raise problem
        self._looked = True
        self._ports.metrics.leases.set(len(self.sequencers))
        if all(sequencer.phase is not PartitionState.OPENING for sequencer in self.sequencers.values()):
            self.settled.set()

    async def _claim(self, partition: int) -> None:
        asked_at = monotonic_s()
        claimed = await self._ports.leases.claim(partition)
        if not isinstance(claimed, HeldBy):
            await self._run(claimed, asked_at)

    async def _resume(self, partition: int) -> None:
        """Take up a lease of this worker's that nothing here runs: the answer to its claim was lost."""
        log.warning("this worker holds a partition that it does not run: claiming it again", partition=partition)
        asked_at = monotonic_s()
        claimed = await self._ports.leases.claim(partition)
        if not isinstance(claimed, HeldBy):
            # Something here may have used its epoch already.
            await self._run(await self._ports.leases.next_epoch(claimed), asked_at)

    async def _run(self, claimed: Lease, asked_at: float) -> None:
        partition = claimed.partition
        if self.should_stop:
            return
        self._ports.keeper.watch(claimed, asked_at)
        sequencer = Sequencer(claimed, self._ports, drain_s=self._drain_s, beacon=self.beacon)
        self.sequencers[partition] = sequencer
        await self.add_runtime_dependency(sequencer)

    async def _forget(self, partition: int) -> None:
        await self.remove_dependency(self.sequencers[partition])
        del self.sequencers[partition]
        self._leaving.pop(partition, None)

    async def on_stop(self) -> None:
        """Hand over partition by partition, the last of them begun within half of the drain budget."""
        sequencers = list(self.sequencers.values())
        pause_s = self._drain_s / 2 / max(1, len(sequencers))
        stopping = set(self._leaving.values())
        for sequencer in sequencers:
            busy = {stop for stop in stopping if not stop.done()}
            if len(busy) >= HANDED_OVER_AT_ONCE:
                await asyncio.wait(busy, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            stopping.add(asyncio.ensure_future(sequencer.stop()))
        await asyncio.gather(*stopping)
