"""States along a partition's journal, kept on this machine, so that a later look need not begin at the beginning.

Every `EVERY_EVENTS` events a point is kept: the partition's own row, and the rows of the conversations that changed
since the point before, as a checkpoint would hold them. A conversation as of a point has the last of its rows up to
there. They are made from the journal alone, can be removed at any time, and are of one journal and one format of rows.
What people said is in none of them: whoever erases a conversation need not look for this cache.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from streams.core.store import FORMAT

EVERY_EVENTS: Final = 20_000
"""Folding so many takes 0.2 to 0.4 s on one core (6 µs to read and decode an event, 4 to fold it)."""
VERSION: Final = 2
"""Of what is kept: 1 had answers to open questions. Files of others are removed."""
BUSY_S: Final = 10.0
"""How long one replay waits for another that writes."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS point (
    position INTEGER PRIMARY KEY, lsn INTEGER NOT NULL, timestamp INTEGER NOT NULL, state BLOB NOT NULL,
    hot BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS conversation (
    id TEXT NOT NULL, position INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (id, position)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A kept state. `position`: the journal offset after the last entry that is in it."""

    position: int
    lsn: int
    timestamp: int
    """Of that entry."""
    state: bytes
    hot: tuple[str, ...]
    """Conversations that must be loaded."""


class Points:
    """Those of one partition, in a file; without one, in memory for as long as this lives."""

    def __init__(self, folder: Path | None, partition: int) -> None:
        place = ":memory:" if folder is None else str(_file(folder, partition))
        self._rows = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = OFF")  # made again where it is lost
        self._rows.executescript(_SCHEMA)

    def before(self, *, position: int | None = None, lsn: int | None = None) -> Point | None:
        """The last point up to an offset, or up to an lsn; None: there is none."""
        column, value = ("position", position) if position is not None else ("lsn", lsn)
        found = self._rows.execute(
            f"SELECT position, lsn, timestamp, state, hot FROM point WHERE {column} <= ? "  # noqa: S608 -- one of two words
            "ORDER BY position DESC LIMIT 1",
            (value,),
        ).fetchone()
        if found is None:
            return None
        at, at_lsn, timestamp, state, hot = found
        return Point(at, at_lsn, timestamp, state, tuple(msgspec.msgpack.decode(hot)))

    def last(self) -> int:
        """The position of the last point; 0: there is none."""
        found: int | None = self._rows.execute("SELECT max(position) FROM point").fetchone()[0]
        return found or 0

    def conversation(self, id_: str, position: int) -> bytes | None:
        """The row of a conversation as of the point at `position`."""
        found = self._rows.execute(
            "SELECT state FROM conversation WHERE id = ? AND position <= ? ORDER BY position DESC LIMIT 1",
            (id_, position),
        ).fetchone()
        return None if found is None else found[0]

    def conversations(self, position: int) -> Iterator[tuple[str, bytes]]:
        """All rows as of the point at `position`, by id."""
        yield from self._rows.execute(
            "SELECT id, state FROM conversation AS one WHERE position = "
            "(SELECT max(position) FROM conversation WHERE id = one.id AND position <= ?) ORDER BY id",
            (position,),
        )

    def keep(self, point: Point, rows: Iterable[tuple[str, bytes]]) -> None:
        """Keep a point with the rows of what changed since the one before. What is kept already stays."""
        self._rows.execute("BEGIN IMMEDIATE")
        try:
            self._rows.executemany(
                "INSERT OR IGNORE INTO conversation VALUES (?, ?, ?)", [(id_, point.position, row) for id_, row in rows]
            )
            self._rows.execute(
                "INSERT OR IGNORE INTO point VALUES (?, ?, ?, ?, ?)",
                (point.position, point.lsn, point.timestamp, point.state, msgspec.msgpack.encode(point.hot)),
            )
        except BaseException:
            self._rows.execute("ROLLBACK")
            raise
        self._rows.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._rows.close()


def _file(folder: Path, partition: int) -> Path:
    """The partition's file; what other releases kept in its place is removed."""
    name = f"p{partition:05}-f{FORMAT}-{VERSION}.db"
    for other in folder.glob(f"p{partition:05}-*.db*"):
        if not other.name.startswith(name):
            other.unlink(missing_ok=True)
    return folder / name
