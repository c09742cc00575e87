"""The life of one partition at one worker, from its lease to the lease's end.

                         ┌──────────────◀─────────────┐
                         ▼                            │
    lease ──────▶ ┌─────────────┐  replayed   ┌───────┴─────┐
                  │   OPENING   │────────────▶│   RUNNING   │
                  └─┬───▲───┬─┬─┘             └─┬─────┬───┬─┘
       unrecoverable│   │   │ │fenced, doubt,   │     │   │stop
                    │   │   │ │unavailable      │     │   ▼
                    ▼   │   │ ▼                 │     │ ┌──────────┐
         ┌─────────┐│   │ ┌─┴──────────┐        │     │ │ DRAINING │
         │ STOPPED │◀───┼─│            │        │     │ └─┬──────┬─┘
         └────┬────┘◀───┼─┼────────────┼────────┘     │   │      │
              │         └─┤ BACKING_OFF│◀─────────────┘   │      │fenced
              │stop       └─┬────────┬─┘                  │      │
              ▼         stop│        │taken by another    │      ▼
         ┌──────────┐◀──────┘        └──────────────────▶ │ ┌──────┐
         │ RELEASED │◀────────────────────────────────────┘ │ LOST │
         └──────────┘                                       └──────┘

RELEASED and LOST are final. STOPPED keeps the lease, so that the partition does not wander from worker to worker with
the same error: it is said loudly, marked in the lease table (where it counts for no share), and shown as not ready,
until an operator restarts the worker.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import structlog
from mode import Service

from streams.fence.clock import monotonic_s
from streams.fence.port import Fenced, FenceUnavailable, HeldBy, Lease
from streams.runtime.kafka import Doubt, KafkaUnavailable, Unrecoverable, is_stray
from streams.runtime.ports import Ports
from streams.runtime.writer import CheckpointDiscarded, StaleLeases, Undecidable, Writer

log = structlog.get_logger(__name__)

# Pauses between writer epochs: 0.1, 0.2, 0.4 … 6.4 s; half of each is random, so that two workers fall out of step.
BACKOFF_FIRST_S = 0.1
BACKOFF_DOUBLINGS = 6
# An epoch that ran for so long was a good one: the next pause is the first again.
GOOD_EPOCH_S = 30.0
# What was said of the topics' ids counts for so long, as between two looks of the watch (`IDENTITY_EVERY_S`).
SAME_FOR_S = 1.0
# What is not handed back by then, beyond the drain budget, expires by itself.
HAND_BACK_S = 1.0


class PartitionState(StrEnum):
    """Where a partition is in its life at this worker; see the picture above."""

    OPENING = "opening"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    DRAINING = "draining"
    STOPPED = "stopped"
    RELEASED = "released"
    LOST = "lost"


S = PartitionState
TRANSITIONS: Mapping[PartitionState, frozenset[PartitionState]] = {
    S.OPENING: frozenset({S.RUNNING, S.BACKING_OFF, S.STOPPED}),
    S.RUNNING: frozenset({S.DRAINING, S.BACKING_OFF, S.STOPPED}),
    S.BACKING_OFF: frozenset({S.OPENING, S.RELEASED, S.LOST}),
    S.DRAINING: frozenset({S.RELEASED, S.LOST}),
    S.STOPPED: frozenset({S.RELEASED}),
    S.RELEASED: frozenset(),
    S.LOST: frozenset(),
}
FINAL = frozenset({S.RELEASED, S.LOST})


class Sequencer(Service):
    """Runs one partition under one lease: one writer epoch after the other until it is told to stop or loses it."""

    mundane_level = "debug"

    def __init__(self, lease: Lease, ports: Ports, *, drain_s: float, **kwargs: Any) -> None:
        """`drain_s`: how long `stop` waits for the batch in hand, the last checkpoint and the hand-back."""
        super().__init__(**kwargs)
        self.lease = lease
        self.phase = S.OPENING
        self.since = time.monotonic()
        """When it entered `phase`."""
        self.reason = ""
        """Why it stopped or backs off."""
        self.ticked_at = time.monotonic()
        """When its clock last moved; an open partition whose clock stands still cannot reach Kafka."""
        self._ports = ports
        self._drain_s = drain_s
        self._leaving = asyncio.Event()
        self._ended = asyncio.Event()
        self._lost: str | None = None
        self._held_back = False
        self._suspect = ""
        """Origin of the record that the core failed on last."""
        self._quarantine: set[str] = set()
        self._failures = 0
        self._claimed_at = time.monotonic()
        self._show()

    @property
    def partition(self) -> int:
        return self.lease.partition

    @property
    def over(self) -> bool:
        """Whether it reached its end and may be forgotten."""
        return self.phase in FINAL

    def lose(self, lease: Lease, why: str) -> None:
        """The lease is not ours any more: an idle writer, which would find out at its next write only, stands down."""
        if lease == self.lease:
            self._lost = why

    def held_back(self) -> None:
        """The journal cannot be read to its end, and that does not change: with its next tick the writer looks why."""
        self._held_back = True

    def leave(self) -> None:
        """Ask it to finish its batch, store a checkpoint and hand its lease back. Returns at once."""
        self._leaving.set()

    async def on_stop(self) -> None:
        """Leave, within the drain budget; what does not manage to is cut off here, and its lease handed back."""
        self.leave()
        try:
            async with asyncio.timeout(self._drain_s):
                await self._ended.wait()
        except TimeoutError:
            # Its own task, whose lines say so by themselves, is cancelled next. Whatever it still has under way is
            # fenced by whoever comes after it.
            with structlog.contextvars.bound_contextvars(writer_epoch=self.lease.token.writer_epoch):
                log.warning("partition not drained in time", partition=self.partition, phase=self.phase)
                await self._hand_back_at_once()

    @Service.task
    async def _live(self) -> None:
        try:
            while not self.over:
                await self._epoch()
        finally:
            self._ended.set()

    # -------------------------------------------------------------------------------------------- one writer epoch
    async def _epoch(self) -> None:
        """From OPENING through one writer epoch to the next OPENING, or to the end."""
        # Every log line of this task, and of those that it starts, says of which partition and epoch it speaks.
        epoch = self.lease.token.writer_epoch
        structlog.contextvars.bind_contextvars(partition=self.partition, writer_epoch=epoch)
        writer = Writer(self.lease, self._ports, frozenset(self._quarantine))
        problem: Exception | None = None
        try:
            await self._run(writer)
        except asyncio.CancelledError:
            if not is_stray():
                raise
            problem = Doubt("a client cancelled what was awaited")
        except Exception as error:  # noqa: BLE001 -- each kind has its way out below, the unknown one too
            problem = error
        finally:
            await writer.close()
        if problem is None:
            await self._release()
        elif self.phase is S.DRAINING:
            await self._after_failed_drain(problem)
        elif isinstance(problem, Unrecoverable):
            await self._stop_here(problem)
        else:
            await self._back_off(problem)

    async def _run(self, writer: Writer) -> None:
        # Before its turn to be opened: all that are claimed together share one question, unless the turn is long in
        # coming.
        asked_at = time.monotonic()
        await self._ports.same_topics()
        async with self._ports.opening:
            if time.monotonic() - asked_at > SAME_FOR_S:
                await self._ports.same_topics()
            await writer.open()
        self._enter(S.RUNNING)
        self._ports.metrics.takeovers.inc()
        self._ports.metrics.takeover_seconds.observe(time.monotonic() - self._claimed_at)
        log.info("partition open", partition=self.partition, writer_epoch=self.lease.token.writer_epoch)
        ticking = asyncio.create_task(self._tick(writer))
        try:
            while not self._leaving.is_set():
                await writer.turn()
                if self._lost is not None:
                    raise Fenced(self._lost)
                if ticking.done():
                    ticking.result()
            self._enter(S.DRAINING)
        finally:
            ticking.cancel()
            await asyncio.wait({ticking})
        await writer.drain()

    async def _tick(self, writer: Writer) -> None:
        """One tick a period, one in flight; a late one is not made up for."""
        while True:
            await asyncio.sleep(self._ports.limits.tick_ms / 1000)
            try:
                await writer.tick()
                self.ticked_at = time.monotonic()
                if self._held_back:
                    self._held_back = False
                    await writer.require_ended()
            except (KafkaUnavailable, FenceUnavailable) as error:
                # No tick, no time: nothing expires meanwhile, and the next batch meets the same trouble. What was to be
                # looked at is reported again.
                log.warning("no tick", partition=self.partition, error=str(error))

    # ---------------------------------------------------------------------------------------------- how it ended
    async def _release(self) -> None:
        if self.phase is not S.DRAINING:
            raise AssertionError(f"an epoch ended well in {self.phase}")
        await self._hand_back()
        self._enter(S.RELEASED)

    async def _after_failed_drain(self, problem: Exception) -> None:
        """Everything committed is in the journal; only the checkpoint, and with it a fast takeover, is missing."""
        log.warning("drained without a last checkpoint", partition=self.partition, error=str(problem))
        if isinstance(problem, Fenced):
            self._ports.keeper.forget(self.partition)
            self._enter(S.LOST, str(problem))
            return
        await self._hand_back()
        self._enter(S.RELEASED)

    async def _stop_here(self, problem: Unrecoverable) -> None:
        self._enter(S.STOPPED, str(problem))
        log.error("partition stopped: an operator must look", partition=self.partition, error=str(problem))
        try:
            await self._ports.leases.set_stopped(self.lease, str(problem))
        except FenceUnavailable as error:
            log.warning("cannot mark the partition as stopped", partition=self.partition, error=str(error))
        await self._leaving.wait()
        await self._hand_back()
        self._enter(S.RELEASED)

    async def _back_off(self, problem: Exception) -> None:
        """Wait, then make sure of the lease and take a new epoch from it: each InitProducerId has its own."""
        if self.phase is S.RUNNING and time.monotonic() - self.since > GOOD_EPOCH_S:
            self._failures = 0
        self._enter(S.BACKING_OFF, f"{type(problem).__name__}: {problem}")
        self._count(problem)
        above = problem.highest if isinstance(problem, StaleLeases | Fenced) else 0
        while self.phase is S.BACKING_OFF:
            pause = BACKOFF_FIRST_S * 2 ** min(self._failures, BACKOFF_DOUBLINGS)
            self._failures += 1
            await self._pause(pause * (0.5 + random.random() / 2))  # noqa: S311 -- jitter
            if self._leaving.is_set():
                await self._hand_back()
                self._enter(S.RELEASED)
                return
            try:
                await self._renew(above)
            except (Fenced, FenceUnavailable) as error:
                self.reason = f"{type(error).__name__}: {error}"
                log.warning("no new epoch yet", partition=self.partition, error=str(error))

    async def _renew(self, above: int) -> None:
        asked_at = monotonic_s()
        claimed = await self._ports.leases.claim(self.partition)
        if isinstance(claimed, HeldBy):
            self._ports.keeper.forget(self.partition)
            self._enter(S.LOST, f"{claimed.worker} has it, at writer epoch {claimed.writer_epoch}")
            return
        if claimed.token.writer_epoch <= above:
            self._ports.metrics.stale_leases.inc()
            log.error("the lease store is behind: was it restored?", partition=self.partition, highest=above)
        if claimed.token.writer_epoch <= max(above, self.lease.token.writer_epoch):
            claimed = await self._ports.leases.next_epoch(claimed, above)
        self._ports.keeper.watch(claimed, asked_at)
        self.lease, self._lost, self._claimed_at = claimed, None, time.monotonic()
        self._enter(S.OPENING)

    def _count(self, problem: Exception) -> None:
        metrics, about = self._ports.metrics, {"partition": self.partition, "error": str(problem)}
        match problem:
            case Fenced():
                metrics.fenced.inc()
                log.warning("fenced: standing down", **about)
            case Doubt():
                metrics.doubts.inc()
                log.warning("in doubt: starting over with a new epoch", **about)
            case StaleLeases() | KafkaUnavailable() | FenceUnavailable() | CheckpointDiscarded():
                log.warning("cannot go on now", **about)
            case Undecidable():
                # The first time the state may have been at fault, which is rebuilt; the second time it is the record.
                # No pause would mend that, and it is out of the way: those for the next one are the first ones again.
                if problem.origin == self._suspect:
                    self._quarantine.add(problem.origin)
                    self._failures = 0
                self._suspect = problem.origin
                log.error("the core failed", conversation=problem.conversation, exc_info=problem, **about)
            case _:
                log.error("unexpected error: starting over", partition=self.partition, exc_info=problem)

    async def _hand_back(self) -> None:
        self._ports.keeper.forget(self.partition)
        try:
            await self._ports.leases.hand_back(self.lease)
        except FenceUnavailable as error:
            log.warning("lease not handed back, it will expire", partition=self.partition, error=str(error))

    async def _hand_back_at_once(self) -> None:
        """All partitions of a process ask on one connection: one behind the other they would hold up its end."""
        try:
            async with asyncio.timeout(HAND_BACK_S):
                await self._hand_back()
        except TimeoutError:
            log.warning("lease not handed back in time, it will expire", partition=self.partition)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._leaving.wait()
        except TimeoutError:
            return

    def _enter(self, phase: PartitionState, reason: str = "") -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise AssertionError(f"partition {self.partition}: no way from {self.phase} to {phase}")
        self._ports.metrics.state.remove(str(self.partition), self.phase)
        self.phase, self.reason, self.since = phase, reason, time.monotonic()
        if phase in FINAL:
            self._ports.metrics.forget(self.partition)
        else:
            self._show()

    def _show(self) -> None:
        self._ports.metrics.state.labels(str(self.partition), self.phase).set(1)
