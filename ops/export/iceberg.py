"""Tables in Apache Iceberg: positions are properties of the snapshot that added the rows.

Without a catalog of the user's, a SQLite one lies in the target folder beside the tables. A commit is made on the very
snapshot that the positions were read from, and tried once: pyiceberg would otherwise put the rows behind those of
another export (it does since 0.12: seen). The positions are those of the latest snapshot that has any, so that
compaction by others does not hide them, and a rollback takes them back with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import In
from pyiceberg.table import TableProperties

from ops.export.target import Contents, ExportRefused, Increment, Overtaken
from ops.export.words import WORDS, without_words
from turnlog.data.tables import BY_NAME, Table, arrow

CATALOG: Final = "catalog.db"
"""In the folder of an export without a catalog of the user's."""
NAMESPACE: Final = "turnlog"
CONTENTS: Final = "turnlog.contents"
POSITIONS: Final = "turnlog.positions"
SCRUBBED: Final = "turnlog.scrubbed"
"""Of a snapshot: it holds nothing of what was taken out by then, those before it do."""
ONCE: Final[dict[str, Any]] = {TableProperties.COMMIT_NUM_RETRIES: "0"}


class IcebergTarget:
    """A `Target` of the tables `<namespace>.<table>` of a catalog."""

    def __init__(self, catalog: Catalog, namespace: str, address: str) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._address = address
        self._tables: dict[str, Any] = {}
        self._positions: dict[str, dict[int, int]] = {}

    @property
    def address(self) -> str:
        """See `Target`."""
        return self._address

    def contents(self) -> Contents | None:
        """See `Target`."""
        found = None
        for name in BY_NAME:
            try:
                table = self._catalog.load_table((self._namespace, name))
            except NoSuchTableError:
                continue
            text = table.properties.get(CONTENTS)
            if text is None:
                raise ExportRefused(f"{self._namespace}.{name} in {self.address} is no table of an export")
            found = msgspec.json.decode(text, type=Contents)
        return found

    def make(self, contents: Contents, tables: Sequence[Table]) -> None:
        """See `Target`."""
        self._catalog.create_namespace_if_not_exists(self._namespace)
        properties = {CONTENTS: msgspec.json.encode(contents).decode(), **ONCE}
        for table in tables:
            try:
                self._catalog.create_table((self._namespace, table.name), table.schema, properties=properties)
            except TableAlreadyExistsError:
                continue

    def positions(self, table: Table) -> Mapping[int, int]:
        """See `Target`."""
        opened = self._catalog.load_table((self._namespace, table.name))
        if any(opened.properties.get(name) != value for name, value in ONCE.items()):
            with opened.transaction() as change:
                change.set_properties(**ONCE)
            opened = self._catalog.load_table((self._namespace, table.name))
        if set(opened.schema().column_names) != set(table.names):
            with opened.update_schema() as update:
                update.union_by_name(table.schema)
            opened = self._catalog.load_table((self._namespace, table.name))
        self._tables[table.name] = opened
        self._positions[table.name] = self._said(table, opened)
        return self._positions[table.name]

    def _said(self, table: Table, opened: Any) -> dict[int, int]:
        """The positions of the latest snapshot that has any."""
        snapshot = opened.current_snapshot()
        while snapshot is not None:
            text = snapshot.summary.additional_properties.get(POSITIONS) if snapshot.summary is not None else None
            if text is not None:
                return {int(partition): offset for partition, offset in json.loads(text).items()}
            parent = snapshot.parent_snapshot_id
            if parent is None:
                break
            snapshot = opened.snapshot_by_id(parent)
        if opened.current_snapshot() is not None:
            raise ExportRefused(
                f"{self._namespace}.{table.name} in {self.address} has rows, and no snapshot says how far they go: the "
                "snapshots of the export have expired behind those of another writer; export to a new target"
            )
        return {}

    def commit(self, table: Table, increment: Increment) -> None:
        """See `Target`."""
        opened = self._tables[table.name]
        after = self._positions[table.name] | dict(increment.positions)
        said = json.dumps({str(partition): offset for partition, offset in sorted(after.items())})
        try:
            opened.append(arrow(table, increment.rows[table.name]), snapshot_properties={POSITIONS: said})
        except CommitFailedException as error:
            raise Overtaken from error
        self._positions[table.name] = after

    def found(self, table: str) -> Iterator[pa.Table]:
        """See `Scrubbable`."""
        with suppress(NoSuchTableError):
            for batch in self._opened(table).scan().to_arrow_batch_reader():
                yield pa.Table.from_batches([batch])

    def scrub(self, table: str, conversations: Collection[str]) -> None:
        """See `Scrubbable`. Their rows are replaced in one commit, which says the positions again."""
        of = BY_NAME[table]
        said = json.dumps({str(partition): offset for partition, offset in sorted(self.positions(of).items())})
        opened, theirs = self._tables[table], In("conversation_id", set(conversations))  # type: ignore[call-arg, arg-type]  # its own conveniences
        kept, count = without_words(table, opened.scan(row_filter=theirs).to_arrow(), conversations)
        if not count:
            return
        properties = {POSITIONS: said, SCRUBBED: "true"}
        try:
            opened.overwrite(
                kept.select(of.names).cast(of.schema), overwrite_filter=theirs, snapshot_properties=properties
            )
        except CommitFailedException as error:
            raise Overtaken from error

    def forget(self) -> int:
        """See `Scrubbable`. Files go before what names them, so that whoever does it again finds the rest."""
        removed = 0
        for name in WORDS:
            with suppress(NoSuchTableError):
                removed += _without_past(self._opened(name))
        return removed

    def _opened(self, name: str) -> Any:
        return self._catalog.load_table((self._namespace, name))

    def data_files(self, name: str) -> list[str]:
        """Addresses of the Parquet files of a table now. Raises `ExportRefused`: it has no such table."""
        try:
            opened = self._catalog.load_table((self._namespace, name))
        except NoSuchTableError:
            raise ExportRefused(f"the export in {self.address} has no table {name}") from None
        return [task.file.file_path for task in opened.scan().plan_files()]

    def finish(self) -> None:
        """See `Target`. Each table was committed by itself."""


