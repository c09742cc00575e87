"""The newest entries of each partition, kept in memory: what bridges a read model that is a little behind.

Everything with `lsn >= floor(partition)` that concerns a conversation's transcript is here, so that history is whole
once the read model has reached `floor - 1`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from connectors.gateway.ports import ConversationInfo
from streams.core.events import (
    ConversationClosed,
    ConversationOpened,
    ConversationReopened,
    Entry,
    FrameCommitted,
    RunEnded,
    RunMoved,
    TurnCommitted,
)

# About 48 MB of entries at most, shared by the partitions.
ENTRIES_MAX = 40_000
BYTES_MAX = 48 * 1024 * 1024
# What an entry costs beside its texts.
OVERHEAD_BYTES = 600


class _Conversation(msgspec.Struct):
    """What is kept of one conversation. `since_opened`: the whole of it, when its opening was seen; `status`: the
    newest entry that closed or reopened it."""

    entries: deque[Entry] = msgspec.field(default_factory=deque)
    superseded: set[int] = msgspec.field(default_factory=set)
    since_opened: ConversationInfo | None = None
    status: Entry | None = None


class _Partition(msgspec.Struct):
    kept: deque[tuple[Entry, int]] = msgspec.field(default_factory=deque)
    size: int = 0
    floor: int = 0
    last: int = 0


class Recent:
    """The window; fed by the tail, in the order of each partition."""

    def __init__(self, partitions: int, *, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._entries_max = max(1, entries_max // partitions)
        self._bytes_max = max(1, bytes_max // partitions)
        self._partitions = [_Partition() for _ in range(partitions)]
        self._conversations: dict[str, _Conversation] = {}

    def floor(self, partition: int) -> int:
        """Everything from this lsn on is here; 0: nothing was seen, and the partition's journal is empty."""
        return self._partitions[partition].floor

    def last_lsn(self, partition: int) -> int:
        """Lsn of the newest entry seen; 0: none."""
        return self._partitions[partition].last

    def add(self, partition: int, entry: Entry) -> None:
        """The partition's next entry."""
        window = self._partitions[partition]
        if not window.floor:
            window.floor = entry.lsn
        window.last = entry.lsn
        event = entry.event
        conversation_id = event.conversation_id
        if conversation_id is None:
            return
        if isinstance(event, RunMoved | RunEnded):
            if event.superseded and conversation_id in self._conversations:
                self._conversations[conversation_id].superseded.update(event.superseded)
        elif event.seq or isinstance(event, ConversationOpened):
            known = self._conversations.get(conversation_id)
            if known is None:
                known = self._conversations[conversation_id] = _Conversation()
            known.entries.append(entry)
            known.since_opened = updated(known.since_opened, entry)
            if isinstance(event, ConversationClosed | ConversationReopened):
                known.status = entry
            size = _size(entry)
            window.kept.append((entry, size))
            window.size += size
            while len(window.kept) > self._entries_max or window.size > self._bytes_max:
                self._evict(window)

    def entries(self, conversation_id: str) -> Sequence[Entry]:
        """Kept entries of a conversation, in order; numbered ones and `ConversationOpened`."""
        known = self._conversations.get(conversation_id)
        return known.entries if known is not None else ()

    def superseded(self, conversation_id: str) -> set[int]:
        """Seqs that moves or ends of runs superseded."""
        known = self._conversations.get(conversation_id)
        return known.superseded if known is not None else set()

    def turn(self, conversation_id: str, seq: int) -> Entry | None:
        """The turn of this seq, if it is kept."""
        for entry in self.entries(conversation_id):
            if entry.event.seq == seq and isinstance(entry.event, TurnCommitted):
                return entry
        return None

    def info(self, conversation_id: str, stored: ConversationInfo | None) -> ConversationInfo | None:
        """What the read model stored, brought up to date with what is kept."""
        known = self._conversations.get(conversation_id)
        if known is None:
            return stored
        if known.since_opened is not None:
            return known.since_opened
        info = stored
        for entry in (known.status, known.entries[-1]):
            info = updated(info, entry) if entry is not None else info
        return info

    def _evict(self, window: _Partition) -> None:
        entry, size = window.kept.popleft()
        window.size -= size
        window.floor = entry.lsn + 1
        conversation_id = entry.event.conversation_id or ""
        known = self._conversations[conversation_id]
        known.entries.popleft()
        if not known.entries:
            del self._conversations[conversation_id]


def updated(info: ConversationInfo | None, entry: Entry) -> ConversationInfo | None:
    """`info` after an entry of the conversation."""
    event = entry.event
    if isinstance(event, ConversationOpened):
        return info or ConversationInfo(
            id=event.conversation_id or "",
            channel=event.channel,
            participant=event.participant,
            external_id=event.external_id,
            opened_at=entry.timestamp,
            updated_at=entry.timestamp,
            metadata=event.metadata,
        )
    if info is None or event.seq <= info.head_seq:
        return info
    status = info.status
    if isinstance(event, ConversationClosed):
        status = "closed"
    elif isinstance(event, ConversationReopened):
        status = "open"
    return msgspec.structs.replace(info, head_seq=event.seq, status=status, updated_at=entry.timestamp)


def _size(entry: Entry) -> int:
    size = OVERHEAD_BYTES
    event = entry.event
    if isinstance(event, TurnCommitted):
        turn = event.turn
        size += sum(len(part) for part in (turn.text, turn.data, turn.metadata, turn.meta) if part is not None)
    elif isinstance(event, FrameCommitted):
        frame = event.frame
        size += sum(len(part) for part in (frame.text, frame.data, frame.metadata, frame.extra) if part is not None)
    return size
