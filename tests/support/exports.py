"""A history in memory, and what readers that are not ours find in an export."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from ops.export.delta import DeltaTarget
from ops.export.files import WRITERS, FilesTarget, PlaceStates, Reached
from ops.export.forms import iso
from ops.export.iceberg import in_folder
from ops.export.run import Export, Outcome, fold_version
from ops.export.selection import Selection
from ops.export.target import Target
from ops.history.place import place_at
from ops.history.port import Missing, Range, Recorded
from streams.core.events import Entry
from streams.core.fold import step
from streams.core.state import Partition
from streams.runtime.codec import Codec
from streams.topics import Topics, ensure
from tests.support.command_sequences import seeded_commands
from turnlog.data.fold import Fold
from turnlog.data.tables import BY_NAME, TABLES, arrow

FORMATS = ("parquet", "jsonl", "csv", "delta", "iceberg")


class MemoryHistory:
    """`History` of entries in memory; offsets have gaps, as transactions leave them. `end` says how far it goes."""

    def __init__(self, journals: Sequence[Sequence[Entry]], identity: str = "topic-1", chunk: int = 50) -> None:
        self.identity = identity
        self._records = [[(offset_of(n), entry) for n, entry in enumerate(entries)] for entries in journals]
        self._chunk = chunk
        self.ends = [records[-1][0] + 2 if records else 0 for records in self._records]
        self.gone: dict[int, list[Range]] = {}

    @property
    def partitions(self) -> int:
        return len(self._records)

    async def bounds(self, partition: int) -> Range:
        return Range(0, self.ends[partition])

    async def missing(self, partition: int) -> Sequence[Range]:
        return self.gone.get(partition, [])

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        end = self.ends[partition] if end is None else min(end, self.ends[partition])
        for gone in self.gone.get(partition, []):
            if gone.overlaps(Range(start, end)):
                raise Missing(partition, gone)
        wanted = [(offset, entry) for offset, entry in self._records[partition] if start <= offset < end]
        for first in range(0, len(wanted), self._chunk):
            part = wanted[first : first + self._chunk]
            self._decoded = dict(part)
            yield [Recorded(offset, entry.timestamp, None, b"", ()) for offset, entry in part]

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        found = (offset for offset, entry in self._records[partition] if entry.timestamp >= timestamp_ms)
        return next(found, None)

    def decode(self, recorded: Recorded) -> Entry:
        return self._decoded[recorded.offset]

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        return [self.decode(recorded) for recorded in chunk]

    def rows(self, selection: Selection | None = None) -> dict[str, list[dict[str, Any]]]:
        """What the tables are, by the fold alone."""
        selection = Selection() if selection is None else selection
        found: dict[str, list[dict[str, Any]]] = {table.name: [] for table in selection.tables}
        for partition, records in enumerate(self._records):
            fold = Fold(partition)
            for offset, entry in records:
                if offset < self.ends[partition]:
                    fold.take(offset, entry)
            rows = fold.drain()
            for table in selection.tables:
                found[table.name] += arrow(table, selection.rows(table, rows[table.name], 0)).to_pylist()
        return found


def offset_of(n: int) -> int:
    """Every tenth record is followed by a transaction's marker."""
    return n + n // 10


def seeded_history(partitions: int = 2, length: int = 150, **more: Any) -> MemoryHistory:
    journals = []
    for seed in range(partitions):
        state = Partition(seed)
        entries = [entry for command in seeded_commands(seed, length) for entry in step(state, command, 1)]
        journals.append([with_ids_of(entry, seed) for entry in entries])
    return MemoryHistory(journals, **more)


async def write_seeded(kafka: str, namespace: str, length: int, *, timed: bool) -> None:
    """`write_history` of `seeded_history(length=length)`, of two partitions."""
    await write_history(kafka, namespace, seeded_history(length=length), timed=timed)


