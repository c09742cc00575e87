"""What a person's connection makes of the journal: frames in the order of `seq`, acks of its own sends, refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from connectors.gateway.protocol.actions import Load
from connectors.gateway.protocol.errors import refusal
from connectors.gateway.protocol.render import (
    Told,
    ack,
    edited,
    encode,
    is_message,
    message_id_of,
    numbered,
    superseded_seqs,
    transient,
)
from connectors.gateway.protocol.session import Session
from connectors.gateway.protocol.viewer import Item, Phase, Viewer
from streams.core.events import (
    Duplicate,
    Entry,
    FrameCommitted,
    PersonFrameCommitted,
    Refused,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)


class UserJournal(Session):
    """The part of a person's session that has to do with the journal."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._named: str | None = None
        """Who it is by its own word: heard where the token names nobody."""
        self._told_superseded = False
        """Whether the client asked to be told which of the frames that it got were superseded."""
        self._told_edits = False
        """Whether the client asked to be told what a message says now that was edited."""
        self._viewer = Viewer(0, 0)
        self._newest: tuple[int, str | None] = (0, None)
        """Seq, and id, of the newest thing of an agent that it was given, or is about to be."""
        self._pending: dict[str, str | None] = {}
        """Sends that wait for their outcome: ref to clientId."""
        self.shown: Callable[[Entry], Entry] = lambda entry: entry
        """An entry as this connection gets it; called once for each that has a seq, in that order."""
        self.hides: Callable[[str], bool] = lambda _: False
        """Whether frames of this type, which have no seq, are not shown here."""
        self._acks: dict[int, bytes] = {}
        """Acks that are not written yet, by seq: while history is read, an entry comes from there and live."""

    @property
    def user(self) -> str:
        """The participant. The token's word counts more than the client's own, and alone decides what may be seen."""
        return self._named or self.claims.user

    def _entry(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, PersonFrameCommitted | TurnEdited | TurnRegenerated):
            self._taken(entry, event)
        match event:
            case Refused():
                self._refused(event)
            case Duplicate():
                self._duplicate(event)
            case _ if event.seq:
                for frame in self._viewer.offer(self._item(Told(entry))):
                    self._put(frame)
                self._load()
            case _:
                self._transient(entry)

    def _taken(self, entry: Entry, event: PersonFrameCommitted | TurnEdited | TurnRegenerated) -> None:
        """It was this connection's, perhaps: then it is acknowledged. Clients need a seq in an ack: what has none gets
        that of the turn that it is about, or the one up to which this connection was shown everything."""
        client_id = self._pending.pop(event.ref, None) if event.ref is not None else None
        if client_id is None:
            return
        about = event.seq if isinstance(event, PersonFrameCommitted) else event.turn_seq
        seq = about or self._viewer.delivered
        self._write(ack(client_id, message_id=message_id_of(event), seq=seq, timestamp=entry.timestamp))

    def _transient(self, entry: Entry) -> None:
        shown = self.shown(entry)
        if self._viewer.phase is Phase.LIVE:
            for frame in transient(shown):
                if not self.hides(frame["type"]):
                    self._write(frame)
        # Also while history is read: what was written before is not read again.
        if self._told_superseded and (notice := superseded_seqs(entry)) is not None:
            self._write(notice)
        if self._told_edits and (changed := edited(shown)) is not None:
            self._write(changed)

    def _item(self, told: Told) -> Item:
        """What this connection gets for a numbered entry: the ack of its own send, else the frame."""
        entry, superseded = told.entry, told.superseded
        event = entry.event
        if isinstance(event, TurnCommitted) and event.turn.sender == self.user:
            ref = self._own(event)
            if ref is not None and (client_id := self._pending.pop(ref)) is not None:
                stored = ack(client_id, message_id=message_id_of(event), seq=event.seq, timestamp=entry.timestamp)
                self._acks = {seq: frame for seq, frame in self._acks.items() if seq > self._viewer.delivered}
                self._acks[event.seq] = encode(stored)
            if (ack_frame := self._acks.get(event.seq)) is not None:
                return Item(event.seq, partial(self._acked, entry, ack_frame))
        if isinstance(event, FrameCommitted) and not superseded and event.seq > self._newest[0]:
            is_shown = is_message(event) and not self.hides(event.frame.type)
            self._newest = (event.seq, event.frame.id if is_shown else None)
        return Item(event.seq, partial(self._numbered, told))

    def _acked(self, entry: Entry, ack_frame: bytes) -> bytes:
        self.shown(entry)
        return ack_frame

    def _numbered(self, told: Told) -> bytes:
        entry, superseded, edited_at = told
        frame = numbered(self.shown(entry), superseded=superseded, edited_at=edited_at)
        if frame is None:
            # A numbered event of a later release: its seq must not leave a gap.
            frame = {"type": "typing", "isTyping": False, "seq": entry.event.seq}
        return encode(frame)

    def _own(self, event: TurnCommitted) -> str | None:
        if event.ref is not None and event.ref in self._pending:
            return event.ref
        if event.ref is None and event.turn.client_id is not None:
            # Read from history, which has no refs: the clientId tells.
            return next((ref for ref, mine in self._pending.items() if mine == event.turn.client_id), None)
        return None

    def _refused(self, event: Refused) -> None:
        if event.ref in self._pending:
            error = refusal(event.reason, event.detail, client_id=self._pending.pop(event.ref))
            self._write(error.frame())

    def _duplicate(self, event: Duplicate) -> None:
        if event.ref not in self._pending:
            return
        client_id = self._pending.pop(event.ref)
        if client_id is not None:
            self._write(
                ack(
                    client_id,
                    message_id=event.id,
                    seq=event.of_seq or self._viewer.delivered,  # as in `_taken`
                    timestamp=event.of_timestamp,
                    duplicate=True,
                )
            )

    def _load(self) -> None:
        after = self._viewer.wants_load()
        if after is not None:
            self._ask(Load(after))
