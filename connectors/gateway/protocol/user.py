"""A person's socket: one conversation, replayed from a watermark, then live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import (
    Action,
    Announce,
    Load,
    LoadSuperseded,
    OpenConversation,
    SubmitPersonFrame,
    SubmitTurn,
)
from connectors.gateway.protocol.errors import ProtocolError, refusal
from connectors.gateway.protocol.parse import (
    capabilities_of,
    client_id_of,
    frame_type_of,
    is_user_id,
    parse_message,
    watermark_of,
)
from connectors.gateway.protocol.parse_person import MODELS, parse_person_frame
from connectors.gateway.protocol.render import (
    ack,
    encode,
    is_message,
    message_id_of,
    numbered,
    superseded_before,
    superseded_seqs,
    transient,
)
from connectors.gateway.protocol.session import PROTOCOL, Claims, Scope, Session, State
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
from streams.runtime.live import Receipt, Typing

CAPABILITIES = {
    "acks": True,
    "receipts": True,
    "typing": True,
    "presence": True,
    "regenerate": True,
    "edit": True,
}

REPLAY_RETRY_MS = 1_000


class UserSession(Session):
    """A connection of conversation scope; see `Session` for how to drive it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.conversation_id = ""
        self._named: str | None = None
        """Who it is by its own word: heard where the token names nobody."""
        self._watermark = 0
        self._told_superseded = False
        """Whether the client asked to be told which of the frames that it got were superseded."""
        self._viewer = Viewer(0, 0)
        self._read = 0
        """How far it said that it has read."""
        self._told = 0
        """How far those who wrote know that it was delivered here."""
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

    # --------------------------------------------------------------------------------------------------- inputs
    def opened(self, conversation_id: str, head: int, pending: Sequence[dict[str, Any]], now: int) -> list[Action]:
        """The conversation is found and subscribed to; `head`: its last seq; `pending`: its open interrupts."""
        self._now = now
        if self.state is not State.OPENING:
            return []
        self.conversation_id = conversation_id
        self._told = self._watermark
        self._viewer = Viewer(self._watermark, head)
        data = {
            "protocol": PROTOCOL,
            "compat": ["mekik/1"],
            "conversationId": conversation_id,
            "userId": self.user,
            "connectionId": self.connection_id,
            "watermark": head,
            "pending": pending,
            "scope": Scope.CONVERSATION,
            "channelId": self.claims.channel,
            "expiresAt": self.claims.expires_at,
            "capabilities": CAPABILITIES,
            "limits": limits.advertised(channel_scope=False),
        }
        self._welcome(data)
        if self._told_superseded and 0 < self._watermark <= head:
            self._ask(LoadSuperseded(self._watermark))  # what it has may have been superseded while it was away
        self._load()
        self._take_early()
        return self._drain()

    def entries(self, entries: Sequence[Entry], now: int) -> list[Action]:
        """Live journal entries of the conversation, in order."""
        self._now = now
        if self.state is State.OPEN:
            for entry in entries:
                self._entry(entry)
        return self._drain()

    def loaded(self, after: int, entries: Sequence[tuple[Entry, bool]], head: int, now: int) -> list[Action]:
        """History after `after`: entries with whether each is superseded; `head`: the conversation's last seq."""
        self._now = now
        viewer = self._viewer
        if self.state is not State.OPEN or after != viewer.delivered:
            return self._drain()  # a sync came meanwhile: its own load follows
        if viewer.phase is not Phase.LOADING:
            return self._drain()
        if viewer.above_head(after, head):
            self._write(
                ProtocolError(
                    "invalid_watermark",
                    f"watermark: {after} is above the conversation's head {head}",
                    details={"watermark": after, "headSeq": head},
                ).frame()
            )
            return self._drain()
        items = [self._item(entry, superseded=superseded) for entry, superseded in entries]
        for frame in viewer.loaded(items, head):
            self._put(frame)
        if viewer.truncated:
            self._write({"type": "replayTruncated", "data": {"watermark": viewer.delivered, "headSeq": viewer.head}})
        elif viewer.incomplete:
            self._write(_replay_unavailable(REPLAY_RETRY_MS))
        self._load()
        return self._drain()

    def load_failed(self, after: int, retry_after_ms: int, now: int) -> list[Action]:
        """History cannot be read now: the client asks again."""
        self._now = now
        viewer = self._viewer
        if self.state is State.OPEN and viewer.phase is Phase.LOADING and after == viewer.delivered:
            viewer.stall()
            self._write(_replay_unavailable(retry_after_ms))
        return self._drain()

    def tick(self, now: int) -> list[Action]:
        """See `Session`; and those who wrote are told of what was delivered, at most so often."""
        seq, message_id = self._newest
        if self.state is State.OPEN and self._told < seq <= self._viewer.delivered:
            self._told = seq
            self._ask(Announce(self.conversation_id, Receipt("delivered", seq, message_id)))
        return super().tick(now)

    def submit_failed(self, ref: str, error: ProtocolError, now: int) -> list[Action]:
        """The intake did not take the send of `ref`."""
        self._now = now
        if ref in self._pending:
            error.client_id = self._pending.pop(ref)
            self._write(error.frame())
        return self._drain()

    def told_superseded(self, seqs: Sequence[int], now: int) -> list[Action]:
        """What was asked for by `LoadSuperseded`."""
        self._now = now
        if seqs and self.state is State.OPEN:
            self._write(superseded_before(seqs))
        return self._drain()

    def relayed(self, frame: bytes, now: int) -> list[Action]:
        """A transient frame of somebody else in the conversation."""
        self._now = now
        if self.state is State.OPEN:
            self._put(frame)
        return self._drain()

    # ------------------------------------------------------------------------------------------------- handshake
    def _greeted(self, frame: dict[str, Any]) -> None:
        if self.claims.scope is not Scope.CONVERSATION:
            raise AssertionError("the driver picks the session by the token's scope")
        named = frame.get("conversationId")
        user = frame.get("userId")
        if user is not None and not self.claims.named and is_user_id(user):
            self._named = user
        self._told_superseded = "superseded" in capabilities_of(frame)
        bound = self.claims.conversation_id
        if bound is not None and named is not None and named != bound:
            raise ProtocolError("forbidden", "conversationId: the token is for another conversation")
        try:
            self._watermark = watermark_of(frame) if frame.get("watermark") is not None else 0
        except ProtocolError:
            self._watermark = 0  # a field of the wrong type counts as absent
        self._move(State.OPENING)
        self._ask(OpenConversation(bound or named))

    def _same_session(self, fresh: Claims) -> bool:
        same_conversation = fresh.conversation_id in {None, self.conversation_id}
        return super()._same_session(fresh) and fresh.user == self.claims.user and same_conversation

    # ---------------------------------------------------------------------------------------------------- frames
    def _frame(self, frame: dict[str, Any]) -> None:
        client_id = client_id_of(frame)
        kind = frame_type_of(frame)
        self._within_rate(client_id, kind)
        match kind:
            case "ping":
                self._ping(frame)
            case "auth":
                self._authenticate(frame)
            case "sync":
                self._sync(frame)
            case "typing":
                self._typing(frame)
            case "read":
                self._has_read(frame)
            case "hello":
                raise ProtocolError("bad_request", "type: hello was said already", frame_type=kind)
            case _ if kind in MODELS:
                self._submit(frame, kind, client_id, self._person_frame)
            case _:
                self._submit(frame, kind, client_id, self._message)

    def _submit(
        self,
        frame: dict[str, Any],
        kind: str,
        client_id: str | None,
        parsed: Callable[[dict[str, Any], str], tuple[SubmitTurn | SubmitPersonFrame, str | None]],
    ) -> None:
        """Ask for what `parsed` makes of the frame and its ref, beside the clientId that its ack is to name."""
        ref = self._mint()
        try:
            submit, named = parsed(frame, ref)
        except ProtocolError as error:
            error.client_id, error.frame_type = client_id, kind
            raise
        if len(self._pending) >= limits.MAX_IN_FLIGHT:
            raise ProtocolError(
                "too_many_in_flight",
                f"{limits.MAX_IN_FLIGHT} sends wait for their ack; wait for one of them",
                retry_after_ms=500,
                client_id=client_id or named,
                frame_type=kind,
            )
        self._pending[ref] = named
        self._ask(submit)

    def _message(self, frame: dict[str, Any], ref: str) -> tuple[SubmitTurn, str | None]:
        message = parse_message(frame)
        return SubmitTurn(ref, message), message.client_id

    def _person_frame(self, frame: dict[str, Any], ref: str) -> tuple[SubmitPersonFrame, str | None]:
        parsed = parse_person_frame(frame, self._mint)
        return SubmitPersonFrame(ref, parsed), parsed.client_id

    def _sync(self, frame: dict[str, Any]) -> None:
        self._viewer.sync(watermark_of(frame))
        self._load()

    def _typing(self, frame: dict[str, Any]) -> None:
        self._ask(Announce(self.conversation_id, Typing(frame.get("isTyping") is True)))

    def _has_read(self, frame: dict[str, Any]) -> None:
        watermark = watermark_of(frame)
        if watermark == 0:
            raise ProtocolError("invalid_watermark", "watermark: must be a seq, 1 or above", frame_type="read")
        read = min(watermark, self._viewer.delivered)  # what it was not given it has not read
        if read > self._read:
            self._read = read
            self._ask(Announce(self.conversation_id, Receipt("read", read)))

    def _heartbeat(self) -> dict[str, Any]:
        beat = super()._heartbeat()
        beat["headSeq"] = self._viewer.head
        return beat

    # --------------------------------------------------------------------------------------------------- journal
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
                for frame in self._viewer.offer(self._item(entry)):
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
        if self._viewer.phase is Phase.LIVE:
            for shown in transient(self.shown(entry)):
                if not self.hides(shown["type"]):
                    self._write(shown)
        # Also while history is read: what was written before is not read again.
        if self._told_superseded and (notice := superseded_seqs(entry)) is not None:
            self._write(notice)

    def _item(self, entry: Entry, *, superseded: bool = False) -> Item:
        """What this connection gets for a numbered entry: the ack of its own send, else the frame."""
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
        return Item(event.seq, partial(self._numbered, entry, superseded=superseded))

    def _acked(self, entry: Entry, ack_frame: bytes) -> bytes:
        self.shown(entry)
        return ack_frame

    def _numbered(self, entry: Entry, *, superseded: bool) -> bytes:
        frame = numbered(self.shown(entry), superseded=superseded)
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


def _replay_unavailable(retry_after_ms: int) -> dict[str, Any]:
    return ProtocolError("replay_unavailable", "the history cannot be read now", retry_after_ms=retry_after_ms).frame()
