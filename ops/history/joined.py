"""An archive and Kafka as one history: the archive up to where it ends, Kafka from there, no gap, nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ops.history.port import History, HistoryUnavailable, Missing, Range, Recorded
from streams.core.events import Entry


class JoinedHistory:
    """`History` of `archive`, and of `live` from where the archive ends at the moment of each call."""

    def __init__(self, archive: History, live: History) -> None:
        """Raises `HistoryUnavailable` when they are not of one journal."""
        require_same(archive, live)
        self._archive = archive
        self._live = live

    @property
    def identity(self) -> str:
        return self._live.identity

    @property
    def partitions(self) -> int:
        return self._live.partitions

    async def bounds(self, partition: int) -> Range:
        """See `History`."""
        live, archived = await self._both(partition)
        if not len(archived):
            return Range(max(live.start, archived.end), max(live.end, archived.end))
        return Range(archived.start, max(archived.end, live.end))

    async def missing(self, partition: int) -> Sequence[Range]:
        """See `History`. What the archive misses and Kafka still has is not missing."""
        live, archived = await self._both(partition)
        gone = [*await self._archive.missing(partition)]
        if live.start > archived.end:
            gone.append(Range(archived.end, live.start))
        return [left for each in gone for left in _without(each, live)]

    async def _both(self, partition: int) -> tuple[Range, Range]:
        """Kafka's bounds first: what is deleted there by then, the archive has when it is looked at."""
        live = await self._live.bounds(partition)
        return live, await self._archive.bounds(partition)

    async def read(self, partition: int, start: int = 0, end: int | None = None) -> AsyncIterator[Sequence[Recorded]]:
        """See `History`. While it is read, more may be archived, and deleted from Kafka."""
        end = (await self.bounds(partition)).end if end is None else end
        while (piece := await self._piece(partition, Range(start, end))) is not None:
            source, until = piece
            try:
                async for chunk in source.read(partition, start, until):
                    yield chunk
                    start = chunk[-1].offset + 1
                start = until
            except Missing as missing:
                start = missing.gone.start
                if source is self._live and start >= (await self._archive.bounds(partition)).end:
                    raise

    async def _piece(self, partition: int, wanted: Range) -> tuple[History, int] | None:
        """Who has the start of `wanted`, and up to where; None: nobody has more. Raises `Missing`."""
        live, archived = await self._both(partition)
        until = min(wanted.end, max(live.end, archived.end))
        if wanted.start >= until:
            return None
        if wanted.start >= archived.end:
            if wanted.start < live.start:
                raise Missing(partition, Range(wanted.start, min(until, live.start)))
            return self._live, until
        gone = next((g for g in await self._archive.missing(partition) if g.end > wanted.start), None)
        if gone is None or gone.start >= archived.end:
            return self._archive, min(until, archived.end)
        if wanted.start < gone.start:
            return self._archive, min(until, gone.start)
        if wanted.start < live.start:
            raise Missing(partition, Range(wanted.start, min(gone.end, live.start)))
        return self._live, min(until, gone.end)

    async def offset_at(self, partition: int, timestamp_ms: int) -> int | None:
        """See `History`."""
        found = await self._archive.offset_at(partition, timestamp_ms)
        return await self._live.offset_at(partition, timestamp_ms) if found is None else found

    def decode(self, recorded: Recorded) -> Entry:
        """See `History`."""
        return self._live.decode(recorded)

    def decode_all(self, chunk: Sequence[Recorded]) -> list[Entry]:
        """See `History`."""
        return self._live.decode_all(chunk)


def require_same(archive: History, live: History) -> None:
    """Raise `HistoryUnavailable` unless both are of one journal."""
    if (archive.identity, archive.partitions) != (live.identity, live.partitions):
        raise HistoryUnavailable(
            f"the archive is of another journal than Kafka's: topic id {archive.identity} with {archive.partitions} "
            f"partitions, not {live.identity} with {live.partitions}"
        )


def _without(what: Range, there: Range) -> list[Range]:
    """`what` without the offsets of `there`."""
    before, after = Range(what.start, min(what.end, there.start)), Range(max(what.start, there.end), what.end)
    return [each for each in (before, after) if len(each)]
