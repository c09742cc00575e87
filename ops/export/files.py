"""Tables as files: Parquet, JSON lines or CSV, in a folder or at any address that fsspec knows.

    <root>/<table>/00000007.parquet       what readers open: `read_parquet('<root>/turns/*.parquet')`
    <root>/_turnlog/commits/00000007.json the commit: which files, and the positions; created once or not at all
    <root>/_turnlog/staged/00000007-<id>/ files that are not committed yet

An increment is staged, committed by its manifest, and only then moved to where readers look: they see a whole number of
commits, or for a moment less, never more. A move that was cut off is finished by whoever opens the target next, before
anything else is committed. What was staged and not committed is removed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from ops.export.forms import FORMS, Form
from ops.export.target import Contents, ExportRefused, Increment, Overtaken
from ops.export.words import without_words
from ops.history.place import Place, create_once
from ops.history.port import HistoryUnavailable
from turnlog.data.tables import Row, Table, arrow

HIDDEN: Final = "_turnlog"
CONTENTS: Final = f"{HIDDEN}/export.json"
COMMITS: Final = f"{HIDDEN}/commits"
STAGED: Final = f"{HIDDEN}/staged"
Write = Callable[[Table, Sequence[Row], Path], None]
Reached = Callable[[str], None]
"""Called with the name of each step as it is reached: for tests, which stop there."""


class CommittedFile(msgspec.Struct, frozen=True):
    """One file of a commit."""

    table: str
    rows: int
    staged: str
    published: str


class Commit(msgspec.Struct, frozen=True):
    """A manifest: what the commit added, and the positions after it."""

    number: int
    positions: dict[str, int]
    files: list[CommittedFile]


class _Pending(NamedTuple):
    rows: dict[str, tuple[Table, Sequence[Row]]]
    positions: dict[int, int]


def _nothing(_: str) -> None:
    pass


class FilesTarget:
    """A `Target` of files; all its tables have the same positions, and are committed together."""

    def __init__(self, place: Place, suffix: str, write: Write, reached: Reached = _nothing) -> None:
        self._place = place
        self._suffix = suffix
        self._write = write
        self._reached = reached
        self._last = -1
        self._positions: dict[int, int] = {}
        self._pending = _Pending({}, {})

    @property
    def address(self) -> str:
        """See `Target`."""
        return self._place.address

    def contents(self) -> Contents | None:
        """See `Target`."""
        if self._place.size(CONTENTS) is None:
            return None
        document = json.loads(self._place.read([CONTENTS])[CONTENTS])
        if document["suffix"] != self._suffix:
            raise ExportRefused(f"{self.address} has {document['suffix']} files, not {self._suffix}")
        self._open()
        return msgspec.convert(document["contents"], Contents)

    def make(self, contents: Contents, tables: Sequence[Table]) -> None:
        """See `Target`. Its first commit has an empty file of each table: readers find its columns at once."""
        document = {"suffix": self._suffix, "contents": msgspec.to_builtins(contents)}
        self._place.create(CONTENTS, json.dumps(document, indent=1).encode())
        self._reached("contents")
        self._open()
        if self._last < 0:
            self._commit({table.name: (table, ()) for table in tables}, {})

    def positions(self, table: Table) -> Mapping[int, int]:  # noqa: ARG002 -- the same for all
        """See `Target`."""
        return self._positions

    def commit(self, table: Table, increment: Increment) -> None:
        """See `Target`. Gathers until `finish`."""
        self._pending.positions.update(increment.positions)
        if increment.rows[table.name]:
            self._pending.rows[table.name] = (table, increment.rows[table.name])

    def finish(self) -> None:
        """See `Target`."""
        rows, positions = self._pending
        self._pending = _Pending({}, {})
        after = self._positions | positions
        if after != self._positions:
            self._commit(rows, after)

    def found(self, table: str) -> Iterator[pa.Table]:
        """See `Scrubbable`."""
        for _, rows in self._files(table):
            yield rows

    def scrub(self, table: str, conversations: Collection[str]) -> None:
        """See `Scrubbable`. Each file is put in place of itself as a whole; what is staged may be committed yet."""
        for name, rows in self._files(table):
            kept, count = without_words(table, rows, conversations)
            if not count:
                continue
            with TemporaryDirectory(prefix="turnlog-") as folder:
                local = Path(folder, name.rsplit("/", 1)[-1])
                FORMS[self._suffix].put(kept, local)
                self._place.put(name, local)
            self._reached(f"scrubbed {name}")

    def forget(self) -> int:
        """See `Scrubbable`. There are no earlier versions."""
        return 0

    def _files(self, table: str) -> Iterator[tuple[str, pa.Table]]:
        staged = [name for name in self._place.names(STAGED) if name.endswith(f"/{table}.{self._suffix}")]
        for name in [*self._place.names(table), *staged]:
            with self._place.fetched(name) as local:
                rows = FORMS[self._suffix].read(table, local)
            yield name, rows

    def _commit(self, rows: Mapping[str, tuple[Table, Sequence[Row]]], positions: dict[int, int]) -> None:
        number = self._last + 1
        files = self._stage(number, rows)
        commit = Commit(number, {str(partition): offset for partition, offset in positions.items()}, files)
        manifest, content = _manifest(number), msgspec.json.encode(commit)
        created = create_once(self._place, manifest, content)
        self._reached("committed")
        if not created:
            self._remove_staged(files)
            raise Overtaken
        self._publish(commit)
        self._last, self._positions = number, positions

    def _stage(self, number: int, rows: Mapping[str, tuple[Table, Sequence[Row]]]) -> list[CommittedFile]:
        files = []
        stage = f"{STAGED}/{number:08}-{uuid.uuid4().hex}"
        with TemporaryDirectory(prefix="turnlog-") as folder:
            for name, (table, new) in rows.items():
                local = Path(folder, f"{name}.{self._suffix}")
                self._write(table, new, local)
                file = CommittedFile(name, len(new), f"{stage}/{local.name}", f"{name}/{number:08}.{self._suffix}")
                self._place.put(file.staged, local)
                self._reached(f"staged {name}")
                files.append(file)
        return files

    def _open(self) -> None:
        """Read where it is; finish the last commit's move; remove what was staged in vain."""
        manifests = self._place.names(COMMITS)
        if not manifests:
            return
        commit = msgspec.json.decode(self._place.read(manifests[-1:])[manifests[-1]], type=Commit)
        self._publish(commit)
        self._last = commit.number
        self._positions = {int(partition): offset for partition, offset in commit.positions.items()}
        for name in self._place.names(STAGED):
            if int(name.removeprefix(f"{STAGED}/")[:8]) <= commit.number:
                self._place.remove(name)

    def _publish(self, commit: Commit) -> None:
        for file in commit.files:
            if self._place.size(file.published) is None:
                try:
                    with self._place.fetched(file.staged) as local:
                        self._place.put(file.published, local)
                except HistoryUnavailable:
                    # Somebody else finishes the same commit; what is not there now was never committed whole.
                    if self._place.size(file.published) is None:
                        raise
            self._reached(f"published {file.table}")
        self._remove_staged(commit.files)

    def _remove_staged(self, files: Sequence[CommittedFile]) -> None:
        for file in files:
            self._place.remove(file.staged)
        self._reached("cleared")


