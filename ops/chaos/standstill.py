"""When this process, or the whole machine, stood still: what was to happen meanwhile is not late because of a fault.

A thread and a task of the event loop each look at the clock every `TICK_S`. Where the thread comes late, the machine
gave this process no time: a host that stops its guests, or a load beyond all bounds. Where only the task does, this
process was too busy to see what others did. Limits of liveness do not count such times, and the result says how much
it was: a run on a machine that stood still half of the time proves less.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

TICK_S: Final = 0.05
LATE_S: Final = 0.5
"""Ticks that come later than this are a standstill. A thread that waits its turn on a busy machine gets it sooner."""


class Ticks:
    """Of one who looks at the clock every `TICK_S`: the times at which it could not."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._gaps: list[tuple[float, float]] = []

    def tick(self, now: float) -> None:
        """It looks."""
        if (gap := self._gap(now)) is not None:
            self._gaps.append(gap)
        self._last = now

    def gaps(self, now: float) -> list[tuple[float, float]]:
        """From when until when it could not look; the last one may last still."""
        gap = self._gap(now)
        return self._gaps if gap is None else [*self._gaps, gap]

    def _gap(self, now: float) -> tuple[float, float] | None:
        return (self._last + TICK_S, now) if now - self._last > TICK_S + LATE_S else None


def overlap(gaps: list[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds of `begin` to `end` that lie in any of the gaps."""
    total, upto = 0.0, begin
    for first, last in sorted(gaps):
        within = min(last, end) - max(first, upto)
        if within > 0:
            total += within
            upto = min(last, end)
    return total


class Standstill:
    """Measures for as long as `measured` runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._machine = Ticks(clock())
        self._loop = Ticks(clock())
        self._over = threading.Event()
        self.load = 0.0
        """The highest load average of a minute."""

    def now(self) -> float:
        """By its clock."""
        return self._clock()

    def stood_s(self, begin: float, end: float | None = None) -> float:
        """Seconds since `begin` (until `end`) in which this process, or the machine, stood still."""
        now = self._clock()
        return overlap([*self._machine.gaps(now), *self._loop.gaps(now)], begin, now if end is None else end)

    def ran_s(self, begin: float) -> float:
        """Seconds since `begin` in which it did not."""
        return self._clock() - begin - self.stood_s(begin)

    def longest_s(self) -> float:
        """The longest time that it could not look."""
        now = self._clock()
        return max(
            (last - first for ticks in (self._machine, self._loop) for first, last in ticks.gaps(now)), default=0.0
        )

    @asynccontextmanager
    async def within(self, limit_s: float) -> AsyncIterator[None]:
        """As `asyncio.timeout`, but a standstill does not count."""
        began = self._clock()

        async def watch(limit: asyncio.Timeout) -> None:
            while (left := limit_s - self.ran_s(began)) > 0:  # noqa: ASYNC110 -- time that passes, no event
                await asyncio.sleep(left)
            limit.reschedule(asyncio.get_running_loop().time())

        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(watch(limit))
            try:
                yield
            finally:
                watching.cancel()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            self._machine.tick(self._clock())
            self.load = max(self.load, os.getloadavg()[0])

    async def _tick_loop(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._loop.tick(self._clock())


@asynccontextmanager
async def measured() -> AsyncIterator[Standstill]:
    """A standstill that is measured for as long as the block runs."""
    standstill = Standstill()
    thread = threading.Thread(target=standstill._tick, name="standstill", daemon=True)
    thread.start()
    task = asyncio.create_task(standstill._tick_loop())
    try:
        yield standstill
    finally:
        standstill._over.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.to_thread(thread.join)
