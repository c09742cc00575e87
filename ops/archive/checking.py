"""What an archive is worth: its chain, its files, and that they hold what the manifest says, record by record."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ops.archive.history import ArchiveHistory
from ops.archive.layout import Segment
from ops.archive.segment import sha256_of
from ops.digest.leaves import leaves_of
from ops.history.place import Place
from ops.history.port import HistoryUnavailable, Range


@dataclass(slots=True)
class PartitionCheck:
    """One partition of an archive."""

    partition: int
    bounds: Range
    missing: list[Range]
    segments: int = 0
    records: int = 0
    undecodable: int = 0
    problems: list[str] = field(default_factory=list)
    verified: int = 0
    """Offset up to which, from the beginning of what is archived, everything is as it should be."""

    @property
    def ok(self) -> bool:
        """Nothing is missing or wrong."""
        return not self.problems and not self.missing

    def document(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            "partition": self.partition,
            "start": self.bounds.start,
            "end": self.bounds.end,
            "verified": self.verified,
            "segments": self.segments,
            "records": self.records,
            "undecodable": self.undecodable,
            "missing": [[gone.start, gone.end] for gone in self.missing],
            "problems": self.problems,
        }


async def check(place: Place, archive: ArchiveHistory, partition: int, notify: Callable[[str], None]) -> PartitionCheck:
    """Read all of a partition's archive again: hashes of files and records, order, `lsn` without a gap."""
    chain = await archive.segments(partition)
    found = PartitionCheck(partition, await archive.bounds(partition), [*await archive.missing(partition)])
    found.verified = found.bounds.start
    lsn: int | None = None
    for segment in chain:
        if segment.gone:
            lsn = None
            continue
        problems = [*await _problems(place, archive, segment)]
        if segment.first_lsn is not None:
            if lsn is not None and segment.first_lsn != lsn + 1:
                problems.append(f"{segment.range}: lsn {segment.first_lsn} follows {lsn}")
            lsn = segment.last_lsn
        found.segments += 1
        found.records += segment.records
        found.undecodable += segment.undecodable
        found.problems += problems
        if not found.problems and segment.start == found.verified:
            found.verified = segment.end
        notify(f"partition {partition}: {segment.end:,} of {found.bounds.end:,}")
    return found


async def _problems(place: Place, archive: ArchiveHistory, segment: Segment) -> list[str]:
    if not segment.file:
        return []
    where = f"{segment.range} ({segment.file})"
    size = await asyncio.to_thread(place.size, segment.file)
    if size is None:
        return [f"{where}: the file is not there"]
    if await asyncio.to_thread(_sha256, place, segment.file) != segment.sha256:
        return [f"{where}: the file is not the one that was written"]
    try:
        return [f"{where}: {problem}" for problem in await _differences(archive, segment)]
    except HistoryUnavailable as error:
        return [f"{where}: {error}"]


def _sha256(place: Place, name: str) -> str:
    with place.fetched(name) as path:
        return sha256_of(path)


async def _differences(archive: ArchiveHistory, segment: Segment) -> list[str]:
    leaves, records, last = hashlib.sha256(), 0, segment.start - 1
    async for chunk in archive.chunks(segment, segment.range):
        for leaf in leaves_of(chunk):
            leaves.update(leaf)
        records += len(chunk)
        for recorded in chunk:
            if not last < recorded.offset < segment.end:
                return [f"offset {recorded.offset} follows {last}"]
            last = recorded.offset
    found = [] if records == segment.records else [f"{records} records, not {segment.records}"]
    return found if leaves.hexdigest() == segment.leaves else [*found, "its records are not those that were written"]
