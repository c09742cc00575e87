"""The project's own audit, `ops.audit`, on what a simulation left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ops.audit.intake import Batch, Taken
from ops.audit.partition import PartitionAudit
from ops.audit.replay import StoredCheckpoint
from ops.audit.source import PartitionSource
from ops.audit.violations import Findings, Tally
from streams.core.events import Entry
from streams.fence.port import Positions
from streams.runtime.signals import Tick
from tests.simulation.network import run_now
from tests.simulation.place import Place


class SimSource(PartitionSource):
    """A partition's journal and intake in memory."""

    def __init__(self, place: Place, partition: int) -> None:
        self._place = place
        self._codec = place.codec
        self._partition = partition
        self._partitions = place.partitions
        self._belongs = {}
        self.end = place.cluster.logs[place.cluster.topics.conversations, partition].stable_end

    async def entries(self) -> AsyncIterator[tuple[int, list[Entry]]]:
        for offset, entry in self._place.journal(self._partition):
            yield offset, [entry]

    async def taken(
        self, before: Positions, after: Positions, batch: Batch | None = None
    ) -> tuple[Taken, Taken] | None:
        topics = self._place.cluster.topics
        turns = self._between(topics.turns, before.turns, after.turns)
        frames = self._between(topics.frames, before.frames, after.frames)
        return (
            self._summary(turns, self._codec.decode_turns, batch, "turns"),
            self._summary(frames, self._codec.decode_frames, batch, "frames"),
        )

    async def ticks(self, before: Positions, after: Positions, worker: str) -> Sequence[Tick] | None:
        name = self._place.cluster.topics.membership
        return self._ticks_in(self._between(name, before.membership, after.membership), worker)

    def _between(self, topic: str, start: int, end: int) -> list[Any]:
        return self._place.cluster.logs[topic, self._partition].records[start:end]


@dataclass(frozen=True, slots=True)
class SimCheckpoint(StoredCheckpoint):
    """A partition's checkpoint, and rows, in memory."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    keys: list[dict[str, Any]] = field(default_factory=list)

    async def conversations(self) -> AsyncIterator[dict[str, Any]]:
        for row in self.rows:
            yield row

    async def older_keys(self, not_before: int) -> AsyncIterator[dict[str, Any]]:
        for key in self.keys:
            if key["at"] >= not_before:
                yield key


def audit(place: Place) -> tuple[Tally, list[str]]:
    """What was counted, and every violation in a line."""
    findings, tally = Findings(), Tally()
    for partition in range(place.partitions):
        each = PartitionAudit(partition, SimSource(place, partition), _checkpoint(place, partition), findings, None)
        try:
            tally.add(run_now(each.run(lambda position: None)))
        finally:
            each.close()
    lines = [
        f"invariant {found.invariant}, partition {found.partition}, lsn {found.lsn}: {found.problem}"
        for found in findings.shown
    ]
    return tally, lines


def _checkpoint(place: Place, partition: int) -> SimCheckpoint:
    store = place.database.store
    stored = store.checkpoints.get(partition)
    if stored is None or not stored.lsn:
        return SimCheckpoint(None, None, partition)
    at = stored.positions
    row = {
        "lsn": stored.lsn,
        "turns": at.turns,
        "frames": at.frames,
        "membership": at.membership,
        "state": stored.state,
    }
    rows = [
        {"conversation_id": name, "state": conversation.state, "hot": conversation.hot}
        for name, (of, conversation) in store.conversations.items()
        if of == partition
    ]
    keys = [msgspec.structs.asdict(key) for of, key in store.keys.values() if of == partition]
    return SimCheckpoint(row, None, partition, rows, keys)
