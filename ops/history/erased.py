"""Which conversations are erased, as the journal says: what nobody had sealed of them, tools hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ops.history.around import around
from ops.history.port import History, Range, Recorded
from streams.core.events import ConversationErased

_TYPE: Final = ("type", ConversationErased.__name__.encode())


async def erased_in(
    history: History, partition: int, gone: Sequence[Range], start: int = 0, end: int | None = None
) -> set[str]:
    """Conversations of the partition that are erased by records from `start` to `end`, around what is `gone`. Only what
    its headers call an erasure, or what has none, is decoded."""
    found: set[str] = set()
    bounds = await history.bounds(partition)
    end = bounds.end if end is None else min(end, bounds.end)
    async for chunk in around(history, partition, gone, max(start, bounds.start), end):
        likely = [recorded for recorded in chunk if _may_erase(recorded)]
        for entry in history.decode_all(likely):
            if isinstance(entry.event, ConversationErased) and entry.event.conversation_id:
                found.add(entry.event.conversation_id)
    return found


def _may_erase(recorded: Recorded) -> bool:
    return not recorded.headers or _TYPE in recorded.headers
