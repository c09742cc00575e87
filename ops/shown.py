"""What was said, as operators' tools show it: how long it was. Whoever wants more is noted in the journal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from ops.decided import noted
from streams.core.commands import Command
from streams.core.events import Entry, Event, FrameCommitted, Unknown
from streams.core.runs import ASK_CLOSED, STREAM_CLOSED, SYSTEM
from streams.sealing.records import blank, blanked, reworded, reworded_command
from streams.sealing.wiring import ProcessKeys
from streams.settings import Settings

TEXT_SHOWN: Final = "text_shown"
"""`action` of the journal's `OperatorActed`."""


def mask(text: str) -> str:
    """How long it is, and nothing else of it."""
    return f"({len(text)} characters)"


def masked_entry(entry: Entry) -> Entry:
    """An entry with each of its words masked. What the writer says when it closes what a member left open is nobody's
    words: it stays, and is told as what it is."""
    return entry if _is_the_writers(entry.event) else reworded(_without_raw(entry), lambda _, text: mask(text))


def hidden_entry(entry: Entry) -> Entry:
    """An entry of an erased conversation: `[erased]` where words were, also where nobody had sealed them, and no key
    could be destroyed."""
    return entry if _is_the_writers(entry.event) else blanked(_without_raw(entry))


def _is_the_writers(event: Event) -> bool:
    closed = {STREAM_CLOSED, ASK_CLOSED}
    return isinstance(event, FrameCommitted) and event.sender == SYSTEM and event.frame.data in closed


def _without_raw(entry: Entry) -> Entry:
    """Of a later release's event all may be words."""
    event = entry.event
    return replace(entry, event=replace(event, raw=b"")) if isinstance(event, Unknown) else entry


async def note_shown(settings: Settings, *, what: str, by: str, why: str, partition: int) -> None:
    """Write into the journal of this partition that somebody is shown what was said. Raises what Kafka raises: without
    the note nothing is shown."""
    await noted(settings, action=TEXT_SHOWN, subject=what, by=by, reason=why, partition=partition)


class Shown:
    """Entries and commands as a person is shown them: masked, or (`text`) as they were said, opened if sealed. Of
    conversations that are `erased`, as the journal says, nothing is shown, whether it was sealed or not."""

    def __init__(self, settings: Settings, *, text: bool, erased: Collection[str] = ()) -> None:
        self._keys = ProcessKeys(settings) if text else None
        self._erased = erased

    async def close(self) -> None:
        """Close the connections."""
        if self._keys is not None:
            await self._keys.close()

    async def entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Raises what PostgreSQL and Kafka raise."""
        if self._keys is None:
            return [masked_entry(entry) for entry in entries]
        opened = await self._keys.ring.open(entries)
        return [hidden_entry(entry) if entry.event.conversation_id in self._erased else entry for entry in opened]

    async def command(self, command: Command) -> Command:
        """Raises as `entries`."""
        if self._keys is None:
            return reworded_command(command, lambda _, text: mask(text))
        if getattr(command, "conversation_id", None) in self._erased:
            return blank(command)
        return await self._keys.ring.open_command(command)
