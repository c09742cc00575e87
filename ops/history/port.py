"""What a history is: committed records of each partition, in order, and what is missing of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from streams.core.events import Entry


class HistoryUnavailable(Exception):
    """The history cannot be read as it is asked for; the message says what is the matter, and the way out."""


class Recorded(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record of the journal, as Kafka has it, its bytes untouched."""

    offset: int
    timestamp: int
    """Ms since the epoch, as the record bears it."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Offsets from `start` up to, and without, `end`. Not each of them has a record: a transaction's end takes one."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start} to {self.end - 1}"

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def overlaps(self, other: Range) -> bool:
        """Whether an offset is in both."""
        return self.start < other.end and other.start < self.end


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in as few ranges as can be, in order."""
    found: list[Range] = []
    for each in sorted(each for each in ranges if len(each)):
        if found and each.start <= found[-1].end:
            found[-1] = Range(found[-1].start, max(found[-1].end, each.end))
        else:
            found.append(each)
    return found


class Missing(HistoryUnavailable):
    """What was asked for was once there, and cannot be read."""

    def __init__(self, partition: int, gone: Range) -> None:
        super().__init__(
            f"offsets {gone} of partition {partition} of the journal are missing: nothing can be said about what rests "
            "on them"
        )
        self.partition = partition
        self.gone = gone


class History(Protocol):
    """A whole deployment's journal. Any task may use it; each read has a position of its own.

    Raises `HistoryUnavailable`, and what the clients of Kafka, or of the place that has the archive, raise.
    """

    @property
    def identity(self) -> str:
        """Kafka's id of the journal's topic: the same for Kafka and an archive of it, another for one made anew."""

    @property
    def partitions(self) -> int:
        """How many there are."""

    async def bounds(self, partition: int) -> Range:
        """From the first offset that can be read to the end of what is committed now."""

    async def missing(self, partition: int) -> Sequence[Range]:
        """What was once there and cannot be read, in order: the first line of any report. It need not lie in `bounds`:
        the beginning of a journal may be gone."""

    def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        """Committed records from offset `start` on, below `end` (None: what is committed now), in order, in chunks of
        some thousands, none of them empty.

        Raises `Missing` where it comes upon a missing range, after all that lies before it; a caller that wants the
        rest reads on from that range's end.
        """

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose record bears this time or a later one; None: there is none."""

    def decode(self, recorded: Recorded) -> Entry:
        """The entry of a record. Raises `Undecodable`."""

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        """The entries of a chunk, in order. Raises `Undecodable`."""
