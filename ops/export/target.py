"""What an export is written to: rows and positions, together or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from turnlog.data.tables import Row, Table


class ExportRefused(Exception):
    """The target is of something else, or was made to be by somebody else; the message says what, and the way out."""


class Overtaken(Exception):
    """Another export of the same target committed meanwhile: nothing of this increment is in it."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a target is a copy of, written once, when it is made."""

    journal: str
    """Kafka's id of the journal's topic."""
    partitions: int
    selection: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Increment:
    """Rows, and the positions up to which they are all there is."""

    rows: Mapping[str, Sequence[Row]]
    """Name of a table to its new rows."""
    positions: Mapping[int, int]
    """Partition to the next offset to read."""


class Target(Protocol):
    """Where the tables go. All calls block."""

    @property
    def address(self) -> str:
        """For people, without credentials."""

    def contents(self) -> Contents | None:
        """What it is a copy of; None: it is not there yet. Finishes what an earlier export had committed."""

    def make(self, contents: Contents, tables: Sequence[Table]) -> None:
        """Make it, empty, unless it is there; done again after a crash in the middle."""

    def positions(self, table: Table) -> Mapping[int, int]:
        """Partition to the next offset whose rows it has not; 0 where it says nothing."""

    def commit(self, table: Table, increment: Increment) -> None:
        """Add the table's rows and move its positions: both, or neither. Rows of offsets that it has are not in the
        increment. Raises `Overtaken`."""

    def finish(self) -> None:
        """An increment was given for all tables: a target that commits them together does it now."""


class Scrubbable(Protocol):
    """A target from which what was said in conversations can be taken. All calls block, and can be done again after a
    crash in the middle of any."""

    @property
    def address(self) -> str:
        """See `Target`."""

    def contents(self) -> Contents | None:
        """See `Target`."""

    def found(self, table: str) -> Iterator[pa.Table]:
        """All rows of the table of this name, in parts."""

    def scrub(self, table: str, conversations: Collection[str]) -> None:
        """Take what was said in these out of their rows of this table, whose number stays. Raises `Overtaken` when
        others change it at the same time."""

    def forget(self) -> int:
        """Remove what earlier versions of scrubbed tables have and the present ones have not; returns how many files
        that was."""


class States(Protocol):
    """Where folds are kept between two runs, so that the second need not read what the first one read. Only a shortcut:
    a state is what the journal up to its offset gives, and can be made again."""

    def put(self, partition: int, offset: int, content: bytes, committed: int) -> None:
        """Keep the state after all records below `offset`; the tables have all below `committed`, which they keep."""

    def remove(self, partition: int, upto: int) -> None:
        """Keep no state that holds nothing of the record at offset `upto`, nor of what comes behind it."""

    def get(self, partition: int, most: int) -> tuple[int, bytes] | None:
        """The latest state at or below offset `most`, and its offset."""


class NoStates:
    """Keeps nothing."""

    def put(self, *_: object) -> None:
        """See `States`."""

    def remove(self, *_: object) -> None:
        """See `States`."""

    def get(self, *_: object) -> None:
        """See `States`."""


def require_same(found: Contents, wanted: Contents, address: str) -> None:
    """Raise `ExportRefused` unless `found` is of the same journal and selection."""
    if found.journal != wanted.journal:
        raise ExportRefused(
            f"{address} is of another journal (topic id {found.journal}, not {wanted.journal}): give another target"
        )
    if found.partitions != wanted.partitions:
        raise ExportRefused(f"{address} is of a journal with {found.partitions} partitions, not {wanted.partitions}")
    differing = [name for name in found.selection if found.selection[name] != wanted.selection.get(name)]
    if differing:
        said = ", ".join(f"{name} {found.selection[name]!r}" for name in differing)
        raise ExportRefused(
            f"{address} was begun with another selection ({said}): leave the options out to go on with it, or give "
            "another target"
        )
