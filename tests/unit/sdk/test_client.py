"""A person's side, over real sockets, against an HTTP server that follows the test's script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.scripted_http import CUT, Answer, ScriptedHttp, scripted_http
from turnlog import (
    Client,
    Conversation,
    ConversationClosed,
    ConversationNotFound,
    InvalidRequest,
    ProtocolViolation,
    TurnlogError,
    Unauthorized,
    Unavailable,
)

TOKEN = Answer(body={"token": "user-token", "expires_in": 1800})
OPENED = Answer(201, {"conversationId": "c/1", "token": "conversation-token", "expires_in": 1800})


def refusal(status: int, code: str, **headers: str) -> Answer:
    return Answer(status, {"error": {"code": code, "message": f"it is {code}"}}, headers)


@asynccontextmanager
async def opened(*answers: Answer, **options: Any) -> AsyncIterator[tuple[Conversation, ScriptedHttp]]:
    async with (
        scripted_http(TOKEN, OPENED, *answers) as http,
        Client(http.url, channel_secret="s3cret", user="ana", **options) as client,
    ):
        yield await client.open(key="k-open"), http


async def test_open_exchanges_the_secret_and_opens_with_a_key() -> None:
    async with opened() as (conversation, http):
        assert conversation.id == "c/1"
    generate, create = http.asked
    assert (generate.path, generate.body) == ("/api/v1/converger/tokens/generate", {"user": {"id": "ana"}})
    assert generate.headers["authorization"] == "Bearer s3cret"
    assert (create.method, create.path) == ("POST", "/api/v1/converger/conversations")
    assert create.headers["authorization"] == "Bearer user-token"
    assert create.headers["x-idempotency-key"] == "k-open"


async def test_send_posts_an_activity_under_its_key() -> None:
    async with opened(Answer(201, {"id": "m-1"})) as (conversation, http):
        sent = await conversation.send("hi", key="k-1", metadata={"a": 1}, reply_to="m-0")
    assert (sent.id, sent.key) == ("m-1", "k-1")
    asked = http.asked[-1]
    assert asked.path == "/api/v1/converger/conversations/c%2F1/activities"
    assert asked.body == {"type": "message", "text": "hi", "channelData": {"a": 1}, "replyToId": "m-0"}
    assert (asked.headers["x-idempotency-key"], asked.headers["authorization"]) == ("k-1", "Bearer conversation-token")


async def test_what_passes_is_retried_with_the_same_key() -> None:
    at_once = {"Retry-After": "0"}
    passing = [
        refusal(503, "pending", **at_once),
        refusal(429, "rate_limited", **at_once),
        refusal(500, "internal", **at_once),
    ]
    async with opened(*passing, Answer(201, {"id": "m-1"})) as (conversation, http):
        sent = await conversation.send("hi")
    assert {asked.headers["x-idempotency-key"] for asked in http.asked[2:]} == {sent.key}
    assert len(http.asked) == 2 + 4


@pytest.mark.parametrize("failure", [CUT, refusal(503, "unavailable"), refusal(500, "internal")])
async def test_a_failure_that_names_no_retry_is_raised_at_once_and_retried_only_for_who_insists(
    failure: Answer,
) -> None:
    async with opened(failure) as (conversation, http):
        with pytest.raises(Unavailable):
            await conversation.send("hi", key="k")
        assert len(http.asked) == 3
    async with opened(failure, failure, Answer(201, {"id": "m-1"}), insist=True) as (conversation, http):
        assert (await conversation.send("hi", key="k")).id == "m-1"
        assert [asked.headers["x-idempotency-key"] for asked in http.asked[2:]] == ["k"] * 3


async def test_a_budget_that_the_gateway_names_counts_too() -> None:
    details = {"retryAfterMs": 1, "budgetMs": 0}
    pending = Answer(503, {"error": {"code": "pending", "message": "it is pending", "details": details}})
    async with opened(pending) as (conversation, http):
        with pytest.raises(Unavailable, match="it is pending"):
            await conversation.send("hi")
        assert len(http.asked) == 3


async def test_a_retry_that_would_end_after_the_budget_is_not_waited_for() -> None:
    async with opened(refusal(503, "unavailable", **{"Retry-After": "60"}), budget=1.0) as (conversation, _http):
        with pytest.raises(Unavailable, match="it is unavailable") as caught:
            await conversation.send("hi")
    assert caught.value.retry_after == 60


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(401, "unauthorized"), Unauthorized),
        (refusal(404, "conversation_not_found"), ConversationNotFound),
        (refusal(409, "conversation_closed"), ConversationClosed),
        (refusal(413, "payload_too_large"), InvalidRequest),
        (refusal(418, "teapot"), TurnlogError),
        (Answer(200, b"<html>"), ProtocolViolation),
        (Answer(403, b"<html>"), Unauthorized),
    ],
)
async def test_what_does_not_pass_is_raised_by_cause(answer: Answer, kind: type[TurnlogError]) -> None:
    async with opened(answer) as (conversation, http):
        with pytest.raises(kind) as caught:
            await conversation.send("hi")
        assert type(caught.value) is kind
        assert len(http.asked) == 3  # asked once


async def test_an_expired_token_is_replaced_and_the_request_repeated() -> None:
    again = Answer(200, {"conversationId": "c/1", "token": "fresh", "expires_in": 1800})
    async with opened(refusal(401, "token_expired"), TOKEN, again, Answer(201, {"id": "m-1"})) as (conversation, http):
        await conversation.send("hi", key="k-1")
    assert [asked.headers["authorization"] for asked in http.asked[2:]] == [
        "Bearer conversation-token",
        "Bearer s3cret",
        "Bearer user-token",
        "Bearer fresh",
    ]


async def test_history_is_typed() -> None:
    stored = {"id": "m-1", "type": "message", "from": {"id": "ana"}, "text": "hi"}
    async with opened(Answer(body={"activities": [stored], "watermark": "1", "has_more": False})) as (
        conversation,
        http,
    ):
        (activity,) = await conversation.activities(after=3, limit=7)
    assert (activity.id, activity.sender, activity.text, activity.raw) == ("m-1", "ana", "hi", stored)
    assert http.asked[-1].path.endswith("/activities?watermark=3&limit=7")


def sse(*frames: dict[str, Any]) -> Answer:
    lines = [
        (f"id: {frame['seq']}\n" if "seq" in frame else "") + f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n"
        for frame in frames
    ]
    return Answer(200, "".join(lines).encode(), {"Content-Type": "text/event-stream"})


def said(seq: int, text: str, by: str = "bot") -> dict[str, Any]:
    return {"type": "text", "id": f"m-{seq}", "seq": seq, "from": by, "data": {"text": text}, "timestamp": 1}


def chunk(seq: int, stream: str, text: str = "", *, done: int | str | None = None) -> dict[str, Any]:
    """A piece of text, or, with the closing chunk's id in `done`, the end."""
    text_chunk = {"type": "text", "content": text, "id": 1}
    last = {"type": "event", "name": "stream_done", "id": done}
    return {
        "type": "genui",
        "seq": seq,
        "streamId": stream,
        "done": done is not None,
        "chunk": last if done is not None else text_chunk,
    }


