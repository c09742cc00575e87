"""Invariant 12: log time is what the ticks make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ops.audit.violations import Kinds
from streams.core.clock import LogClock
from streams.core.events import BatchCommitted, Entry, WriterOpened
from streams.runtime.signals import Tick


class ClockFollowsTicks:
    """12: log time never goes back, and moves by the difference of its writer's ticks' broker times alone, 0 to 2 s a
    tick; the first tick of a writer moves nothing.

    Whoever drives this looks up which ticks each batch consumed, and calls `account` with them: the batch's log time
    must then be what the partition's clock, wound again, shows. (Of the events between two batches the replay says
    whether their log time goes back.) Where ticks are kept no longer, nothing is compared until the next writer.
    """

    invariant: ClassVar[int] = 12
    kinds: ClassVar[Kinds] = (WriterOpened, BatchCommitted)

    def __init__(self) -> None:
        self.writer = WriterOpened(writer_epoch=0, worker="")
        self._clock: LogClock | None = LogClock()
        self._at = 0
        """Of the last batch."""

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        if isinstance(entry.event, WriterOpened):
            self.writer = entry.event
            self._clock = LogClock(self._at or entry.at)  # a partition's very first log time is the broker's
        if entry.at >= self._at:
            return []
        return [f"log time goes back from {self._at} to {entry.at}"]

    def account(self, entry: Entry, ticks: Sequence[Tick] | None) -> list[str]:
        """Of a batch's last entry, and the ticks that it consumed, in order; None: they are kept no longer."""
        before, self._at = self._at, entry.at
        if ticks is None:
            self._clock = None
        if self._clock is None:
            return []
        for tick in ticks or ():
            if (tick.writer_epoch, tick.worker) == (self.writer.writer_epoch, self.writer.worker):
                self._clock.tick(tick.timestamp)
        expected = self._clock.at
        if entry.at == expected:
            return []
        self._clock.at = entry.at  # told once, not of every batch from here on
        return [f"log time went from {before} to {entry.at}; its ticks make it {expected}"]
