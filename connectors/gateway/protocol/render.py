"""From journal entries to the frames that people and agents are shown: the same live, in replay and by SSE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from connectors.gateway.protocol.errors import ProtocolError
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationReopened,
    Entry,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    RunEnded,
    RunMoved,
    RunStarted,
    RunStatus,
    Turn,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    TurnUnassigned,
)
from streams.core.ids import edition_id, edition_of

Fields = dict[str, Any]

SYSTEM = {"id": "system", "role": "system"}
STATUSES: dict[RunStatus, str] = {
    RunStatus.ANSWERED: "finished",
    RunStatus.FAILED: "error",
    RunStatus.CANCELLED: "aborted",
    RunStatus.TIMED_OUT: "error",
    RunStatus.OWNER_GONE: "error",
}
# Parts of streams, and traces. In the REST API, whose types are a closed list, they are events.
NOT_MESSAGES = frozenset({"genui", "tool_call", "skill", "interrupt", "interrupt_resolved", "event"})


def raw(text: str) -> msgspec.Raw:
    """JSON text that goes into a frame as it is."""
    return msgspec.Raw(text.encode())


def stored(text: str) -> msgspec.Raw:
    """As `raw`, for what the journal holds. Gateways store JSON only; what another writer of the intake stored and is
    none becomes {}: a frame that is not JSON as a whole ends the public clients without a word."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return raw("{}")
    return raw(text)


class Told(NamedTuple):
    """An entry of the past and what became of it since. `superseded`: another process did that part again. `edited_at`:
    when what it says was last edited, ms since the epoch; None: never."""

    entry: Entry
    superseded: bool = False
    edited_at: int | None = None


def encode(frame: Fields) -> bytes:
    """A frame's bytes on the wire."""
    return msgspec.json.encode(frame)


def numbered(entry: Entry, *, superseded: bool = False, edited_at: int | None = None) -> Fields | None:
    """The frame of an entry that has a `seq`, as viewers get it; None: this release does not know the event.

    `superseded`, `edited_at`: as in `Told`.
    """
    event = entry.event
    frame: Fields | None
    match event:
        case TurnCommitted():
            frame = turn_frame(event, entry.timestamp)
        case FrameCommitted():
            frame = agent_frame(event, entry.timestamp)
        case ConversationClosed():
            data = {"event": "conversation_closed", "status": "closed", "reason": event.reason}
            frame = _update(event.id, event.seq, data, entry.timestamp)
        case ConversationErased():
            data = {"event": "conversation_closed", "status": "closed", "reason": "erased"}
            frame = _update(event.id, event.seq, data, entry.timestamp)
        case ConversationReopened():
            data = {"event": "conversation_reopened", "status": "active", "reason": "manual"}
            frame = _update(event.id, event.seq, data, entry.timestamp)
        case ConversationHandedOver():
            data = {"event": "conversation_handed_over", "status": "active", "reason": event.reason, "to": event.to}
            frame = _update(event.id, event.seq, data, entry.timestamp)
        case ConversationHandedBack():
            data = {"event": "conversation_handed_back", "status": "active", "reason": event.reason}
            frame = _update(event.id, event.seq, data, entry.timestamp)
        case PersonFrameCommitted():
            frame = person_event(event, entry.timestamp)
        case _:
            return None
    if superseded:
        frame["superseded"] = True
    if edited_at is not None:
        frame["editedAt"] = edited_at
    return frame


def person_event(event: PersonFrameCommitted, timestamp: int) -> Fields:
    """What a person sent beside their messages and the conversation keeps."""
    frame = event.frame
    return {
        "type": "event",
        "id": frame.id,
        "seq": event.seq,
        "from": "user",
        "data": {"name": frame.type, "value": stored(frame.data or "{}")},
        "timestamp": timestamp,
        "sender": {"id": event.sender, "role": "user"},
    }


def person_frame(event: PersonFrameCommitted, *, run_id: str, run_epoch: int) -> Fields:
    """As the agent gets it: the person's own fields, and the run that it is of, where it is of one."""
    shown: Fields = {"type": event.frame.type, **_texts(event.frame.data or "{}")}
    return {**shown, "run": run_id, "runEpoch": run_epoch} if run_id else shown


def resume_frame(answers: str) -> Fields:
    """The person's answers to open interrupts, a JSON object, as an agent gets them."""
    return {"type": "resume", "answers": stored(answers)}


