"""Where a socket's or a request's bearer token comes from."""

from __future__ import annotations

import functools
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx

from turnlog.errors import ProtocolViolation, Unauthorized, Unavailable, error_of
from turnlog.wire import API_PATH, base_url

REQUEST_TIMEOUT_S = 10.0
VISIBLE: Final = re.compile(r"[!-~]+")
"""What a bearer credential is made of, and an HTTP header can hold."""


@functools.cache
def trusted() -> ssl.SSLContext:
    """The authorities that httpx trusts, read once: that takes longer than a request."""
    return httpx.create_ssl_context()


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A bearer token and when it ends."""

    value: str
    expires: float | None = None
    """`time.monotonic()` at which it ends; None: not known."""

    def __repr__(self) -> str:
        return f"Token(value=…, expires={self.expires})"


class TokenSource(Protocol):
    """Gives a token that is valid now. Raises `Unauthorized` when none can be had, `Unavailable` when not just now."""

    renewable: bool
    """Whether asking again can give another token."""

    async def get(self, url: str) -> Token: ...


class FixedToken:
    """A token that was handed in: the same one each time."""

    renewable = False

    def __init__(self, value: str) -> None:
        self._token = Token(value)

    async def get(self, url: str) -> Token:  # noqa: ARG002 - the protocol's signature
        return self._token


class CallableToken:
    """A token that the caller's own function fetches."""

    renewable = True

    def __init__(self, fetch: Callable[[], Awaitable[str]]) -> None:
        self._fetch = fetch

    async def get(self, url: str) -> Token:  # noqa: ARG002 - the protocol's signature
        return Token(await self._fetch())


class SecretToken:
    """Exchanges a channel's secret for a short-lived token at the gateway."""

    renewable = True

    def __init__(self, secret: str, *, scope: str | None = None, user: str | None = None) -> None:
        self._secret = secret
        self._body: dict[str, Any] = {}
        if scope is not None:
            self._body["scope"] = scope
        if user is not None:
            self._body["user"] = {"id": user}

    def __repr__(self) -> str:
        return "SecretToken(…)"

    async def get(self, url: str) -> Token:
        endpoint = f"{base_url(url)}{API_PATH}/tokens/generate"
        if not VISIBLE.fullmatch(self._secret):  # no header can hold it: not a network's fault, and no retry helps
            raise Unauthorized(
                "channel_secret is empty, or has blanks, line ends or other signs that no secret has",
                code="unauthorized",
            )
        try:
            async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, verify=trusted()) as http:
                response = await http.post(
                    endpoint, json=self._body, headers={"Authorization": f"Bearer {self._secret}"}
                )
        except httpx.TransportError as error:
            raise Unavailable(
                f"{endpoint}: {str(error) or type(error).__name__}", code="unavailable", retryable=True
            ) from error
        return token_in(response)


def token_in(response: httpx.Response) -> Token:
    """The token of a `tokens/*` or `conversations` answer. Raises the typed error of a refusal."""
    body = checked(response)
    value, seconds = body.get("token"), body.get("expires_in")
    if not isinstance(value, str):
        raise ProtocolViolation(f"{response.url.path}: the answer has no token", code="bad_response")
    known = isinstance(seconds, int) and not isinstance(seconds, bool)
    return Token(value, time.monotonic() + seconds if known and isinstance(seconds, int) else None)


def checked(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a 2xx answer; raises the typed error otherwise (5xx and 429 are `Unavailable`)."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success:
        if not isinstance(body, dict):
            raise ProtocolViolation(f"{response.url.path}: the answer is not a JSON object", code="bad_response")
        return body
    raise _refusal(response, body)


def _refusal(response: httpx.Response, body: Any) -> Exception:
    status = response.status_code
    detail = body.get("error") if isinstance(body, dict) else None
    error = dict(detail) if isinstance(detail, dict) else {}
    error.setdefault("code", _CODE_OF_STATUS.get(status, "unavailable" if status >= 500 else "bad_request"))
    error.setdefault("message", detail if isinstance(detail, str) else f"{response.url.path}: HTTP {status}")
    error.setdefault("retryable", status >= 500 or status == 429)
    details = error.get("details")
    header = response.headers.get("Retry-After", "")
    if isinstance(details, dict) and "retryAfterMs" in details:
        error.setdefault("retryAfterMs", details["retryAfterMs"])
    elif header.isdigit():
        error.setdefault("retryAfterMs", int(header) * 1000)
    typed = error_of(error)
    if status >= 500 and not isinstance(typed, Unavailable):
        passing = Unavailable(str(typed), code=typed.code, retryable=True, retry_after=typed.retry_after)
        passing.retry_budget = typed.retry_budget
        return passing
    return typed


_CODE_OF_STATUS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "conversation_not_found",
    409: "conversation_closed",
    413: "payload_too_large",
    422: "invalid_message",
    429: "rate_limited",
}
