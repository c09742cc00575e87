"""Every frame that a gateway shows people has a typed face in the SDK."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.gateway.protocol import server_frames
from connectors.gateway.protocol.wire_schema import PERSON_GETS
from turnlog import BotUnavailable, seen
from turnlog.viewer import viewed_in

pytestmark = pytest.mark.unit

OF_THE_CONNECTION = frozenset({"welcome", "heartbeat", "tokenRefreshed", "ack", "replayTruncated"})
"""What is said of the connection or of one's own sends: the client's own business."""
BOB, BOT = {"id": "bob", "role": "user"}, {"id": "a", "role": "bot"}
STORED = {"id": "m", "seq": 4, "timestamp": 1}
FRAMES: list[tuple[dict[str, Any], seen.Seen]] = [
    (
        {**STORED, "type": "image", "from": "bot", "sender": BOT, "data": {"caption": "A cat"}, "replyTo": {"id": "q"},
         "actions": [{"label": "More"}], "metadata": {"k": 1}},
        seen.Said("m", seen.Who("a", "bot"), "image", "A cat", {"caption": "A cat"}, "q", ({"label": "More"},),
                  {"k": 1}),
    ),
    (
        {"type": "genui", "seq": 1, "streamId": "s", "done": False, "chunk": {"type": "text", "content": "one"}},
        seen.Piece("s", "one", done=False),
    ),
    (
        {"type": "genui", "seq": 1, "streamId": "s", "done": True, "chunk": {"type": "event", "name": "stream_done"}},
        seen.Piece("s", "", done=True),
    ),
    (
        {"type": "genui", "seq": 1, "streamId": "s", "done": False,
         "chunk": {"type": "ui", "component": "card", "props": {"n": 1}, "id": 1}},
        seen.Shown("s", "card", {"n": 1}, done=False),
    ),
    (
        {"type": "tool_call", "seq": 1,
         "data": {"id": "t", "name": "get", "status": "completed", "params": {"a": 1}, "result": 2}},
        seen.ToolUsed("t", "get", "completed", {"a": 1}, 2),
    ),
    (
        {"type": "skill", "seq": 1, "data": {"id": "k", "name": "pdf", "status": "error", "error": "no"}},
        seen.SkillUsed("pdf", "error", error="no"),
    ),
    (
        {"type": "interrupt", "seq": 1, "id": "i", "data": {"payload": {"title": "?"}, "actions": [{"label": "Yes"}]}},
        seen.Ask("i", {"title": "?"}, ({"label": "Yes"},)),
    ),
    ({"type": "interrupt_resolved", "seq": 1, "id": "i", "data": {"answer": "y"}}, seen.AskOver("i", "y")),
    (
        {**STORED, "type": "event", "from": "bot", "data": {"name": "note", "text": "seen", "value": 1}},
        seen.Notice("note", "seen", 1),
    ),
    (
        {**STORED, "type": "conversationUpdate", "from": "bot", "sender": BOT,
         "data": {"event": "conversation_handed_over", "status": "active", "reason": "asked", "to": "desk"}},
        seen.Changed("conversation_handed_over", "active", "asked", "desk"),
    ),
    ({"type": "run", "data": {"status": "aborted", "superseded": [2, 3]}}, seen.Running("aborted", (2, 3))),
    (
        {"type": "typing", "isTyping": True, "from": "user", "sender": BOB},
        seen.Typing(seen.Who("bob", "user"), typing=True),
    ),
    (
        {"type": "presence", "data": {"participant": BOB, "status": "online", "connections": 2}},
        seen.Presence(seen.Who("bob", "user"), "online", 2),
    ),
    (
        {"type": "deliveryStatus", "data": {"status": "read", "upToSeq": 3, "by": BOB, "timestamp": 1}},
        seen.Receipt("read", 3, by=seen.Who("bob", "user")),
    ),
    (
        {"type": "deliveryStatus",
         "data": {"status": "delivered", "activityId": "m", "seq": 3, "channelId": "web", "timestamp": 1}},
        seen.Receipt("delivered", 3, "m", channel="web"),
    ),
    ({"type": "superseded", "data": {"seqs": [2]}}, seen.Superseded((2,))),
    (
        {"type": "edited", "data": {"messageId": "m", "seq": 1, "data": {"text": "new"}}},
        seen.Edited("m", 1, "new", {"text": "new"}),
    ),
    (
        {"type": "genui_components", "hash": "h", "components": [{"name": "card", "template": "t"}]},
        seen.Catalog("genui_components", "h", ({"name": "card", "template": "t"},)),
    ),
    ({"type": "skills", "hash": "h", "unchanged": True}, seen.Catalog("skills", "h", unchanged=True)),
]  # fmt: skip
FAILED = {"type": "error", "data": {"code": "bot_unavailable", "message": "nobody", "retryable": True}}


@pytest.mark.parametrize(("frame", "expected"), FRAMES, ids=[frame["type"] for frame, _ in FRAMES])
def test_a_frame_says_what_it_is(frame: dict[str, Any], expected: seen.Seen) -> None:
    assert viewed_in(frame).seen == expected


def test_a_failure_is_the_typed_error() -> None:
    failure = viewed_in(FAILED).seen
    assert isinstance(failure, seen.Failure)
    assert isinstance(failure.error, BotUnavailable)


def test_every_frame_that_people_are_shown_has_a_face() -> None:
    tags = {str(shape.__struct_config__.tag) for shape in PERSON_GETS if shape is not server_frames.Message}
    assert tags - OF_THE_CONNECTION <= {frame["type"] for frame, _ in FRAMES} | {"error"}


@pytest.mark.parametrize("frame", [*(frame for frame, _ in FRAMES), FAILED])
def test_what_lacks_what_its_type_needs_says_nothing_or_less_and_fails_nobody(frame: dict[str, Any]) -> None:
    for broken in ({"type": frame["type"]}, *({**frame, name: None} for name in frame if name != "type")):
        viewed_in(broken).seen  # noqa: B018 - that it raises nothing is what is asked
    assert viewed_in({"type": "of_a_later_release", "data": {}}).seen is None
