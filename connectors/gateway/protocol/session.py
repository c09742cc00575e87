"""What the sockets of people and of agents have in common: hello, time limits, rate, tokens.

HELLO ──hello──▶ OPENING ──opened──▶ OPEN
  │                 │                  │
  └────────┬────────┴──────────────────┘
           ▼  refused hello, idle, expired token, restart, slow reader, peer gone
         CLOSED
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import Action, Close, Write
from connectors.gateway.protocol.client_frames import greeting
from connectors.gateway.protocol.errors import (
    CLOSE_CHANNEL,
    CLOSE_IDLE,
    CLOSE_NORMAL,
    CLOSE_PROTOCOL,
    CLOSE_RESTART,
    RETRY_AFTER_MS,
    ProtocolError,
    close_reason,
)
from connectors.gateway.protocol.parse import client_id_of, decode_object
from connectors.gateway.protocol.render import encode

PROTOCOL = "converger/1"
SUBPROTOCOL = "converger.v1"
# A close reason may have 123 bytes of UTF-8.
MAX_REASON = 123
# Frames, and characters in them, that may come between hello and welcome.
EARLY_MAX = 100
EARLY_CHARS = limits.HARD_CAP_BYTES
CLOSE_OF = {"forbidden": CLOSE_CHANNEL}


class Scope(StrEnum):
    """What a token is for: one conversation of a person, or a channel's agents."""

    CONVERSATION = "conversation"
    CHANNEL = "channel"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a verified token says. `user` is the participant's or the agent's id; `expires_at` in ms since the epoch."""

    channel: str
    scope: Scope
    user: str
    conversation_id: str | None = None
    named: bool = False
    """Whether the channel's backend named the user; else the id was minted with the token."""
    expires_at: int


class State(StrEnum):
    """Where a session is; see the module's diagram."""

    HELLO = "hello"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.HELLO: frozenset({State.OPENING, State.CLOSED}),
    State.OPENING: frozenset({State.OPEN, State.CLOSED}),
    State.OPEN: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}

Verify = Callable[[str], Claims]


