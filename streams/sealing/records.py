"""Which parts of a command are words, and which of an event; sealing the one and opening the other.

Words are all that a person, an agent or a caller may write freely: `text`, `data`, `metadata`, `meta`, `extra`, and the
reason why one hands a conversation over or back, cancels a call or refuses a run. What decisions rest on stays plain:
ids, keys, types, senders, times; of an answer to questions, which ones it answers; of an edit, which message it names.
So does what operators alone write, which is about no conversation's words: why they close, move, release or erase. A
field that no store could hold (NUL, a lone surrogate) is sent as one NUL, so that the
sequencer refuses it by its own rule and the rest of it is stored nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from streams.core.commands import (
    CancelRun,
    Command,
    CommitFrame,
    CommitPersonFrame,
    CommitTurn,
    HandBack,
    HandOver,
    OpenConversation,
    RefuseRun,
)
from streams.core.content import Frame, Turn
from streams.core.events import (
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationOpened,
    Entry,
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    RunCancelling,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
)
from streams.core.invocations import RELEASED
from streams.sealing.token import PREFIX, DataKey, NotSealed, key_id_of

TURN_WORDS: Final = ("text", "data", "metadata", "meta")
FRAME_WORDS: Final = ("text", "data", "metadata", "extra")
_REASONS: Final[Mapping[type[Event], str]] = {
    ConversationHandedOver: "reason",
    ConversationHandedBack: "reason",
    RunCancelling: "reason",
    RunEnded: "detail",
}
_NAMING: Final = frozenset({"edit", "regenerate"})
"""Frames of people whose `extra` names the message that they are about."""
_NAMING_WORDS: Final = ("text", "data", "metadata")
UNSTORABLE: Final = "\0"
BUSY: Final = "busy"
"""What gateways have a run refused for where its member names no reason."""
_NEEDED: Final = frozenset(_REASONS.values())
"""Fields that are empty, instead of not there, where nothing was said."""


class Missing(Enum):
    """Why words cannot be shown."""

    ERASED = "[erased]"
    SEALED = "[sealed]"
    """Their key is not to be had here."""


T = TypeVar("T", bound=msgspec.Struct)
KeyOf = Callable[[str], DataKey | Missing]
"""The key of this id."""
Rewording = Callable[[str, str], str | None]
"""A field's name and its words to what stands there instead."""


# --------------------------------------------------------------------------------------------------- seal


def has_words(command: Command) -> bool:
    """Whether there is anything to seal in it: most of what agents send beside messages has nothing."""
    match command:
        case CommitTurn(turn=turn):
            return _any(turn, TURN_WORDS)
        case CommitFrame(frame=frame) | CommitPersonFrame(frame=frame):
            return _any(frame, FRAME_WORDS)
        case OpenConversation(metadata=metadata):
            return metadata is not None
        case HandOver(reason=reason) | HandBack(reason=reason) | CancelRun(reason=reason):
            return bool(reason)
        case RefuseRun(reason=reason):  # which is not to wait for a key where it says what most do
            return reason not in {"", BUSY}
        case _:
            return False


def sealed(command: Command, key: DataKey) -> Command:
    """The command with its words sealed."""
    match command:
        case CommitTurn(turn=turn):
            return replace(command, turn=_sealed(turn, TURN_WORDS, key))
        case CommitPersonFrame(frame=frame) if frame.type == "resume":
            return replace(command, frame=_sealed_answers(frame, key))
        case CommitPersonFrame(frame=frame) if frame.type in _NAMING:
            return replace(command, frame=_sealed(frame, _NAMING_WORDS, key))
        case CommitFrame(frame=frame) | CommitPersonFrame(frame=frame):
            return replace(command, frame=_sealed(frame, FRAME_WORDS, key))
        case OpenConversation() | HandOver() | HandBack() | CancelRun() | RefuseRun():
            return reworded_command(command, lambda _, text: _token(text, key))
        case _:
            return command


def blank(command: Command) -> Command:
    """The command without its words."""
    return reworded_command(command, _erased)


def reworded_command(command: Command, change: Rewording) -> Command:
    """The command with each of its words changed."""
    match command:
        case CommitTurn(turn=turn):
            return replace(command, turn=_reworded(turn, TURN_WORDS, change))
        case CommitFrame(frame=frame) | CommitPersonFrame(frame=frame):
            return replace(command, frame=_reworded(frame, FRAME_WORDS, change))
        case OpenConversation():
            return _reworded(command, ("metadata",), change)
        case HandOver() | HandBack() | CancelRun() | RefuseRun():
            return _reworded(command, ("reason",), change)
        case _:
            return command


def _sealed(record: T, words: Iterable[str], key: DataKey) -> T:
    changed = {name: _token(text, key) for name in words if (text := getattr(record, name)) is not None}
    return replace(record, **changed, key_id=key.id) if changed else record


