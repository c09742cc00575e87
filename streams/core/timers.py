"""Due times of runs: buckets of a second, so that a tick costs what is due, not what is open.

A run's bucket may be earlier than its real due time (work postpones it, and moving it at every frame would cost more);
it is looked at when the bucket comes, and moved on. It is never later, so what fires does not depend on it.
"""

from __future__ import annotations

from typing import Final

import msgspec

BUCKET_MS: Final = 1000


class Timers(msgspec.Struct):
    """run id -> conversation id, by second of log time."""

    buckets: dict[int, dict[str, str]] = {}
    where: dict[str, int] = {}

    def add(self, run_id: str, conversation_id: str, due: int) -> None:
        """Look at this run at `due` or before; a known run keeps the earlier of its buckets."""
        bucket = due // BUCKET_MS
        known = self.where.get(run_id)
        if known is not None:
            if known <= bucket:
                return
            self.drop(run_id)
        self.where[run_id] = bucket
        runs = self.buckets.get(bucket)
        if runs is None:
            runs = self.buckets[bucket] = {}
        runs[run_id] = conversation_id

    def drop(self, run_id: str) -> None:
        """Forget a run, known or not."""
        bucket = self.where.pop(run_id, None)
        if bucket is None:
            return
        runs = self.buckets[bucket]
        del runs[run_id]
        if not runs:
            del self.buckets[bucket]

    def candidates(self, at: int) -> list[tuple[str, str]]:
        """(conversation id, run id) of all that may be due at `at`, in no meaningful order; changes nothing."""
        last = at // BUCKET_MS
        return [
            (conversation_id, run_id)
            for bucket in self.buckets
            if bucket <= last
            for run_id, conversation_id in self.buckets[bucket].items()
        ]
