"""An agent's socket: one member of a group, given the turns whose runs it holds, heard only for those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from connectors.gateway.protocol import client_frames, limits, messages
from connectors.gateway.protocol.actions import (
    Action,
    Announce,
    DrainMember,
    Follow,
    LoadFor,
    OpenMember,
    RefuseGiven,
    SubmitFrame,
)
from connectors.gateway.protocol.agent_hello import parse_agent_hello, too_many_watermarks
from connectors.gateway.protocol.agent_runs import ABORT, AgentRuns
from connectors.gateway.protocol.errors import ProtocolError, refusal
from connectors.gateway.protocol.parse import (
    MAX_ID,
    client_id_of,
    decode_object,
    frame_type_of,
    trace_of,
    verbatim,
    watermark_of,
)
from connectors.gateway.protocol.parse_agent import NATIVE, parse_agent_frame, run_named
from connectors.gateway.protocol.render import Told, ack, encode, numbered
from connectors.gateway.protocol.session import PROTOCOL, Scope, State
from streams.core.events import (
    Duplicate,
    FrameCommitted,
    Refused,
    RefusedReason,
)
from streams.runtime.live import Shown, Typing

# Sends of one connection that wait for their outcome. An agent's connection serves a whole channel.
IN_FLIGHT_MAX = 1_000
BUSY_RETRY_MS = 500
CATALOGS = {"genui_components": client_frames.GenuiComponents, "skills": client_frames.Skills}
NAMED = frozenset({"run", "runEpoch", "traceparent"})
"""Fields by which an agent's frame says what it is of: nobody is shown them."""
NOT_SERVED = frozenset({"resume", "abort", "ack", "hello", "ping", "auth"})


