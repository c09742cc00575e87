"""What keeping a journal costs a record: hashed and sealed, compared, archived, read back; of CPU, without servers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ops.archive.copying import Archiver
from ops.archive.history import open_archive
from ops.archive.segment import Source
from ops.bench.history import History as Made
from ops.bench.past import EVENTS_A_CONVERSATION
from ops.bench.sequencer import BenchFailed
from ops.digest.against import against
from ops.digest.keys import Trust, new_key
from ops.digest.leaves import leaves_of
from ops.digest.sealing import Sealer
from ops.digest.statements import Digests
from ops.history.decoding import decode_chunk
from ops.history.place import place_at
from ops.history.port import Range, Recorded
from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.runtime.journal import headers_of

CHUNK_RECORDS: Final = 4_000


class Held:
    """`ops.history.History` of records in memory, in one partition: reading them costs nothing."""

    def __init__(self, events: int) -> None:
        self.codec = Codec()
        made = Made(0, 1, max(1, events // EVENTS_A_CONVERSATION))
        entries = (entry for batch in made.batches(events) for entry in batch.entries)
        self.records = [self._recorded(offset, entry) for offset, entry in enumerate(entries)]

    def _recorded(self, offset: int, entry: Entry) -> Recorded:
        id_ = entry.event.conversation_id
        key = None if id_ is None else id_.encode()
        return Recorded(offset, entry.timestamp, key, self.codec.encode_entry(entry), tuple(headers_of(entry, None)))

    @property
    def identity(self) -> str:
        return "bench"

    @property
    def partitions(self) -> int:
        return 1

    async def bounds(self, _partition: int) -> Range:
        """See `History`."""
        return Range(0, len(self.records))

    async def missing(self, _partition: int) -> Sequence[Range]:
        """See `History`."""
        return []

    async def read(self, _partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        """See `History`."""
        until = len(self.records) if end is None else min(end, len(self.records))
        for begin in range(start, until, CHUNK_RECORDS):
            yield self.records[begin : min(begin + CHUNK_RECORDS, until)]

    async def offset_at(self, _partition: int, timestamp_ms: int) -> int | None:
        """See `History`."""
        return next((r.offset for r in self.records if r.timestamp >= timestamp_ms), None)

    def decode(self, recorded: Recorded) -> Entry:
        """See `History`."""
        return self.codec.decode_entry(recorded.value)

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        """See `History`."""
        return decode_chunk(self.codec, chunk)


async def measure(events: int, notify: Callable[[str], None]) -> dict[str, Any]:
    """Records a second of CPU for each of the things that are done to keep a journal, all threads counted."""
    notify(f"making {events:,} events")
    history = Held(events)
    count = len(history.records)
    rates: dict[str, Any] = {"events": count}

    async def timed(name: str, work: Awaitable[Any]) -> Any:
        begun = time.process_time()
        result = await work
        rates[f"{name}_per_s"] = round(count / (time.process_time() - begun))
        notify(f"{name}: {rates[f'{name}_per_s']:,} records a second of CPU")
        return result

    with TemporaryDirectory(prefix="turnlog-bench-") as folder:
        key = new_key(Path(folder, "key.pem"))
        digests = Digests(place_at(f"{folder}/digests"), Trust([key.public]))
        sealer = Sealer(history, digests, key, notify=_quiet)
        source = Source(history=history, topic="conversations", framing=history.codec.framing)
        archiver, archive = Archiver(place_at(f"{folder}/archive"), source, notify=_quiet), f"{folder}/archive"
        await timed("decode", _each(history, history.decode_all))
        await timed("hash", _each(history, leaves_of))
        await timed("seal", sealer.seal())
        _require_ok(await timed("compare", against(history, digests)))
        await archiver.open()
        await timed("archive", archiver.copy())
        archived = await open_archive(place_at(archive))
        await timed("read_archive", _each(archived, len))
        _require_ok(await timed("compare_archive", against(archived, digests)))
    rates["compare_to_decode"] = round(rates["compare_per_s"] / rates["decode_per_s"], 2)
    return rates


async def _each(history: Any, use: Callable[[Sequence[Recorded]], Any]) -> None:
    async for chunk in history.read(0):
        use(chunk)


def _require_ok(evidence: Sequence[Any]) -> None:
    if not all(each.ok for each in evidence):
        raise BenchFailed("the digests do not fit the history that they were made of")


def _quiet(_: str) -> None:
    """No progress wanted."""
