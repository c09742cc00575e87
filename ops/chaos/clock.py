"""A process whose clock is wrong, without libfaketime: Python's own view of the time of day is moved.

`time.time`, `time.time_ns` and `datetime.now` are what this project and its libraries ask; monotonic clocks are not
touched, as a wrong time of day does not touch them either.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import Final, Self

VARIABLE: Final = "TURNLOG_CHAOS_CLOCK_S"
"""Seconds that this process's clock is ahead (negative: behind)."""


def skew() -> None:
    """Move the clock by what the environment says. Call it before anything else is imported."""
    offset_s = float(os.environ.get(VARIABLE, "0"))
    if not offset_s:
        return
    right, right_ns = time.time, time.time_ns

    class Wrong(dt.datetime):
        """`datetime` of a process whose clock is wrong."""

        __slots__ = ()  # compiled modules look at its size

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.now(dt.UTC).replace(tzinfo=None)

    time.time = lambda: right() + offset_s
    time.time_ns = lambda: right_ns() + int(offset_s * 1_000_000_000)
    dt.datetime = Wrong  # type: ignore[misc]