async def write_history(kafka: str, namespace: str, history: MemoryHistory, *, timed: bool) -> None:
    """Topics with the journals of a history, without transactions. `timed`: records bear their entries' times, not the
    time at which they are written."""
    topics, codec = Topics(namespace), Codec()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await ensure(admin, topics, partitions=history.partitions)
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for partition, records in enumerate(history._records):
            for _, entry in records:
                key = entry.event.conversation_id
                await producer.send(
                    topics.conversations,
                    codec.encode_entry(entry),
                    key=None if key is None else key.encode(),
                    partition=partition,
                    timestamp_ms=entry.timestamp if timed else None,
                )
        await producer.flush()


def with_ids_of(entry: Entry, partition: int) -> Entry:
    """The generator's conversations have the same names on each partition, which no deployment has."""
    event = entry.event
    if event.conversation_id is None:
        return entry
    renamed = msgspec.structs.replace(event, conversation_id=f"{event.conversation_id}-p{partition}")
    return msgspec.structs.replace(entry, event=renamed)


def target_of(format_: str, root: Path, reached: Reached | None = None) -> Target:
    if format_ == "delta":
        return DeltaTarget(str(root))
    if format_ == "iceberg":
        return in_folder(root)
    more = {} if reached is None else {"reached": reached}
    return FilesTarget(place_at(str(root)), format_, WRITERS[format_], **more)


async def export(history: Any, format_: str, root: Path, selection: Selection | None = None, **more: Any) -> Outcome:
    reached = more.pop("reached", None)
    states = PlaceStates(place_at(str(root)), fold_version())
    target = target_of(format_, root, reached)
    run = Export(history, target, states, selection or Selection(), more.pop("say", lambda _: None), **more)
    return await run.run()


def read_back(format_: str, root: Path, table: str) -> list[dict[str, Any]]:
    """All rows, read by somebody else's reader, in the journal's order."""
    rows = _READERS[format_](root, table)
    # Rows of one event are in the order in which they were made: a stable sort keeps it.
    return sorted(rows, key=lambda row: (int(row["partition"]), int(row["lsn"])))


def _parquet(root: Path, table: str) -> list[dict[str, Any]]:
    return duck(f"select * from read_parquet('{root}/{table}/*.parquet')")


def _jsonl(root: Path, table: str) -> list[dict[str, Any]]:
    texts = [file.read_text(encoding="utf-8") for file in sorted((root / table).glob("*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.split("\n") if line]


def _csv(root: Path, table: str) -> list[dict[str, Any]]:
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in BY_NAME[table].names)
    options = f"header=true, auto_detect=false, delim=',', quote='\"', escape='\"', columns={{{columns}}}"
    return duck(f"select * from read_csv('{root}/{table}/*.csv', {options})")


def _delta(root: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(root / table).to_pyarrow_table().to_pylist()
    return found


def _iceberg(root: Path, table: str) -> list[dict[str, Any]]:
    metadata = max((root / "turnlog" / table / "metadata").glob("*.metadata.json"))
    found: list[dict[str, Any]] = StaticTable.from_metadata(str(metadata)).scan().to_arrow().to_pylist()
    return found


_READERS = {"parquet": _parquet, "jsonl": _jsonl, "csv": _csv, "delta": _delta, "iceberg": _iceberg}


def duck(query: str) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
        return found


def identities(rows: Sequence[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Which events rows are of, in order: as text formats have them too."""
    return [(int(row["partition"]), int(row["lsn"]), row["event"]) for row in rows]


def expected_in(format_: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    ordered = sorted(rows, key=lambda row: (row["partition"], row["lsn"]))
    return identities(ordered) if format_ == "csv" else _plain(ordered) if format_ == "jsonl" else list(ordered)


def found_in(format_: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    return identities(rows) if format_ == "csv" else list(rows)


def _plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(json.loads(json.dumps(row, default=iso))) for row in rows]


def whole(history: MemoryHistory, format_: str, root: Path, selection: Selection | None = None) -> None:
    """Assert that the tables at `root` are those of the history, each row once."""
    for name, rows in history.rows(selection).items():
        assert found_in(format_, read_back(format_, root, name)) == expected_in(format_, rows), name
        assert {table.name for table in TABLES} >= {name}
