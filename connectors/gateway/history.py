"""A conversation's past, whole: the read model, what the tail has kept in memory, and Kafka for what lies between.

This is the seam. History ends at the tail's newest entry, so live entries follow it without a gap: what is kept in
memory begins at the partition's `floor`, and the read model is asked once it has reached the lsn before that. When it
lags, it is given a moment; then the journal itself is read from where the read model stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from typing import Protocol

import msgspec
import structlog

from connectors.gateway.ports import ConversationInfo, Position, ReadModel, Stored, Unavailable
from connectors.gateway.protocol.render import turn_of
from connectors.gateway.recent import Recent, as_edited, updated
from streams.core.events import (
    ConversationOpened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)

log = structlog.get_logger(__name__)

# How long a lagging read model is waited for before the journal is read, and how often it is asked.
LAG_WAIT_S = 0.5
LAG_POLL_S = 0.02
# Entries that are read at once of a run that goes on elsewhere.
RUN_PAGE = 500


class JournalScan(Protocol):
    """The journal, read directly."""

    def read(self, partition: int, from_offset: int, below_lsn: int) -> AsyncIterator[Entry]:
        """Committed entries from an offset on, those with an lsn below `below_lsn`."""


class Horizon(Protocol):
    """How far the tail is, against Kafka itself."""

    async def catch_up(self, partition: int) -> None:
        """Return once the tail has applied all that any reader had seen when this was called. Raises `Unavailable`."""


class Page(msgspec.Struct, frozen=True):
    """A part of a transcript, ascending without a gap. `head`: the conversation's last seq when it was read."""

    stored: Sequence[Stored]
    head: int


class _Gap(msgspec.Struct):
    """What the journal holds of one conversation between the read model and memory."""

    entries: list[Entry]
    superseded: set[int]
    edits: dict[int, Entry]


class _Changes(msgspec.Struct):
    """What became of entries since: which are superseded, and what turns say that were edited."""

    superseded: Set[int]
    edits: Mapping[int, Entry]


