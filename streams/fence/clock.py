"""The clock that deadlines of this process are counted on."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME goes on while the machine sleeps; Linux's monotonic clock does not, and a lease that ended during the
# sleep would look alive. Elsewhere the monotonic clock counts sleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_s() -> float:
    """Seconds on a clock that never goes back and never stops, not even while the machine sleeps."""
    return time.clock_gettime(_CLOCK)
