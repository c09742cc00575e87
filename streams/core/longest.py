"""The orphans of a group by how long they wait, so that an end of a run, and a tick, cost what
they give away, not what waits."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

SLACK: Final = 64
"""So many entries of runs that wait no more are kept besides as many as there are that do."""

Waiting = tuple[int, str, int, str]
"""Since when, conversation, turn's seq, run: who waits longest compares as the least."""


class Longest(msgspec.Struct):
    """Entries leave the heap when they come to its top, or when most of it is of runs that wait no more."""

    heap: list[Waiting] = []
    present: dict[str, Waiting] = {}
    """By run id, those that do wait."""

    def add(self, waiting: Waiting) -> None:
        """A run waits from here on."""
        self.present[waiting[3]] = waiting
        heappush(self.heap, waiting)
        if len(self.heap) > 2 * len(self.present) + SLACK:
            self.heap = [*self.present.values()]
            heapify(self.heap)

    def drop(self, run_id: str) -> None:
        """It waits no more."""
        self.present.pop(run_id, None)

    def first(self, wanted: Callable[[Waiting], bool]) -> Waiting | None:
        """Who waits longest of those that are wanted; None: there is none. Changes nothing but its own order."""
        return next(iter(self.firsts(1, wanted)), None)

    def firsts(self, most: int, wanted: Callable[[Waiting], bool], *, until: int | None = None) -> list[Waiting]:
        """The `most` that wait longest of those that are wanted, and wait since `until` or before."""
        heap, passed = self.heap, list[Waiting]()
        found: list[Waiting] = []
        while heap and len(found) < most:
            waiting = heap[0]
            again = bool(passed) and passed[-1] == waiting  # it left, and came back at once: equal ones come together
            if again or self.present.get(waiting[3]) != waiting:
                heappop(heap)
                continue
            if until is not None and waiting[0] > until:
                break
            passed.append(heappop(heap))
            if wanted(waiting):
                found.append(waiting)
        for waiting in passed:
            heappush(heap, waiting)
        return found
