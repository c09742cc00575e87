"""The events that one command decides, collected: later ones see the seqs that earlier ones took."""

from __future__ import annotations

from streams.core.events import Event
from streams.core.state import Conversation


class Draft:
    """Events so far, and each conversation's next seq."""

    __slots__ = ("_heads", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._heads: dict[str, int] = {}

    def next_seq(self, conversation: Conversation) -> int:
        """Take the conversation's next seq."""
        seq = self._heads.get(conversation.id, conversation.head) + 1
        self._heads[conversation.id] = seq
        return seq

    def add(self, event: Event) -> None:
        self.events.append(event)
