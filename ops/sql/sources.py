"""Where the rows of a query come from: a history, folded into Parquet files for as long as the query runs; an export;
PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from psycopg.rows import tuple_row
from pyarrow.parquet import ParquetWriter, write_table

from ops.export.files import CONTENTS
from ops.export.iceberg import CATALOG, in_folder
from ops.export.target import ExportRefused
from ops.history import History
from ops.history.around import around, told_missing
from ops.sql.relations import BY_NAME, JOURNAL, LEASES, OPEN_RUNS, WORKERS, Relation
from streams.core.events import ConversationErased, Entry, Unknown
from turnlog.data.fold import Fold
from turnlog.data.tables import BY_NAME as TABLES
from turnlog.data.tables import CONVERSATIONS, MOMENT, Table, arrow

Sources = dict[str, str]
"""Name of a relation to what DuckDB reads its rows from."""
STATE: Final[Mapping[str, str]] = {
    LEASES: "SELECT partition, owner, writer_epoch, expires_at FROM leases ORDER BY partition",
    WORKERS: "SELECT id, expires_at, draining FROM workers ORDER BY id",
}
ERASED: Final = "erased_conversations"
"""In `Sources`: ids of the conversations that are erased, beside the relations."""
OF_JOURNAL: Final = frozenset({JOURNAL, OPEN_RUNS})


class NoSource(Exception):
    """What a query names cannot be read; the message says why, and the way out."""


class _Files:
    """Parquet files in a folder, one a relation, written as its rows come."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self._writers = {
            name: ParquetWriter(folder / f"{name}.parquet", schema_of(name), compression="zstd") for name in names
        }
        self.sources: Sources = {name: _parquet_file(folder / f"{name}.parquet") for name in names}

    def add(self, name: str, rows: pa.Table) -> None:
        if rows.num_rows:
            self._writers[name].write_table(rows)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _parquet_file(path: Path) -> str:
    return "read_parquet('{}')".format(str(path).replace("'", "''"))


def schema_of(name: str) -> pa.Schema:
    """The schema of a table of the export, or of a relation."""
    return TABLES[name].schema if name in TABLES else BY_NAME[name].schema


async def of_history(
    history: History, relations: Collection[Relation], folder: Path, say: Callable[[str], None], *, accept_missing: bool
) -> Sources:
    """Fold the whole history; what `relations` rest on lies in `folder` then. Raises `NoSource` where records are
    missing, unless that is accepted."""
    tables = {relation.table for relation in relations if relation.table is not None}
    others = {relation.name for relation in relations if relation.name in OF_JOURNAL}
    gone = await told_missing(history, say)
    if gone and not accept_missing:
        raise NoSource(
            "answers would be wrong without a word: name the archive that has what is gone (--archive), or accept it "
            "(--accept-missing)"
        )
    files = _Files(folder, tables | others)
    erased: list[str | None] = []
    try:
        for partition in range(history.partitions):
            fold = Fold(partition)
            end = (await history.bounds(partition)).end
            async for chunk in around(history, partition, gone.get(partition, ()), 0, end):
                entries = history.decode_all(chunk)
                for recorded, entry in zip(chunk, entries, strict=True):
                    fold.take(recorded.offset, entry)
                erased += [e.event.conversation_id for e in entries if isinstance(e.event, ConversationErased)]
                rows = fold.drain()
                for name in tables:
                    files.add(name, arrow(TABLES[name], rows[name]))
                if JOURNAL in others:
                    offsets = [recorded.offset for recorded in chunk]
                    files.add(JOURNAL, _events(partition, offsets, entries))
            if OPEN_RUNS in others:
                files.add(OPEN_RUNS, _open_runs(fold))
    finally:
        files.close()
    known = folder / f"{ERASED}.parquet"
    write_table(pa.table({"conversation_id": pa.array(erased, pa.string())}), known)
    return {**files.sources, ERASED: _parquet_file(known)}


def _events(partition: int, offsets: Sequence[int], entries: Sequence[Entry]) -> pa.Table:
    rows = [
        (
            partition,
            offset,
            entry.lsn,
            entry.event.name if isinstance(entry.event, Unknown) else type(entry.event).__name__,
            entry.timestamp,
            entry.at,
            entry.writer_epoch,
            entry.event.conversation_id,
            entry.event.seq,
            _fields(entry),
        )
        for offset, entry in zip(offsets, entries, strict=True)
    ]
    schema = schema_of(JOURNAL)
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _fields(entry: Entry) -> str:
    fields = msgspec.to_builtins(entry.event)
    del fields["conversation_id"], fields["seq"]
    return json.dumps(fields, ensure_ascii=False)


def _open_runs(fold: Fold) -> pa.Table:
    rows = [
        (
            fold.partition,
            run_id,
            run.turn_seq,
            run.group,
            run.member,
            run.epoch,
            run.turn_at,
            run.given_at,
            run.started_at,
            run.takeovers,
            run.frames,
        )
        for run_id, run in fold.open_runs()
    ]
    relation = BY_NAME[OPEN_RUNS]
    table = arrow(Table(OPEN_RUNS, relation.doc, relation.columns), rows)
    return pa.Table.from_arrays(table.columns, schema=relation.schema)


