"""Tables in Delta Lake: `<root>/<table>`, positions as the table's own application transactions.

Each commit adds an increment's rows and says, for each partition, `txn {appId: turnlog/<journal>/<partition>, version:
<next offset>}`: one entry of the log has both. It is made on the very version that the positions were read from, and
tried once, so that two exports of one target cannot both add the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from ops.export.target import Contents, Increment, Overtaken
from turnlog.data.tables import BY_NAME, Table, arrow

PROPERTY: Final = "turnlog.contents"


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

    def _uri(self, name: str) -> Any:
        return f"{self._root}/{name}"

    def _app(self, partition: int) -> str:
        return f"turnlog/{self._journal}/{partition}"
