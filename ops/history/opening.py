"""Which history: Kafka's, an archive's, or both joined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ops.history.joined import JoinedHistory
from ops.history.live import live_history
from ops.history.place import WAY_OUT, place_at
from ops.history.port import History, HistoryUnavailable
from streams.settings import Settings

if TYPE_CHECKING:
    from ops.archive.history import ArchiveHistory


@asynccontextmanager
async def open_history(
    settings: Settings | None, archive: str | None = None, *, offline: bool = False
) -> AsyncIterator[History]:
    """A deployment's history for as long as the block runs.

    `archive`: the address of an archive (a folder, or what fsspec knows: `s3://…`), read first, and Kafka from where
    it ends. `offline`: that archive alone; Kafka is not asked, and `settings` may be None. Raises
    `HistoryUnavailable` (an archive alone that is empty too), and what the clients of Kafka raise.
    """
    if offline and archive is None:
        raise HistoryUnavailable("without Kafka (--offline) a history needs an archive (--archive URL)")
    archived = None if archive is None else await archive_at(archive)
    if offline and archived is not None:
        await _require_something(archived, archive)
        yield archived
        return
    if settings is None:
        raise HistoryUnavailable("a history needs Kafka (TURNLOG_KAFKA), or an archive alone (--archive URL --offline)")
    async with live_history(settings) as live:
        yield live if archived is None else JoinedHistory(archived, live)


async def _require_something(archived: ArchiveHistory, address: str | None) -> None:
    """Raise `HistoryUnavailable` for an archive with nothing in it: no promise is broken in nothing, and no row is in
    it, which says nothing of the deployment."""
    for partition in range(archived.partitions):
        if await archived.segments(partition):
            return
    raise HistoryUnavailable(
        f"the archive at {address} is empty: nothing was archived there yet (`turnlog archive run {address}`); leave "
        "--offline out to read Kafka too"
    )


async def archive_at(address: str) -> ArchiveHistory:
    """The history of the archive there. Raises `HistoryUnavailable`."""
    try:
        from ops.archive.history import open_archive  # noqa: PLC0415 -- of the extra `data`
    except ImportError as error:
        raise HistoryUnavailable(f"an archive needs pyarrow: {WAY_OUT}") from error
    return await open_archive(place_at(address))
