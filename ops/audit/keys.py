"""Invariant 7: an idempotency key is stored once, and so is a numbered frame, whether it has a key or not."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import ClassVar, Final

from streams.core.events import (
    ConversationOpened,
    Entry,
    FrameCommitted,
    PersonFrameCommitted,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ids import key_of_turn, open_key
from streams.core.state import KEY_LIFETIME_MS

NUMBERS_REMEMBERED: Final = 100_000
"""Frames of which the number is remembered: 20 MB at most."""


class KeysOnce:
    """7: nothing is stored twice under one key of a conversation within the 24 h that every key is kept; no frame of a
    member is stored twice under one number.

    Remembers the keys of the last 24 h of log time, and the last `NUMBERS_REMEMBERED` numbers.
    """

    invariant: ClassVar[int] = 7

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], tuple[int, int]] = {}
        """(conversation, key) -> (lsn, at) of what was stored under it last."""
        self._by_age: deque[tuple[int, tuple[str, str]]] = deque()
        self._numbers: OrderedDict[tuple[str, int], int] = OrderedDict()
        """(member, number of a stored frame) -> lsn."""

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        if isinstance(entry.event, FrameCommitted) and entry.event.n > 0:
            return [*self._number(entry.lsn, (entry.event.member, entry.event.n)), *self._key(entry)]
        return self._key(entry)

    def _number(self, lsn: int, name: tuple[str, int]) -> list[str]:
        before = self._numbers.get(name)
        self._numbers[name] = lsn
        if len(self._numbers) > NUMBERS_REMEMBERED:
            self._numbers.popitem(last=False)
        return [] if before is None else [f"frame {name[1]} of {name[0]} was stored at lsn {before} already"]

    def _key(self, entry: Entry) -> list[str]:
        match entry.event:
            case TurnCommitted(turn=turn):
                key = key_of_turn(turn)
            case (
                FrameCommitted(key=key) | PersonFrameCommitted(key=key) | TurnEdited(key=key) | TurnRegenerated(key=key)
            ):
                pass
            case ConversationOpened(key=str(given)):
                key = open_key(given)
            case _:
                return []
        if key is None:
            return []
        name = (str(entry.event.conversation_id), key)
        self._forget(entry.at - KEY_LIFETIME_MS)
        before = self._stored.get(name)
        self._stored[name] = (entry.lsn, entry.at)
        self._by_age.append((entry.at, name))
        return [] if before is None else [f"the key {key!r} was stored at lsn {before[0]} already"]

    def _forget(self, until: int) -> None:
        """Forget what was stored at log time `until` or before."""
        while self._by_age and self._by_age[0][0] <= until:
            at, name = self._by_age.popleft()
            if self._stored.get(name, (0, -1))[1] == at:
                del self._stored[name]