class Session(ABC):
    """One connection. Feed it text and time; do what its actions say, in order. Times are milliseconds since the epoch.

    `verify` turns a token into claims, or raises the `ProtocolError` that refuses it. `query`: the hello's fields
    in the address; the frame's own count more.
    """

    rate = (limits.USER_RATE, limits.USER_BURST)

    def __init__(
        self,
        *,
        token: str | None,
        scope_of: Verify,
        connection_id: str,
        mint: Callable[[], str],
        now: int,
        query: Mapping[str, str] | None = None,
    ) -> None:
        self.state = State.HELLO
        self.connection_id = connection_id
        self._claims: Claims | None = None
        self._token = token
        self._query = query or {}
        self._verify = scope_of
        self._mint = mint
        self._rate = limits.Rate.full(*self.rate, now)
        self._inbound_at = now
        self._outbound_at = now
        self._now = now
        self._actions: list[Action] = []
        self._early: list[str | bytes] = []
        self.pace_ms = 0
        """How long the next frame is to stay unread, where frames above the rate are not refused."""

    @property
    def claims(self) -> Claims:
        """What the token says; there is one from hello on."""
        if self._claims is None:
            raise RuntimeError("no hello was accepted yet")
        return self._claims

    @property
    def channel(self) -> str | None:
        """The channel that its token is of; None before an accepted hello."""
        return self._claims.channel if self._claims is not None else None

    # --------------------------------------------------------------------------------------------------- inputs
    def receive(self, raw: str | bytes, now: int) -> list[Action]:
        """Text from the peer."""
        self._now = self._inbound_at = now
        if self.state is State.CLOSED:
            return []
        if self.state is State.OPENING:
            self._wait(raw)
        else:
            self._take(raw)
        return self._drain()

    def tick(self, now: int) -> list[Action]:
        """Time passed: heartbeat, idle and expired connections. Call it about once a second."""
        self._now = now
        if self.state is State.CLOSED:
            return []
        if self.state is State.HELLO:
            if now - self._inbound_at >= limits.HELLO_MS:
                self._end_with(ProtocolError("unsupported_protocol", "no hello within 10 s"))
        elif now >= self.claims.expires_at:
            self._end_with(ProtocolError("token_expired", "the token has expired; connect again with a new one"))
        elif now - self._inbound_at >= limits.IDLE_MS:
            self._close(CLOSE_IDLE, "idle: nothing received for 60 s")
        elif self.state is State.OPEN and now - self._outbound_at >= limits.HEARTBEAT_MS:
            self._write(self._heartbeat())
        return self._drain()

    def end(self, code: int = CLOSE_NORMAL, reason: str = "") -> list[Action]:
        """End it from this side."""
        self._close(code, reason)
        return self._drain()

    def fail(self, error: ProtocolError) -> list[Action]:
        """Refuse what the peer asked for; errors that close the connection do so."""
        self._refuse(error)
        return self._drain()

    def gone(self) -> None:
        """The peer is gone: nothing can be written any more."""
        if self.state is not State.CLOSED:
            self._move(State.CLOSED)

    def _take(self, raw: str | bytes) -> None:
        try:
            frame = self._decode(raw)
            if self.state is State.HELLO:
                self._hello(frame)
            else:
                self._frame(frame)
        except ProtocolError as error:
            self._refuse(error)

    # ------------------------------------------------------------------------------------------------- handshake
    def _wait(self, raw: str | bytes) -> None:
        """What comes before the welcome is taken after it."""
        if len(self._early) >= EARLY_MAX or sum(map(len, self._early)) + len(raw) > EARLY_CHARS:
            self._end_with(ProtocolError("no_session", "wait for the welcome before sending more"))
        else:
            self._early.append(raw)

    def _welcome(self, data: dict[str, Any]) -> None:
        self._move(State.OPEN)
        self._write({"type": "welcome", "data": data})

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for raw in early:
            if self.state is State.OPEN:
                self._take(raw)

    def _hello(self, frame: dict[str, Any]) -> None:
        if frame.get("type") != "hello":
            raise ProtocolError("unsupported_protocol", "the first frame must be hello")
        frame = greeting(self._query) | greeting(frame)
        protocol = frame.get("protocol", PROTOCOL)
        if protocol != PROTOCOL:
            raise ProtocolError("unsupported_protocol", f"protocol: this server speaks {PROTOCOL}")
        token = frame.get("token", self._token)
        if token is None:
            raise ProtocolError("unauthorized", "a token is needed: Authorization: Bearer, or `token` in hello")
        self._claims = self._verify(token)
        self._token = None
        self._greeted(frame)

    @abstractmethod
    def _greeted(self, frame: dict[str, Any]) -> None:
        """An accepted hello."""

    @abstractmethod
    def _frame(self, frame: dict[str, Any]) -> None:
        """A frame after hello."""

    def _decode(self, raw: str | bytes) -> dict[str, Any]:
        if len(raw) > limits.MAX_FRAME_BYTES // 4 and _size(raw) > limits.MAX_FRAME_BYTES:
            raise self._too_large(raw)
        return decode_object(raw)

    def _too_large(self, raw: str | bytes) -> ProtocolError:
        try:
            frame = decode_object(raw)
        except ProtocolError as error:
            client_id = error.client_id
        else:
            inner = frame.get("frame")
            client_id = client_id_of(inner if isinstance(inner, dict) else frame)
        return ProtocolError(
            "payload_too_large",
            f"a frame of {_size(raw)} bytes; at most {limits.MAX_FRAME_BYTES} are taken",
            client_id=client_id,
        )

    # ---------------------------------------------------------------------------------------------------- frames
    def _within_rate(self, client_id: str | None, frame_type: str | None) -> None:
        wait_ms = self._rate.take(self._now)
        if wait_ms:
            raise ProtocolError(
                "rate_limited",
                f"more than {self._rate.per_second:g} frames a second",
                retry_after_ms=wait_ms,
                client_id=client_id,
                frame_type=frame_type,
            )

    def _authenticate(self, frame: dict[str, Any]) -> None:
        token = frame.get("token")
        if not isinstance(token, str) or not token:
            raise ProtocolError("bad_request", "token: the fresh token is missing", frame_type="auth")
        try:
            fresh = self._verify(token)
        except ProtocolError as error:
            # The old token is still good: the connection goes on with it.
            self._write(ProtocolError("unauthorized", error.message, frame_type="auth").frame())
            return
        if not self._same_session(fresh):
            raise ProtocolError("forbidden", "the token is for another session than this one", frame_type="auth")
        self._claims = msgspec.structs.replace(self.claims, expires_at=fresh.expires_at)
        self._write({"type": "tokenRefreshed", "data": {"expiresAt": fresh.expires_at}})

    def _same_session(self, fresh: Claims) -> bool:
        return (fresh.channel, fresh.scope) == (self.claims.channel, self.claims.scope)

    def _ping(self, frame: dict[str, Any]) -> None:
        beat = self._heartbeat()
        nonce = frame.get("nonce")
        if isinstance(nonce, str) and len(nonce) <= 64:
            beat["nonce"] = nonce
        self._write(beat)

    def _heartbeat(self) -> dict[str, Any]:
        return {"type": "heartbeat", "timestamp": self._now}

    # --------------------------------------------------------------------------------------------------- outputs
    def _write(self, frame: dict[str, Any]) -> None:
        self._put(encode(frame))

    def _put(self, frame: bytes) -> None:
        if self.state is not State.CLOSED:
            self._outbound_at = self._now
            self._actions.append(Write(frame))

    def _ask(self, action: Action) -> None:
        if self.state is not State.CLOSED:
            self._actions.append(action)

    def _refuse(self, error: ProtocolError) -> None:
        closing = error.spec.close is not None and (
            self.state in {State.HELLO, State.OPENING} or error.code != "unavailable"
        )
        if closing or self.state in {State.HELLO, State.OPENING}:
            self._end_with(error)
        else:
            self._write(error.frame())

    def _end_with(self, error: ProtocolError) -> None:
        # Before the welcome, a refusal is final: whatever its code, the connection is of no use. Clients come back
        # after 1012 and stay away after 44xx.
        code, reason = error.spec.close, error.message
        if code is None:
            code = CLOSE_RESTART if error.spec.retryable else CLOSE_OF.get(error.code, CLOSE_PROTOCOL)
        if error.spec.retryable:
            reason = close_reason(error.code, error.retry_after_ms or RETRY_AFTER_MS)
        self._write(error.frame())
        self._close(code, reason)

    def _close(self, code: int, reason: str) -> None:
        if self.state is State.CLOSED:
            return
        self._move(State.CLOSED)
        self._actions.append(Close(code, reason.encode()[:MAX_REASON].decode(errors="ignore")))

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a session cannot go from {self.state} to {state}")
        self.state = state

    def _drain(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions


def _size(raw: str | bytes) -> int:
    return len(raw.encode(errors="surrogatepass")) if isinstance(raw, str) else len(raw)
