"""What each frame that viewers are shown says, as types: `viewed.seen`.

    async for viewed in conversation.frames():
        match viewed.seen:
            case seen.Edited(seq=seq, text=text):
                show_anew(seq, text)
            case seen.Typing(who=who, typing=True):
                show_pencil(who)

A frame of a type that this release does not know, or one without what its type needs, says nothing: None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from turnlog.errors import TurnlogError, error_of
from turnlog.wire import Frame


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody. `role`: `user`, `bot`, `agent` or `system`."""

    id: str
    role: str


# ----------------------------------------------------------------------------------------- with a place in the log
@dataclass(frozen=True, slots=True)
class Said:
    """A whole message. `text`: of any type that has one, else ``""``."""

    id: str
    who: Who
    type: str
    text: str
    data: Mapping[str, Any]
    reply_to: str | None = None
    actions: tuple[Frame, ...] = ()
    """Quick replies: `{label, value?, url?}`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    edited_at: int | None = None
    """When what it says was last edited before it was shown here, ms since the epoch; `Edited` says what is later."""


@dataclass(frozen=True, slots=True)
class Piece:
    """More of a streamed text. `done`: its last one, whose text may be empty."""

    stream: str
    text: str
    done: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A component on the screen, or what its props are now."""

    stream: str
    component: str
    props: Mapping[str, Any]
    done: bool


@dataclass(frozen=True, slots=True)
class ToolUsed:
    """How far a tool's call is: `status` is `running`, `completed` or `error`."""

    id: str
    name: str
    status: str
    params: Any = None
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SkillUsed:
    """A skill was `loaded`, or could not be (`error`). `source`: `server` or `client`."""

    name: str
    status: str
    source: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the person that is open."""

    id: str
    payload: Any = None
    actions: tuple[Frame, ...] = ()
    """The answers that it offers: `{label, value}`."""


@dataclass(frozen=True, slots=True)
class AskOver:
    """A question is over. `answer` None: nobody answered it."""

    id: str
    answer: Any = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened. `text`: what clients show that do not know `name`."""

    name: str
    text: str | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Changed:
    """The conversation was closed, reopened, handed to a human (`to`), or back."""

    event: str
    status: str | None = None
    reason: str | None = None
    to: str | None = None


# ------------------------------------------------------------------------------------------------ shown once, or never
@dataclass(frozen=True, slots=True)
class Running:
    """A run is `started`, `interrupted`, `finished`, `aborted` or failed (`error`). `superseded`: see there."""

    status: str
    superseded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Typing:
    """Somebody writes, or no longer."""

    who: Who | None
    typing: bool


@dataclass(frozen=True, slots=True)
class Presence:
    """Somebody came or went: `online`, `away` or `offline`."""

    who: Who
    status: str
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Messages up to `upto` (or the one called `message`) were `delivered`, or `read` by somebody."""

    status: str
    upto: int
    message: str | None = None
    by: Who | None = None
    channel: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An agent failed, or none is there to answer."""

    error: TurnlogError


@dataclass(frozen=True, slots=True)
class Edited:
    """A message that was shown at `seq` says something else now."""

    message: str
    seq: int
    text: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Superseded:
    """What was shown at these numbers, or is to come there, may be hidden: it is answered anew."""

    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What an agent has to offer: its `genui_components` or `skills`. `unchanged`: as it was under this hash."""

    kind: str
    hash: str
    entries: tuple[Frame, ...] = ()
    unchanged: bool = False


Seen: TypeAlias = (
    Said
    | Piece
    | Shown
    | ToolUsed
    | SkillUsed
    | Ask
    | AskOver
    | Notice
    | Changed
    | Running
    | Typing
    | Presence
    | Receipt
    | Failure
    | Edited
    | Superseded
    | Catalog
)


def seen_in(kind: str, frame: Frame) -> Seen | None:
    """What a frame of this type says; see the module."""
    try:
        read = _READ.get(kind)
        return read(frame) if read is not None else _said(kind, frame)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # it lacks what its type needs: no more is known of it than of an unknown one


def ask_in(frame: Frame) -> Ask:
    """The question of an `interrupt`, or of one that a welcome tells again."""
    data = _object(frame.get("data"))
    return Ask(str(frame.get("id")), data.get("payload"), _objects(data.get("actions")))


def edited_in(frame: Frame) -> Edited:
    """What an `edited` frame says."""
    told = frame["data"]
    data = _object(told.get("data"))
    return Edited(str(told["messageId"]), int(told["seq"]), text_of(data), data)


def text_of(data: Frame) -> str:
    """The plain text of a message's data, whatever its type."""
    return next((data[key] for key in ("text", "caption", "title", "name") if isinstance(data.get(key), str)), "")