class AgentSession(AgentRuns):
    """A connection of channel scope; see `Session` for how to drive it, and `AgentRuns` for the runs that it holds.

    `partition_of` says where a conversation lies: frames are held until its partition knows the member.
    """

    rate = (limits.AGENT_RATE, limits.AGENT_BURST)

    def __init__(self, *, partition_of: Callable[[str], int], new_id: Callable[[], str], **given: Any) -> None:
        super().__init__(**given)
        self.group: str | None = None
        self._partition_of = partition_of
        self._new_id = new_id
        self._joined: set[int] = set()
        self._held: dict[int, list[SubmitFrame]] = {}
        self._held_bytes = 0
        self._pending: dict[str, tuple[str, str]] = {}
        """Sends that wait for their outcome: ref to (conversation, clientId)."""
        self._raw: str | bytes = ""
        """The text of the frame that is being taken."""
        self._listed: tuple[str, ...] = ()
        """Conversations that its hello named."""
        self.told: frozenset[str] = frozenset()
        """What it is told of where it follows: `superseded`, `edited`."""
        self._instance: str | None = None
        """What its process calls itself."""
        self._too_many = 0
        """How many of the conversations that its hello named were not taken."""

    @property
    def pending_refs(self) -> Sequence[str]:
        """Sends that wait for their outcome."""
        return list(self._pending)

    # ------------------------------------------------------------------------------------------ inputs: membership
    def opened(self, now: int, *, secret: str | None = None, grace_ms: int = 0) -> list[Action]:
        """The join is written. `secret`: by which its process may come back, and have what was held for it for
        `grace_ms`; None: nothing is."""
        self._now = now
        if self.state is not State.OPENING:
            return []
        data: dict[str, Any] = {
            "protocol": PROTOCOL,
            "compat": ["mekik/1"],
            "connectionId": self.connection_id,
            "scope": Scope.CHANNEL,
            "channelId": self.claims.channel,
            "expiresAt": self.claims.expires_at,
            "group": self.group,
            "capabilities": {"drain": True, "continue": self.continues, "adopt": self.adopts},
            "limits": {
                **limits.advertised(channel_scope=True),
                "maxInFlight": IN_FLIGHT_MAX,
                "maxCheckpointBytes": limits.MAX_CHECKPOINT_BYTES,
                "maxRuns": self._runs_max,
            },
        }
        if secret is not None:
            data |= {"instanceId": self._instance, "instanceSecret": secret}
            data["limits"]["graceMs"] = grace_ms
        self._welcome(data)
        for frame in self._unsaid:
            self._put(frame)
        self._unsaid.clear()
        if self._listed:
            self._ask(Follow(self._listed, ask=False))
        if self._too_many:
            self._write(too_many_watermarks(self._too_many).frame())
        self._take_early()
        return self._drain()

    def joined(self, partition: int, now: int) -> list[Action]:
        """A partition took the join: its frames may go."""
        self._now = now
        self._joined.add(partition)
        for held in self._held.pop(partition, ()):
            self._held_bytes -= _weight(held)
            self._ask(held)
        return self._drain()

    # ------------------------------------------------------------------------------------------- inputs: outcomes
    def committed(self, event: FrameCommitted | Duplicate, timestamp: int, now: int) -> list[Action]:
        """The journal's answer to a send of this connection: stored, or a repeat of something stored."""
        self._now = now
        waited = self._pending.pop(event.ref, None) if event.ref is not None else None
        if waited is None:
            return self._drain()
        conversation_id, client_id = waited
        match event:
            case FrameCommitted():
                self._delivery.wrote(conversation_id)
                answer = ack(client_id, message_id=event.frame.id, seq=event.seq, timestamp=timestamp)
            case Duplicate():
                answer = ack(
                    client_id,
                    message_id=event.id,
                    seq=event.of_seq,
                    timestamp=event.of_timestamp,
                    duplicate=True,
                )
        self._tell(conversation_id, encode(answer))
        return self._drain()

    def refused(self, event: Refused, now: int) -> list[Action]:
        """The journal refused a frame of this member."""
        self._now = now
        waited = self._pending.pop(event.ref, None) if event.ref is not None else None
        conversation_id = waited[0] if waited is not None else event.conversation_id
        if conversation_id is None:
            return self._drain()
        client_id = waited[1] if waited is not None else event.client_id
        self._tell(conversation_id, encode(refusal(event.reason, event.detail, client_id=client_id).frame()))
        # A process that works on a run it does not hold is stopped; one that holds another run here is not, since
        # abort would hit that one.
        if event.reason is RefusedReason.FENCED and not self.holds_run_in(conversation_id):
            self._tell(conversation_id, ABORT)
        return self._drain()

    def unanswered(self, ref: str, now: int) -> list[Action]:
        """The journal is past the send of this `ref` and says nothing of it: it was refused like those before it, which
        the journal does say. Of a zombie's refusals it holds the first sixteen only."""
        self._now = now
        waited = self._pending.pop(ref, None)
        if waited is not None:
            conversation_id, client_id = waited
            self._refuse_in(conversation_id, refusal(RefusedReason.FENCED, client_id=client_id))
            if not self.holds_run_in(conversation_id):
                self._tell(conversation_id, ABORT)
        return self._drain()

    def submit_failed(self, submit: SubmitFrame, error: ProtocolError, now: int) -> list[Action]:
        """The intake did not take a frame. One that its sender cannot send again, since nothing tells it which one it
        was, ends the connection: on the next one both sides say what they have, and a stream gets no hole."""
        self._now = now
        if submit.ref is not None:
            self._pending.pop(submit.ref, None)
        error.client_id = submit.frame.client_id
        if error.spec.retryable and error.client_id is None:
            self._end_with(error)
        else:
            self._refuse_in(submit.conversation_id, error)
        return self._drain()

    def relayed(self, conversation_id: str, frame: bytes, now: int) -> list[Action]:
        """What goes on in a conversation that it follows."""
        self._now = now
        if self.state is State.OPEN:
            self._delivery.active(conversation_id)
            self._tell(conversation_id, frame)
        return self._drain()

    def replayed(self, conversation_id: str, entries: Sequence[Told], now: int) -> list[Action]:
        """History for a `sync`."""
        self._now = now
        for entry, superseded, edited_at in entries:
            frame = numbered(entry, superseded=superseded, edited_at=edited_at)
            if frame is not None:
                self._tell(conversation_id, encode(frame))
        return self._drain()

    def load_failed(self, conversation_id: str, error: ProtocolError, now: int) -> list[Action]:
        """History cannot be read for a `sync`: now, or by this agent."""
        self._now = now
        error.frame_type = "sync"
        self._refuse_in(conversation_id, error)
        return self._drain()

    # ------------------------------------------------------------------------------------------------- handshake
    def _decode(self, raw: str | bytes) -> dict[str, Any]:
        self._raw = raw
        # A hello names thousands of conversations: it may be as long as a socket's messages may.
        if len(raw) <= limits.MAX_FRAME_BYTES or self.state is State.HELLO:
            return decode_object(raw, replace=True)
        try:
            frame = decode_object(raw, replace=True)
        except ProtocolError:
            raise self._too_large(raw) from None
        # What is checked is the checkpoint as it is stored: its frame may be as long as a socket's messages may.
        if not _brings_checkpoint(frame):
            raise self._too_large(raw)
        return frame

    def _greeted(self, frame: dict[str, Any]) -> None:
        hello = parse_agent_hello(frame)
        if hello.user is not None and not self.claims.named:
            self._claims = msgspec.structs.replace(self.claims, user=hello.user)
        self.continues, self.adopts, self.told = hello.continues, hello.adopts, hello.told
        self._too_many = hello.dropped
        if hello.dropped:
            self._delivery.knows_not_all()
        self._delivery.know(hello.watermarks)
        self.group = hello.group
        self._move(State.OPENING)
        self._listed = tuple(hello.watermarks)
        self._instance = hello.instance
        self._ask(OpenMember(hello.group, hello.watermarks, hello.continues, hello.instance, hello.instance_secret))

    # ---------------------------------------------------------------------------------------------------- frames
    def _frame(self, frame: dict[str, Any]) -> None:
        if "type" not in frame and "conversationId" in frame:
            self._envelope(frame)
            return
        kind = frame_type_of(frame)
        self._within_rate(None, kind)
        match kind:
            case "ping":
                self._ping(frame)
            case "auth":
                self._authenticate(frame)
            case "drain":
                self._ask(DrainMember())
            case _:
                raise ProtocolError(
                    "bad_request",
                    f"type: `{kind}` belongs into an envelope {{conversationId, frame}} on a channel's connection",
                    client_id=client_id_of(frame),
                    frame_type=kind,
                )

    def _within_rate(self, client_id: str | None, frame_type: str | None) -> None:  # noqa: ARG002 -- of the base
        """Nothing is refused: a piece of a stream has no id by which its sender could be told to send it again."""
        self.pace_ms = self._rate.owe(self._now)

    def _envelope(self, envelope: dict[str, Any]) -> None:
        conversation_id, frame = envelope["conversationId"], envelope.get("frame")
        if not isinstance(conversation_id, str) or not 0 < len(conversation_id) <= MAX_ID:
            raise ProtocolError("bad_request", f"conversationId: a string of 1 to {MAX_ID} characters")
        if not isinstance(frame, dict):
            raise ProtocolError("bad_request", "frame: must be an object")
        try:
            self._within_rate(client_id_of(frame), None)
            self._conversation_frame(conversation_id, frame)
        except ProtocolError as error:
            kind = frame.get("type")
            error.client_id = error.client_id or client_id_of(frame)
            error.frame_type = kind if isinstance(kind, str) else None
            self._refuse_in(conversation_id, error)

    def _conversation_frame(self, conversation_id: str, frame: dict[str, Any]) -> None:
        kind = frame_type_of(frame)
        if kind in NOT_SERVED:
            raise ProtocolError("bad_request", f"type: `{kind}` is not served in a conversation")
        if kind == "sync":
            # Only what this member was given: a turn of somebody else would start work here.
            upto, given = self._delivery.highest(conversation_id), self._delivery.given(conversation_id)
            self._ask(LoadFor(conversation_id, watermark_of(frame), upto, given))
        elif kind == "typing":
            self._typing(conversation_id, frame)
        elif kind == "refuse":
            self._refuse_run(conversation_id, frame)
        elif kind in CATALOGS:
            self._show_catalog(conversation_id, frame, kind)
        else:
            self._submit(conversation_id, frame)

    def _refuse_run(self, conversation_id: str, frame: dict[str, Any]) -> None:
        """Its process does not take a run that it was given, and has done nothing of it."""
        run_id, run_epoch = run_named(frame)
        if run_id is None or run_epoch is None:
            raise ProtocolError("invalid_message", "run, runEpoch: name the run that is refused")
        reason = frame.get("reason")
        if self.holds(run_id, run_epoch):
            self._refused.add(run_id)
            named = reason if isinstance(reason, str) and 0 < len(reason) <= MAX_ID else "busy"
            self._ask(RefuseGiven(conversation_id, run_id, run_epoch, named))

    def _typing(self, conversation_id: str, frame: dict[str, Any]) -> None:
        if not self.holds_run_in(conversation_id):
            return  # a zombie's typing is not shown
        self._ask(Announce(conversation_id, Typing(frame.get("isTyping") is True, self.member)))

    def _show_catalog(self, conversation_id: str, frame: dict[str, Any], kind: str) -> None:
        """What the process has to offer is shown to whoever watches now, and kept nowhere."""
        messages.check(CATALOGS[kind], frame, kind)
        if self.holds_run_in(conversation_id):
            shown = {name: value for name, value in frame.items() if name not in NAMED}
            self._ask(Announce(conversation_id, Shown(encode(shown).decode())))

    def _submit(self, conversation_id: str, frame: dict[str, Any]) -> None:
        texts = verbatim(self._raw) if frame.get("type") in NATIVE else None
        parsed = parse_agent_frame(frame, self._new_id, texts)
        run_id, run_epoch = run_named(frame)
        if parsed.type == "run":
            self._delivery.said(conversation_id, run_id, frame["data"].get("status"))
        ref = None
        if parsed.client_id is not None:
            if len(self._pending) >= IN_FLIGHT_MAX:
                raise ProtocolError(
                    "too_many_in_flight",
                    f"{IN_FLIGHT_MAX} sends wait for their ack; wait for one of them",
                    retry_after_ms=BUSY_RETRY_MS,
                )
            ref = self._mint()
            self._pending[ref] = (conversation_id, parsed.client_id)
        submit = SubmitFrame(
            conversation_id=conversation_id,
            frame=parsed,
            ref=ref,
            run_id=run_id,
            run_epoch=run_epoch,
            traceparent=trace_of(frame),
            delivered_seq=self._delivery.turn_written(conversation_id),
        )
        partition = self._partition_of(conversation_id)
        if partition in self._joined:
            self._ask(submit)
            return
        held = self._held.setdefault(partition, [])
        weight = _weight(submit)
        if len(held) >= IN_FLIGHT_MAX or self._held_bytes + weight > limits.HELD_BYTES:
            error = ProtocolError(
                "unavailable", "the conversation's partition has no writer yet", retry_after_ms=BUSY_RETRY_MS
            )
            if ref is None:
                self._end_with(error)  # as in `submit_failed`
                return
            del self._pending[ref]
            raise error
        held.append(submit)
        self._held_bytes += weight

    def _refuse_in(self, conversation_id: str, error: ProtocolError) -> None:
        self._tell(conversation_id, encode(error.frame()))


def _brings_checkpoint(envelope: dict[str, Any]) -> bool:
    frame = envelope.get("frame")
    return isinstance(frame, dict) and frame.get("type") == "checkpoint"


def _weight(submit: SubmitFrame) -> int:
    """What it occupies while it is held, about, in bytes."""
    frame = submit.frame
    return sum(len(text) for text in (frame.text, frame.data, frame.metadata, frame.extra) if text is not None)
