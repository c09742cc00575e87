"""Journal entries told to a person: who said what, who owned it, when it moved and why it ended."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ops.cli.common import printable, told_time
from ops.pieces import piece_of
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationMoved,
    ConversationOpened,
    ConversationReopened,
    Duplicate,
    Entry,
    Event,
    FrameCommitted,
    OwnerChanged,
    PersonFrameCommitted,
    Refused,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    TurnUnassigned,
)
from streams.core.runs import ASK_CLOSED, STREAM_CLOSED

TEXT_SHOWN = 160
LEFT_OPEN: Final = {("genui", STREAM_CLOSED): "a stream", ("interrupt_resolved", ASK_CLOSED): "a question"}
"""What the writer says in the name of a member that lost its run: told as the member's own, the dead would speak."""


def sentence(event: Event) -> str:  # noqa: C901, PLR0911, PLR0912 -- one branch an event
    """What happened, in one line."""
    match event:
        case TurnCommitted():
            return _turn(event)
        case FrameCommitted():
            return _frame(event)
        case OwnerChanged():
            return f"the owner in {event.group} changes from {event.previous} to {event.owner} ({event.reason})"
        case RunOpened():
            return f"turn {event.turn_seq} is given to {event.member} in {event.group}"
        case RunStarted():
            return f"{event.member} works on turn {event.turn_seq} (by its `{event.by}` frame)"
        case RunMoved():
            how = "adopted by" if event.adopted else "continued by" if event.continued else "moves to"
            dropped = f"; superseded: {_listed(event.superseded)}" if event.superseded else ""
            to = event.to_member or "nobody yet"
            return (
                f"turn {event.turn_seq} {how} {to} from {event.from_member or 'nobody'} in {event.group} "
                f"(epoch {event.run_epoch}, {event.reason}){dropped}"
            )
        case RunEnded():
            return f"turn {event.turn_seq} is {event.status} in {event.group} by {event.member} ({event.reason})"
        case TurnUnassigned():
            return _unassigned(event)
        case Refused():
            return f"refused as {event.reason}: {event.detail}" + (f" (from {event.member})" if event.member else "")
        case Duplicate():
            return f"a repeat of seq {event.of_seq} (key {event.key})"
        case ConversationOpened():
            return f"the conversation is opened in channel {event.channel} by {event.participant or 'someone'}"
        case ConversationClosed() | ConversationReopened():
            done = "closed" if isinstance(event, ConversationClosed) else "reopened"
            return f"the conversation is {done} by {event.by}"
        case ConversationHandedOver():
            return f"{event.by} hands the conversation to {event.to}: no agent is heard ({event.reason})"
        case ConversationHandedBack():
            return f"{event.by} gives the conversation back to agents ({event.reason})"
        case ConversationErased():
            return f"{event.by} erases the conversation: the keys of its words are destroyed ({event.reason})"
        case ConversationMoved():
            return _operator_moved(event)
        case PersonFrameCommitted() | TurnEdited() | TurnRegenerated():
            return _person(event)
        case _:
            return type(event).__name__


def _turn(event: TurnCommitted) -> str:
    given = [f"{each.member or 'the first to join'} in {each.group}" for each in event.assigned]
    if event.joins_run:
        given.append(f"the run of turn {_turn_of(event.joins_run)}, which asked")
    waits = f"; waits for an agent of {', '.join(event.waiting)}" if event.waiting else ""
    to = f" → {', '.join(given)}" if given else ""
    return f"{event.turn.sender} says: {_short(event.turn.text or event.turn.data or event.turn.type)}{to}{waits}"


def _person(event: PersonFrameCommitted | TurnEdited | TurnRegenerated) -> str:
    if isinstance(event, PersonFrameCommitted):
        given = [f"{each.member} in {each.group}" for each in event.to]
        return f"{event.sender} sends {event.frame.type}" + (f" → {', '.join(given)}" if given else "")
    dropped = f"; superseded: {_listed(event.superseded)}" if event.superseded else ""
    if isinstance(event, TurnEdited):
        return f"{event.by} changes turn {event.turn_seq} to: {_short(event.text or event.data or '')}{dropped}"
    return f"{event.by} wants another answer to turn {event.turn_seq}{dropped}"


def _operator_moved(event: ConversationMoved) -> str:
    if event.to is not None:
        return f"{event.by} moves the conversation to {event.to} in {event.group} ({event.reason})"
    return f"{event.by} releases the conversation{f' in {event.group}' if event.group else ''} ({event.reason})"


def _unassigned(event: TurnUnassigned) -> str:
    alone = ", nor does anybody else" if event.nobody else ""
    return f"nobody of {event.channel} gets turn {event.turn_seq}{alone} ({event.reason})"


def _frame(event: FrameCommitted) -> str:
    frame, by = event.frame, event.member or event.sender
    if left_open := LEFT_OPEN.get((frame.type, frame.data or "")):
        return f"{left_open} that {by} left open is closed (run of turn {_turn_of(event.run_id)})"
    of = f" (run of turn {_turn_of(event.run_id)}, epoch {event.run_epoch})" if event.run_id else ""
    piece = "" if frame.type != "genui" else piece_of(frame.data)
    return f"{by} sends {frame.type}{of}: {_short(frame.text or piece or frame.data or frame.status or '')}"


def _turn_of(run_id: str | None) -> str:
    """The turn's seq in a run's id, `<conversation>/<seq>/<group>`; a group may hold slashes, a seq is digits."""
    return next(
        (part for part in (each.partition("~")[0] for each in (run_id or "").split("/")[1:]) if part.isdecimal()), "?"
    )


def _listed(seqs: tuple[int, ...]) -> str:
    return ", ".join(map(str, seqs)) if len(seqs) < 8 else f"{len(seqs)} frames, {min(seqs)} to {max(seqs)}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= TEXT_SHOWN else f"{flat[: TEXT_SHOWN - 1]}…"


def line(entry: Entry) -> str:
    """An entry as one line: wall clock, lsn, seq, what happened."""
    seq = entry.event.seq or ""
    return printable(f"{told_time(entry.timestamp)}  lsn {entry.lsn:<6} seq {seq!s:<4} {sentence(entry.event)}")


def document(entry: Entry) -> dict[str, Any]:
    """An entry as JSON-ready values: the envelope's fields, the event's name, and its own fields."""
    fields = msgspec.to_builtins(entry.event)
    return {
        "lsn": entry.lsn,
        "at": entry.at,
        "timestamp": entry.timestamp,
        "writer_epoch": entry.writer_epoch,
        "event": type(entry.event).__name__,
        **fields,
    }
