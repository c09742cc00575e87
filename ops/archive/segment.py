"""One segment on its way into an archive: a Parquet file on this machine, and what its manifest entry says."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ops.archive.columns import SCHEMA, batch_of
from ops.archive.layout import FORMAT, ArchiveInfo, Segment, day_of
from ops.digest.leaves import leaves_of
from ops.history.port import History, Range, Recorded
from streams.core.events import Entry
from streams.runtime.framing import Framing
from streams.runtime.records import Undecodable

SEGMENT_BYTES: Final = 128 << 20
"""A segment's keys, values and headers come to this much at most, and one chunk: what one file of it holds."""
GROUP_BYTES: Final = 16 << 20
"""Rows are written out once so much is gathered: the most that is in memory of a partition, and a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The history that is copied, and what its archive is called."""

    history: History
    topic: str
    framing: Framing

    def info(self) -> ArchiveInfo:
        """What an archive of it says."""
        return ArchiveInfo(
            FORMAT, self.topic, self.history.identity, self.history.partitions, self.framing.header_bytes
        )


class Written:
    """See the module. `most`: records at most."""

    def __init__(self, partition: int, path: Path, source: Source, most: int) -> None:
        self.partition = partition
        self.path = path
        self._source = source
        self._most = most
        self._bytes = 0
        self._leaves = hashlib.sha256()
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self._range = Range(0, 0)
        self._day = ""
        self._records = self._undecodable = 0
        self._lsns: tuple[int | None, int | None] = (None, None)
        self._times: tuple[int, int] = (0, 0)
        self.schemas: dict[bytes, bytes] = {}

    async def fill(self, wanted: Range) -> None:
        """Write records from the start of `wanted` on, until the segment is full, its day ends, or there are none."""
        self._range = Range(wanted.start, wanted.start)
        with pq.ParquetWriter(self.path, SCHEMA, compression="zstd", write_page_checksum=True) as file:
            try:
                async for chunk in self._source.history.read(self.partition, wanted.start, wanted.end):
                    taken = self._fitting(chunk)
                    await asyncio.to_thread(self._take, file, taken)
                    if len(taken) < len(chunk):
                        self.end_at(chunk[len(taken)].offset)
                        return
                    if self._records >= self._most or self._bytes >= SEGMENT_BYTES:
                        self.end_at(chunk[-1].offset + 1)
                        return
                self.end_at(wanted.end)
            finally:
                self._flush(file)

    def end_at(self, end: int) -> None:
        """The segment has all there is up to `end`."""
        self._range = Range(self._range.start, end)

    def _fitting(self, chunk: Sequence[Recorded]) -> Sequence[Recorded]:
        """The first of `chunk` that belong into this segment: up to a later day than its own, up to its size."""
        self._day = self._day or day_of(chunk[0].timestamp)
        room = self._most - self._records
        chunk = chunk[:room]
        if day_of(max(record.timestamp for record in chunk)) > self._day:
            later = next(n for n, record in enumerate(chunk) if day_of(record.timestamp) > self._day)
            chunk = chunk[:later]
        return chunk

    def _take(self, file: Any, chunk: Sequence[Recorded]) -> None:
        if not chunk:
            return
        for leaf in leaves_of(chunk):
            self._leaves.update(leaf)
        entries = self._decoded(chunk)
        lsns = [entry.lsn for entry in entries if entry is not None]
        if lsns:
            self._lsns = (lsns[0] if self._lsns[0] is None else self._lsns[0], lsns[-1])
        times = [record.timestamp for record in chunk]
        low, high = self._times if self._records else (times[0], times[0])
        self._times = (min(low, *times), max(high, *times))
        self._records += len(chunk)
        batch = batch_of(self.partition, chunk, entries)
        self._pending.append(batch)
        self._bytes += batch.nbytes
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= GROUP_BYTES:
            self._flush(file)

    def _decoded(self, chunk: Sequence[Recorded]) -> list[Entry | None]:
        framing = self._source.framing
        for head in {(record.value or b"")[: framing.header_bytes] for record in chunk} - self.schemas.keys():
            schema = framing.writer(head)
            if schema is not None:
                self.schemas[head] = msgspec.json.format(msgspec.json.encode(schema.definition))
        try:
            return [*self._source.history.decode_all(chunk)]
        except Undecodable:
            return [self._decoded_one(record) for record in chunk]

    def _decoded_one(self, record: Recorded) -> Entry | None:
        try:
            return self._source.history.decode(record)
        except Undecodable:
            self._undecodable += 1
            return None

    def _flush(self, file: Any) -> None:
        if self._pending:
            file.write_table(pa.Table.from_batches(self._pending, SCHEMA))
            self._pending, self._pending_bytes = [], 0

    def segment(self) -> Segment:
        """Its manifest entry, the name of its file left out."""
        sha256, size = (sha256_of(self.path), self.path.stat().st_size) if self._records else ("", 0)
        return Segment(
            partition=self.partition,
            start=self._range.start,
            end=self._range.end,
            day=self._day,
            records=self._records,
            undecodable=self._undecodable,
            first_lsn=self._lsns[0],
            last_lsn=self._lsns[1],
            first_timestamp=self._times[0],
            last_timestamp=self._times[1],
            leaves=self._leaves.hexdigest(),
            bytes=size,
            sha256=sha256,
            written_at=now(),
            by=release(),
        )


def sha256_of(path: Path) -> str:
    """Of a file, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The time, UTC, for an entry."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def release() -> str:
    """This release, for an entry."""
    return version("turnlog")
