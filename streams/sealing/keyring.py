"""The data keys that a process has at hand, and where the others come from."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from streams.core.commands import Command
from streams.core.events import ConversationErased, Entry
from streams.sealing.records import (
    Missing,
    blank,
    has_words,
    key_ids,
    key_ids_of,
    opened,
    opened_command,
    opened_text,
    sealed,
)
from streams.sealing.store import KeyCopies
from streams.sealing.token import DataKey, key_id_of

KEYS_MAX: Final = 50_000
"""Keys held; about 1 KB each with its cipher."""
LOOK_AGAIN_S: Final = 60.0
"""A key that neither Postgres nor the topic knew is not looked for in the topic, which is read whole, before that."""


class Keys(Protocol):
    """Where keys are kept: `store.DataKeyStore`."""

    async def current(self, conversation_id: str, copies: KeyCopies) -> DataKey | None: ...
    async def find(self, key_ids: Collection[str]) -> Mapping[str, DataKey | Missing]: ...
    async def restore(self, copies: KeyCopies) -> None: ...


@dataclass(slots=True)
class _Turn:
    """Who waits for a conversation's key; a lock lets them through in the order in which they came."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class Keyring:
    """Seals commands and opens entries. Methods raise what the store raises when it does not answer."""

    def __init__(
        self, keys: Keys, copies: KeyCopies, *, limit: int = KEYS_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._copies = copies
        self._limit = limit
        self._clock = clock
        self._by_id: OrderedDict[str, DataKey | Missing] = OrderedDict()
        self._ids_of: dict[str, set[str]] = {}
        """Of each conversation, the ids of its keys that are held."""
        self._current: OrderedDict[str, DataKey] = OrderedDict()
        self._erased: OrderedDict[str, None] = OrderedDict()
        """Conversations that were seen to be erased, the latest of them: Postgres has their keys until a projector has
        destroyed them, and what was asked for before may be answered only now."""
        self._turns: dict[str, _Turn] = {}
        self._looked_at = -LOOK_AGAIN_S

    async def seal(self, command: Command) -> Command:
        """The command with its words sealed by its conversation's key; one without words as it is.

        Of an erased conversation, which will refuse it, without its words.
        """
        conversation_id: str | None = getattr(command, "conversation_id", None)
        if conversation_id is None or not has_words(command):
            return command
        key = self._current.get(conversation_id)
        if key is None or conversation_id in self._turns:
            key = await self._in_turn(conversation_id)
        return blank(command) if key is None else sealed(command, key)

    async def _in_turn(self, conversation_id: str) -> DataKey | None:
        """The key, once all who asked for it before have it: commands of a conversation keep their order."""
        turn = self._turns.setdefault(conversation_id, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                key = self._current.get(conversation_id)
                if key is None:
                    key = await self._keys.current(conversation_id, self._copies)
                    if key is None or conversation_id in self._erased:
                        return None
                    self._current[conversation_id] = key
                    self._keep(key.id, key)
                    if len(self._current) > self._limit:
                        self._current.popitem(last=False)
                return key
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[conversation_id]

    async def open(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries with their words as they were said. A conversation's keys are forgotten where it is erased."""
        await self._fetch(key_ids(entries))
        found = [opened(entry, self._key_of) for entry in entries]
        for entry in entries:
            if isinstance(entry.event, ConversationErased):
                self._forget(entry.event.conversation_id or "")
        return found

    async def open_command(self, command: Command) -> Command:
        """A command as `open`: for who looks at an intake."""
        await self._fetch(key_ids_of(command))
        return opened_command(command, self._key_of)

    async def open_text(self, name: str, text: str | None) -> str | None:
        """One field of this name, as `open`."""
        if text is None or (key_id := key_id_of(text)) is None:
            return text
        await self._fetch((key_id,))
        return opened_text(name, text, self._key_of)

    def _key_of(self, key_id: str) -> DataKey | Missing:
        return self._by_id.get(key_id, Missing.SEALED)

    async def _fetch(self, ids: Iterable[str]) -> None:
        wanted = {key_id for key_id in ids if self._by_id.get(key_id, Missing.SEALED) is Missing.SEALED}
        if not wanted:
            return
        found = await self._keys.find(wanted)
        if len(found) < len(wanted) and self._clock() - self._looked_at >= LOOK_AGAIN_S:
            await self._keys.restore(self._copies)
            self._looked_at = self._clock()
            found = await self._keys.find(wanted)
        for key_id, key in found.items():
            self._keep(key_id, key)

    def _keep(self, key_id: str, key: DataKey | Missing) -> None:
        if isinstance(key, DataKey):
            if key.conversation_id in self._erased:
                key = Missing.ERASED
            else:
                self._ids_of.setdefault(key.conversation_id, set()).add(key_id)
        self._by_id[key_id] = key
        self._by_id.move_to_end(key_id)
        if len(self._by_id) > self._limit:
            self._drop(*self._by_id.popitem(last=False))

    def _drop(self, key_id: str, key: DataKey | Missing) -> None:
        if isinstance(key, DataKey):
            held = self._ids_of[key.conversation_id]
            held.discard(key_id)
            if not held:
                del self._ids_of[key.conversation_id]

    def _forget(self, conversation_id: str) -> None:
        self._erased[conversation_id] = None
        if len(self._erased) > self._limit:
            self._erased.popitem(last=False)
        self._current.pop(conversation_id, None)
        for key_id in self._ids_of.pop(conversation_id, ()):
            self._by_id[key_id] = Missing.ERASED
