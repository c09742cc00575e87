"""Requests to a gateway, repeated when it says so and for as long as it says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import httpx

from turnlog.backoff import Backoff
from turnlog.errors import Unavailable
from turnlog.tokens import checked, trusted
from turnlog.traced import carried

log = logging.getLogger("turnlog")

REQUEST_TIMEOUT_S = 15.0
"""Above the gateway's own wait for a commit (5 s), so that its answer is seen rather than a time-out of ours."""
CONNECT_TIMEOUT_S = 5.0
"""A gateway that is there takes a connection in milliseconds; one whose packets go nowhere is not waited for."""
STREAM_TIMEOUT = httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=60.0)
"""An event stream has no end, but the server sends a comment every 15 s: a minute of silence is a loss."""
CLOSED = "closed"
"""Code of the failure of what goes on when its own connections were closed: there is no point in another try."""


class NotSent(Unavailable):
    """No connection came about: the gateway has not seen the request."""


class NoAnswer(Unavailable):
    """The request was sent, and no answer came: what it did is unknown."""


class Http:
    """One gateway's HTTP side. A request, but one for a stream, is part of its caller's trace (`turnlog.traced`).

    `budget`: seconds within which a request is repeated, after the delays that the gateway asks for. `insist`: also
    when it asks for none, or does not answer at all, after delays of our own.
    """

    def __init__(self, url: str, *, budget: float, insist: bool = False) -> None:
        self.budget = budget
        self._insist = insist
        self._client = httpx.AsyncClient(base_url=url, timeout=REQUEST_TIMEOUT_S, verify=trusted())

    async def close(self) -> None:
        await self._client.aclose()

    async def once(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        params: Mapping[str, str | int] | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> httpx.Response:
        """A 2xx answer, asked for once. Raises the typed error of any other, `NotSent` or `NoAnswer`."""
        named = f"{method} {str(self._client.base_url).rstrip('/')}{path}"
        limits = httpx.Timeout(timeout, connect=min(timeout, CONNECT_TIMEOUT_S))
        self._check_open(named)
        try:
            response = await self._client.request(
                method, path, headers={**carried(), **(headers or {})}, json=json, params=params, timeout=limits
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotSent(f"{named}: {_words(error)}", code="unavailable", retryable=True) from error
        except httpx.TransportError as error:
            raise NoAnswer(f"{named}: {_words(error)}", code="unavailable", retryable=True) from error
        checked(response)
        return response

    async def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        """As `once`, for what is safe to repeat: a read, or a write with a key."""
        tries = Tries(self.budget, insist=self._insist)
        while True:
            try:
                return await self.once(method, path, **how)
            except Unavailable as error:
                await tries.wait(error)

    async def stream(self, path: str, *, headers: Mapping[str, str]) -> httpx.Response:
        """An open event stream; its body is still to be read, and the caller closes it."""
        self._check_open(path)
        request = self._client.build_request("GET", path, headers=dict(headers), timeout=STREAM_TIMEOUT)
        return await self._client.send(request, stream=True)

    def _check_open(self, named: str) -> None:
        if self._client.is_closed:
            raise NotSent(f"{named}: it was closed here", code=CLOSED)


class Tries:
    """The waits between the tries of one request."""

    def __init__(self, budget: float, *, insist: bool = False) -> None:
        self._backoff = Backoff(first=0.1, most=2.0)
        self._began = time.monotonic()
        self._budget = budget
        self._insist = insist

    async def wait(self, error: Unavailable) -> None:
        """Until it is time to try again. Raises `error` when there is no point: nobody asked for it, or too late."""
        if error.code == CLOSED or (error.retry_after is None and not self._insist):
            raise error
        delay = self._backoff.next(error.retry_after)
        budget = self._budget if error.retry_budget is None else min(self._budget, error.retry_budget)
        left = self._began + budget - time.monotonic()
        if delay > left:
            raise error
        if self._backoff.attempts == 1:  # who waits for an answer is to know what for
            log.warning("turnlog: %s; trying again for up to %.0f s", error, left)
        await asyncio.sleep(delay)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
