"""The audit of a live cluster: each partition's journal, intake and checkpoint through every checker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ops.audit.intake import Consumed
from ops.audit.keys import KeysOnce
from ops.audit.order import GapFree, WriterEpochs
from ops.audit.owners import Owners
from ops.audit.refusals import NothingFenced
from ops.audit.replay import CheckpointHolds, Replay, StoredCheckpoint, stored_checkpoint
from ops.audit.runs import RunEpochs
from ops.audit.source import CouldNotVerify, PartitionSource, opened
from ops.audit.turns import NothingLost
from ops.audit.violations import Checker, Findings, Tally, Verdict, Violation
from ops.provision import connected_admin
from streams.core.events import BatchCommitted, Entry, Unknown
from streams.runtime.partitioning import partition_of
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics, verify

PROGRESS_EVERY_S = 1.0
SPLITS = (1 / 3, 2 / 3)
"""Where along the journal the replayed state is taken apart and put together again."""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What to look at. A conversation: its partition is read as a whole, and what is told is of it alone."""

    partition: int | None = None
    conversation: str | None = None


async def verify_cluster(settings: Settings, scope: Scope, notify: Notify) -> Verdict:
    """Check invariants 1 to 7 and 9 to 11 up to what was committed when each partition's turn came.

    `notify` gets a line of progress a second. Raises `CouldNotVerify` when the answer is neither yes nor no, and what
    the clients of Kafka and Postgres raise.
    """
    topics = Topics(settings.namespace)
    codec = open_codec(settings.schema_registry, topics)
    async with connected_admin(settings.kafka) as admin:
        count = await verify(admin, topics)
    findings, tally = Findings(), Tally()
    for partition in _partitions(scope, count):
        async with AsyncExitStack() as undo:
            # The checkpoint first: what the journal has by then, it still has when its end is looked at.
            checkpoint = await undo.enter_async_context(stored_checkpoint(settings.postgres, partition))
            source = await undo.enter_async_context(opened(settings.kafka, codec, topics, partition, count))
            audit = PartitionAudit(partition, source, checkpoint, findings, scope.conversation)
            undo.callback(audit.close)
            tally.add(await audit.run(_progress(notify, partition, count, source.end)))
            if audit.uncompared:
                notify(
                    f"partition {partition}: the intake of {audit.uncompared:,} batches is kept no longer; what they "
                    "consumed was not compared with their outcomes (invariant 11)"
                )
    if scope.conversation is not None and not tally.events and not findings.count:
        raise CouldNotVerify(f"the journal has nothing of a conversation {scope.conversation}")
    return Verdict(tally, findings)


def _partitions(scope: Scope, count: int) -> Iterable[int]:
    if scope.conversation is not None:
        return (partition_of(scope.conversation, count),)
    if scope.partition is None:
        return range(count)
    if scope.partition >= count:
        raise CouldNotVerify(f"there is no partition {scope.partition}: they are 0 to {count - 1}")
    return (scope.partition,)


def _progress(notify: Notify, partition: int, count: int, end: int) -> Callable[[int], None]:
    begun = told = time.monotonic()

    def progress(position: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= PROGRESS_EVERY_S:
            told = now
            notify(f"partition {partition} of {count}: {position:,} of {end:,} ({position / (now - begun):,.0f}/s)")

    return progress


class PartitionAudit:
    """Every checker along one partition."""

    def __init__(
        self,
        partition: int,
        source: PartitionSource,
        checkpoint: StoredCheckpoint,
        findings: Findings,
        conversation: str | None,
    ) -> None:
        self._partition = partition
        self._source = source
        self._checkpoint = checkpoint
        self._findings = findings
        self._only = conversation
        self._replay = Replay(partition)
        self._holds = CheckpointHolds()
        self._consumed = Consumed()
        self._fenced = NothingFenced()
        self._lost = NothingLost(only=conversation)
        self._checkers: tuple[Checker, ...] = (
            GapFree(),
            WriterEpochs(),
            RunEpochs(),
            self._lost,
            self._fenced,
            KeysOnce(),
            self._consumed,
            self._holds,
        )
        self._lsn = 0
        self.uncompared = 0
        """Batches whose intake is kept no longer."""

    def close(self) -> None:
        """Remove what lies on disk."""
        self._replay.close()

    async def run(self, progress: Callable[[int], None]) -> Tally:
        """Read it all; what was counted. Violations go to the findings."""
        splits = [fraction * self._source.end for fraction in SPLITS]
        async for position, entries in self._source.entries():
            for entry in entries:
                await self._see(entry)
            self._replay.relieve()
            if splits and position >= splits[0]:
                splits.pop(0)
                self._report(Replay.invariant, None, self._replay.split())
            progress(position)
        self._report(CheckpointHolds.invariant, None, self._holds.ahead(self._checkpoint.lsn, self._lsn))
        return self._lost.settle()

    async def _see(self, entry: Entry) -> None:
        if isinstance(entry.event, Unknown):
            raise CouldNotVerify(
                f"lsn {entry.lsn} of partition {self._partition} is a {entry.event.name}, which a later release wrote: "
                "use the audit of that release"
            )
        self._lsn = entry.lsn
        covered = self._consumed.covered
        for checker in self._checkers:
            if found := checker.see(entry):
                self._report(checker.invariant, entry, found)
        self._fold(entry)
        if isinstance(entry.event, BatchCommitted):
            taken = await self._source.taken(covered, self._consumed.covered)
            if taken is None:
                self.uncompared += 1
                self._consumed.skip()
                self._fenced.skip()
            else:
                self._report(Consumed.invariant, entry, self._consumed.account(*taken))
                self._report(NothingFenced.invariant, entry, self._fenced.account(taken[1].refs))
        if entry.lsn == self._checkpoint.lsn and not self._replay.broken:
            await self._compare_checkpoint(entry)

    def _fold(self, entry: Entry) -> None:
        if self._replay.broken:
            return
        self._replay.require(entry)
        self._report(Owners.invariant, entry, Owners(self._replay.state).see(entry))
        self._report(Replay.invariant, entry, self._replay.see(entry))

    async def _compare_checkpoint(self, entry: Entry) -> None:
        row = self._checkpoint.row
        if row is None:
            return
        self._report(CheckpointHolds.invariant, entry, self._holds.compare(self._replay, row))
        rows = 0
        async for conversation in self._checkpoint.conversations():
            rows += 1
            found = self._holds.compare_conversation(self._replay, conversation)
            self._report(CheckpointHolds.invariant, entry, found, conversation["conversation_id"])
        if rows != self._replay.count:
            problem = f"the checkpoint has {rows} conversations, a replay {self._replay.count}"
            self._report(CheckpointHolds.invariant, entry, [problem])

    def _report(
        self, invariant: int, entry: Entry | None, problems: Iterable[str], conversation: str | None = None
    ) -> None:
        for problem in problems:
            concerned = conversation or (None if entry is None else entry.event.conversation_id)
            if self._only is None or concerned in {None, self._only}:
                self._findings.add(
                    Violation(
                        invariant=invariant,
                        partition=self._partition,
                        lsn=0 if entry is None else entry.lsn,
                        conversation=concerned,
                        problem=problem,
                    )
                )