def turn_frame(event: TurnCommitted, timestamp: int) -> Fields:
    """What a person said, as everybody is shown it."""
    turn = event.turn
    frame: Fields = {
        "type": turn.type,
        "id": turn.id,
        "seq": event.seq,
        "from": "user",
        "data": stored(turn.data) if turn.data is not None else {"text": turn.text or ""},
        "timestamp": timestamp,
        "sender": {"id": turn.sender, "role": "user"},
    }
    if turn.client_id is not None:
        frame["clientId"] = turn.client_id
    if turn.metadata is not None:
        frame["metadata"] = stored(turn.metadata)
    if turn.reply_to is not None:
        frame["replyTo"] = {"id": turn.reply_to}
    return frame


def given_turn(
    event: TurnCommitted,
    timestamp: int,
    *,
    run_id: str,
    run_epoch: int,
    with_seq: bool,
    resume: Fields | None = None,
    traceparent: str | None = None,
) -> Fields:
    """A turn as the agent that owns its run gets it: with the person's context, the run and its epoch.

    A turn whose answer is wanted anew has an id of its own each time: what the agent still sends to the one before
    names that one. `with_seq` False: an agent's process never drops it as seen. `resume`: what was done of a run that
    goes on. `traceparent`: the trace that it is of.
    """
    frame = turn_frame(event, timestamp)
    turn = event.turn
    conversation_id = event.conversation_id or ""
    if edition := edition_of(conversation_id, run_id):
        frame["id"] = edition_id(conversation_id, turn.id, edition)
    frame["meta"] = _context(turn)
    frame["run"] = run_id
    frame["runEpoch"] = run_epoch
    if (call := turn.invocation) is not None:
        frame["invocation"] = {"id": call.id, "deadlineMs": call.deadline_ms, "streamed": call.streamed}
    if resume is not None:
        frame["resume"] = resume
    if traceparent is not None:
        frame["traceparent"] = traceparent
    if not with_seq:
        del frame["seq"]
        frame["turnSeq"] = event.seq
    return frame


def _context(turn: Turn) -> Fields:
    # Whatever its sender says of these two: agents take them for the gateway's word.
    return object_of(turn.meta) | {"channel": turn.channel, "participant": {"id": turn.sender}}


def followed(entry: Entry, *, superseded: bool = False, edited_at: int | None = None) -> Fields:
    """The frame of an entry that has a `seq`, as agents get it whose channel the conversation belongs to: as viewers
    do, with the person's context."""
    frame = numbered(entry, superseded=superseded, edited_at=edited_at) or {"type": "unknown", "seq": entry.event.seq}
    if isinstance(entry.event, TurnCommitted):
        frame["meta"] = _context(entry.event.turn)
    return frame


def agent_frame(event: FrameCommitted, timestamp: int) -> Fields:
    """What an agent said or did and the conversation keeps."""
    frame = event.frame
    data = stored(frame.data) if frame.data is not None else {"text": frame.text or ""}
    native: Fields = {"type": frame.type, "seq": event.seq}
    match frame.type:
        case "genui":
            native |= {"streamId": frame.stream_id, "done": frame.done, "chunk": data}
        case "tool_call" | "skill":
            native["data"] = data
        case "interrupt" | "interrupt_resolved":
            native |= {"id": frame.id, "data": data}
        case _:
            return _message(event, timestamp, data)
    if frame.extra is not None:
        native |= _texts(frame.extra)
    return native


def _message(event: FrameCommitted, timestamp: int, data: Any) -> Fields:
    frame = event.frame
    shown: Fields = {
        "type": frame.type,
        "id": frame.id,
        "seq": event.seq,
        "from": "bot",
        "data": data,
        "timestamp": timestamp,
        "sender": {"id": event.sender, "role": "system" if event.sender == "system" else "bot"},
    }
    if frame.client_id is not None:
        shown["clientId"] = frame.client_id
    if frame.metadata is not None:
        shown["metadata"] = stored(frame.metadata)
    if frame.extra is not None:
        shown.update(object_of(frame.extra))
    return shown


