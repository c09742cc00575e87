"""Addresses, ids and close reasons."""

from __future__ import annotations

import asyncio

import pytest

from connectors.gateway.protocol.errors import SPECS
from turnlog.backoff import Backoff
from turnlog.connection import Limits
from turnlog.errors import AckTimeout, Fenced, RateLimited, TurnlogError, Unavailable, error_of
from turnlog.link import Pace
from turnlog.testing import Clock
from turnlog.wire import base_url, client_id, retry_after, socket_url


@pytest.mark.parametrize(
    ("given", "base", "socket"),
    [
        ("http://h:8080", "http://h:8080", "ws://h:8080/socket/converger/v1"),
        ("https://h/", "https://h", "wss://h/socket/converger/v1"),
        ("wss://h/x/socket/converger/v1", "https://h/x", "wss://h/x/socket/converger/v1"),
    ],
)
def test_every_address_of_a_gateway_leads_to_both_of_its_ends(given: str, base: str, socket: str) -> None:
    assert (base_url(given), socket_url(given)) == (base, socket)


@pytest.mark.parametrize("given", ["", "localhost:8080", "ftp://h"])
def test_what_is_no_address_is_refused_by_name(given: str) -> None:
    with pytest.raises(ValueError, match=r"url: .* is not an http"):
        base_url(given)


def test_a_client_id_keeps_to_the_alphabet_and_length_of_the_protocol() -> None:
    assert client_id("a b/ü", "m1") == "a-b--.m1"
    assert client_id("x" * 500, "m1") == "x" * 125 + ".m1"


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        ('{"reason":"drain","retryAfterMs":1500}', 1.5),
        ('{"retryAfterMs":0}', 0.0),
        ('{"retryAfterMs":-1}', None),
        ('{"retryAfterMs":true}', None),
        ("[1]", None),
        ("going away", None),
        ("", None),
    ],
)
def test_a_close_reason_may_say_when_to_come_back(reason: str, seconds: float | None) -> None:
    assert retry_after(reason) == seconds


def test_backoff_doubles_to_its_cap_and_starts_anew_after_a_success() -> None:
    backoff = Backoff(first=1, most=5, uniform=lambda _low, high: high)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.next() == 1


def test_backoff_never_comes_back_before_it_was_asked_to() -> None:
    backoff = Backoff(first=1, uniform=lambda low, _high: low)
    assert backoff.next(asked=7) == 7


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"code": "fenced", "message": "m"}, Fenced),
        ({"code": "rate_limited", "message": "m", "retryAfterMs": 20}, RateLimited),
        ({"code": "one_of_tomorrow", "message": "m"}, TurnlogError),
        ({}, TurnlogError),
    ],
)
def test_errors_are_typed_by_their_code(data: dict[str, object], kind: type[TurnlogError]) -> None:
    error = error_of(data)
    assert type(error) is kind
    assert error.retry_after == (0.02 if "retryAfterMs" in data else None)


PLAIN = {"internal"}


@pytest.mark.parametrize("code", sorted(SPECS.keys() - PLAIN))
def test_every_code_of_the_gateways_table_has_a_class(code: str) -> None:
    error = error_of({"code": code, "message": "m"})
    assert type(error) is not TurnlogError
    assert error.code == code
    if SPECS[code].retryable:
        assert isinstance(error, Unavailable)


def test_no_ack_is_a_kind_of_unavailable() -> None:
    assert issubclass(AckTimeout, Unavailable)


async def test_no_more_frames_a_second_are_sent_than_a_gateway_says_that_it_takes() -> None:
    with Clock() as clock:
        loop, pace, times = asyncio.get_running_loop(), Pace(2), []

        async def send() -> None:
            for _ in range(6):
                await pace.take()
                times.append(loop.time())

        sending = asyncio.create_task(send())
        await clock.advance(10)
        await sending
    assert times[5] - times[0] >= 1.999  # a second's worth at once, then two a second


def test_a_welcome_names_limits_and_what_it_does_not_name_is_the_protocols() -> None:
    named = {"maxFrameBytes": 1, "maxInFlight": 2, "maxFramesPerSecond": 3, "maxRuns": 4}
    assert Limits.of({"limits": named}) == Limits(1, 2, 3, 4)
    for nothing in ({}, {"limits": 7}, {"limits": {"maxInFlight": "many", "maxRuns": True, "maxFrameBytes": 0}}):
        assert Limits.of(nothing) == Limits(128 * 1024, 32, None, None)
