"""The audit of one partition, from its servers or its archive: begun, or gone on with."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from ops.audit.asked import Asked, Audited, Notify, Where
from ops.audit.kept import Kept
from ops.audit.partition import PartitionAudit
from ops.audit.replay import absent_checkpoint, stored_checkpoint
from ops.audit.source import PartitionSource, opened
from ops.audit.violations import Findings
from ops.history import History
from streams.runtime.codec import Codec

PROGRESS_EVERY_S: Final = 1.0
SAVE_EVERY_S: Final = 60.0
"""An audit in a process of its own keeps what it knows so often, for when it is killed."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where an audit keeps what it knows, from time to time and when it is `stopping`."""

    kept: Kept
    stopping: Callable[[], bool]


async def audit_partition(
    history: History, asked: Asked, partition: int, notify: Notify, keeping: Keeping | None = None
) -> Audited:
    """One partition, with a line of progress a second. `keeping`: it goes on from what is kept there; `Paused` when it
    is stopping."""
    async with AsyncExitStack() as undo:
        # The checkpoint first: what the journal has by then, it still has when its end is looked at.
        if asked.where.offline or asked.settings is None:
            checkpoint, source = absent_checkpoint(partition), PartitionSource(history, None, Codec(), partition)
        else:
            checkpoint = await undo.enter_async_context(stored_checkpoint(asked.settings.postgres, partition))
            source = await undo.enter_async_context(opened(history, asked.settings, partition))
        audit: PartitionAudit | None = None if keeping is None else keeping.kept.load(partition)
        if audit is None:
            audit = PartitionAudit(partition, source, checkpoint, Findings(), asked.scope.conversation)
        else:
            audit.attach(source, checkpoint)
        undo.callback(audit.close)
        await source.begin(audit.position, audit.covered)
        pace = _Pace(audit, f"partition {partition} of {history.partitions}", source.end, notify, keeping)
        tally = await audit.run(pace.progress)
        doubts = _doubts(audit, asked.where)
        unchecked = {number for numbers, _ in doubts for number in numbers}
        return Audited(partition, tally, audit.findings, tuple(note for _, note in doubts), tuple(sorted(unchecked)))


class _Pace:
    """Says how far it is, keeps it, and stops it."""

    def __init__(self, audit: PartitionAudit, where: str, end: int, notify: Notify, keeping: Keeping | None) -> None:
        self._audit, self._where, self._end, self._notify, self._keeping = audit, where, end, notify, keeping
        self._start = audit.position
        self._begun = self._told = self._saved = time.monotonic()

    def progress(self, position: int) -> bool:
        now = time.monotonic()
        if now - self._told >= PROGRESS_EVERY_S:
            self._told = now
            speed = (position - self._start) / (now - self._begun)
            self._notify(f"{self._where}: {position:,} of {self._end:,} ({speed:,.0f}/s)")
        if self._keeping is None:
            return False
        stop = self._keeping.stopping()
        if stop or now - self._saved >= SAVE_EVERY_S:
            self._keeping.kept.save(self._audit.partition, self._audit)
            gc.collect()  # the one time that it happens in a process of its own
            self._saved = time.monotonic()
        return stop


def _doubts(audit: PartitionAudit, where: Where) -> Sequence[tuple[tuple[int, ...], str]]:
    """What could not be compared: the invariants that rest on it, and the note that says so."""
    if where.offline:
        said = "an archive has neither checkpoints nor intake: what rests on them was not compared"
        return [((10, 11, 12), f"{said} (invariants 10, 11 and 12)")]
    doubts: list[tuple[tuple[int, ...], str]] = []
    if audit.uncompared:
        note = (
            f"partition {audit.partition}: the intake of {audit.uncompared:,} batches is kept no longer; what they "
            "consumed was not compared with their outcomes (invariant 11)"
        )
        doubts.append(((11,), note))
    if audit.unticked:
        note = (
            f"partition {audit.partition}: the ticks of {audit.unticked:,} batches are kept no longer; their log time "
            "was not compared with them (invariant 12)"
        )
        doubts.append(((12,), note))
    if audit.passed_by:
        note = (
            f"partition {audit.partition}: its checkpoint was written while the audit was interrupted, behind where it "
            "went on, and was not compared with the journal (invariant 10)"
        )
        doubts.append(((10,), note))
    return doubts
