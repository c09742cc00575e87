"""What of a command is sealed, and that an entry opens to what was said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
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
    ReleaseRun,
)
from streams.core.content import Frame, RefusedReason, RunStatus, Turn
from streams.core.draft import Draft
from streams.core.events import (
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationOpened,
    Entry,
    Event,
    FrameCommitted,
    MoveReason,
    PersonFrameCommitted,
    RunCancelling,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
)
from streams.core.limits import CHECKPOINT_MAX_BYTES, TEXT_MAX_BYTES, problem_of_checkpoint, problem_of_turn
from streams.core.runs import close_open_work
from streams.core.state import Conversation, Progress, Run
from streams.sealing.records import (
    Missing,
    blank,
    blanked,
    has_words,
    key_ids,
    key_ids_of,
    opened,
    opened_command,
    sealed,
)
from streams.sealing.token import new_key

pytestmark = pytest.mark.unit

KEY = new_key("c1")
SECRET = "the zebra's name is Björn"
STAMPS: dict[str, Any] = {"at": 0, "timestamp": 0}
TURN = Turn(
    id="t1", sender="anna", channel="web", type="text", text=SECRET, data=json.dumps({"a": SECRET}), metadata="{}"
)
FRAME = Frame(id="m1", type="buttons", text=SECRET, extra=json.dumps({"actions": [SECRET]}))


def commit(frame: Frame) -> CommitFrame:
    return CommitFrame(
        **STAMPS, conversation_id="c1", frame=frame, sender="bot", channel="web", group="g", member="m", gateway="gw"
    )


def of_person(frame: Frame) -> CommitPersonFrame:
    return CommitPersonFrame(**STAMPS, conversation_id="c1", frame=frame, sender="anna", channel="web")


def entry(event: Event) -> Entry:
    return Entry(1, 0, 0, 1, event)


def opened_event(event: Event) -> Event:
    assert set(key_ids([entry(event)])) == {KEY.id}
    return opened(entry(event), {KEY.id: KEY}.__getitem__).event


def said(text: str) -> list[Command]:
    """A command of each kind in which somebody says `text`."""
    place: dict[str, Any] = {**STAMPS, "conversation_id": "c1"}
    return [
        CommitTurn(**place, turn=replace(TURN, text=text)),
        commit(replace(FRAME, text=text)),
        of_person(replace(FRAME, text=text, type="survey")),
        of_person(Frame(id="f", type="resume", data=msgspec.json.encode({"answers": {"a": {"text": text}}}).decode())),
        of_person(Frame(id="f", type="resume", data='{"answers":"zebra"}')),  # it will be refused
        of_person(Frame(id="f", type="edit", text=text, extra='{"messageId": "t1"}')),
        OpenConversation(**place, channel="web", metadata=json.dumps({"name": text})),
        HandOver(**place, by="desk", to="eve", reason=text, id="u"),
        HandBack(**place, by="desk", reason=text, id="u"),
        CancelRun(**place, run_id="r", by="anna", reason=text),
        RefuseRun(**place, run_id="r", run_epoch=1, member="m", reason=text),
    ]


def named(command: Command) -> str:
    return type(command).__name__


EACH = pytest.mark.parametrize("command", said(SECRET), ids=named)


@EACH
def test_a_sealed_command_opens_as_it_was(command: Command) -> None:
    token = sealed(command, KEY)
    assert set(key_ids_of(token)) == {KEY.id}
    assert opened_command(token, {KEY.id: KEY}.__getitem__) == command
    assert list(key_ids_of(command)) == []
    assert opened_command(command, lambda _: Missing.SEALED) == command


@EACH
@pytest.mark.parametrize("missing", list(Missing))
def test_of_a_command_whose_key_is_gone_nothing_is_shown(command: Command, missing: Missing) -> None:
    shown = str(opened_command(sealed(command, KEY), lambda _: missing))
    assert "zebra" not in shown
    assert "tls1:" not in shown


@EACH
def test_of_what_is_said_in_an_erased_conversation_nothing_is_left(command: Command) -> None:
    assert "zebra" not in str(blank(command))


REASONS = [
    ConversationHandedOver("desk", "eve", SECRET, "u", conversation_id="c1", seq=3),
    ConversationHandedBack("desk", SECRET, "u", conversation_id="c1", seq=4),
    RunCancelling("r", 1, 1, "g", "m", "anna", SECRET, conversation_id="c1"),
    RunEnded("r", 1, "g", "m", 1, RunStatus.CANCELLED, "cancelled", detail=SECRET, conversation_id="c1"),
]


@pytest.mark.parametrize("event", REASONS, ids=lambda event: type(event).__name__)
def test_why_somebody_did_it_opens_in_its_event_and_is_gone_once_erased(event: Any) -> None:
    field = "detail" if isinstance(event, RunEnded) else "reason"
    stored = replace(event, **{field: KEY.seal(SECRET)})
    assert opened_event(stored) == event
    assert getattr(opened(entry(stored), lambda _: Missing.ERASED).event, field) == "[erased]"
    assert getattr(blanked(entry(event)).event, field) == "[erased]"
    nothing = replace(event, **{field: ""})
    assert blanked(entry(nothing)).event == nothing
    assert list(key_ids([entry(nothing)])) == []


def test_no_reason_needs_no_key_and_an_operators_proof_stays() -> None:
    place: dict[str, Any] = {**STAMPS, "conversation_id": "c1"}
    assert not has_words(HandBack(**place, by="desk", reason="", id="u"))
    assert not has_words(RefuseRun(**place, run_id="r", run_epoch=1, member="m", reason="busy"))
    release = ReleaseRun(**place, run_id="r", by="op", reason="late", proof="its pod is deleted")
    assert not has_words(release)
    assert sealed(release, KEY) == release
    ended = RunEnded("r", 1, "g", "m", 1, RunStatus.OWNER_GONE, "released", detail="late: its pod is deleted")
    assert blanked(entry(ended)).event == ended


@EACH
def test_nothing_that_was_said_is_left_in_a_sealed_command(command: Command) -> None:
    assert has_words(command)
    assert "zebra" in str(command)
    assert "zebra" not in str(sealed(command, KEY))


@pytest.mark.parametrize("type_", ["read", "run", "interrupt_resolved"])
def test_what_says_nothing_needs_no_key(type_: str) -> None:
    command = commit(Frame(id="f", type=type_, status="finished"))
    assert not has_words(command)
    assert sealed(command, KEY) == command


def test_a_turn_opens_as_it_was_said() -> None:
    command = sealed(CommitTurn(**STAMPS, conversation_id="c1", turn=TURN), KEY)
    assert isinstance(command, CommitTurn)
    assert command.turn.key_id == KEY.id
    event = TurnCommitted(command.turn, conversation_id="c1", seq=1)
    assert opened_event(event) == replace(event, turn=TURN)


def test_a_frame_opens_as_it_was_said() -> None:
    command = sealed(commit(FRAME), KEY)
    assert isinstance(command, CommitFrame)
    event = FrameCommitted(command.frame, "bot", "web", "g", "m", conversation_id="c1", seq=2)
    assert opened_event(event) == replace(event, frame=FRAME)


def test_answers_are_sealed_one_by_one_and_their_questions_stay_plain() -> None:
    said = {"answers": {"ask-1": {"text": SECRET}, "ask-2": "yes"}}
    command = sealed(of_person(Frame(id="f", type="resume", data=json.dumps(said))), KEY)
    assert isinstance(command, CommitPersonFrame)
    document = json.loads(command.frame.data or "")
    assert list(document["answers"]) == ["ask-1", "ask-2"]
    event = PersonFrameCommitted(command.frame, "anna", "web", conversation_id="c1")
    found = opened_event(event)
    assert isinstance(found, PersonFrameCommitted)
    assert json.loads(found.frame.data or "") == said
    moved = RunMoved(
        "r", 1, "g", "a", "b", 2, MoveReason.MEMBER_LEFT, resume=json.dumps(document["answers"]), conversation_id="c1"
    )
    again = opened_event(moved)
    assert isinstance(again, RunMoved)
    assert json.loads(again.resume or "") == said["answers"]


def test_an_answer_in_the_frame_by_which_the_sequencer_closes_its_question_opens() -> None:
    said = {"answers": {"ask-1": {"text": SECRET}}}
    command = sealed(of_person(Frame(id="f", type="resume", data=json.dumps(said))), KEY)
    assert isinstance(command, CommitPersonFrame)
    state = Conversation("c1", "web", head=5)
    asked = Run("r", 1, "t1", "g", "m", 0)
    answer = json.dumps(json.loads(command.frame.data or "")["answers"]["ask-1"])
    asked.progress = Progress(active_at=0, answers={"ask-1": (4, answer)}, asks={"ask-2": 3})
    draft = Draft()
    close_open_work(draft, state, asked)
    nobodys, answered = draft.events
    assert opened(entry(nobodys), lambda _: Missing.SEALED).event is nobodys
    shown = opened_event(answered)
    assert isinstance(shown, FrameCommitted)
    assert json.loads(shown.frame.data or "") == {"answer": {"text": SECRET}}
    gone = opened(entry(answered), lambda _: Missing.ERASED).event
    assert isinstance(gone, FrameCommitted)
    assert json.loads(gone.frame.data or "") == {"answer": Missing.ERASED.value}


@pytest.mark.parametrize("data", ['["tls1:0123456789abcdef:x"]', '{"said": "tls1: is a prefix"}', "null"])
def test_what_an_agent_says_of_a_question_in_the_open_stays_as_it_is(data: str) -> None:
    event = FrameCommitted(Frame(id="a", type="interrupt_resolved", data=data), "bot", "web", "g", "m", seq=2)
    found = opened(entry(event), lambda _: Missing.SEALED).event
    assert isinstance(found, FrameCommitted)
    assert json.loads(found.frame.data or "") == json.loads(data)


def test_an_edit_says_which_message_it_is_of_and_its_event_opens() -> None:
    command = sealed(of_person(Frame(id="f", type="edit", text=SECRET, extra='{"messageId": "t1"}')), KEY)
    assert isinstance(command, CommitPersonFrame)
    assert command.frame.extra == '{"messageId": "t1"}'
    edited = opened_event(TurnEdited(1, "t1", "anna", text=command.frame.text, conversation_id="c1"))
    assert isinstance(edited, TurnEdited)
    assert edited.text == SECRET


def test_what_a_conversation_was_opened_with_opens() -> None:
    opening = OpenConversation(**STAMPS, conversation_id="c1", channel="web", metadata='{"name": "Anna"}')
    command = sealed(opening, KEY)
    assert isinstance(command, OpenConversation)
    found = opened_event(ConversationOpened("web", conversation_id="c1", metadata=command.metadata))
    assert isinstance(found, ConversationOpened)
    assert found.metadata == opening.metadata


@pytest.mark.parametrize("missing", list(Missing))
def test_where_the_key_is_gone_a_placeholder_stands(missing: Missing) -> None:
    command = sealed(CommitTurn(**STAMPS, conversation_id="c1", turn=TURN), KEY)
    assert isinstance(command, CommitTurn)
    found = opened(entry(TurnCommitted(command.turn, conversation_id="c1", seq=1)), lambda _: missing).event
    assert isinstance(found, TurnCommitted)
    assert found.turn.text == missing.value
    assert json.loads(found.turn.data or "") == {"text": missing.value}
    assert (found.turn.metadata, found.turn.id) == (None, "t1")


def test_what_was_stored_plain_is_given_as_it_is() -> None:
    stored = entry(TurnCommitted(TURN, conversation_id="c1", seq=1))
    assert opened(stored, lambda _: Missing.SEALED) is stored
    assert not list(key_ids([stored]))


def test_words_that_only_look_sealed_are_given_as_they_were_said() -> None:
    look_alike = KEY.seal("x")[:-4] + "AAAA"
    event = TurnEdited(1, "t1", "anna", text=look_alike, conversation_id="c1")
    assert opened_event(event) == event


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_text_that_cannot_be_stored_is_refused_by_the_core_without_the_rest_of_it(text: str) -> None:
    command = sealed(CommitTurn(**STAMPS, conversation_id="c1", turn=replace(TURN, text=f"{SECRET}{text}")), KEY)
    assert isinstance(command, CommitTurn)
    assert "zebra" not in str(command)
    assert (problem_of_turn(command.turn) or [None])[0] is RefusedReason.INVALID_TEXT


def test_limits_hold_for_what_is_sealed_as_for_what_is_not() -> None:
    def of(size: int) -> Turn:
        command = sealed(CommitTurn(**STAMPS, conversation_id="c1", turn=Turn(**_plain(), text="ä" * (size // 2))), KEY)
        assert isinstance(command, CommitTurn)
        return command.turn

    assert problem_of_turn(of(TEXT_MAX_BYTES)) is None
    assert (problem_of_turn(of(TEXT_MAX_BYTES + 4)) or [None])[0] is RefusedReason.TEXT_TOO_LARGE


def test_a_checkpoint_may_be_as_large_sealed_as_plain() -> None:
    def of(size: int) -> Frame:
        command = sealed(commit(Frame(id="k", type="checkpoint", data="x" * size)), KEY)
        assert isinstance(command, CommitFrame)
        return command.frame

    assert problem_of_checkpoint(of(CHECKPOINT_MAX_BYTES)) is None
    assert problem_of_checkpoint(of(CHECKPOINT_MAX_BYTES + 4)) is not None


def _plain() -> dict[str, Any]:
    return {"id": "t1", "sender": "anna", "channel": "web", "type": "text"}
