"""The keyring of a process, as its settings want it."""

from __future__ import annotations

from streams.sealing.copies import KeyTopic
from streams.sealing.keyring import Keyring
from streams.sealing.store import DataKeyStore, NoKeys, Wrapping
from streams.settings import Settings


class ProcessKeys:
    """A keyring, and what it holds open. Without a master key it opens nothing, and says so where words would be."""

    def __init__(self, settings: Settings) -> None:
        self._store = (
            None if settings.master_key is None else DataKeyStore(settings.postgres, Wrapping(settings.master_key))
        )
        self._topic = KeyTopic(settings)
        self.ring = Keyring(self._store or NoKeys(), self._topic)

    async def close(self) -> None:
        """Close the connections."""
        await self._topic.close()
        if self._store is not None:
            await self._store.close()
