"""Invariant 7: an idempotency key is stored once, and so is a numbered frame, whether it has a key or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from ops.audit.numbers import FrameNumbers
from ops.audit.remembered import Remembered
from ops.audit.violations import NOTHING, Kinds, Problems
from streams.core.events import (
    ConversationOpened,
    Entry,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ids import SEPARATOR, key_of_turn, open_key
from streams.core.state import KEY_LIFETIME_MS

FORGET_EVERY_MS: Final = KEY_LIFETIME_MS // 8


def _own_key(event: Any) -> str | None:
    key: str | None = event.key
    return key


_KEY_OF: Final[dict[type[Event], Callable[[Any], str | None]]] = {
    TurnCommitted: lambda event: key_of_turn(event.turn),
    FrameCommitted: _own_key,
    PersonFrameCommitted: _own_key,
    TurnEdited: _own_key,
    TurnRegenerated: _own_key,
    ConversationOpened: lambda event: None if event.key is None else open_key(event.key),
}


class KeysOnce:
    """7: nothing is stored twice under one key of a conversation within the 24 h that every key is kept; no frame of a
    member is stored twice under one number.

    Remembers the keys of the last 24 h of log time, and the last numbers.
    """

    invariant: ClassVar[int] = 7
    kinds: ClassVar[Kinds] = tuple(_KEY_OF)

    def __init__(self) -> None:
        self._stored = Remembered()
        """Conversation and key -> lsn and `at` of what was stored under it last."""
        self._forgotten_at = 0
        self._numbers = FrameNumbers()

    def see(self, entry: Entry) -> Problems:
        """See `Checker`."""
        return self.look(entry, entry.event) if type(entry.event) in _KEY_OF else NOTHING

    def look(self, entry: Entry, event: Any) -> Problems:
        """See `Looking`."""
        kind = type(event)
        found: Problems = NOTHING
        if kind is FrameCommitted:
            key = event.key
            if event.n and (before := self._numbers.note(event.member, event.n, entry.lsn)) is not None:
                found = [f"frame {event.n} of {event.member} was stored at lsn {before} already"]
        else:
            key = _KEY_OF[kind](event)
        return found if key is None else [*found, *self._key(entry, key)]

    def _key(self, entry: Entry, key: str) -> Problems:
        name = f"{entry.event.conversation_id}{SEPARATOR}{key}"
        at = entry.at
        if at - self._forgotten_at >= FORGET_EVERY_MS:
            self._forgotten_at = at
            self._stored.forget(at - KEY_LIFETIME_MS)
        before = self._stored.get(name)
        self._stored.put(name, entry.lsn, at)
        if before is None or before[1] <= at - KEY_LIFETIME_MS:
            return NOTHING
        return [f"the key {key!r} was stored at lsn {before[0]} already"]

    def close(self) -> None:
        """Remove what lies on disk."""
        self._stored.close()
