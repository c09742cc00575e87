"""Numbers of stored frames, of every member: what an audit remembers to find one stored twice."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

REMEMBERED: Final = 100_000
"""Frames of which the number is remembered, and up to twice as many: 80 bytes each, and 360 a member."""


class _Series:
    """One member's, as they grow; what came late, after a higher one, is beside them."""

    __slots__ = ("highest", "late", "lsns", "numbers")

    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.numbers: list[int] = []
        self.lsns: list[int] = []
        self.late: dict[int, int] = {}

    def lsn_of(self, n: int) -> int | None:
        """Where `n` was stored; None: not here."""
        at = bisect_left(self.numbers, n)
        if at < len(self.numbers) and self.numbers[at] == n:
            return self.lsns[at]
        return self.late.get(n)


class FrameNumbers:
    """The last ones of all members, between `most` and twice as many."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._now: dict[str, _Series] = {}
        self._before: dict[str, _Series] = {}
        self._count = 0
        """Of those in `_now`."""

    def note(self, member: str, n: int, lsn: int) -> int | None:
        """Remember that the member's frame `n` was stored at `lsn`; where it was before, None if nowhere."""
        series = self._now.get(member)
        if series is None:
            earlier = self._before.get(member)
            series = self._now[member] = _Series(0 if earlier is None else earlier.highest)
        if n <= series.highest:
            return self._late(series, member, n, lsn)
        series.highest = n  # as nearly all do: none like it can have been before
        series.numbers.append(n)
        series.lsns.append(lsn)
        self._grew()
        return None

    def _late(self, series: _Series, member: str, n: int, lsn: int) -> int | None:
        known = series.lsn_of(n)
        if known is None and (earlier := self._before.get(member)) is not None:
            known = earlier.lsn_of(n)
        if known is None:
            series.late[n] = lsn
            self._grew()
        return known

    def _grew(self) -> None:
        self._count += 1
        if self._count >= self._most:
            self._before, self._now, self._count = self._now, {}, 0
