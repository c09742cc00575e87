"""A history in memory, of entries that a test made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ops.history import Range, Recorded
from streams.core.events import BatchCommitted, Entry
from streams.runtime.codec import Codec

CODEC = Codec()
CHUNK = 7


@dataclass
class FakeHistory:
    """`History` of one partition: an offset an entry, and one for the end of each transaction."""

    entries: Sequence[Entry]
    identity: str = "topic-1"
    partitions: int = 1
    read_from: list[int] = field(default_factory=list)
    """Where each read began."""
    gone: Sequence[Range] = ()

    def __post_init__(self) -> None:
        self.records: list[Recorded] = []
        offset = 0
        for entry in self.entries:
            name = entry.event.conversation_id
            key = None if name is None else name.encode()
            self.records.append(Recorded(offset, entry.timestamp, key, CODEC.encode_entry(entry), ()))
            offset += 2 if isinstance(entry.event, BatchCommitted) else 1
        self.end = offset

    async def bounds(self, _: int) -> Range:
        return Range(0, self.end)

    async def missing(self, _: int) -> Sequence[Range]:
        return self.gone

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        self.read_from.append(start)
        chosen = [r for r in self.records if start <= r.offset < (self.end if end is None else end)]
        for at in range(0, len(chosen), CHUNK):
            yield chosen[at : at + CHUNK]

    async def offset_at(self, _: int, timestamp_ms: int) -> int | None:
        return next((r.offset for r in self.records if r.timestamp >= timestamp_ms), None)

    def decode(self, recorded: Recorded) -> Entry:
        return CODEC.decode_entry(recorded.value)

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        return [self.decode(recorded) for recorded in chunk]
