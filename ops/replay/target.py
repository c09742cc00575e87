"""Points of history."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One point: after all that was committed up to a time, an offset or an lsn, that one included. None set: now.

    An offset and an lsn are of one partition; a time is of all.
    """

    time_ms: int | None = None
    offset: int | None = None
    lsn: int | None = None

    @property
    def of_one_partition(self) -> bool:
        """It says nothing about other partitions."""
        return self.offset is not None or self.lsn is not None
