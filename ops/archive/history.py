"""The history that an archive has, without Kafka: schemas come from the archive's own folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import schemas
from ops.archive.columns import KAFKA_COLUMNS, records_of
from ops.archive.layout import INFO, ArchiveInfo, Manifest, Segment, end_of, info_at, missing_of
from ops.history.decoding import decode_chunk
from ops.history.place import Place
from ops.history.port import HistoryUnavailable, Missing, Range, Recorded
from schemas import Schema, SchemaError
from streams.core.events import Entry
from streams.runtime.codec import Codec

CHUNK_RECORDS: Final = 4_000


class ArchivedSchemas:
    """The framing of archived records: what their first bytes meant where they were written."""

    def __init__(self, info: ArchiveInfo, writers: Mapping[bytes, Schema]) -> None:
        self.header_bytes = info.header_bytes
        self._writers = writers
        mine = schemas.current("journal").fingerprint
        # Records of this release's schema take the compiled way; where none is, this header is that of nothing.
        self._journal = next((head for head, schema in writers.items() if schema.fingerprint == mine), b"\xff")

    def header(self, name: str) -> bytes:
        return self._journal if name == "journal" else schemas.current(name).header

    def schema(self, name: str) -> Schema:
        return schemas.current(name)

    def writer(self, value: bytes) -> Schema | None:
        return self._writers.get(value[: self.header_bytes])


class ArchiveHistory:
    """`History` of an archive. Open it with `open_archive`."""

    def __init__(self, place: Place, info: ArchiveInfo, codec: Codec) -> None:
        self._place = place
        self.info = info
        self._codec = codec
        self._manifests = [Manifest(place, partition) for partition in range(info.partitions)]

    @property
    def identity(self) -> str:
        return self.info.topic_id

    @property
    def partitions(self) -> int:
        return self.info.partitions

    async def segments(self, partition: int) -> Sequence[Segment]:
        """What is committed now."""
        if not 0 <= partition < self.info.partitions:
            raise HistoryUnavailable(f"there is no partition {partition}: they are 0 to {self.info.partitions - 1}")
        return await asyncio.to_thread(self._manifests[partition].read)

    async def bounds(self, partition: int) -> Range:
        """See `History`."""
        chain = await self.segments(partition)
        end = end_of(chain) or 0
        return Range(next((segment.start for segment in chain if not segment.gone), end), end)

    async def missing(self, partition: int) -> Sequence[Range]:
        """See `History`. A segment whose file is not there, or not as long as it was, is missing too."""
        chain = await self.segments(partition)
        lost = await asyncio.to_thread(self._lost, chain)
        return missing_of(chain, lost)

    def _lost(self, chain: Sequence[Segment]) -> list[Range]:
        sizes = self._place.sizes([segment.file for segment in chain if segment.file])
        return [segment.range for segment in chain if segment.file and sizes.get(segment.file) != segment.bytes]

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        """See `History`. A file that is damaged raises `HistoryUnavailable`."""
        chain = await self.segments(partition)
        last = end_of(chain) or 0
        wanted = Range(start, last if end is None else min(end, last))
        gone = await self.missing(partition)
        for segment in chain:
            if not segment.range.overlaps(wanted):
                continue
            self._require(partition, gone, Range(wanted.start, segment.start + 1))
            if segment.file:
                async for chunk in self.chunks(segment, wanted):
                    yield chunk
            wanted = Range(max(wanted.start, segment.end), wanted.end)
        self._require(partition, gone, wanted)

    @staticmethod
    def _require(partition: int, gone: Sequence[Range], wanted: Range) -> None:
        """Raise `Missing` when something of `wanted` is missing."""
        for each in gone:
            if each.overlaps(wanted):
                raise Missing(partition, Range(max(each.start, wanted.start), each.end))

    async def chunks(self, segment: Segment, wanted: Range) -> AsyncIterator[Sequence[Recorded]]:
        """The records of one segment that are in `wanted`, as `read` gives them."""
        whole = wanted.start <= segment.start and segment.end <= wanted.end
        async with AsyncExitStack() as undo:
            context = self._place.fetched(segment.file)
            path = await asyncio.to_thread(context.__enter__)
            undo.callback(context.__exit__, None, None, None)
            file = undo.enter_context(opened_file(path, segment.file))
            batches = file.iter_batches(batch_size=CHUNK_RECORDS, columns=[*KAFKA_COLUMNS])
            while (chunk := await asyncio.to_thread(_next, batches, segment.file)) is not None:
                taken = chunk if whole else [r for r in chunk if wanted.start <= r.offset < wanted.end]
                if taken:
                    yield taken
                if chunk and chunk[-1].offset >= wanted.end:
                    return

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """See `History`."""
        for segment in await self.segments(partition):
            if segment.records and segment.last_timestamp >= timestamp_ms:
                async for chunk in self.chunks(segment, segment.range):
                    for recorded in chunk:
                        if recorded.timestamp >= timestamp_ms:
                            return recorded.offset
        return None

    def decode(self, recorded: Recorded) -> Entry:
        """See `History`."""
        return self._codec.decode_entry(recorded.value)

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        """See `History`."""
        return decode_chunk(self._codec, chunk)


def opened_file(path: Any, name: str) -> Any:
    """The Parquet file; `HistoryUnavailable` when it is none."""
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise HistoryUnavailable(f"{name} is damaged: {error}") from error


def _next(batches: Any, name: str) -> list[Recorded] | None:
    try:
        batch = next(batches, None)
        return None if batch is None else records_of(batch)
    except (pa.ArrowException, OSError) as error:
        raise HistoryUnavailable(f"{name} is damaged: {error}") from error


async def open_archive(place: Place) -> ArchiveHistory:
    """The history of the archive there. Raises `HistoryUnavailable`."""
    info = await asyncio.to_thread(info_at, place)
    if info is None:
        raise HistoryUnavailable(
            f"there is no archive at {place.address} (no {INFO} there): make one with `turnlog archive run "
            f"{place.address}`"
        )
    writers = await asyncio.to_thread(_schemas_at, place)
    return ArchiveHistory(place, info, Codec(ArchivedSchemas(info, writers)))


def _schemas_at(place: Place) -> dict[bytes, Schema]:
    found = {}
    names = [name for name in place.names("schemas") if name.endswith(".avsc")]
    for name, text in place.read(names).items():
        head = bytes.fromhex(name.rsplit("/", 1)[-1].removesuffix(".avsc"))
        try:
            found[head] = replace(schemas.parse("journal", text.decode("utf-8")), name="journal")
        except (SchemaError, UnicodeDecodeError) as error:
            raise HistoryUnavailable(f"{place.address}/{name} is no schema: {error}") from error
    return found
