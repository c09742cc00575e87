"""The newest entries of each partition, kept in memory: what bridges a read model that is a little behind.

Everything with `lsn >= floor(partition)` that concerns a conversation's transcript is here, so that history is whole
once the read model has reached `floor - 1`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import msgspec

from connectors.gateway.ports import ConversationInfo
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationOpened,
    ConversationReopened,
    Entry,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.sealing.records import blanked

# About 48 MB of entries at most, shared by the partitions.
ENTRIES_MAX = 40_000
BYTES_MAX = 48 * 1024 * 1024
# What an entry costs beside its texts.
OVERHEAD_BYTES = 600


class _Kept(msgspec.Struct):
    """One entry in its partition's window. `entry` None: nobody can ask for it any more."""

    lsn: int
    conversation_id: str
    entry: Entry | None
    size: int


class _Conversation(msgspec.Struct):
    """What is kept of one conversation. `held`: how many entries of the window are of it; `since_opened`: the whole of
    it, when its opening was seen; `edits`: by the turn's seq, the last `TurnEdited`; `resumed`: questions that were
    answered by `resume`, and the seq that the conversation was at; `status`: the newest entry that closed or reopened
    it; `checkpoints`: the last one of each run."""

    entries: deque[Entry] = msgspec.field(default_factory=deque)
    held: int = 0
    superseded: set[int] = msgspec.field(default_factory=set)
    edits: dict[int, Entry] = msgspec.field(default_factory=dict)
    resumed: dict[str, int] = msgspec.field(default_factory=dict)
    since_opened: ConversationInfo | None = None
    status: Entry | None = None
    checkpoints: dict[str, _Kept] = msgspec.field(default_factory=dict)


class _Partition(msgspec.Struct):
    kept: deque[_Kept] = msgspec.field(default_factory=deque)
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
        if event.seq or isinstance(event, ConversationOpened):
            known = self._keep(window, conversation_id, entry)
            known.entries.append(entry)
            known.since_opened = updated(known.since_opened, entry)
            if isinstance(event, ConversationClosed | ConversationReopened | ConversationErased):
                known.status = entry
            if isinstance(event, ConversationErased):
                _forget_words(window, known, conversation_id)
        else:
            self._unnumbered(window, conversation_id, entry)
        while len(window.kept) > self._entries_max or window.size > self._bytes_max:
            self._evict(window)

    def _unnumbered(self, window: _Partition, conversation_id: str, entry: Entry) -> None:
        """What changes how others are shown, or is kept for who continues a run."""
        event = entry.event
        if isinstance(event, RunMoved | RunEnded):
            if event.superseded:
                self._keep(window, conversation_id, entry).superseded.update(event.superseded)
            if isinstance(event, RunEnded):
                self._drop_checkpoint(window, conversation_id, event.run_id)
        elif isinstance(event, TurnEdited | TurnRegenerated):
            known = self._keep(window, conversation_id, entry)
            known.superseded.update(event.superseded)
            if isinstance(event, TurnEdited):
                known.edits[event.turn_seq] = entry
        elif isinstance(event, PersonFrameCommitted) and event.frame.type == "resume":
            known = self._keep(window, conversation_id, entry)
            head = known.entries[-1].event.seq if known.entries else 0
            known.resumed.update(dict.fromkeys(answered_by(event), head))
        elif is_checkpoint(event):
            self._drop_checkpoint(window, conversation_id, event.run_id or "")
            known = self._keep(window, conversation_id, entry)
            known.checkpoints[event.run_id or ""] = window.kept[-1]

    def entries(self, conversation_id: str) -> Sequence[Entry]:
        """Kept entries of a conversation, in order; numbered ones and `ConversationOpened`."""
        known = self._conversations.get(conversation_id)
        return known.entries if known is not None else ()

    def superseded(self, conversation_id: str) -> set[int]:
        """Seqs that moves or ends of runs superseded."""
        known = self._conversations.get(conversation_id)
        return known.superseded if known is not None else set()

    def edits(self, conversation_id: str) -> Mapping[int, Entry]:
        """By their seqs, the last edit (`TurnEdited`) of turns that were edited."""
        known = self._conversations.get(conversation_id)
        return known.edits if known is not None else {}

    def resumed(self, conversation_id: str) -> Mapping[str, int]:
        """Questions that a `resume` answered lately, and the highest seq then: one with a later seq was asked anew."""
        known = self._conversations.get(conversation_id)
        return known.resumed if known is not None else {}

    def checkpoint(self, conversation_id: str, run_id: str) -> Entry | None:
        """The last checkpoint of a run that is open, if it is kept."""
        known = self._conversations.get(conversation_id)
        kept = known.checkpoints.get(run_id) if known is not None else None
        return kept.entry if kept is not None else None

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
        for entry in (known.status, known.entries[-1] if known.entries else None):
            info = updated(info, entry) if entry is not None else info
        return info

    def _keep(self, window: _Partition, conversation_id: str, entry: Entry) -> _Conversation:
        known = self._conversations.get(conversation_id)
        if known is None:
            known = self._conversations[conversation_id] = _Conversation()
        known.held += 1
        kept = _Kept(entry.lsn, conversation_id, entry, _size(entry))
        window.kept.append(kept)
        window.size += kept.size
        return known

    def _drop_checkpoint(self, window: _Partition, conversation_id: str, run_id: str) -> None:
        """A later one counts, or none any more: its data need not fill the window."""
        known = self._conversations.get(conversation_id)
        kept = known.checkpoints.pop(run_id, None) if known is not None else None
        if kept is not None:
            window.size -= kept.size - OVERHEAD_BYTES
            kept.entry, kept.size = None, OVERHEAD_BYTES

    def _evict(self, window: _Partition) -> None:
        kept = window.kept.popleft()
        window.size -= kept.size
        window.floor = kept.lsn + 1
        known = self._conversations[kept.conversation_id]
        known.held -= 1
        if not known.held:
            del self._conversations[kept.conversation_id]
        elif kept.entry is not None and is_checkpoint(kept.entry.event):
            known.checkpoints.pop(kept.entry.event.run_id or "")
        elif known.entries and kept.entry is known.entries[0]:
            known.entries.popleft()