def _offset(name: str) -> int:
    return int(name.rsplit("/", 1)[-1])


def _manifest(number: int) -> str:
    return f"{COMMITS}/{number:08}.json"


class PlaceStates:
    """`States` in a place, beside the tables; `version` is that of the fold, whose states another one cannot read."""

    def __init__(self, place: Place, version: str) -> None:
        self._place = place
        self._root = f"{HIDDEN}/state/{version}"

    def put(self, partition: int, offset: int, content: bytes, committed: int) -> None:
        """See `States`. Those before the latest that the next run may need are removed."""
        before = self._place.names(f"{self._root}/p{partition:05}")
        self._place.create(f"{self._root}/p{partition:05}/{offset:020}", content)
        for name in [name for name in before if _offset(name) <= committed][:-1]:
            self._place.remove(name)

    def remove(self, partition: int, upto: int) -> None:
        """Remove those of any fold that hold nothing of the record at offset `upto`, nor of what comes behind it."""
        for name in self._place.names(f"{HIDDEN}/state"):
            if f"/p{partition:05}/" in name and _offset(name) <= upto:
                self._place.remove(name)

    def get(self, partition: int, most: int) -> tuple[int, bytes] | None:
        """See `States`."""
        for name in reversed(self._place.names(f"{self._root}/p{partition:05}")):
            if (offset := _offset(name)) <= most:
                return offset, self._place.read([name])[name]
        return None


def _writing(form: Form) -> Write:
    def write(table: Table, rows: Sequence[Row], path: Path) -> None:
        form.put(arrow(table, rows), path)

    return write


WRITERS: Final[Mapping[str, Write]] = {suffix: _writing(form) for suffix, form in FORMS.items()}
