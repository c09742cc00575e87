"""A person's socket: one conversation, replayed from a watermark, then live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import (
    Action,
    Announce,
    LoadEdited,
    LoadSuperseded,
    OpenConversation,
    SubmitPersonFrame,
    SubmitTurn,
)
from connectors.gateway.protocol.declared import FRAMES, Declared
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import (
    capabilities_of,
    client_id_of,
    frame_type_of,
    is_user_id,
    parse_message,
    trace_of,
    watermark_of,
)
from connectors.gateway.protocol.parse_person import MODELS, parse_person_frame
from connectors.gateway.protocol.render import Told, edited, encode, superseded_before
from connectors.gateway.protocol.session import PROTOCOL, Claims, Scope, State
from connectors.gateway.protocol.user_journal import UserJournal
from connectors.gateway.protocol.viewer import Phase, Viewer
from streams.core.events import (
    Entry,
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
CATALOG_HASHES = {"genui_components": "componentsHash", "skills": "skillsHash"}


class _Catalog(msgspec.Struct):
    type: str
    hash: str = ""


class UserSession(UserJournal):
    """A connection of conversation scope; see `Session` for how to drive it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.conversation_id = ""
        self._watermark = 0
        self._declared = Declared()
        self._not_taken: ProtocolError | None = None
        """Why what its hello declared does not go with its messages."""
        self._hashes: dict[str, str] = {}
        """By type, the hash of the catalog that the client has."""
        self._read = 0
        """How far it said that it has read."""
        self._told = 0
        """How far those who wrote know that it was delivered here."""

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
        if self._told_edits and 0 < self._watermark <= head:
            self._ask(LoadEdited(self._watermark))  # or edited
        if self._not_taken is not None:
            self._write(self._not_taken.frame())
        for declared in self._declared.frames():  # for who is at work there already; nobody need be
            self._ask(SubmitPersonFrame(self._mint(), parse_person_frame(declared, self._mint)))
        self._load()
        self._take_early()
        return self._drain()

    def _known_catalog(self, frame: bytes) -> bytes:
        """The frame; of a catalog that the client has, only that it is unchanged."""
        shown = msgspec.json.decode(frame, type=_Catalog)
        if shown.type not in CATALOG_HASHES:
            return frame
        known, self._hashes[shown.type] = self._hashes.get(shown.type), shown.hash
        return frame if known != shown.hash else encode({"type": shown.type, "hash": shown.hash, "unchanged": True})

    def entries(self, entries: Sequence[Entry], now: int) -> list[Action]:
        """Live journal entries of the conversation, in order."""
        self._now = now
        if self.state is State.OPEN:
            for entry in entries:
                self._entry(entry)
        return self._drain()

    def loaded(self, after: int, entries: Sequence[Told], head: int, now: int) -> list[Action]:
        """History after `after`; `head`: the conversation's last seq."""
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
        items = [self._item(each) for each in entries]
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

    def told_edited(self, edit: Entry | None, now: int) -> list[Action]:
        """What was asked for by `LoadEdited`; None: nothing that it has was edited."""
        self._now = now
        changed = None if edit is None else edited(self.shown(edit))
        if changed is not None and self.state is State.OPEN:
            self._write(changed)
        return self._drain()

    def relayed(self, frame: bytes, now: int) -> list[Action]:
        """A transient frame of somebody else in the conversation, also one of before this connection came."""
        self._now = now
        if self.state is State.OPEN:
            self._put(self._known_catalog(frame))
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
        self._told_edits = "edited" in capabilities_of(frame)
        self._hashes = {kind: frame[name] for kind, name in CATALOG_HASHES.items() if name in frame}
        try:
            self._declared.hello(frame)
        except ProtocolError as error:
            error.frame_type = "hello"
            self._not_taken = error
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
        message = parse_message(self._declared.with_context(frame))
        return SubmitTurn(ref, message, trace_of(frame)), message.client_id

    def _person_frame(self, frame: dict[str, Any], ref: str) -> tuple[SubmitPersonFrame, str | None]:
        parsed = parse_person_frame(frame, self._mint)
        if frame["type"] in FRAMES:
            self._declared.replace(frame)
        return SubmitPersonFrame(ref, parsed, trace_of(frame)), parsed.client_id

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


def _replay_unavailable(retry_after_ms: int) -> dict[str, Any]:
    return ProtocolError("replay_unavailable", "the history cannot be read now", retry_after_ms=retry_after_ms).frame()
