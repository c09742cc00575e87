"""Copies the journal into an archive: each record once, whoever else does the same, wherever this dies.

A segment: records are read from the chain's end, written to a file on this machine, put into the archive under a name
of its own, and committed by making the manifest entry that only one writer can make (`layout`). Nothing is remembered
between segments but what the archive holds.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from ops.archive.layout import (
    INFO,
    Manifest,
    Segment,
    data_name,
    document,
    end_of,
    info_at,
    manifest_name,
    placed,
    schema_name,
)
from ops.archive.segment import Source, Written, now, release
from ops.history.place import Folder, Place, create_once
from ops.history.port import HistoryUnavailable, Missing, Range

SEGMENT_RECORDS: Final = 200_000
Notify = Callable[[str], None]


class Gap(HistoryUnavailable):
    """Records were deleted before they were archived. Nothing is archived behind them unless a person says so."""

    def __init__(self, partition: int, gone: Range) -> None:
        super().__init__(
            f"MISSING: offsets {gone} of partition {partition} were deleted from Kafka before they were archived. No "
            "archive will ever have them. To archive what is left, and have every report tell of the gap: --after-gap"
        )
        self.partition = partition
        self.gone = gone


class Archiver:
    """Copies into one archive. Any number may do so at the same time."""

    def __init__(
        self,
        place: Place,
        source: Source,
        *,
        segment_records: int = SEGMENT_RECORDS,
        after_gap: bool = False,
        notify: Notify,
    ) -> None:
        self._place = place
        self._source = source
        self._segment_records = segment_records
        self._after_gap = after_gap
        self._notify = notify
        self._manifests: dict[int, Manifest] = {}
        self._heads: set[bytes] = set()
        self.upto: dict[int, int] = {}
        """By partition, the offset up to which all is archived, as it was last seen."""

    async def open(self) -> None:
        """Make the archive, or see that it is this journal's. Raises `HistoryUnavailable`."""
        mine = self._source.info()
        await asyncio.to_thread(self._place.create, INFO, document(mine))
        there = await asyncio.to_thread(info_at, self._place)
        if there != mine:
            raise HistoryUnavailable(
                f"{self._place.address} is the archive of another journal: it has {there}, this one is {mine}"
            )
        if isinstance(self._place, Folder):
            await asyncio.to_thread(self._place.remove_stale)

    async def copy(self) -> int:
        """Archive what is committed now and was not archived; how many records this one archived. Raises `Gap`."""
        copied = 0
        for partition in range(self._source.history.partitions):
            copied += await self.copy_partition(partition)
        return copied

    async def copy_partition(self, partition: int) -> int:
        """See `copy`."""
        copied = 0
        until = (await self._source.history.bounds(partition)).end
        while (start := await self._chain_end(partition)) < until:
            segment = await self._segment(partition, Range(start, until))
            if segment is not None:
                copied += segment.records
                self._notify(
                    f"partition {partition}: {segment.range}, {segment.records:,} records; "
                    f"{until - segment.end:,} offsets to go"
                )
        return copied

    async def _chain_end(self, partition: int) -> int:
        """Where the next segment starts. A gap before it ends here."""
        manifest = self._manifests.setdefault(partition, Manifest(self._place, partition))
        chain = await asyncio.to_thread(manifest.read)
        start = end_of(chain) or 0
        kept = await self._source.history.bounds(partition)
        if start < kept.start:
            await self._gap(partition, Range(start, kept.start))
            return await self._chain_end(partition)
        self.upto[partition] = start
        return start

    async def _gap(self, partition: int, gone: Range) -> None:
        if not self._after_gap:
            raise Gap(partition, gone)
        self._notify(f"MISSING: offsets {gone} of partition {partition}")
        entry = Segment(partition=partition, start=gone.start, end=gone.end, gone=True, written_at=now(), by=release())
        await asyncio.to_thread(self._place.create, manifest_name(partition, gone.start), document(entry))

    async def _segment(self, partition: int, wanted: Range) -> Segment | None:
        """Archive one segment from the start of `wanted`; None: another archiver was faster."""
        with TemporaryDirectory(prefix="turnlog-archive-") as folder:
            written = Written(partition, Path(folder, "segment.parquet"), self._source, self._segment_records)
            try:
                await written.fill(wanted)
            except Missing as missing:
                if missing.gone.start <= wanted.start:
                    return None  # deleted just now: the next look at the chain's end says so
                written.end_at(missing.gone.start)
            for head, definition in written.schemas.items():
                if head not in self._heads:
                    await asyncio.to_thread(self._place.create, schema_name(head), definition)
                    self._heads.add(head)
            return await asyncio.to_thread(self._commit, written)

    def _commit(self, written: Written) -> Segment | None:
        segment = written.segment()
        if segment.records:
            name = data_name(segment.partition, segment.range, segment.day, self._source.topic, uuid.uuid4().hex[:8])
            self._place.put(name, written.path)
            segment = msgspec.structs.replace(segment, file=name)
        name = manifest_name(segment.partition, segment.start)
        if create_once(self._place, name, document(segment)):
            return segment
        if segment.file:
            self._place.remove(segment.file)
        return None

    async def clean(self) -> int:
        """Remove files that no entry names and none ever will: the entry of their start is another's. One that starts
        where its chain ends may be about to be committed, and stays. Returns how many it removed.

        It lists all there is: meant for the end of a run, or now and then.
        """
        return await asyncio.to_thread(self._cleaned)

    def _cleaned(self) -> int:
        chains = {partition: manifest.read() for partition, manifest in self._manifests.items()}
        named = {segment.file for chain in chains.values() for segment in chain}
        removed = 0
        for name in self._place.names("data"):
            where = placed(name)
            if where is not None and name not in named and where[1] < (end_of(chains.get(where[0], ())) or 0):
                self._place.remove(name)
                removed += 1
        return removed
