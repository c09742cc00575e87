"""A record as a row of Parquet, and back, byte for byte.

What Kafka has comes back as it was: offset, time, key, value, headers. The decoded columns beside it are there to be
filtered on; nothing reads them back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from ops.history.port import Recorded
from streams.core.events import Entry, Unknown

SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.binary()), nullable=False),
        pa.field("lsn", pa.int64()),
        pa.field("conversation_id", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("event", pa.string()),
        pa.field("at", pa.int64()),
        pa.field("writer_epoch", pa.int64()),
    ]
)
KAFKA_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")


def batch_of(partition: int, chunk: Sequence[Recorded], entries: Sequence[Entry | None]) -> pa.RecordBatch:
    """Rows of `chunk`; `entries` are the decoded ones, None for a record that cannot be."""
    events = [None if entry is None else entry.event for entry in entries]
    columns = [
        pa.array([partition] * len(chunk), pa.int32()),
        pa.array([record.offset for record in chunk], pa.int64()),
        pa.array([record.timestamp for record in chunk], pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
        pa.array([record.key for record in chunk], pa.binary()),
        pa.array([record.value for record in chunk], pa.binary()),
        pa.array([record.headers for record in chunk], pa.map_(pa.string(), pa.binary())),
        pa.array([None if entry is None else entry.lsn for entry in entries], pa.int64()),
        pa.array([None if event is None else event.conversation_id for event in events], pa.string()),
        pa.array([None if event is None else event.seq for event in events], pa.int64()),
        pa.array([None if event is None else _name(event) for event in events], pa.string()),
        pa.array([None if entry is None else entry.at for entry in entries], pa.int64()),
        pa.array([None if entry is None else entry.writer_epoch for entry in entries], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _name(event: Any) -> str:
    return event.name if isinstance(event, Unknown) else type(event).__name__


def records_of(batch: pa.RecordBatch) -> list[Recorded]:
    """The records in rows that have `KAFKA_COLUMNS`."""
    offsets = batch.column("offset").to_pylist()
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    keys, values = _pieces(batch.column("key")), _pieces(batch.column("value"))
    return [*map(Recorded, offsets, times, keys, values, _headers(batch.column("headers")))]


def _headers(column: Any) -> Iterator[tuple[tuple[str, bytes], ...]]:
    """Of each row. Names are few: they are decoded as often as there are pairs, and kept once."""
    ends = _offsets(column, column.offset, len(column))
    names = [sys.intern(str(name, "utf-8")) for name in _pieces(column.keys)]
    pairs = [*zip(names, _pieces(column.items), strict=True)]
    # Both children begin where the first row's pairs do.
    first = ends[0] if ends else 0
    for start, end in pairwise(ends):
        yield tuple(pairs[start - first : end - first])


def _pieces(column: Any) -> list[Any]:
    """The bytes of each row of a binary or string column: arrow's own way takes five times as long, measured."""
    if not len(column):
        return []
    ends = _offsets(column, column.offset, len(column))
    data = column.buffers()[2]
    if data is None:
        found: list[Any] = [b""] * len(column)
    else:
        held = data.slice(ends[0], ends[-1] - ends[0]).to_pybytes()
        first = ends[0]
        found = [held[start - first : end - first] for start, end in pairwise(ends)]
    if column.null_count:
        found = [piece if valid else None for piece, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found


def _offsets(column: Any, start: int, length: int) -> list[int]:
    if not length:
        return []
    offsets = memoryview(column.buffers()[1]).cast("i")
    return offsets[start : start + length + 1].tolist()