def _texts(extra: str) -> Mapping[str, msgspec.Raw]:
    """The fields of a JSON object, each as the text that it is; what is none has none, see `stored`."""
    try:
        return msgspec.json.decode(extra, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _update(message_id: str, seq: int, data: Fields, timestamp: int) -> Fields:
    return {
        "type": "conversationUpdate",
        "id": message_id,
        "seq": seq,
        "from": "bot",
        "sender": SYSTEM,
        "data": data,
        "timestamp": timestamp,
    }


def transient(entry: Entry) -> list[Fields]:
    """The frames without `seq` that viewers of the conversation are shown of an event, in order."""
    event = entry.event
    match event:
        case RunStarted():
            frames = [run("started")]
            if event.by == "read":
                frames.insert(0, _read_receipt(event, entry.timestamp))
            return frames
        case RunEnded():
            return [run(STATUSES[event.status], superseded=event.superseded)]
        case RunMoved() if event.superseded:
            return [run("aborted", superseded=event.superseded)]
        case TurnUnassigned() if event.nobody:
            return [_unanswered(event)]
        case FrameCommitted() if event.frame.type == "error" and event.frame.data is not None:
            return [{"type": "error", "data": stored(event.frame.data)}]
        case FrameCommitted() if event.frame.type == "run" and event.frame.status is not None:
            return [run(event.frame.status)]
        case _:
            return []


def _unanswered(event: TurnUnassigned) -> Fields:
    details = {"turnSeq": event.turn_seq, "messageId": event.turn_id, "reason": event.reason}
    return ProtocolError("bot_unavailable", "no agent is there to answer this", details=details).frame()


def run(status: str, *, superseded: tuple[int, ...] = ()) -> Fields:
    """A `run` frame; `superseded`: seqs that viewers may hide, since another process does that part again."""
    data: Fields = {"status": status}
    if superseded:
        data["superseded"] = superseded
    return {"type": "run", "data": data}


def superseded_seqs(entry: Entry) -> Fields | None:
    """Which seqs viewers may hide, for those that asked to be told; they may come before or after this frame."""
    event = entry.event
    if isinstance(event, TurnEdited | TurnRegenerated) and event.superseded:
        return superseded_before(event.superseded)
    if not isinstance(event, RunMoved | RunEnded) or not event.superseded:
        return None
    data = {"run": event.run_id, "runEpoch": event.run_epoch, "seqs": event.superseded}
    return {"type": "superseded", "data": data}


def edited(entry: Entry) -> Fields | None:
    """What a message says now, for those that asked to be told; histories have the new words in its place."""
    event = entry.event
    if not isinstance(event, TurnEdited):
        return None
    said = stored(event.data) if event.data is not None else {"text": event.text or ""}
    return {"type": "edited", "data": {"messageId": event.turn_id, "seq": event.turn_seq, "data": said}}


def superseded_before(seqs: Sequence[int]) -> Fields:
    """As `superseded_seqs`, for a viewer that comes back: of all runs, up to where it was."""
    return {"type": "superseded", "data": {"seqs": seqs}}


def _read_receipt(event: RunStarted, timestamp: int) -> Fields:
    by = {"id": event.group, "role": "bot"}
    data = {"status": "read", "upToSeq": event.turn_seq, "by": by, "timestamp": timestamp}
    return {"type": "deliveryStatus", "data": data}


def ack(client_id: str, *, message_id: str, seq: int, timestamp: int, duplicate: bool = False) -> Fields:
    """The answer to a send that was stored; of a repeat, the first one's. What is not numbered has no `seq`."""
    frame: Fields = {"type": "ack", "clientId": client_id, "id": message_id, "timestamp": timestamp}
    if seq:
        frame["seq"] = seq
    if duplicate:
        frame["duplicate"] = True
    return frame


def turn_of(entry: Entry) -> TurnCommitted:
    """The turn that an entry commits."""
    if not isinstance(entry.event, TurnCommitted):
        raise TypeError(f"{type(entry.event).__name__} is no turn")
    return entry.event


def message_id_of(event: Event) -> str:
    """The id of the message that an event stored."""
    match event:
        case TurnCommitted():
            return event.turn.id
        case FrameCommitted():
            return event.frame.id
        case PersonFrameCommitted():
            return event.frame.id
        case TurnEdited() | TurnRegenerated():
            return event.turn_id
        case ConversationClosed() | ConversationReopened() | ConversationHandedOver() | ConversationHandedBack():
            return event.id
        case ConversationErased():
            return event.id
        case _:
            raise TypeError(f"{type(event).__name__} stores no message")


def is_message(event: FrameCommitted) -> bool:
    """Whether it is one, which has an id, and not a part of a stream or a trace."""
    return event.frame.type not in NOT_MESSAGES


def iso(timestamp: int) -> str:
    """Milliseconds since the epoch as ISO 8601, UTC."""
    return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def object_of(text: str | None) -> Fields:
    """A stored JSON object, {} for none, and for what is none."""
    try:
        value = msgspec.json.decode(text) if text is not None else {}
    except (msgspec.DecodeError, RecursionError):
        return {}  # see `stored`
    return value if isinstance(value, dict) else {}