def _sealed_answers(frame: Frame, key: DataKey) -> Frame:
    """Each answer by itself: the sequencer gives each to the run that asked."""
    document = msgspec.json.decode(frame.data or "{}", type=dict[str, Any])
    answers = document.get("answers")
    if not isinstance(answers, dict):
        return _sealed(frame, FRAME_WORDS, key)  # it will be refused
    tokens = {ask: _token(msgspec.json.encode(answer).decode(), key) for ask, answer in answers.items()}
    rest = _sealed(replace(frame, data=None), FRAME_WORDS, key)
    return replace(rest, data=msgspec.json.encode({"answers": tokens}).decode(), key_id=key.id)


def _token(text: str, key: DataKey) -> str:
    if "\0" in text:
        return UNSTORABLE
    try:
        return key.seal(text)
    except UnicodeEncodeError:
        return UNSTORABLE


def _any(record: Any, words: Iterable[str]) -> bool:
    return any(getattr(record, name) is not None for name in words)


# --------------------------------------------------------------------------------------------------- open


def reason_of(event: Event) -> str | None:
    """The field in which who did this may have said why, in words of their own. What an operator says who releases a
    run is none of them."""
    if isinstance(event, RunEnded) and event.reason == RELEASED:
        return None
    return _REASONS.get(type(event))


def key_ids(entries: Iterable[Entry]) -> Iterator[str]:
    """Ids of the keys that these entries are sealed by, some of them more than once."""
    for entry in entries:
        match entry.event:
            case TurnCommitted(turn=Turn(key_id=str(key_id))):
                yield key_id
            case FrameCommitted(frame=Frame(key_id=str(key_id))):
                yield key_id
            case PersonFrameCommitted(frame=Frame(key_id=str(key_id))):
                yield key_id
            case FrameCommitted(frame=Frame(type="interrupt_resolved", data=str(data))):
                yield from _named(_document(data))
            case ConversationOpened(metadata=str(text)) | TurnEdited(text=str(text)) | TurnEdited(data=str(text)):
                if (named := key_id_of(text)) is not None:
                    yield named
            case RunMoved(resume=str(answers)):
                yield from _named(_document(answers))
            case event if (name := reason_of(event)) and (named := key_id_of(getattr(event, name))) is not None:
                yield named


def key_ids_of(command: Command) -> Iterator[str]:
    """Ids of the keys that a command is sealed by, as `key_ids`."""
    match command:
        case CommitTurn(turn=Turn(key_id=str(key_id))):
            yield key_id
        case CommitFrame(frame=Frame(key_id=str(key_id))) | CommitPersonFrame(frame=Frame(key_id=str(key_id))):
            yield key_id
        case (
            OpenConversation(metadata=str(text))
            | HandOver(reason=text)
            | HandBack(reason=text)
            | CancelRun(reason=text)
            | RefuseRun(reason=text)
        ):
            if (named := key_id_of(text)) is not None:
                yield named


def opened_command(command: Command, key_of: KeyOf) -> Command:
    """The command with its words as they were said; a placeholder where their key is gone."""
    match command:
        case CommitTurn(turn=Turn(key_id=str()) as turn):
            return replace(command, turn=_opened(turn, TURN_WORDS, key_of))
        case CommitFrame(frame=Frame(key_id=str()) as frame):
            return replace(command, frame=_opened(frame, FRAME_WORDS, key_of))
        case CommitPersonFrame(frame=Frame(key_id=str()) as frame):
            return replace(command, frame=_opened_of_person(frame, key_of))
        case OpenConversation() | HandOver() | HandBack() | CancelRun() | RefuseRun():
            return reworded_command(command, partial(opened_text, key_of=key_of))
        case _:
            return command


def opened(entry: Entry, key_of: KeyOf) -> Entry:
    """The entry with its words as they were said; a placeholder where their key is gone."""
    event = _opened_event(entry.event, key_of)
    return entry if event is entry.event else replace(entry, event=event)


def blanked(entry: Entry) -> Entry:
    """The entry as it is shown once its conversation is erased, however it was stored."""
    return reworded(entry, _erased)


def reworded(entry: Entry, change: Rewording) -> Entry:
    """The entry with each of its words changed."""
    event = entry.event
    match event:
        case TurnCommitted(turn=turn):
            return replace(entry, event=replace(event, turn=_reworded(turn, TURN_WORDS, change)))
        case FrameCommitted(frame=frame) | PersonFrameCommitted(frame=frame):
            return replace(entry, event=replace(event, frame=_reworded(frame, FRAME_WORDS, change)))
        case TurnEdited():
            return replace(entry, event=_reworded(event, ("text", "data"), change))
        case ConversationOpened():
            return replace(entry, event=_reworded(event, ("metadata",), change))
        case RunMoved():
            return replace(entry, event=_reworded(event, ("resume",), change))
        case _ if name := reason_of(event):
            return replace(entry, event=_reworded(event, (name,), change))
        case _:
            return entry


