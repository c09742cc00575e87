"""What an audit must remember of a whole partition, in bounded memory: the older half goes to a temporary file."""

from __future__ import annotations

import sqlite3
from itertools import islice
from typing import Final

RESIDENT_MOST: Final = 200_000
"""Names in memory, some 150 to 250 bytes each: 50 MB at most."""

Fact = tuple[int, int]


class Remembered:
    """Name -> two numbers. The second is when it was noted, by which old ones can be forgotten.

    The file is an anonymous SQLite database that ends with its connection.
    """

    def __init__(self, resident_most: int = RESIDENT_MOST) -> None:
        self._resident_most = resident_most
        self.recent: dict[str, Fact] = {}
        """Those in memory. A loop over many events may look here first; what it does not find, `get` may."""
        self._rows: sqlite3.Connection | None = None

    def get(self, name: str) -> Fact | None:
        """What is known of it; None: nothing."""
        known = self.recent.get(name)
        if known is None and self._rows is not None:
            row: Fact | None = self._rows.execute("SELECT value, noted FROM fact WHERE name = ?", (name,)).fetchone()
            return row
        return known

    def put(self, name: str, value: int, noted: int = 0) -> None:
        """From here on this is known of it."""
        self.recent[name] = (value, noted)
        if len(self.recent) > self._resident_most:
            self.relieve()

    def forget(self, until: int) -> None:
        """What was noted at `until` or before need not be known any more. Does not look at what is in memory."""
        if self._rows is not None:
            self._rows.execute("DELETE FROM fact WHERE noted <= ?", (until,))

    def close(self) -> None:
        """Remove what lies on disk."""
        if self._rows is not None:
            self._rows.close()

    def relieve(self) -> None:
        """Move the older half to disk, if there is too much in memory: for who writes to `recent` itself."""
        if len(self.recent) <= self._resident_most:
            return
        if self._rows is None:
            self._rows = scratch()
            self._rows.execute("CREATE TABLE fact (name TEXT PRIMARY KEY, value INT, noted INT) WITHOUT ROWID")
            self._rows.execute("CREATE INDEX fact_noted ON fact (noted)")
        older = [
            (name, *self.recent.pop(name))
            for name in list(islice(self.recent, len(self.recent) - self._resident_most // 2))
        ]
        self._rows.execute("BEGIN")
        self._rows.executemany("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", older)
        self._rows.execute("COMMIT")


def scratch() -> sqlite3.Connection:
    """An anonymous temporary database, on disk where it is large, which ends with its connection."""
    rows = sqlite3.connect("", isolation_level=None)
    rows.execute("PRAGMA journal_mode = OFF")
    rows.execute("PRAGMA synchronous = OFF")
    return rows


class Recent:
    """The last names of many, between `most` and twice as many: what is asked for lies shortly behind."""

    __slots__ = ("_before", "_most", "_now")

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: set[str] = set()
        self._before: set[str] = set()

    def add(self, name: str) -> None:
        """Remember it."""
        self._now.add(name)
        if len(self._now) >= self._most:
            self._before, self._now = self._now, set()

    def __contains__(self, name: str) -> bool:
        return name in self._now or name in self._before
