"""One run of an export: from where each table of the target is, to what is committed in the journal now."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ops.export.selection import Selection
from ops.export.target import Contents, ExportRefused, Increment, Overtaken, States, Target, require_same
from ops.history import History, Range
from ops.history.around import around, told_missing
from streams.core.events import ConversationErased
from turnlog.data import fold as fold_module
from turnlog.data import state as state_module
from turnlog.data import tables as tables_module
from turnlog.data.fold import Fold
from turnlog.data.state import State
from turnlog.data.tables import Row

COMMIT_RECORDS: Final = 100_000
"""Journal records an increment: some 50 MB of rows in memory, and files that are not too many."""
STATE_RECORDS: Final = 2_000_000
"""A run that is cut off after so many has to fold at most as many again."""
SAY_EVERY_S: Final = 2.0

Say = Callable[[str], None]


class PartMissing(ExportRefused):
    """Records that were once there are gone: the tables would be wrong without a word."""


@dataclass(slots=True)
class Outcome:
    """What a run did."""

    records: int = 0
    """Journal records that were new to at least one table."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows written, by table."""
    commits: int = 0
    erased: int = 0
    """Conversations of which the run read that they are erased: what nobody had sealed of them is in the tables."""
    positions: dict[int, int] = field(default_factory=dict)
    missing: dict[int, list[Range]] = field(default_factory=dict)


def fold_version() -> str:
    """Another one for a fold that gives, or keeps, something else: its states cannot go on here."""
    sources = (inspect.getsource(module) for module in (fold_module, state_module, tables_module))
    return hashlib.sha256("".join(sources).encode()).hexdigest()[:16]


