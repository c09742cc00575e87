"""Lets Kafka delete what is safe elsewhere: never more than is archived, verified, digested, and read by who must.

A partition's journal is cut below the lowest of: what is older than it is to be kept; what the archive holds, compared
with Kafka record by record; what is sealed, compared with the archive; every checkpoint (a worker that claims the
partition reads on from there, and stops when that is gone); the projector's position; and a tail that gateways read
when they start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from ops.archive.history import ArchiveHistory
from ops.database import Database
from ops.digest.against import against
from ops.digest.statements import Digests
from ops.history.live import LiveHistory
from ops.history.port import History, HistoryUnavailable, Missing, Range, Recorded

TAIL_OFFSETS: Final = 20_000
"""Left in any case: a gateway that starts reads the last 2,000 offsets, and ten times as many where those hold none."""


@dataclass(slots=True)
class Plan:
    """How far one partition's journal may be cut, and what says so."""

    partition: int
    there: Range
    limits: dict[str, int]
    """What must stay begins at these offsets, by what needs it."""
    until: int = 0
    problems: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """Take the lowest limit."""
        self.until = max(self.there.start, min(self.limits.values()))

    @property
    def held_by(self) -> str:
        """What sets the limit."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def deletes(self) -> Range:
        """What would be deleted."""
        return Range(self.there.start, self.until)

    def document(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            "partition": self.partition,
            "start": self.there.start,
            "end": self.there.end,
            "until": self.until,
            "offsets": len(self.deletes),
            "held_by": self.held_by,
            "limits": self.limits,
            "problems": self.problems,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Safe:
    """Where the journal must be found before Kafka may lose it, and what is still read from Kafka."""

    live: LiveHistory
    archive: ArchiveHistory
    digests: Digests | None
    """None: a person said to do without."""
    database: Database
    notify: Callable[[str], None]

    async def plans(self, before_ms: int, tail: int = TAIL_OFFSETS) -> list[Plan]:
        """How far each partition may be cut, when what is younger than `before_ms` stays; compared, nothing changed.

        Raises `HistoryUnavailable` for a database of another journal: its checkpoints say nothing about this one.
        """
        kept = [row["topic_id"] for row in await self.database.rows("journal_topic")]
        if kept and self.live.identity not in kept:
            raise HistoryUnavailable(
                f"the database belongs to the journal with topic id {', '.join(kept)}, not to this one, "
                f"{self.live.identity}: what its checkpoints need cannot be known. Set TURNLOG_POSTGRES to this one's"
            )
        rows = {row["partition"]: row for row in await self.database.rows("journal_positions")}
        plans = []
        for partition in range(self.live.partitions):
            plan = await self._plan(partition, before_ms, tail, rows.get(partition, {}))
            if len(plan.deletes):
                await self._compare(plan)
            plans.append(plan)
        return plans

    async def _plan(self, partition: int, before_ms: int, tail: int, row: dict[str, Any]) -> Plan:
        there = await self.live.bounds(partition)
        young = await self.live.offset_at(partition, before_ms)
        limits = {
            "age": there.end if young is None else young,
            "archive": await self._archived(partition, there.start),
            "checkpoint": row.get("checkpoint") or 0,
            "projector": row.get("projector") or 0,
            "tail": max(0, there.end - tail),
        }
        if self.digests is not None:
            chain = self.digests.chain(partition)
            limits["digest"] = chain[-1].statement.end if chain else 0
        plan = Plan(partition, there, limits)
        plan.settle()
        return plan

    async def _archived(self, partition: int, start: int) -> int:
        """Up to where the archive holds all from `start` on."""
        gone = [each for each in await self.archive.missing(partition) if each.end > start]
        end = (await self.archive.bounds(partition)).end
        return min([end, *(each.start for each in gone)])

    async def _compare(self, plan: Plan) -> None:
        """Nothing is deleted of a partition in which anything differs."""
        plan.problems += [problem async for problem in self._differences(plan.partition, plan.deletes)]
        if self.digests is not None and not plan.problems:
            (evidence,) = await against(self.archive, self.digests, partitions=[plan.partition], within=plan.deletes)
            plan.problems += [each.problem for each in evidence.found]
            plan.problems += [f"offsets {gone} are sealed and not in the archive" for gone in evidence.missing]
        if plan.problems:
            plan.limits["differs"] = plan.there.start
            plan.settle()
        self.notify(f"partition {plan.partition}: compared {plan.deletes}")

    async def _differences(self, partition: int, wanted: Range) -> AsyncIterator[str]:
        archived = _each(self.archive, partition, wanted)
        try:
            async for recorded in _each(self.live, partition, wanted):
                copy = await anext(archived, None)
                if copy != recorded:
                    yield f"partition {partition}, offset {recorded.offset}: the archive has something else there"
                    return
            if (copy := await anext(archived, None)) is not None:
                yield f"partition {partition}, offset {copy.offset}: the archive has what Kafka has not"
        except Missing as missing:
            yield str(missing)


async def _each(history: History, partition: int, wanted: Range) -> AsyncIterator[Recorded]:
    async for chunk in history.read(partition, wanted.start, wanted.end):
        for recorded in chunk:
            yield recorded


async def trim(admin: AIOKafkaAdminClient, topic: str, plans: Sequence[Plan]) -> None:
    """Delete what the plans say. Kafka refuses nothing that is asked twice."""
    wanted = {
        TopicPartition(topic, plan.partition): RecordsToDelete(before_offset=plan.until)
        for plan in plans
        if len(plan.deletes)
    }
    if wanted:
        await admin.delete_records(wanted)
