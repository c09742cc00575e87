"""What operators' tools show of what was said."""

from __future__ import annotations

import pytest

from ops.shown import hidden_entry, masked_entry
from streams.core.content import Frame, RunStatus, Turn
from streams.core.events import (
    ConversationHandedBack,
    ConversationHandedOver,
    Entry,
    FrameCommitted,
    RunCancelling,
    RunEnded,
    RunMoved,
    TurnCommitted,
    TurnEdited,
    Unknown,
)
from streams.core.invocations import RELEASED
from streams.core.runs import ASK_CLOSED, STREAM_CLOSED, SYSTEM

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "event",
    [
        TurnCommitted(
            Turn(
                id="t", sender="anna", channel="web", type="text", text="a zebra", data='{"a": "zebra"}', meta="zebra"
            ),
            conversation_id="c",
            seq=1,
        ),
        FrameCommitted(
            Frame(id="m", type="buttons", data='{"text": "zebra"}', extra='{"actions": ["zebra"]}'),
            *("bot", "web", "g", "m"),
            conversation_id="c",
            seq=2,
        ),
        TurnEdited(1, "t", "anna", text="a zebra", conversation_id="c"),
        RunMoved("r", 1, "g", "a", "b", 2, "member_left", resume='{"ask": "zebra"}', conversation_id="c"),  # type: ignore[arg-type]
        ConversationHandedOver("desk", "eve", "a zebra is with them", "u", conversation_id="c", seq=3),
        ConversationHandedBack("desk", "the zebra has left", "u", conversation_id="c", seq=4),
        RunCancelling("r", 1, 1, "g", "m", "anna", "the zebra called", conversation_id="c"),
        RunEnded(
            *("r", 1, "g", "m", 1, RunStatus.CANCELLED, "cancelled"),
            by="anna",
            detail="the zebra called",
            conversation_id="c",
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_of_it_is_shown_but_how_long_it_is(event: object) -> None:
    entry = Entry(1, 0, 0, 1, event)  # type: ignore[arg-type]
    assert "zebra" in str(entry)
    shown = str(masked_entry(entry))
    assert "zebra" not in shown
    assert " characters)" in shown
    assert "zebra" not in str(hidden_entry(entry)), "of an erased conversation, whether it was sealed or not"


def closing(data: str, *, sender: str = SYSTEM) -> Entry:
    frame = Frame(id="m", type="interrupt_resolved", data=data)
    return Entry(1, 0, 0, 1, FrameCommitted(frame, sender, "web", "g", "m", conversation_id="c", seq=2))


def test_a_question_that_the_writer_closes_with_an_answer_shows_nothing_of_the_answer() -> None:
    shown = masked_entry(closing('{"answer":"zebra"}')).event
    assert isinstance(shown, FrameCommitted)
    assert shown.frame.data == "(18 characters)"


@pytest.mark.parametrize("data", [STREAM_CLOSED, ASK_CLOSED])
def test_what_the_writer_closes_without_a_word_of_anybody_is_told_as_it_is(data: str) -> None:
    assert masked_entry(closing(data)) == hidden_entry(closing(data)) == closing(data)
    assert masked_entry(closing(data, sender="bot")) != closing(data, sender="bot")


@pytest.mark.parametrize(
    "event",
    [
        ConversationHandedBack("desk", "", "u", conversation_id="c", seq=4),
        RunEnded("r", 1, "g", "m", 1, RunStatus.OWNER_GONE, RELEASED, by="op", detail="why: its pod is deleted"),
    ],
    ids=["no reason", "an operator's proof"],
)
def test_where_nobody_said_anything_nothing_is_masked(event: object) -> None:
    entry = Entry(1, 0, 0, 1, event)  # type: ignore[arg-type]
    assert masked_entry(entry) == entry


def test_of_an_event_of_a_later_release_all_may_be_words() -> None:
    entry = Entry(1, 0, 0, 1, Unknown("SomethingNew", b"a zebra", conversation_id="c", seq=9))
    shown = masked_entry(entry).event
    assert shown == Unknown("SomethingNew", b"", conversation_id="c", seq=9)
