"""Which history: Kafka's, an archive's, or both joined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ops.history.live import live_history
from ops.history.port import History, HistoryUnavailable
from streams.settings import Settings


@asynccontextmanager
async def open_history(
    settings: Settings | None, archive: str | None = None, *, offline: bool = False
) -> AsyncIterator[History]:
    """A deployment's history for as long as the block runs.

    `archive`: the address of an archive (a folder, or what fsspec knows: `s3://…`), read first, and Kafka from where
    it ends. `offline`: that archive alone; Kafka is not asked, and `settings` may be None. Raises
    `HistoryUnavailable`, and what the clients of Kafka raise.
    """
    if archive is not None or offline:
        raise HistoryUnavailable("there are no archives yet")
    if settings is None:
        raise HistoryUnavailable("a history needs Kafka (settings), or an archive")
    async with live_history(settings) as history:
        yield history
