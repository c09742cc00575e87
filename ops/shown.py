"""What was said, as operators' tools show it: how long it was. Whoever wants more is noted in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ops.decided import noted
from streams.core.events import Entry, FrameCommitted
from streams.core.runs import ASK_CLOSED, STREAM_CLOSED, SYSTEM
from streams.sealing.records import FRAME_WORDS, TURN_WORDS, reworded
from streams.sealing.wiring import ProcessKeys
from streams.settings import Settings

TEXT_SHOWN: Final = "text_shown"
"""`action` of the journal's `OperatorActed`."""
WORDS: Final = frozenset({*TURN_WORDS, *FRAME_WORDS})
"""Fields of commands and events that hold what people and agents said."""


def mask(text: str) -> str:
    """How long it is, and nothing else of it."""
    return f"({len(text)} characters)"


def masked(value: Any) -> Any:
    """A document with each of its words masked."""
    if isinstance(value, dict):
        return {
            name: mask(item) if name in WORDS and isinstance(item, str) else masked(item)
            for name, item in value.items()
        }
    return [masked(item) for item in value] if isinstance(value, list) else value


def masked_entry(entry: Entry) -> Entry:
    """An entry with each of its words masked. What the writer says when it closes what a member left open is nobody's
    words: it stays, and is told as what it is."""
    event = entry.event
    if isinstance(event, FrameCommitted) and event.sender == SYSTEM and event.frame.data in {STREAM_CLOSED, ASK_CLOSED}:
        return entry
    return reworded(entry, lambda _, text: mask(text))


async def note_shown(settings: Settings, *, what: str, by: str, why: str, partition: int) -> None:
    """Write into the journal of this partition that somebody is shown what was said. Raises what Kafka raises: without
    the note nothing is shown."""
    await noted(settings, action=TEXT_SHOWN, subject=what, by=by, reason=why, partition=partition)


class Shown:
    """Entries as a person is shown them: masked, or (`text`) as they were said, opened where they are sealed."""

    def __init__(self, settings: Settings, *, text: bool) -> None:
        self._keys = ProcessKeys(settings) if text else None

    async def close(self) -> None:
        """Close the connections."""
        if self._keys is not None:
            await self._keys.close()

    async def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Raises what PostgreSQL and Kafka raise."""
        if self._keys is None:
            return [masked_entry(entry) for entry in entries]
        return await self._keys.ring.open(entries)
