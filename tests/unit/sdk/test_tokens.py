"""Tokens for a channel's secret."""

from __future__ import annotations

import time

import pytest

from tests.support.scripted_http import CUT, Answer, scripted_http
from turnlog.errors import InvalidRequest, ProtocolViolation, RateLimited, TurnlogError, Unauthorized, Unavailable
from turnlog.tokens import SecretToken


def refusal(status: int, code: str, **headers: str) -> Answer:
    return Answer(status, {"error": {"code": code, "message": "m"}}, headers)


async def test_a_secret_is_exchanged_for_a_token_of_its_scope_that_says_when_it_ends() -> None:
    async with scripted_http(Answer(body={"token": "t", "expires_in": 100})) as http:
        before = time.monotonic()
        token = await SecretToken("s3cret", scope="channel").get(http.url)
        assert token.value == "t"
        assert token.expires is not None
        assert before + 100 <= token.expires <= time.monotonic() + 100
    assert http.asked[0].body == {"scope": "channel"}
    assert http.asked[0].headers["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("answer", "kind", "after"),
    [
        (refusal(401, "unauthorized"), Unauthorized, None),
        (refusal(400, "channel_inactive"), Unauthorized, None),
        (refusal(422, "invalid_message"), InvalidRequest, None),
        (refusal(429, "rate_limited", **{"Retry-After": "3"}), RateLimited, 3.0),
        (Answer(503, b"<html>", {"Retry-After": "2"}), Unavailable, 2.0),
        (CUT, Unavailable, None),
        (Answer(200, {"expires_in": 3}), ProtocolViolation, None),
        (Answer(200, b"[]"), ProtocolViolation, None),
    ],
)
async def test_what_is_no_token_is_an_error_by_its_cause(
    answer: Answer, kind: type[TurnlogError], after: float | None
) -> None:
    async with scripted_http(answer) as http:
        with pytest.raises(kind) as caught:
            await SecretToken("s3cret").get(http.url)
    assert (type(caught.value), caught.value.retry_after) == (kind, after)
    assert "s3cret" not in str(caught.value)


async def test_nobody_there_is_unavailable() -> None:
    async with scripted_http() as gone:
        url = gone.url
    with pytest.raises(Unavailable, match="tokens/generate"):
        await SecretToken("s3cret").get(url)


@pytest.mark.parametrize("secret", ["", " ", "s3cret\n", "…"])
async def test_a_secret_that_no_header_can_hold_is_refused_at_once_and_not_tried_again(secret: str) -> None:
    async with scripted_http() as http:
        with pytest.raises(Unauthorized, match="channel_secret is empty, or has blanks"):
            await SecretToken(secret).get(http.url)
    assert not http.asked


def test_secrets_and_tokens_are_in_no_repr() -> None:
    assert "s3cret" not in repr(SecretToken("s3cret"))