class History:
    """Reads; holds nothing of its own."""

    def __init__(
        self,
        read_model: ReadModel,
        recent: Recent,
        scan: JournalScan,
        horizon: Horizon,
        *,
        partition_of: Callable[[str], int],
        lag_wait_s: float = LAG_WAIT_S,
    ) -> None:
        self._read_model = read_model
        self._recent = recent
        self._scan = scan
        self._horizon = horizon
        self._partition_of = partition_of
        self._lag_wait_s = lag_wait_s

    async def conversation(self, conversation_id: str) -> ConversationInfo | None:
        """The conversation as of the tail's newest entry; None: there is none. Raises `Unavailable`.

        That there is none is certain: another gateway may have seen it opened before this one's tail did.
        """
        info = await self._conversation(conversation_id)
        if info is None:
            await self._horizon.catch_up(self._partition_of(conversation_id))
            info = await self._conversation(conversation_id)
        return info

    async def _conversation(self, conversation_id: str) -> ConversationInfo | None:
        whole = self._recent.info(conversation_id, None)
        if whole is not None:
            return whole
        position = await self._caught_up(conversation_id)
        stored = await self._read_model.conversation(conversation_id)
        info = self._recent.info(conversation_id, stored)
        if self._complete(conversation_id, position):
            return info
        gap = await self._gap(conversation_id, position)
        for entry in gap.entries:
            info = updated(info, entry)
        return self._recent.info(conversation_id, info)

    async def page(self, conversation_id: str, after: int, limit: int) -> Page:
        """At most `limit` numbered entries after `after`. Raises `Unavailable`.

        A head below `after` is certain, as in `conversation`.
        """
        page = await self._page(conversation_id, after, limit)
        if page.head < after:
            await self._horizon.catch_up(self._partition_of(conversation_id))
            page = await self._page(conversation_id, after, limit)
        return page

    async def _page(self, conversation_id: str, after: int, limit: int) -> Page:
        kept = [entry for entry in self._recent.entries(conversation_id) if entry.event.seq]
        if self._is_whole(conversation_id) or (kept and kept[0].event.seq <= after + 1):
            head = kept[-1].event.seq if kept else 0
            changes = _Changes(self._recent.superseded(conversation_id), self._recent.edits(conversation_id))
            return Page(_following([], kept, changes, after, limit), head)
        position = await self._caught_up(conversation_id)
        stored = list(await self._read_model.transcript(conversation_id, after, limit))
        between: list[Entry] = []
        superseded: set[int] = set()
        edits: dict[int, Entry] = {}
        if not self._complete(conversation_id, position):
            gap = await self._gap(conversation_id, position)
            between = [entry for entry in gap.entries if entry.event.seq]
            superseded, edits = gap.superseded, gap.edits
        # Taken after the last wait: nothing that came meanwhile is missing between this and the live entries.
        kept = [entry for entry in self._recent.entries(conversation_id) if entry.event.seq]
        newest = [entry.event.seq for entry in (*between[-1:], *kept[-1:])]
        if newest:
            head = max(newest)
        else:
            info = await self._read_model.conversation(conversation_id)
            head = info.head_seq if info is not None else 0
        superseded |= self._recent.superseded(conversation_id)
        edits.update(self._recent.edits(conversation_id))
        return Page(_following(stored, [*between, *kept], _Changes(superseded, edits), after, limit), head)

    async def superseded(self, conversation_id: str, upto: int) -> Sequence[int]:
        """Seqs up to `upto` that were superseded so far, ascending. Raises `Unavailable`."""
        known: set[int] = set()
        if not self._is_whole(conversation_id):
            position = await self._caught_up(conversation_id)
            known.update(await self._read_model.superseded(conversation_id, upto))
            if not self._complete(conversation_id, position):
                known.update((await self._gap(conversation_id, position)).superseded)
        known.update(self._recent.superseded(conversation_id))
        return sorted(seq for seq in known if seq <= upto)

    async def edited(self, conversation_id: str, upto: int) -> Entry | None:
        """The last edit (`TurnEdited`) of the last turn up to `upto` that was edited; None: none was. Raises
        `Unavailable`. Only the latest turn can be edited: who was shown all up to `upto` has missed no other edit."""
        known: dict[int, Entry] = {}
        if not self._is_whole(conversation_id):
            position = await self._caught_up(conversation_id)
            stored = await self._read_model.last_edited(conversation_id, upto)
            if stored is not None:
                known[stored.entry.event.seq] = _edit_of(stored)
            if not self._complete(conversation_id, position):
                known.update((await self._gap(conversation_id, position)).edits)
        known.update(self._recent.edits(conversation_id))
        return known.get(max((seq for seq in known if seq <= upto), default=0))

    async def given_to(self, conversation_id: str, channel: str) -> int:
        """The highest turn that was given to agents of this channel; 0: none. Raises `Unavailable`.

        A turn that was given later than it was said, and is not in the read model yet, may not count.
        """
        await self._caught_up(conversation_id)
        known = await self._read_model.given_upto(conversation_id, channel)
        kept = [
            entry.event.seq
            for entry in self._recent.entries(conversation_id)
            if isinstance(entry.event, TurnCommitted)
            and any(given.group.split("/", 1)[0] == channel for given in entry.event.assigned)
        ]
        return max(known, *kept[-1:]) if kept else known

    def head(self, info: ConversationInfo) -> int:
        """The conversation's highest seq now."""
        entries = self._recent.entries(info.id)
        return max(info.head_seq, entries[-1].event.seq if entries else 0)

    async def open_interrupts(self, conversation_id: str) -> list[FrameCommitted]:
        """The questions that wait for an answer: `welcome.data.pending`.

        While the read model cannot be asked, those that memory knows of: the replay shows all of them anyway.
        """
        known: list[Entry] = []
        if not self._is_whole(conversation_id):
            try:
                known = [stored.entry for stored in await self._read_model.interrupts(conversation_id)]
            except Unavailable as error:
                log.warning("open questions are told from memory", conversation=conversation_id, error=str(error))
        seen = known[-1].event.seq if known else 0
        known += [entry for entry in self._recent.entries(conversation_id) if entry.event.seq > seen]
        pending: dict[str, FrameCommitted] = {}
        resumed = self._recent.resumed(conversation_id)
        for entry in known:
            event = entry.event
            if isinstance(event, FrameCommitted) and event.frame.type == "interrupt":
                if event.seq <= resumed.get(event.frame.id, 0):
                    continue  # its agent has the answer and has not said so yet
                pending[event.frame.id] = event
            elif isinstance(event, FrameCommitted) and event.frame.type == "interrupt_resolved":
                pending.pop(event.frame.id, None)
            elif isinstance(event, TurnCommitted) and event.interrupt_id is not None:
                pending.pop(event.interrupt_id, None)
        return list(pending.values())

    def _is_whole(self, conversation_id: str) -> bool:
        """Whether memory holds the conversation from its opening on."""
        entries = self._recent.entries(conversation_id)
        return bool(entries) and isinstance(entries[0].event, ConversationOpened)

    async def turn(self, conversation_id: str, seq: int) -> Entry:
        """The turn of this seq, which is known to exist. Raises `Unavailable`."""
        entry = self._recent.turn(conversation_id, seq)
        if entry is not None:
            return as_edited(entry, self._recent.edits(conversation_id))
        page = await self.page(conversation_id, seq - 1, 1)
        for stored in page.stored:
            if stored.entry.event.seq == seq and isinstance(stored.entry.event, TurnCommitted):
                return stored.entry
        raise Unavailable(f"turn {seq} of {conversation_id} is in neither the read model nor the journal")

    async def named(self, conversation_id: str, frame: Frame) -> Frame:
        """A person's frame that names a message, with the seq of that one where it is among the newest, so that the
        partition can tell which turn it answers. Raises `Unavailable`."""
        message = msgspec.json.decode(frame.extra or "{}").get("messageId")
        page = await self.page(conversation_id, 0, 0)
        page = await self.page(conversation_id, max(0, page.head - RUN_PAGE), RUN_PAGE)
        for stored in page.stored:
            event = stored.entry.event
            if isinstance(event, FrameCommitted) and event.frame.id == message:
                return msgspec.structs.replace(frame, watermark=event.seq)
        return frame

    async def stored_of_run(self, conversation_id: str, run_id: str, turn_seq: int) -> AsyncIterator[Sequence[Stored]]:
        """The frames of a run, ascending, page by page, with those that were superseded. Raises `Unavailable`."""
        async for page in self._pages(conversation_id, turn_seq):
            yield [
                stored
                for stored in page
                if isinstance(stored.entry.event, FrameCommitted) and stored.entry.event.run_id == run_id
            ]

    async def run_so_far(
        self, conversation_id: str, run_id: str, turn_seq: int, below_lsn: int
    ) -> AsyncIterator[Sequence[Entry]]:
        """What was stored of a run before `below_lsn`, ascending, page by page: its frames, and the turns that answered
        its questions; what was superseded is not in it. Raises `Unavailable`."""
        async for page in self._pages(conversation_id, turn_seq):
            shown = [s.entry for s in page if not s.superseded and s.entry.lsn < below_lsn]
            yield [entry for entry in shown if _is_of(entry.event, run_id)]
            if page and page[-1].entry.lsn >= below_lsn:
                return

    async def _pages(self, conversation_id: str, after: int) -> AsyncIterator[Sequence[Stored]]:
        """All that follows `after`, up to the head that there is then."""
        while True:
            page = await self.page(conversation_id, after, RUN_PAGE)
            yield page.stored
            after = page.stored[-1].entry.event.seq if page.stored else after
            if after >= page.head:
                return
            if not page.stored:
                raise Unavailable(f"what follows {after} of {conversation_id} is in neither the read model nor memory")
            # What is in memory is never waited for: a long run must not hold up everybody else.
            await asyncio.sleep(0)

    async def checkpoint(self, conversation_id: str, run_id: str, lsn: int) -> str | None:
        """The data of the checkpoint that lies at `lsn`, or of a later one; None: the run has none any more, it ended.
        Raises `Unavailable`."""
        kept = self._recent.checkpoint(conversation_id, run_id)
        if kept is not None and isinstance(kept.event, FrameCommitted) and kept.lsn >= lsn:
            return kept.event.frame.data
        partition = self._partition_of(conversation_id)
        position = await self.until(partition, lsn)
        if position.lsn >= lsn:
            stored = await self._read_model.checkpoint(run_id)
            return stored.data if stored is not None else None
        async for entry in self._scan.read(partition, position.journal_offset, lsn + 1):
            if entry.lsn == lsn and isinstance(entry.event, FrameCommitted):
                return entry.event.frame.data
        raise Unavailable(f"checkpoint {lsn} of {run_id} is in neither the read model nor the journal")

    async def until(self, partition: int, lsn: int) -> Position:
        """Wait a moment for the read model to reach `lsn`; the position that it is at."""
        deadline = time.monotonic() + self._lag_wait_s
        while True:
            position = await self._read_model.position(partition)
            if position.lsn >= lsn or time.monotonic() >= deadline:
                return position
            await asyncio.sleep(LAG_POLL_S)

    async def _caught_up(self, conversation_id: str) -> Position:
        partition = self._partition_of(conversation_id)
        return await self.until(partition, self._recent.floor(partition) - 1)

    def _complete(self, conversation_id: str, position: Position) -> bool:
        return position.lsn >= self._recent.floor(self._partition_of(conversation_id)) - 1

    async def _gap(self, conversation_id: str, position: Position) -> _Gap:
        partition = self._partition_of(conversation_id)
        gap = _Gap([], set(), {})
        async for entry in self._scan.read(partition, position.journal_offset, self._recent.floor(partition)):
            event = entry.event
            if event.conversation_id != conversation_id:
                continue
            if event.seq or isinstance(event, ConversationOpened):
                gap.entries.append(entry)
            elif isinstance(event, RunMoved | RunEnded | TurnEdited | TurnRegenerated):
                gap.superseded.update(event.superseded)
            if isinstance(event, TurnEdited):
                gap.edits[event.turn_seq] = entry
        return gap