def in_folder(root: Path) -> IcebergTarget:
    """A target in a folder of this machine, with a catalog of its own in it."""
    root.mkdir(parents=True, exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{root}/{CATALOG}", "warehouse": f"file://{root}"}
    return IcebergTarget(load_catalog("turnlog", **properties), NAMESPACE, str(root))


def in_catalog(name: str, namespace: str) -> IcebergTarget:
    """A target in a catalog of the user's, as pyiceberg's configuration names it."""
    return IcebergTarget(load_catalog(name), namespace, f"catalog {name}, namespace {namespace}")


def _without_past(opened: Any) -> int:
    """Remove the snapshots before the last scrubbed one, and what only they have; how many files that was."""
    past: list[Any] = []
    snapshot = opened.current_snapshot()
    kept: list[Any] = []
    while snapshot is not None and not _is_scrubbed(snapshot):
        kept.append(snapshot)
        snapshot = _parent(opened, snapshot)
    if snapshot is None:
        return 0
    kept.append(snapshot)
    stays = {each.snapshot_id for each in kept}
    past = [each for each in opened.metadata.snapshots if each.snapshot_id not in stays]
    if not past:
        return 0
    named = [name for name, ref in opened.refs().items() if ref.snapshot_id not in stays]
    if named:
        raise ExportRefused(
            f"{'.'.join(opened.name())}: {', '.join(named)} names a version that still has what was taken out: drop it"
        )
    needed = {path for each in kept for path in _paths(opened, each)}
    gone = dict.fromkeys(path for each in past for path in _paths(opened, each) if path not in needed)
    for path in gone:
        with suppress(FileNotFoundError):
            opened.io.delete(path)
    expiring = opened.maintenance.expire_snapshots()
    expiring.by_ids([each.snapshot_id for each in past]).commit()
    return len(gone)


def _is_scrubbed(snapshot: Any) -> bool:
    return snapshot.summary is not None and SCRUBBED in snapshot.summary.additional_properties


def _parent(opened: Any, snapshot: Any) -> Any:
    return None if snapshot.parent_snapshot_id is None else opened.snapshot_by_id(snapshot.parent_snapshot_id)


def _paths(opened: Any, snapshot: Any) -> list[str]:
    """Files of a snapshot: data, then manifests, then their list. What is gone already is left out."""
    data: list[str] = []
    manifests: list[str] = []
    with suppress(FileNotFoundError):
        for manifest in snapshot.manifests(opened.io):
            manifests.append(manifest.manifest_path)
            with suppress(FileNotFoundError):
                entries = manifest.fetch_manifest_entry(opened.io, discard_deleted=True)
                data += [entry.data_file.file_path for entry in entries]
    return [*data, *manifests, snapshot.manifest_list]
