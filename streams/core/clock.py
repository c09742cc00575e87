"""Log time: advanced by the difference between ticks' broker times, never by a local clock."""

from __future__ import annotations

from typing import Final

import msgspec

TICK_ADVANCE_MAX_MS: Final = 2000
"""One tick advances log time by at most this; a broker's clock jump expires nobody, a jump back freezes nothing."""


class Advance(msgspec.Struct, frozen=True, gc=False):
    """Log time after a tick. `restart`: time passed without a writer; every TTL and time-out starts anew."""

    at: int
    restart: bool


class LogClock:
    """One partition's log time, in ms. Make a new one at every claim, with the `at` of the replayed state."""

    __slots__ = ("_last_tick", "at")

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self._last_tick: int | None = None

    def tick(self, timestamp: int) -> Advance:
        """Take the broker's append time of a tick, ms.

        A partition that never had a tick starts at the first one's time. The first tick after a claim advances nothing:
        how long there was no writer is not known.
        """
        last = self._last_tick
        self._last_tick = timestamp
        if self.at == 0:
            self.at = timestamp
            return Advance(at=self.at, restart=True)
        if last is None:
            return Advance(at=self.at, restart=True)
        passed = timestamp - last
        self.at += min(max(passed, 0), TICK_ADVANCE_MAX_MS)
        return Advance(at=self.at, restart=passed > TICK_ADVANCE_MAX_MS)
