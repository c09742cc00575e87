"""What lies where in an archive.

    archive.json                              whose journal it is
    schemas/<first bytes, hex>.avsc           the schema of every record that starts with these bytes
    manifest/p00003/<start>.json              one segment, committed; its name is made once or not at all
    data/day=2026-11-30/topic=conversations/p00003-<start>-<end>-<some hex>.parquet

Offsets have 20 digits; `end` is exclusive. The manifest of a partition is a chain: each entry starts where the one
before it ends. Whoever wants to add to it makes the entry named by the chain's end, which only one of several writers
can: that is the commit. A data file that no entry names is what a writer that was killed left behind: it means nothing.

         new file ──put──▶ nobody's ──create its manifest entry──▶ committed
                              └──── another's entry is there already ──▶ removed
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import msgspec

from ops.history.place import Place
from ops.history.port import HistoryUnavailable, Range, merged

FORMAT: Final = 1
INFO: Final = "archive.json"
DIGITS: Final = 20
LAST_MS: Final = 253_402_300_799_000  # 9999-12-31 23:59:59 UTC
_DATA: Final = re.compile(r"p(\d{5})-(\d{20})-\d{20}-[0-9a-f]+\.parquet")


class ArchiveInfo(msgspec.Struct, frozen=True):
    """Whose journal an archive holds: the first thing that is put there, once."""

    format: int
    topic: str
    topic_id: str
    """Kafka's id: a topic made anew under the same name has another."""
    partitions: int
    header_bytes: int
    """How many bytes name the schema in front of each value (`schemas/`)."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the manifest: a stretch of one partition that is archived, or that was gone before it could be."""

    partition: int
    start: int
    end: int
    gone: bool = False
    """Kafka had deleted it already, and a person told the archiver to go on behind it."""
    file: str = ""
    day: str = ""
    """UTC day of its first record."""
    records: int = 0
    undecodable: int = 0
    """Records whose bytes are archived though they are no entry that this release knows."""
    first_lsn: int | None = None
    last_lsn: int | None = None
    first_timestamp: int = 0
    """The lowest time that a record of it bears, ms since the epoch."""
    last_timestamp: int = 0
    bytes: int = 0
    sha256: str = ""
    """Of the file."""
    leaves: str = ""
    """SHA-256 of all its records' leaf hashes (`ops.digest.leaves`) in order, hex."""
    written_at: str = ""
    by: str = ""
    """Release of Turnlog."""

    @property
    def range(self) -> Range:
        """Its offsets."""
        return Range(self.start, self.end)


def manifest_folder(partition: int) -> str:
    """Where a partition's manifest lies."""
    return f"manifest/p{partition:05}"


def manifest_name(partition: int, start: int) -> str:
    """The one name of a segment that starts there."""
    return f"{manifest_folder(partition)}/{start:0{DIGITS}}.json"


def data_name(partition: int, segment: Range, day: str, topic: str, unique: str) -> str:
    """A name for a segment's file. `unique`: so that no other writer uses it."""
    name = f"p{partition:05}-{segment.start:0{DIGITS}}-{segment.end:0{DIGITS}}-{unique}.parquet"
    return f"data/day={day}/topic={topic}/{name}"


def placed(data: str) -> tuple[int, int] | None:
    """Partition and start of a file, from its name (`data_name`); None: somebody else put it there."""
    match = _DATA.fullmatch(data.rsplit("/", 1)[-1])
    return None if match is None else (int(match[1]), int(match[2]))


def document(what: msgspec.Struct) -> bytes:
    """The bytes of an entry, or of `archive.json`."""
    return msgspec.json.format(msgspec.json.encode(what)) + b"\n"


def schema_name(head: bytes) -> str:
    """Where the schema of records that start with `head` lies."""
    return f"schemas/{head.hex()}.avsc"


def day_of(timestamp_ms: int) -> str:
    """The UTC day of a record's time; of one that no calendar has, the nearest that it has."""
    return f"{datetime.fromtimestamp(min(max(timestamp_ms, 0), LAST_MS) / 1000, UTC):%Y-%m-%d}"


def info_at(place: Place) -> ArchiveInfo | None:
    """Whose archive lies there; None: there is none. Raises `HistoryUnavailable` for one that cannot be read."""
    if place.size(INFO) is None:
        return None
    try:
        info = msgspec.json.decode(place.read([INFO])[INFO], type=ArchiveInfo)
    except msgspec.DecodeError as error:
        raise HistoryUnavailable(f"{place.address}/{INFO} is not an archive's: {error}") from error
    if info.format != FORMAT:
        raise HistoryUnavailable(f"{place.address} has format {info.format}; this release reads {FORMAT}")
    return info


class Manifest:
    """The manifest of one partition, as read so far. Entries never change, so that only new ones are read again."""

    def __init__(self, place: Place, partition: int) -> None:
        self._place = place
        self._partition = partition
        self._known: dict[str, Segment] = {}

    def read(self) -> Sequence[Segment]:
        """All entries in order. Raises `HistoryUnavailable` for one that cannot be read or does not fit its name."""
        names = [name for name in self._place.names(manifest_folder(self._partition)) if name.endswith(".json")]
        new = [name for name in names if name not in self._known]
        for name, content in self._place.read(new).items():
            self._known[name] = self._entry(name, content)
        return [self._known[name] for name in names]

    def _entry(self, name: str, content: bytes) -> Segment:
        try:
            entry = msgspec.json.decode(content, type=Segment)
        except msgspec.DecodeError as error:
            raise HistoryUnavailable(f"{self._place.address}/{name} is no manifest entry: {error}") from error
        if manifest_name(entry.partition, entry.start) != name or entry.end <= entry.start:
            raise HistoryUnavailable(f"{self._place.address}/{name} says partition {entry.partition}, {entry.range}")
        return entry


def end_of(chain: Sequence[Segment]) -> int | None:
    """Where the chain ends; None: it is empty."""
    return chain[-1].end if chain else None


def missing_of(chain: Sequence[Segment], lost: Iterable[Range] = ()) -> list[Range]:
    """What was there once and is not in the chain: what was gone, what lies before it, holes in it; and what of it is
    `lost`."""
    if not chain:
        return []
    found = [Range(0, chain[0].start)] if chain[0].start else []
    found += lost
    found += [segment.range for segment in chain if segment.gone]
    found += [Range(before.end, after.start) for before, after in pairwise(chain) if before.end < after.start]
    return merged(found)
