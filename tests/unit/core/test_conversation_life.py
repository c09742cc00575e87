"""Rule 10 and the sizes of rule 9: open, close, reopen, and what is refused from people."""

from __future__ import annotations

import json

import pytest

from streams.core.commands import ApplyConfig, OpenConversation
from streams.core.events import (
    ConversationClosed,
    ConversationOpened,
    ConversationReopened,
    Duplicate,
    Event,
    FrameCommitted,
    Refused,
    RefusedReason,
    RunEnded,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from streams.core.limits import ID_MAX_BYTES, RECORD_MAX_BYTES, TEXT_MAX_BYTES
from tests.support.partition_world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", settle=True)
    return world


def reason(events: list[Event]) -> RefusedReason:
    [event] = events
    assert isinstance(event, Refused)
    return event.reason


def test_opening_is_one_unnumbered_event(world: World) -> None:
    [opened] = world.open(key="k", ref="r")
    assert opened == ConversationOpened(conversation_id="c", channel="web", key="k", ref="r")


@pytest.mark.parametrize("channel", ["nowhere", "shut"])
def test_an_unknown_or_inactive_channel_is_refused(world: World, channel: str) -> None:
    assert reason(world.open(channel=channel)) is RefusedReason.CHANNEL_UNKNOWN


def test_a_turn_of_a_channel_that_was_switched_off_is_refused(world: World) -> None:
    world.open()
    text = json.dumps({"version": 2, "channels": [{"id": "web", "active": False}]})
    world.do(ApplyConfig(at=world.at, timestamp=world.wall, version=2, document=text))
    assert reason(world.say()) is RefusedReason.CHANNEL_UNKNOWN


@pytest.mark.parametrize("id_", ["", "x" * (ID_MAX_BYTES + 1), "é" * (ID_MAX_BYTES // 2 + 1), "a\0b"])
def test_an_impossible_conversation_id_is_refused(world: World, id_: str) -> None:
    assert reason(world.open(id_)) is RefusedReason.INVALID_TEXT


def test_a_turn_to_an_unknown_conversation_is_refused(world: World) -> None:
    [refused] = world.say(id_="nowhere", ref="r")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.ref) == (RefusedReason.CONVERSATION_NOT_FOUND, "r")
    assert reason(world.close("nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND
    assert reason(world.reopen("nowhere")) is RefusedReason.CONVERSATION_NOT_FOUND


def test_close_ends_open_runs_first(world: World) -> None:
    world.open()
    world.say()
    world.chunk("a", "s", delivered=1)
    closing, ended, closed = world.close()
    assert isinstance(closing, FrameCommitted)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.CANCELLED, "closed")
    assert isinstance(closed, ConversationClosed)
    assert (closed.seq, closed.id, closed.by) == (4, "close-c", "ann")


def test_a_closed_conversation_takes_no_turn_until_it_is_reopened(world: World) -> None:
    world.open()
    world.close()
    assert reason(world.say()) is RefusedReason.CONVERSATION_CLOSED
    [reopened] = world.reopen()
    assert reopened == ConversationReopened(conversation_id="c", seq=2, by="ann", id="reopen-c")
    assert isinstance(world.say()[-1], TurnCommitted)


def test_a_frame_of_a_run_that_the_close_ended_is_fenced(world: World) -> None:
    world.open()
    world.say()
    world.read("a", 1)
    world.close()
    assert reason(world.send("a", run="c/1/agents/support")) is RefusedReason.FENCED


def test_close_ends_the_turns_that_wait() -> None:
    world = World()
    world.open()
    world.say()
    world.close()
    world.reopen()
    world.join("a")
    assert not world.of(RunOpened)
    assert not world.state.waiting


def test_closing_twice_and_reopening_an_open_one_are_repeats(world: World) -> None:
    world.open()
    [never] = world.reopen()
    assert isinstance(never, Duplicate)
    assert (never.of_seq, never.id) == (0, "c")
    world.close()
    [again] = world.close()
    assert isinstance(again, Duplicate)
    assert (again.of_seq, again.id, again.key) == (1, "close-c", "close")
    world.reopen()
    [again] = world.reopen()
    assert isinstance(again, Duplicate)
    assert (again.of_seq, again.id) == (2, "reopen-c")


class TestContent:
    @pytest.fixture
    def world(self, world: World) -> World:
        world.open()
        return world

    def test_a_text_over_64_kib_counts_in_bytes(self, world: World) -> None:
        assert reason(world.say("é" * (TEXT_MAX_BYTES // 2 + 1))) is RefusedReason.TEXT_TOO_LARGE
        assert isinstance(world.say("é" * (TEXT_MAX_BYTES // 2))[0], TurnCommitted)

    def test_a_record_over_384_kib(self, world: World) -> None:
        assert reason(world.say(data="x" * RECORD_MAX_BYTES)) is RefusedReason.RECORD_TOO_LARGE
        assert isinstance(world.say(data="x" * (RECORD_MAX_BYTES - 1000))[0], TurnCommitted)

    @pytest.mark.parametrize("field", ["text", "key", "sender", "metadata", "client_id", "reply_to", "type"])
    @pytest.mark.parametrize("bad", ["a\0b", "half \ud83d"])
    def test_text_that_a_store_cannot_hold_names_its_field(self, world: World, field: str, bad: str) -> None:
        [event] = world.say(**{"text": "ok", "id": "t-1", field: bad})
        assert isinstance(event, Refused)
        assert event.reason is RefusedReason.INVALID_TEXT
        assert event.detail.startswith(f"{field}:")

    @pytest.mark.parametrize("text", ["\\u0000", "\uffff", "👍🏽", "e\u0301" * 1000])
    def test_what_only_looks_dangerous_is_unchanged(self, world: World, text: str) -> None:
        [turn] = world.say(text)
        assert isinstance(turn, TurnCommitted)
        assert turn.turn.text == text

    @pytest.mark.parametrize("field", ["id", "sender", "type", "key", "client_id"])
    @pytest.mark.parametrize("bad", ["", "x" * (ID_MAX_BYTES + 1), "é" * (ID_MAX_BYTES // 2 + 1)])
    def test_an_id_is_neither_empty_nor_endless(self, world: World, field: str, bad: str) -> None:
        [event] = world.say(**{field: bad})
        assert isinstance(event, Refused)
        assert event.detail.startswith(f"{field}:")

    def test_a_long_text_is_looked_at_as_closely(self, world: World) -> None:
        assert reason(world.say("x" * 5000 + "\0")) is RefusedReason.INVALID_TEXT


@pytest.mark.parametrize(
    ("metadata", "why"),
    [("x" * (RECORD_MAX_BYTES + 1), RefusedReason.RECORD_TOO_LARGE), ("a\0b", RefusedReason.INVALID_TEXT)],
    ids=["too large", "NUL"],
)
def test_metadata_that_cannot_be_stored_is_refused(world: World, metadata: str, why: RefusedReason) -> None:
    command = OpenConversation(at=world.at, timestamp=0, conversation_id="c", channel="web", metadata=metadata)
    [refused] = world.do(command)
    assert isinstance(refused, Refused)
    assert refused.reason is why
    assert refused.detail.startswith("metadata:")


def test_a_conversations_metadata_is_passed_on(world: World) -> None:
    command = OpenConversation(
        at=world.at, timestamp=world.wall, conversation_id="c", channel="web", participant="ann", external_id="x-1",
        metadata='{"lang":"tr"}',
    )  # fmt: skip
    [opened] = world.do(command)
    assert isinstance(opened, ConversationOpened)
    assert (opened.participant, opened.external_id, opened.metadata) == ("ann", "x-1", '{"lang":"tr"}')
