"""History: the read model, memory and the journal make one transcript, whatever each of them lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.gateway.history import History
from connectors.gateway.ports import ConversationInfo, Position, Stored
from connectors.gateway.recent import Recent, as_edited, updated
from streams.core.events import (
    BatchCommitted,
    ConversationClosed,
    ConversationOpened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    MoveReason,
    RunMoved,
    Turn,
    TurnCommitted,
    TurnEdited,
)


def opened(conversation: str) -> Event:
    return ConversationOpened(conversation_id=conversation, channel="web", participant="ann")


def said(conversation: str, seq: int) -> Event:
    turn = Turn(id=f"t{seq}", sender="ann", channel="web", type="text", text=f"m{seq}")
    return TurnCommitted(conversation_id=conversation, seq=seq, turn=turn)


def framed(conversation: str, seq: int) -> Event:
    frame = Frame(id=f"f{seq}", type="genui", data='{"type":"text","content":"x"}', stream_id="s")
    return FrameCommitted(
        conversation_id=conversation, seq=seq, frame=frame, sender="a", channel="a", group="a", member="m"
    )


def edited(conversation: str, seq: int, text: str) -> Event:
    return TurnEdited(conversation_id=conversation, turn_seq=seq, turn_id=f"t{seq}", by="ann", text=text)


def superseding(conversation: str, seqs: tuple[int, ...]) -> Event:
    return RunMoved(
        conversation_id=conversation,
        run_id="r",
        turn_seq=1,
        group="a",
        from_member="m",
        to_member="n",
        run_epoch=2,
        reason=MoveReason.MEMBER_LEFT,
        superseded=seqs,
    )


def journal(events: Sequence[Event]) -> list[Entry]:
    return [Entry(lsn, lsn, 1_000 + lsn, 1, event) for lsn, event in enumerate(events, start=1)]


class Reader:
    """Read model and journal over one list of entries. The read model knows the first `known`."""

    def __init__(self, entries: list[Entry], known: int) -> None:
        self.entries = entries
        self.known = known
        self.scans = 0
        self.caught_up = 0
        self.on_catch_up: Any = None

    async def position(self, partition: int) -> Position:
        return Position(self.known, self.known)

    def _of(self, conversation: str) -> list[Entry]:
        return [e for e in self.entries[: self.known] if e.event.conversation_id == conversation]

    async def conversation(self, conversation: str) -> ConversationInfo | None:
        info: ConversationInfo | None = None
        for entry in self._of(conversation):
            info = updated(info, entry)
        return info

    async def transcript(self, conversation: str, after: int, limit: int) -> list[Stored]:
        hidden = {s for e in self._of(conversation) if isinstance(e.event, RunMoved) for s in e.event.superseded}
        found = [e for e in self._of(conversation) if e.event.seq > after]
        edits = {e.event.turn_seq: e for e in self._of(conversation) if isinstance(e.event, TurnEdited)}
        at = {seq: edit.timestamp for seq, edit in edits.items()}
        return [
            Stored(as_edited(entry, edits), superseded=entry.event.seq in hidden, edited_at=at.get(entry.event.seq))
            for entry in found[:limit]
        ]

    async def last_edited(self, conversation: str, upto: int) -> Stored | None:
        known = self._of(conversation)
        edits = {e.event.turn_seq: e for e in known if isinstance(e.event, TurnEdited) and e.event.turn_seq <= upto}
        turn = next((e for e in known if edits and e.event.seq == max(edits)), None)
        return None if turn is None else Stored(as_edited(turn, edits), edited_at=edits[max(edits)].timestamp)

    async def catch_up(self, partition: int) -> None:
        self.caught_up += 1
        if self.on_catch_up is not None:
            self.on_catch_up()

    async def read(self, partition: int, from_offset: int, below_lsn: int) -> AsyncIterator[Entry]:
        self.scans += 1
        for entry in self.entries[from_offset:]:
            if entry.lsn >= below_lsn:
                return
            yield entry


def history(entries: list[Entry], *, known: int, kept_from: int, window: int = 1_000) -> tuple[History, Reader]:
    recent = Recent(1, entries_max=window)
    for entry in entries[kept_from:]:
        recent.add(0, entry)
    reader = Reader(entries, known)
    given_ports: Any = reader
    return History(given_ports, recent, reader, reader, partition_of=lambda _: 0, lag_wait_s=0), reader


@given(
    order=st.lists(st.sampled_from(["c1", "c2", "batch"]), min_size=1, max_size=40),
    known=st.integers(0, 60),
    kept_from=st.integers(0, 60),
    window=st.integers(1, 20),
    after=st.integers(0, 10),
    limit=st.integers(1, 10),
)
async def test_a_page_is_whole_whatever_the_read_model_and_memory_hold(
    order: list[str], known: int, kept_from: int, window: int, after: int, limit: int
) -> None:
    events: list[Event] = [opened("c1"), opened("c2")]
    heads = {"c1": 0, "c2": 0}
    for name in order:
        if name == "batch":
            events.append(BatchCommitted(turns=1, frames=1, membership=1))
        else:
            heads[name] += 1
            events.append(said(name, heads[name]))
    entries = journal(events)
    reader, _ = history(
        entries, known=min(known, len(entries)), kept_from=min(kept_from, len(entries) - 1), window=window
    )
    page = await reader.page("c1", after, limit)
    assert page.head == heads["c1"]
    expected = list(range(after + 1, heads["c1"] + 1))[:limit]
    assert [stored.entry.event.seq for stored in page.stored] == expected
    info = await reader.conversation("c1")
    assert info is not None
    assert (info.head_seq, info.channel) == (heads["c1"], "web")


class MovingReader(Reader):
    """The journal goes on while it is read: with each question some more entries reach memory, and others leave it."""

    def __init__(self, entries: list[Entry], known: int, recent: Recent, at: int, steps: list[int]) -> None:
        super().__init__(entries, known)
        self._recent, self._at, self._steps = recent, at, steps

    def advance(self) -> None:
        for _ in range(self._steps.pop() if self._steps else 0):
            if self._at < len(self.entries):
                self._recent.add(0, self.entries[self._at])
                self._at += 1

    async def position(self, partition: int) -> Position:
        self.advance()
        return await super().position(partition)

    async def transcript(self, conversation: str, after: int, limit: int) -> list[Stored]:
        self.advance()
        return await super().transcript(conversation, after, limit)

    async def read(self, partition: int, from_offset: int, below_lsn: int) -> AsyncIterator[Entry]:
        async for entry in super().read(partition, from_offset, below_lsn):
            self.advance()
            yield entry


@given(
    count=st.integers(1, 40),
    known=st.integers(0, 40),
    begun=st.integers(0, 40),
    window=st.integers(1, 12),
    limit=st.integers(1, 10),
    steps=st.lists(st.integers(0, 6), max_size=60),
)
async def test_a_replay_comes_to_its_end_while_the_journal_goes_on_and_memory_forgets(
    count: int, known: int, begun: int, window: int, limit: int, steps: list[int]
) -> None:
    """A read model that stays behind, and a window that moves on between two looks: what was missed by one page is in
    the next. Each part goes on where the last one stopped, and one that brings nothing is asked for once more."""
    entries = journal([opened("c1"), *(said("c1", seq) for seq in range(1, count + 1))])
    recent = Recent(1, entries_max=window)
    begun = min(begun, count)
    for entry in entries[: begun + 1]:
        recent.add(0, entry)
    ports: Any = MovingReader(entries, min(known, begun + 1), recent, begun + 1, steps)
    moving = History(ports, recent, ports, ports, partition_of=lambda _: 0, lag_wait_s=0)
    shown: list[int] = []
    for _ in range(2 * (count + len(steps)) + 2):
        page = await moving.page("c1", len(shown), limit)
        found = [stored.entry.event.seq for stored in page.stored]
        assert found == list(range(len(shown) + 1, len(shown) + len(found) + 1))
        shown += found
        assert found or len(shown) >= page.head or steps, "nothing moves any more, and what follows is not there"
        if len(shown) == page.head and not steps:
            break
    assert shown == list(range(1, recent.last_lsn(0)))


async def test_what_memory_holds_is_not_asked_for() -> None:
    entries = journal([opened("c1"), said("c1", 1), said("c1", 2)])
    reader, ports = history(entries, known=0, kept_from=0)
    assert [s.entry.event.seq for s in (await reader.page("c1", 0, 10)).stored] == [1, 2]
    assert ports.scans == 0


async def test_the_journal_is_read_only_for_what_is_between() -> None:
    entries = journal([opened("c1"), *(said("c1", seq) for seq in range(1, 9))])
    reader, ports = history(entries, known=4, kept_from=7)
    page = await reader.page("c1", 0, 50)
    assert [s.entry.event.seq for s in page.stored] == list(range(1, 9))
    assert ports.scans == 1


@pytest.mark.parametrize("known", [3, 4, 5])
async def test_a_move_supersedes_whether_the_read_model_has_seen_it_or_not(known: int) -> None:
    entries = journal([opened("c1"), said("c1", 1), framed("c1", 2), superseding("c1", (2,)), framed("c1", 3)])
    reader, _ = history(entries, known=known, kept_from=1)
    page = await reader.page("c1", 0, 10)
    assert [(s.entry.event.seq, s.superseded) for s in page.stored] == [(1, False), (2, True), (3, False)]


@pytest.mark.parametrize("known", range(7))
@pytest.mark.parametrize("kept_from", [0, 3, 6])
async def test_the_last_edit_of_what_somebody_was_shown_is_found_wherever_it_is(known: int, kept_from: int) -> None:
    edits = [edited("c1", 1, "first"), edited("c1", 1, "second")]
    entries = journal([opened("c1"), said("c1", 1), *edits, said("c1", 2), edited("c1", 2, "third"), said("c1", 3)])
    reader, _ = history(entries, known=known, kept_from=kept_from)
    told = [await reader.edited("c1", upto) for upto in (0, 1, 2, 3)]
    assert [None if each is None else (each.timestamp, each.event) for each in told] == [
        None if lsn is None else (entries[lsn - 1].timestamp, entries[lsn - 1].event) for lsn in (None, 4, 6, 6)
    ]
    page = await reader.page("c1", 0, 10)
    shown = [(s.entry.event.turn.text, s.edited_at) for s in page.stored if isinstance(s.entry.event, TurnCommitted)]
    assert shown == [("second", entries[3].timestamp), ("third", entries[5].timestamp), ("m3", None)]


async def test_a_closed_conversation_is_known_as_closed_from_memory_alone() -> None:
    closed = ConversationClosed(conversation_id="c1", seq=2, by="ann", reason="manual", id="u")
    entries = journal([opened("c1"), said("c1", 1), closed, said("c1", 3)])
    reader, _ = history(entries, known=2, kept_from=2)
    info = await reader.conversation("c1")
    assert info is not None
    assert (info.status, info.head_seq) == ("closed", 3)


async def test_a_conversation_that_another_gateway_saw_first_is_found() -> None:
    """Not found is said only once the tail is as far as the journal."""
    entries = journal([BatchCommitted(turns=1, frames=1, membership=1), opened("c1")])
    reader, ports = history(entries[:1], known=1, kept_from=0)
    ports.on_catch_up = lambda: reader._recent.add(0, entries[1])
    assert await reader.conversation("c1") is not None
    assert ports.caught_up == 1
    assert await reader.conversation("c2") is None


async def test_a_turn_is_found_by_its_seq() -> None:
    entries = journal([opened("c1"), said("c1", 1), said("c1", 2), framed("c1", 3)])
    for known, kept_from in ((4, 4 - 1), (0, 0), (1, 2)):
        reader, _ = history(entries, known=known, kept_from=kept_from)
        assert (await reader.turn("c1", 2)).event.seq == 2