async def test_frames_go_on_behind_the_last_one_seen_over_lost_connections() -> None:
    transient = {"type": "run", "data": {"status": "started"}}
    script = [sse(said(1, "a"), transient, said(2, "b")), CUT, sse(said(2, "b"), said(3, "c"))]
    async with opened(*script) as (conversation, http):
        frames = conversation.frames()
        seen = [await anext(frames) for _ in range(4)]
    assert [(viewed.seq, viewed.type) for viewed in seen] == [(1, "text"), (None, "run"), (2, "text"), (3, "text")]
    assert [asked.headers.get("last-event-id") for asked in http.asked[2:]] == [None, "2", "2"]


async def test_frames_go_on_with_a_fresh_token_when_theirs_is_about_to_end() -> None:
    bound = Answer(201, {"conversationId": "c/1", "token": "ends-soon", "expires_in": 1})
    fresh = Answer(200, {"conversationId": "c/1", "token": "fresh", "expires_in": 1800})
    script = (TOKEN, bound, TOKEN, fresh, sse(said(1, "a")), sse(said(2, "b")))
    async with scripted_http(*script) as http, Client(http.url, channel_secret="s3cret", user="ana") as client:
        frames = (await client.open()).frames()
        assert [(await anext(frames)).seq for _ in range(2)] == [1, 2]
    asked = [asked.headers["authorization"] for asked in http.asked if asked.path.endswith("/stream")]
    assert asked == ["Bearer fresh", "Bearer fresh"]


async def test_a_missing_number_is_asked_for_again() -> None:
    never_ending = {"Content-Length": "100000"}  # so that only the gap can make the client come back
    gap = sse(said(1, "a"), said(3, "c"))
    first = Answer(200, gap.body, {**gap.headers, **never_ending})
    async with opened(first, sse(said(2, "b"), said(3, "c"))) as (conversation, http):
        frames = conversation.frames()
        assert [(await anext(frames)).seq for _ in range(3)] == [1, 2, 3]
    assert http.asked[-1].headers["last-event-id"] == "1"


async def test_a_stream_that_may_not_be_seen_says_so() -> None:
    async with opened(refusal(404, "conversation_not_found")) as (conversation, _http):
        with pytest.raises(ConversationNotFound):
            await anext(conversation.frames())


async def test_messages_join_streams_and_leave_out_those_of_a_lost_owner() -> None:
    script = sse(
        said(1, "hello?", by="user"),
        chunk(2, "lost", "half an ans"),
        chunk(3, "lost", done="closed"),
        chunk(4, "s", "one "),
        said(5, "between"),
        chunk(6, "s", "two"),
        chunk(7, "s", done=2),
        said(8, "marked", by="bot") | {"superseded": True},
        said(9, "last"),
    )
    async with opened(script) as (conversation, _http):
        messages = conversation.messages()
        seen = [await anext(messages) for _ in range(4)]
    assert [(message.seq, message.role, message.text) for message in seen] == [
        (1, "user", "hello?"),
        (5, "bot", "between"),
        (7, "bot", "one two"),
        (9, "bot", "last"),
    ]


def test_secrets_are_in_no_repr() -> None:
    client = Client("http://127.0.0.1:1", channel_secret="s3cret")
    assert "s3cret" not in repr(client) + repr(vars(client))