class Export:
    """One run. `commit_records`: journal records an increment. `upto`: is kept at the offset up to which each partition
    is committed in all tables, as the run goes on."""

    def __init__(
        self,
        history: History,
        target: Target,
        states: States,
        selection: Selection,
        say: Say,
        *,
        commit_records: int = COMMIT_RECORDS,
        accept_missing: bool = False,
        upto: dict[int, int] | None = None,
    ) -> None:
        self._history = history
        self._target = target
        self._states = states
        self._selection = selection
        self._say = say
        self._commit_records = commit_records
        self._accept_missing = accept_missing
        self._upto = {} if upto is None else upto
        self._at: dict[str, dict[int, int]] = {}
        self._rows: dict[str, list[Row]] = {}
        self._positions: dict[int, int] = {}
        self._gathered = 0
        self._said = time.monotonic()
        self.outcome = Outcome(rows={table.name: 0 for table in selection.tables})

    async def run(self) -> Outcome:
        """Bring the target to what is committed now.

        Raises `ExportRefused`: the target is of something else, another export of it is at work, or records are
        missing; and what the history raises.
        """
        await self._look_for_missing()
        try:
            await asyncio.to_thread(self._open)
            for partition in range(self._history.partitions):
                await self._partition(partition)
            await self._commit()
        except Overtaken:
            raise ExportRefused(
                f"another export of {self._target.address}, or a `turnlog scrub`, committed meanwhile, and nothing was "
                "written twice: let one of them run at a time"
            ) from None
        return self.outcome

    async def _look_for_missing(self) -> None:
        self.outcome.missing = await told_missing(self._history, self._say)
        if self.outcome.missing and not self._accept_missing:
            raise PartMissing(
                "rows would be wrong, or missing, without a word: name the archive that has what is gone (--archive), "
                "or accept it (--accept-missing)"
            )

    def _open(self) -> None:
        """Make the target where it is not there; read where its tables are."""
        wanted = Contents(
            journal=self._history.identity,
            partitions=self._history.partitions,
            selection=self._selection.document(),
        )
        self._require_mine(wanted)
        self._target.make(wanted, self._selection.tables)
        self._require_mine(wanted)  # another export may have made it meanwhile, of something else
        for table in self._selection.tables:
            self._at[table.name] = dict(self._target.positions(table))
        self._note_upto()

    def _require_mine(self, wanted: Contents) -> None:
        """Raise `ExportRefused` where the target is of something else."""
        found = self._target.contents()
        if found is not None:
            require_same(found, wanted, self._target.address)

    async def _partition(self, partition: int) -> None:
        end = await self._end(partition)
        start = min((at.get(partition, 0) for at in self._at.values()), default=end)
        if start >= end:
            return
        fold, folded = await self._fold(partition, start)
        kept = folded
        gone = self.outcome.missing.get(partition, [])
        async for chunk in around(self._history, partition, gone, folded, end):
            for recorded, entry in zip(chunk, self._history.decode_all(chunk), strict=True):
                fold.take(recorded.offset, entry)
                if type(entry.event) is ConversationErased and recorded.offset >= start:
                    self.outcome.erased += 1
            position = chunk[-1].offset + 1
            self._gather(partition, fold.drain(), position, new=sum(r.offset >= start for r in chunk))
            self._tell(partition, position, end)
            if self._gathered >= self._commit_records:
                await self._commit()
                if position - kept >= STATE_RECORDS:
                    await self._keep(fold, position)
                    kept = position
        self._gather(partition, {}, end, new=0)
        await self._keep(fold, end)

    async def _end(self, partition: int) -> int:
        """Up to where it is read. A time is no offset: what was asked for before it is decided after it, and lies
        behind, where no worker was there meanwhile."""
        end = (await self._history.bounds(partition)).end
        until = self._selection.until
        return end if until is None or until.offset is None else min(end, until.offset)

    async def _fold(self, partition: int, start: int) -> tuple[Fold, int]:
        """The fold of what lies before `start`, or of less, and how far it goes."""
        found = await asyncio.to_thread(self._states.get, partition, start)
        if found is None:
            return Fold(partition), 0
        offset, content = found
        return Fold(partition, msgspec.msgpack.decode(content, type=State)), offset

    async def _keep(self, fold: Fold, position: int) -> None:
        content = msgspec.msgpack.encode(fold.state)
        committed = min(at.get(fold.partition, 0) for at in self._at.values())
        await asyncio.to_thread(self._states.put, fold.partition, position, content, committed)

    def _gather(self, partition: int, rows: Mapping[str, list[Row]], position: int, *, new: int) -> None:
        for table in self._selection.tables:
            start = self._at[table.name].get(partition, 0)
            taken = self._selection.rows(table, rows.get(table.name, []), start)
            self._rows.setdefault(table.name, []).extend(taken)
        self._positions[partition] = position
        self._gathered += new
        self.outcome.records += new

    async def _commit(self) -> None:
        rows, positions = self._rows, self._positions
        self._rows, self._positions, self._gathered = {}, {}, 0
        if positions:
            await asyncio.to_thread(self._write, rows, positions)

    def _write(self, rows: Mapping[str, list[Row]], positions: Mapping[int, int]) -> None:
        for table in self._selection.tables:
            at = self._at[table.name]
            ahead = {partition: offset for partition, offset in positions.items() if offset > at.get(partition, 0)}
            if ahead:
                new = rows.get(table.name, [])
                self._target.commit(table, Increment({table.name: new}, ahead))
                self.outcome.rows[table.name] += len(new)
                at.update(ahead)
        self._target.finish()
        self._note_upto()
        self.outcome.commits += 1
        self.outcome.positions.update(positions)

    def _note_upto(self) -> None:
        for partition in range(self._history.partitions):
            self._upto[partition] = min((at.get(partition, 0) for at in self._at.values()), default=0)

    def _tell(self, partition: int, position: int, end: int) -> None:
        now = time.monotonic()
        if now - self._said >= SAY_EVERY_S:
            self._said = now
            rows = sum(self.outcome.rows.values())
            where = f"partition {partition} of {self._history.partitions}: offset {position:,} of {end:,}"
            self._say(f"{where}; {rows:,} rows committed")
