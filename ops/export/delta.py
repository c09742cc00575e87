"""Tables in Delta Lake: `<root>/<table>`, positions as the table's own application transactions.

Each commit adds an increment's rows and says, for each partition, `txn {appId: turnlog/<journal>/<partition>, version:
<next offset>}`: one entry of the log has both. It is made on the very version that the positions were read from, and
tried once, so that two exports of one target cannot both add the same rows. The log, which nobody rewrites, has
statistics of no column that holds what somebody said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from ops.export.target import Contents, Increment, Overtaken
from ops.export.words import WORDS, without_words
from ops.history.place import place_at
from turnlog.data.tables import BY_NAME, Table, arrow

STATISTICS: Final = "delta.dataSkippingStatsColumns"
ORPHAN_AFTER_HOURS: Final = 24
"""What a writer that was killed left is removed after a day: nobody writes one file for so long."""


class DeltaTarget:
    """A `Target` of Delta tables. `root`: a folder, or an address of an object store as delta-rs has it (`s3://…`)."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._tables: dict[str, DeltaTable] = {}
        self._journal = ""

    @property
    def address(self) -> str:
        """See `Target`."""
        return self._root

    def contents(self) -> Contents | None:
        """See `Target`. Each table says it: they are made one after the other."""
        found = None
        for name in BY_NAME:
            try:
                table = DeltaTable(self._uri(name))
            except TableNotFoundError:
                continue
            text = table.metadata().description
            found = msgspec.json.decode(text or "", type=Contents)
        return found

    def make(self, contents: Contents, tables: Sequence[Table]) -> None:
        """See `Target`."""
        self._journal = contents.journal
        for table in tables:
            DeltaTable.create(
                self._uri(table.name),
                schema=table.schema,
                mode="ignore",
                name=table.name,
                description=msgspec.json.encode(contents).decode(),
                configuration={STATISTICS: ",".join(_counted(table))},
            )

    def positions(self, table: Table) -> Mapping[int, int]:
        """See `Target`."""
        opened = self._tables[table.name] = DeltaTable(self._uri(table.name))
        contents = msgspec.json.decode(opened.metadata().description or "", type=Contents)
        versions = {number: opened.transaction_version(self._app(number)) for number in range(contents.partitions)}
        return {number: version for number, version in versions.items() if version is not None}

    def commit(self, table: Table, increment: Increment) -> None:
        """See `Target`."""
        opened = self._tables[table.name]
        done = [Transaction(self._app(number), offset) for number, offset in increment.positions.items()]
        try:
            write_deltalake(
                opened,
                arrow(table, increment.rows[table.name]),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(app_transactions=done, max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise Overtaken from error

    def finish(self) -> None:
        """See `Target`. Each table was committed by itself."""

    def found(self, table: str) -> Iterator[pa.Table]:
        """See `Scrubbable`."""
        yield from map(
            pa.Table.from_batches, ([batch] for batch in self._opened(table).to_pyarrow_dataset().to_batches())
        )

    def scrub(self, table: str, conversations: Collection[str]) -> None:
        """See `Scrubbable`. Their rows are replaced in one commit."""
        opened = self._opened(table)
        theirs = ds.field("conversation_id").isin(sorted(conversations))
        kept, count = without_words(table, opened.to_pyarrow_dataset().to_table(filter=theirs), conversations)
        if not count:
            return
        # Its predicates take no parameters: ids are whatever a channel made of them, so quotes in them are doubled.
        ids = ", ".join("'" + each.replace("'", "''") + "'" for each in sorted(conversations))
        try:
            write_deltalake(
                opened,
                kept,
                mode="overwrite",
                predicate=f"conversation_id IN ({ids})",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise Overtaken from error

    def forget(self) -> int:
        """See `Scrubbable`."""
        removed = 0
        for name in WORDS:
            with suppress(TableNotFoundError):
                removed += self._vacuum(name)
        return removed

    def _vacuum(self, name: str) -> int:
        """First what the log says was replaced; then, of what it says nothing of, only what is old: somebody may be
        about to commit the rest."""
        removed = 0
        for hours, full in ((0, False), (ORPHAN_AFTER_HOURS, True)):
            vacuum = partial(self._opened(name).vacuum, hours, enforce_retention_duration=False, full=full)
            # It names what it removed earlier again and again; each one that is not dry is two versions more.
            there = place_at(self._root).sizes([f"{name}/{path}" for path in vacuum(dry_run=True)])
            if there:
                vacuum(dry_run=False)
                removed += len(there)
        return removed

    def _opened(self, name: str) -> DeltaTable:
        return DeltaTable(self._uri(name))

    def _uri(self, name: str) -> Any:
        return f"{self._root}/{name}"

    def _app(self, partition: int) -> str:
        return f"turnlog/{self._journal}/{partition}"


def _counted(table: Table) -> list[str]:
    """The columns of which the log has the least and the highest value."""
    words = WORDS.get(table.name, ())
    return [column.name for column in table.columns if column.name not in words and not pa.types.is_nested(column.type)]