def _reworded(record: T, words: Iterable[str], change: Rewording) -> T:
    """A reason that is empty was not given."""
    found = ((name, getattr(record, name)) for name in words)
    changed: dict[str, Any] = {
        name: change(name, text) for name, text in found if text is not None and (text or name not in _NEEDED)
    }
    return replace(record, **changed) if changed else record


def _opened_event(event: Event, key_of: KeyOf) -> Event:  # noqa: PLR0911 -- one branch an event
    match event:
        case TurnCommitted(turn=Turn(key_id=str()) as turn):
            return replace(event, turn=_opened(turn, TURN_WORDS, key_of))
        case FrameCommitted(frame=Frame(key_id=str()) as frame):
            return replace(event, frame=_opened(frame, FRAME_WORDS, key_of))
        case FrameCommitted(frame=Frame(type="interrupt_resolved", data=str(data)) as frame) if any(_document(data)):
            # The sequencer closed a question that had its answer, which stands there as the person's gateway sealed it.
            return replace(event, frame=replace(frame, data=_opened_answers(data, key_of)))
        case PersonFrameCommitted(frame=Frame(key_id=str()) as frame):
            return replace(event, frame=_opened_of_person(frame, key_of))
        case TurnEdited(text=text, data=data) if _is_token(text) or _is_token(data):
            return _reworded(event, ("text", "data"), partial(opened_text, key_of=key_of))
        case ConversationOpened(metadata=metadata) if _is_token(metadata):
            return _reworded(event, ("metadata",), partial(opened_text, key_of=key_of))
        case RunMoved(resume=str(answers)):
            return replace(event, resume=_opened_answers(answers, key_of))
        case _ if (name := reason_of(event)) and _is_token(getattr(event, name)):
            return _reworded(event, (name,), partial(opened_text, key_of=key_of))
        case _:
            return event


def _opened_of_person(frame: Frame, key_of: KeyOf) -> Frame:
    if frame.type != "resume" or _is_token(frame.data):
        return _opened(frame, FRAME_WORDS, key_of)
    rest = _opened(replace(frame, data=None), FRAME_WORDS, key_of)
    return replace(rest, data=_opened_document(frame.data or "{}", key_of))


def opened_text(name: str, text: str, key_of: KeyOf) -> str | None:
    """One field of this name; a placeholder (None where a field may lack) when its key is gone."""
    said = _said(text, key_of)
    if isinstance(said, Missing):
        return _placeholder(name, said)
    return text if said is None else said


def _said(token: str, key_of: KeyOf) -> str | Missing | None:
    """What the token seals; None: it is none, but somebody's own words, which were never sealed."""
    key_id = key_id_of(token)
    if key_id is None:
        return None
    key = key_of(key_id)
    if isinstance(key, Missing):
        return key
    try:
        return key.open(token)
    except NotSealed:
        return None


def _erased(name: str, _: str) -> str | None:
    return _placeholder(name, Missing.ERASED)


def _placeholder(name: str, why: Missing) -> str | None:
    match name:
        case "text" | "reason" | "detail":
            return why.value
        case "data":
            return msgspec.json.encode({"text": why.value}).decode()
        case _:
            return None


def _opened(record: T, words: Iterable[str], key_of: KeyOf) -> T:
    return replace(_reworded(record, words, partial(opened_text, key_of=key_of)), key_id=None)


def _opened_document(data: str, key_of: KeyOf) -> str:
    answers = msgspec.json.decode(data).get("answers", {})
    return msgspec.json.encode({"answers": _opened_each(answers, key_of)}).decode()


def _opened_answers(answers: str, key_of: KeyOf) -> str:
    return msgspec.json.encode(_opened_each(msgspec.json.decode(answers), key_of)).decode()


def _opened_each(answers: dict[str, Any], key_of: KeyOf) -> dict[str, Any]:
    return {ask: _opened_answer(answer, key_of) for ask, answer in answers.items()}


def _opened_answer(answer: Any, key_of: KeyOf) -> Any:
    said = _said(answer, key_of) if isinstance(answer, str) else None
    if isinstance(said, Missing):
        return said.value
    return answer if said is None else msgspec.Raw(said.encode())


def _document(text: str) -> dict[str, Any]:
    """Questions to answers, or the field `answer` of what closed a question; empty where it cannot hold a token."""
    document = msgspec.json.decode(text) if PREFIX in text else None
    return document if isinstance(document, dict) else {}


def _named(document: dict[str, Any]) -> Iterator[str]:
    texts = (text for text in document.values() if isinstance(text, str))
    return (named for text in texts if (named := key_id_of(text)) is not None)


def _is_token(text: str | None) -> bool:
    return text is not None and key_id_of(text) is not None