def _edit_of(stored: Stored) -> Entry:
    """The edit of a turn that the read model has as it is now."""
    event = turn_of(stored.entry)
    edit = TurnEdited(
        conversation_id=event.conversation_id,
        turn_seq=event.seq,
        turn_id=event.turn.id,
        by=event.turn.sender,
        text=event.turn.text,
        data=event.turn.data,
    )
    return msgspec.structs.replace(stored.entry, timestamp=stored.edited_at or stored.entry.timestamp, event=edit)


def _following(
    stored: Sequence[Stored], newer: Sequence[Entry], changes: _Changes, after: int, limit: int
) -> list[Stored]:
    """What follows `after` without a gap: first what is stored, then what is newer; they may overlap."""
    page: list[Stored] = []
    expected = after + 1
    for item in (*stored, *(Stored(entry) for entry in newer)):
        seq = item.entry.event.seq
        if seq < expected:
            continue
        if seq > expected or len(page) >= limit:
            break
        page.append(_marked(item, changes))
        expected += 1
    return page


def _is_of(event: Event, run_id: str) -> bool:
    match event:
        case FrameCommitted():
            return event.run_id == run_id
        case TurnCommitted():
            return event.joins_run == run_id
        case _:
            return False


def _marked(item: Stored, changes: _Changes) -> Stored:
    seq = item.entry.event.seq
    if seq not in changes.superseded and seq not in changes.edits:
        return item
    edit = changes.edits.get(seq)
    return Stored(
        as_edited(item.entry, changes.edits),
        superseded=item.superseded or seq in changes.superseded,
        edited_at=item.edited_at if edit is None else edit.timestamp,
    )
