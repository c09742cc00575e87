"""The events that one command decides, collected: later ones see the seqs that earlier ones took."""

from __future__ import annotations

from collections.abc import Iterable

from streams.core.events import Event
from streams.core.state import Conversation


class Draft:
    """Events so far, and each conversation's next seq."""

    __slots__ = ("_heads", "events")

    def __init__(self, behind: Iterable[Event] = ()) -> None:
        """`behind`: events decided before these, which have taken seqs."""
        self.events: list[Event] = []
        self._heads: dict[str, int] = {}
        for event in behind:
            if event.seq:
                self._heads[event.conversation_id or ""] = event.seq

    def next_seq(self, conversation: Conversation) -> int:
        """Take the conversation's next seq."""
        seq = self._heads.get(conversation.id, conversation.head) + 1
        self._heads[conversation.id] = seq
        return seq

    def add(self, event: Event) -> None:
        self.events.append(event)