def _said(kind: str, frame: Frame) -> Said | None:
    data = frame["data"]
    if not isinstance(data, dict) or "from" not in frame:
        return None
    return Said(
        id=str(frame["id"]),
        who=_who(frame.get("sender")) or Who("", str(frame["from"])),
        type=kind,
        text=text_of(data),
        data=data,
        reply_to=_string(_object(frame.get("replyTo")).get("id")),
        actions=_objects(frame.get("actions")),
        metadata=_object(frame.get("metadata")),
        edited_at=frame["editedAt"] if isinstance(frame.get("editedAt"), int) else None,
    )


def _chunk(frame: Frame) -> Piece | Shown:
    chunk, stream, done = _object(frame.get("chunk")), str(frame["streamId"]), frame.get("done") is True
    if chunk.get("type") == "ui":
        return Shown(stream, str(chunk["component"]), _object(chunk.get("props")), done)
    return Piece(stream, str(chunk.get("content", "")) if chunk.get("type") == "text" else "", done)


def _tool(frame: Frame) -> ToolUsed:
    data = frame["data"]
    return ToolUsed(
        str(data["id"]),
        str(data["name"]),
        str(data["status"]),
        data.get("params"),
        data.get("result"),
        _string(data.get("error")),
    )


def _skill(frame: Frame) -> SkillUsed:
    data = frame["data"]
    return SkillUsed(str(data["name"]), str(data["status"]), _string(data.get("source")), _string(data.get("error")))


def _notice(frame: Frame) -> Notice:
    data = frame["data"]
    return Notice(str(data.get("name", "")), _string(data.get("text")), data.get("value"))


def _changed(frame: Frame) -> Changed:
    data = frame["data"]
    return Changed(
        str(data["event"]), _string(data.get("status")), _string(data.get("reason")), _string(data.get("to"))
    )


def _running(frame: Frame) -> Running:
    data = frame["data"]
    return Running(str(data["status"]), tuple(int(seq) for seq in data.get("superseded", ())))


def _presence(frame: Frame) -> Presence:
    data = frame["data"]
    who = _who(data["participant"])
    if who is None:
        raise ValueError("participant")
    return Presence(who, str(data["status"]), data.get("connections"))


def _receipt(frame: Frame) -> Receipt:
    data = frame["data"]
    upto = int(data["upToSeq"] if "upToSeq" in data else data["seq"])
    return Receipt(
        str(data["status"]), upto, _string(data.get("activityId")), _who(data.get("by")), _string(data.get("channelId"))
    )


def _catalog(frame: Frame) -> Catalog:
    entries = frame.get("components" if frame["type"] == "genui_components" else "skills")
    return Catalog(str(frame["type"]), str(frame["hash"]), _objects(entries), frame.get("unchanged") is True)


_READ: Mapping[str, Callable[[Frame], Seen]] = {
    "genui": _chunk,
    "tool_call": _tool,
    "skill": _skill,
    "interrupt": ask_in,
    "interrupt_resolved": lambda frame: AskOver(str(frame["id"]), _object(frame.get("data")).get("answer")),
    "event": _notice,
    "conversationUpdate": _changed,
    "run": _running,
    "typing": lambda frame: Typing(_who(frame.get("sender")), frame["isTyping"] is True),
    "presence": _presence,
    "deliveryStatus": _receipt,
    "error": lambda frame: Failure(error_of(frame["data"])),
    "edited": edited_in,
    "superseded": lambda frame: Superseded(tuple(int(seq) for seq in frame["data"]["seqs"])),
    "genui_components": _catalog,
    "skills": _catalog,
}


def _who(value: object) -> Who | None:
    sender = _object(value)
    return Who(str(sender["id"]), str(sender.get("role", ""))) if "id" in sender else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> tuple[Frame, ...]:
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