def _forget_words(window: _Partition, known: _Conversation, conversation_id: str) -> None:
    """What was said in it is in no memory of this process any more."""
    blank: dict[int, Entry] = {}
    for kept in window.kept:
        if kept.conversation_id == conversation_id and kept.entry is not None:
            blank[kept.lsn] = kept.entry = blanked(kept.entry)
    known.entries = deque(blank.get(entry.lsn, entry) for entry in known.entries)
    known.edits.clear()
    if known.since_opened is not None:
        known.since_opened = msgspec.structs.replace(known.since_opened, metadata=None)


def as_edited(entry: Entry, edits: Mapping[int, Entry]) -> Entry:
    """The entry; of a turn that was edited since, with what it says now."""
    event, by = entry.event, edits.get(entry.event.seq)
    edit = None if by is None else by.event
    if not isinstance(edit, TurnEdited) or not isinstance(event, TurnCommitted):
        return entry
    turn = msgspec.structs.replace(event.turn, text=edit.text, data=edit.data)
    return msgspec.structs.replace(entry, event=msgspec.structs.replace(event, turn=turn))


def answered_by(event: PersonFrameCommitted) -> list[str]:
    """The questions that a `resume` answered."""
    answers = msgspec.json.decode(event.frame.data or "{}").get("answers")
    return list(answers) if isinstance(answers, dict) else []


def is_checkpoint(event: Event) -> TypeGuard[FrameCommitted]:
    """Whether it stores a checkpoint of a run: for whoever continues it, for no viewer."""
    return isinstance(event, FrameCommitted) and event.frame.type == "checkpoint"


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
    status, erased = info.status, info.erased or isinstance(event, ConversationErased)
    if isinstance(event, ConversationClosed | ConversationErased):
        status = "closed"
    elif isinstance(event, ConversationReopened):
        status = "open"
    changed = {"head_seq": event.seq, "status": status, "erased": erased, "updated_at": entry.timestamp}
    return msgspec.structs.replace(info, **changed)


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
