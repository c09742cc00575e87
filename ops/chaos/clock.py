"""A process whose clock is wrong, without libfaketime: Python's own view of the time of day is moved.

Every function of `time` and `datetime` that tells the time of day is moved, with the calendar ones that ask for it
themselves (`gmtime`, `strftime`, …); a library written in C that asked the system itself would not be, and none that
runs here does. The clocks that only go forward (monotonic, CLOCK_BOOTTIME, perf_counter) are not touched, as a wrong
time of day does not touch them either.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from typing import Any, Final, Self

VARIABLE: Final = "TURNLOG_CHAOS_CLOCK_S"
"""Seconds that this process's clock is ahead (negative: behind)."""
NANOSECONDS: Final = 1_000_000_000
TOLD_OF: Final = ("gmtime", "localtime", "ctime")
"""Functions whose last argument, seconds since the epoch, is now unless given."""
FORMATTED: Final = ("strftime", "asctime")
"""Functions whose last argument, a time tuple, is now unless given."""


def skew() -> None:
    """Move the clock by what the environment says. Call it before anything else is imported."""
    offset_s = float(os.environ.get(VARIABLE, "0"))
    if not offset_s:
        return
    right, right_ns, gettime, gettime_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns
    offset_ns = int(offset_s * NANOSECONDS)

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
    time.time_ns = lambda: right_ns() + offset_ns
    time.clock_gettime = lambda which: gettime(which) + (offset_s if which == time.CLOCK_REALTIME else 0.0)
    time.clock_gettime_ns = lambda which: gettime_ns(which) + (offset_ns if which == time.CLOCK_REALTIME else 0)
    for name in TOLD_OF:
        setattr(time, name, _now_unless_given(getattr(time, name)))
    for name in FORMATTED:
        setattr(time, name, _local_unless_given(getattr(time, name), taken=1 if name == "strftime" else 0))
    dt.datetime = Wrong  # type: ignore[misc]


def _now_unless_given(function: Callable[..., Any]) -> Callable[..., Any]:
    def told(seconds: float | None = None) -> Any:
        return function(time.time() if seconds is None else seconds)

    return told


def _local_unless_given(function: Callable[..., Any], taken: int) -> Callable[..., Any]:
    def told(*arguments: Any) -> Any:
        return function(*arguments, *([] if len(arguments) > taken else [time.localtime()]))

    return told
