"""Files of tables: how rows are written to Parquet, JSON lines and CSV, and how the same files are read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from turnlog.data.tables import BY_NAME

Read = Callable[[str, Path], pa.Table]
"""A file of the table of this name. Written again as it was read, it has the same rows in the same words."""
Put = Callable[[pa.Table, Path], None]


class Form(NamedTuple):
    """One format of files."""

    read: Read
    put: Put


def read_parquet(_: str, path: Path) -> pa.Table:
    """See `Read`."""
    return pyarrow.parquet.ParquetFile(path).read()


def put_parquet(rows: pa.Table, path: Path) -> None:
    """A Parquet file: Zstandard, with the columns' meanings in its metadata."""
    pyarrow.parquet.write_table(rows, path, compression="zstd")


def read_csv(table: str, path: Path) -> pa.Table:
    """See `Read`. Times and lists stay the texts that they are there."""
    types = {column.name: _in_csv(column.type) for column in BY_NAME[table].columns}
    return pyarrow.csv.read_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(block_size=max(1 << 20, path.stat().st_size + 1)),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=[""],
            true_values=["true"],
            false_values=["false"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def put_csv(rows: pa.Table, path: Path) -> None:
    """A CSV file with a header; lists are JSON, times ISO 8601 in UTC, no value is an empty cell, no text is `\"\"`."""
    for number, name in enumerate(rows.column_names):
        values = rows.column(number)
        if pa.types.is_nested(values.type):
            rows = rows.set_column(number, name, pa.array(_texts(values), pa.string()))
        elif pa.types.is_timestamp(values.type):
            rows = rows.set_column(number, name, pa.array(_isos(values), pa.string()))
    pyarrow.csv.write_csv(rows, path)


def read_jsonl(table: str, path: Path) -> pa.Table:
    """See `Read`. Times stay the texts that they are there."""
    with path.open(encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    there = set(documents[0]) if documents else set()
    columns = [column for column in BY_NAME[table].columns if not documents or column.name in there]
    moments = {column.name: pa.string() for column in columns if pa.types.is_timestamp(column.type)}
    schema = pa.schema([(column.name, moments.get(column.name, column.type)) for column in columns])
    return pa.Table.from_pylist(documents, schema=schema)


def put_jsonl(rows: pa.Table, path: Path) -> None:
    """A JSON document a line, all columns in each; times are ISO 8601 in UTC."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows.to_pylist():
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=iso) + "\n")


def _in_csv(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_nested(type_) or pa.types.is_timestamp(type_) else type_


def _texts(values: Any) -> list[str | None]:
    return [None if value is None else json.dumps(value, ensure_ascii=False) for value in values.to_pylist()]


def _isos(values: Any) -> list[str | None]:
    return [None if value is None else iso(value) for value in values.to_pylist()]


def iso(moment: Any) -> str:
    """A time as it stands in files: ms, UTC."""
    return str(moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


FORMS: Final[Mapping[str, Form]] = {
    "parquet": Form(read_parquet, put_parquet),
    "jsonl": Form(read_jsonl, put_jsonl),
    "csv": Form(read_csv, put_csv),
}
