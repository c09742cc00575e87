"""The audit of one partition: its journal, intake and checkpoint through every checker, a stretch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

from ops.audit.clock import ClockFollowsTicks
from ops.audit.intake import Consumed
from ops.audit.keys import KeysOnce
from ops.audit.older_keys import OlderKeys
from ops.audit.order import GapFree, WriterEpochs
from ops.audit.owners import Owners
from ops.audit.refusals import NothingFenced
from ops.audit.replay import CheckpointHolds, Replay, StoredCheckpoint
from ops.audit.runs import RunEpochs
from ops.audit.source import CouldNotVerify, PartitionSource
from ops.audit.turns import NothingLost
from ops.audit.violations import Checker, Findings, Problems, Seeing, Tally, Violation
from ops.grow.split import GROWN
from streams.core.events import BatchCommitted, Entry, Event, OperatorActed, Unknown
from streams.core.fold import evolve
from streams.core.state import KEY_LIFETIME_MS, ImpossibleEvent
from streams.fence.port import Positions

SPLITS: Final = (1 / 3, 2 / 3)
"""Where along the journal the replayed state is taken apart and put together again, half of its conversations each
time: those that are there at both are all taken apart once."""
RELIEF_EVERY: Final = 4_000
"""Entries after which idle conversations may leave memory: it looks at all that are there."""

_event, _lsn = attrgetter("event"), attrgetter("lsn")

Look = Callable[[Entry, Any], Problems]


class Paused(Exception):
    """It was told to stop between two chunks; `PartitionAudit` goes on from there, also in another process."""


class PartitionAudit:
    """Every checker along one partition. Can be pickled between two chunks; then `attach` it to a source again."""

    def __init__(
        self,
        partition: int,
        source: PartitionSource,
        checkpoint: StoredCheckpoint,
        findings: Findings,
        conversation: str | None,
    ) -> None:
        self.partition = partition
        self.findings = findings
        self._only = conversation
        self._replay = Replay(partition)
        self._owners = Owners(self._replay.state)
        self._holds = CheckpointHolds()
        self._clock = ClockFollowsTicks()
        self._consumed = Consumed()
        self._fenced = NothingFenced()
        self._lost = NothingLost(only=conversation)
        self._gap_free = GapFree()
        self._epochs = WriterEpochs()
        self._keys = KeysOnce()
        self._checkers: tuple[Checker, ...] = (
            RunEpochs(),
            self._lost,
            self._fenced,
            self._keys,
            self._consumed,
            self._holds,
            self._clock,
        )
        self._lsn = 0
        self._grown = False
        """It begins with what was copied from fewer partitions (`turnlog topic grow`)."""
        self._compared = False
        self.position = 0
        """Journal offset up to which all is seen."""
        self.uncompared = 0
        """Batches whose intake is kept no longer."""
        self.unticked = 0
        """Batches whose ticks are kept no longer."""
        self._splits = [*SPLITS]
        self.attach(source, checkpoint)

    def attach(self, source: PartitionSource, checkpoint: StoredCheckpoint) -> None:
        """Read from this source, which begins at `position`, and compare with this checkpoint."""
        self._source = source
        self._checkpoint = checkpoint
        self._table = _table(self._checkers) | {Unknown: ((0, self._refuse_unknown),)}
        self._deciding = _table((self._owners,))

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_source", "_checkpoint", "_table", "_deciding")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    @property
    def covered(self) -> Positions:
        """Up to where the intake was consumed at `position`."""
        return self._consumed.covered

    def close(self) -> None:
        """Remove what lies on disk."""
        self._replay.close()
        self._fenced.close()
        self._gap_free.close()
        self._keys.close()

    async def run(self, progress: Callable[[int], object]) -> Tally:
        """Read it all; what was counted. Violations go to the findings.

        `progress` is told each chunk's end; when it answers with something true, `Paused` is raised.
        """
        splits, relief = [fraction * self._source.end for fraction in self._splits], 0
        async for position, entries in self._source.entries():
            await self._take(entries)
            relief += len(entries)
            if relief >= RELIEF_EVERY:
                self._replay.relieve()
                relief = 0
            self.position = position
            while splits and position >= splits[0]:  # both at once where there is one part
                splits.pop(0)
                self._splits.pop(0)
                self._report(Replay.invariant, None, self._replay.split(len(splits), len(SPLITS)))
                self._owners = Owners(self._replay.state)
                self._deciding = _table((self._owners,))
            if progress(position) and position < self._source.end:
                raise Paused
        self._report(CheckpointHolds.invariant, None, self._holds.ahead(self._checkpoint.lsn, self._lsn))
        return self._lost.settle()

    @property
    def passed_by(self) -> bool:
        """The checkpoint was written while the audit was interrupted, behind where it went on: it was not compared."""
        return self._checkpoint.row is not None and 0 < self._checkpoint.lsn <= self._lsn and not self._compared

    async def _take(self, entries: Sequence[Entry]) -> None:
        """A chunk, in stretches: each ends with a batch, or where the checkpoint was taken."""
        at, lsns = self._checkpoint.lsn, [*map(_lsn, entries)]
        ends = [i + 1 for i, kind in enumerate(map(type, map(_event, entries))) if kind is BatchCommitted]
        if at in lsns:
            ends = sorted({*ends, lsns.index(at) + 1})
        for start, end in pairwise([0, *ends]):
            await self._stretch(entries[start:end])
        rest = entries[ends[-1] :] if ends else entries
        if rest:
            await self._stretch(rest)

    async def _stretch(self, entries: Sequence[Entry]) -> None:
        self._lost.count(entries)
        for checker in (self._gap_free, self._epochs):
            for entry, problem in checker.see_all(entries):
                self._report(checker.invariant, entry, (problem,))
        covered = self._consumed.covered
        self._consumed.note(entries)
        table = self._table
        for entry in entries:
            event = entry.event
            for invariant, look in table[type(event)]:
                if found := look(entry, event):
                    self._report(invariant, entry, found)
        self._fold(entries)
        first, last = entries[0], entries[-1]
        if first.lsn == 1:
            self._grown = isinstance(first.event, OperatorActed) and first.event.action == GROWN
        self._lsn = last.lsn
        if isinstance(last.event, BatchCommitted):
            await self._account(last, covered)
        if last.lsn == self._checkpoint.lsn and not self._replay.broken:
            await self._compare_checkpoint(last)

    def _fold(self, entries: Iterable[Entry]) -> None:
        """Decide every owner again, and fold, one after the other, until one cannot follow."""
        replay, deciding = self._replay, self._deciding
        if replay.broken:
            return
        state = replay.state
        conversations = state.conversations
        entry = None
        try:
            for entry in entries:
                event = entry.event
                name = event.conversation_id
                if name is not None and name not in conversations:
                    replay.require(name)
                for invariant, look in deciding[type(event)]:
                    if found := look(entry, event):
                        self._report(invariant, entry, found)
                evolve(state, entry)
        except ImpossibleEvent as impossible:
            self._report(replay.invariant, entry, replay.broke(impossible))

    async def _account(self, entry: Entry, covered: Positions) -> None:
        """Hold what the batch consumed against what came of it."""
        after = self._consumed.covered
        if self._grown and after == Positions():  # decided in the generation of topics before, of its intake
            self._clock.account(entry, None)
            self.unticked += 1
            self._uncomparable()
            return
        ticks = await self._source.ticks(covered, after, self._clock.writer.worker)
        self.unticked += ticks is None
        if found := self._clock.account(entry, ticks):
            self._report(ClockFollowsTicks.invariant, entry, found)
        taken = await self._source.taken(covered, self._consumed.covered, self._consumed.open)
        if taken is None:
            self._uncomparable()
            return
        if found := self._consumed.account(*taken):
            self._report(Consumed.invariant, entry, found)
        if found := self._fenced.account(taken[1].refs):
            self._report(NothingFenced.invariant, entry, found)

    def _uncomparable(self) -> None:
        self.uncompared += 1
        self._consumed.skip()
        self._fenced.skip()

    def _refuse_unknown(self, entry: Entry, event: Unknown) -> Problems:
        raise CouldNotVerify(
            f"lsn {entry.lsn} of partition {self.partition} is a {event.name}, which a later release wrote: use the "
            "audit of that release"
        )

    async def _compare_checkpoint(self, entry: Entry) -> None:
        row = self._checkpoint.row
        if row is None:
            return
        self._compared = True
        self._report(CheckpointHolds.invariant, entry, self._holds.compare(self._replay, row))
        rows = 0
        async for conversation in self._checkpoint.conversations():
            rows += 1
            found = self._holds.compare_conversation(self._replay, conversation)
            self._report(CheckpointHolds.invariant, entry, found, conversation["conversation_id"])
        if rows != self._replay.count:
            problem = f"the checkpoint has {rows} conversations, a replay {self._replay.count}"
            self._report(CheckpointHolds.invariant, entry, [problem])
        await self._compare_keys(entry)

    async def _compare_keys(self, entry: Entry) -> None:
        """After all conversations were dumped: their older keys against the table."""
        older, too_old = self._replay.older_keys, self._replay.state.at - KEY_LIFETIME_MS
        async for row in self._checkpoint.older_keys(too_old):
            self._report(OlderKeys.invariant, entry, older.compare(row), row["conversation_id"])
        for conversation, problem in older.missing(too_old):
            self._report(OlderKeys.invariant, entry, [problem], conversation or None)

    def _report(
        self, invariant: int, entry: Entry | None, problems: Iterable[str], conversation: str | None = None
    ) -> None:
        for problem in problems:
            concerned = conversation or (None if entry is None else entry.event.conversation_id)
            if self._only is None or concerned in {None, self._only}:
                self.findings.add(
                    Violation(
                        invariant=invariant,
                        partition=self.partition,
                        lsn=0 if entry is None else entry.lsn,
                        conversation=concerned,
                        problem=problem,
                    )
                )


def _table(checkers: Iterable[Checker]) -> dict[type[Event], tuple[tuple[int, Look], ...]]:
    """Of each kind of event, who looks at it."""
    return {
        kind: tuple((each.invariant, _look(each, kind)) for each in checkers if not each.kinds or kind in each.kinds)
        for kind in Event.__subclasses__()
    }


def _look(checker: Checker, kind: type[Event]) -> Look:
    """What is called for it: as little as there may be between the loop and the checker's own method."""
    if isinstance(checker, Seeing):
        return partial(checker.handlers[kind], checker)
    look: Look | None = getattr(checker, "look", None)
    return look or (lambda entry, _: checker.see(entry))