def of_export(root: Path, relations: Collection[Relation]) -> Sources:
    """The files of an export that lies in a folder, whichever format it has. Raises `NoSource`."""
    _require_export(root)
    live = [relation.name for relation in relations if relation.table is None]
    if live:
        raise NoSource(f"no export has {', '.join(live)}: leave --export out, to read the journal")
    tables = {str(relation.table) for relation in relations}
    return {table: _exported(root, table) for table in tables}


def erased_in_export(root: Path) -> Sources:
    """`ERASED`, as the export's own table `conversations` has it. Raises `NoSource`: it has no such table."""
    try:
        table = _exported(root, CONVERSATIONS.name)
    except (NoSource, ExportRefused):
        raise NoSource(
            f"--show-text: the export in {root} has no table {CONVERSATIONS.name}, so that it does not say what was "
            f"erased: bring it to an export that has it, or take what was said in erased conversations out of it with "
            f"`turnlog scrub {root} CONVERSATION…`, and ask with DuckDB itself"
        ) from None
    return {ERASED: f"(SELECT conversation_id FROM {table} WHERE status = 'erased')"}  # noqa: S608 -- a path of ours


def _require_export(root: Path) -> None:
    """Raise `NoSource` unless an export lies there: also for a query that names none of its tables."""
    if not root.is_dir():
        raise NoSource(f"--export: there is no folder {root} (`turnlog export parquet {root}` makes one)")
    if not (root / CONTENTS).is_file() and not (root / CATALOG).is_file() and not any(root.glob("*/_delta_log")):
        raise NoSource(
            f"--export: {root} is no export: it has no {CONTENTS}, no {CATALOG} of Iceberg and no table of Delta. Name "
            f"the folder that `turnlog export` was given (`turnlog export parquet {root}` makes one)"
        )


def _exported(root: Path, table: str) -> str:
    if (root / CONTENTS).is_file():
        suffix = json.loads((root / CONTENTS).read_text(encoding="utf-8"))["suffix"]
        if not (root / table).is_dir():
            raise NoSource(f"the export in {root} has no table {table}")
        return _files(root / table, suffix, TABLES[table])
    if (root / table / "_delta_log").is_dir():
        return _parquet_files(DeltaTable(root / table).file_uris(), table)
    if (root / CATALOG).is_file():
        return _parquet_files(in_folder(root).data_files(table), table)
    deltas = sorted(log.parent.name for log in root.glob("*/_delta_log"))
    if deltas:
        raise NoSource(f"the export in {root} has no table {table}, but {', '.join(deltas)}")
    raise NoSource(f"the export in {root} has no table {table}")


def _parquet_files(paths: Sequence[str], table: str) -> str:
    if not paths:
        columns = ", ".join(f"NULL AS {name}" for name in TABLES[table].names)
        return f"(SELECT {columns} WHERE false)"
    listed = ", ".join("'" + path.removeprefix("file://").replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{listed}], union_by_name=true)"


def _files(folder: Path, suffix: str, table: Table) -> str:
    pattern = str(folder / f"*.{suffix}").replace("'", "''")
    if suffix == "parquet":
        return f"read_parquet('{pattern}', union_by_name=true)"
    columns = ", ".join(f"'{column.name}': '{duck_type(column.type)}'" for column in table.columns)
    if suffix == "jsonl":
        return (
            f"read_json('{pattern}', format='newline_delimited', columns={{{columns}}}, maximum_object_size=67108864)"
        )
    options = "header=true, auto_detect=false, delim=',', quote='\"', escape='\"', max_line_size=67108864"
    flat = ", ".join(f"'{column.name}': '{duck_type(column.type, nested=False)}'" for column in table.columns)
    return f"read_csv('{pattern}', {options}, columns={{{flat}}})"


def duck_type(type_: pa.DataType, *, nested: bool = True) -> str:
    """DuckDB's name of an Arrow type that tables have; `nested` False: lists are text, as CSV has them."""
    if pa.types.is_list(type_):
        return f"{duck_type(type_.value_type)}[]" if nested else "VARCHAR"
    if pa.types.is_struct(type_):
        return f"STRUCT({', '.join(f'{field.name} {duck_type(field.type)}' for field in type_)})"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMPTZ"
    names = {pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN", pa.string(): "VARCHAR"}
    return names[type_]


def of_database(dsn: str, relations: Collection[Relation]) -> dict[str, pa.Table]:
    """Live state from PostgreSQL, as Arrow tables by the names of `relations`."""
    found = {}
    with psycopg.connect(dsn, row_factory=tuple_row, connect_timeout=10) as connection:
        connection.read_only = True
        for relation in relations:
            rows = connection.execute(STATE[relation.name].encode()).fetchall()
            columns = zip(*rows, strict=True) if rows else ((),) * len(relation.columns)
            arrays = [
                pa.array(values, pa.timestamp("us", tz="UTC") if column.type == MOMENT else column.type)
                for values, column in zip(columns, relation.columns, strict=True)
            ]
            found[relation.name] = pa.Table.from_arrays(arrays, schema=relation.schema)
    return found
