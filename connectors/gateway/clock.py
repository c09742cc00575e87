"""The gateway's clocks."""

from __future__ import annotations

import time
from collections.abc import Callable


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _awake_clock() -> int:
    # Linux' CLOCK_MONOTONIC stands still while the machine sleeps; CLOCK_BOOTTIME, where there is one, does not.
    return getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_s() -> float:
    """Seconds on a clock that only goes forward, also while the process or the machine is paused."""
    return time.clock_gettime(_awake_clock())


class PauseGuard:
    """Tells whether this process stood still for too long: then others may have taken over its members' runs.

    The event loop calls `beat` many times within the limit. After a pause the first thing that wants to write to an
    agent asks `paused`, before the loop had a chance to beat.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = steady_s) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._beaten_at = clock()

    def beat(self) -> None:
        """The loop runs. Does nothing once paused: only `resume` ends that."""
        if not self.paused():
            self._beaten_at = self._clock()

    def paused(self) -> bool:
        """Whether the last beat is longer ago than the limit."""
        return self._clock() - self._beaten_at > self._limit_s

    def resume(self) -> None:
        """Everything that the pause endangered was ended."""
        self._beaten_at = self._clock()
