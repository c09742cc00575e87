"""What a program that calls agents shows the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from turnlog.errors import Unavailable
from turnlog.http import NotSent
from turnlog.tokens import CallableToken, FixedToken, SecretToken, Token, TokenSource

TOKEN_MARGIN_S = 30.0
"""A token is replaced this long before it ends."""


class Credentials:
    """What goes into the headers of each request."""

    def __init__(
        self,
        url: str,
        user: str,
        *,
        channel_secret: str | None,
        token: str | None,
        get_token: Callable[[], Awaitable[str]] | None,
        api_key: str | None,
    ) -> None:
        given = (channel_secret, token, get_token, api_key)
        if sum(each is not None for each in given) != 1:
            raise ValueError("pass exactly one of channel_secret, token, get_token and api_key")
        self._given = given
        self._url = url
        self._token: Token | None = None
        self._lock = asyncio.Lock()
        self._api_key = api_key
        if channel_secret is not None:
            self._source: TokenSource = SecretToken(channel_secret, user=user)
        else:
            self._source = CallableToken(get_token) if get_token is not None else FixedToken(token or "")

    def __repr__(self) -> str:
        return "Credentials(…)"

    @property
    def is_key(self) -> bool:
        return self._api_key is not None

    def duplicate(self, user: str) -> Credentials:
        channel_secret, token, get_token, api_key = self._given
        return Credentials(
            self._url, user, channel_secret=channel_secret, token=token, get_token=get_token, api_key=api_key
        )

    def renew(self) -> bool:
        """The token was refused as expired; whether another one can be had."""
        self._token = None
        return self._api_key is None and self._source.renewable

    async def headers(self) -> dict[str, str]:
        """What a request carries. Raises `NotSent` when no token can be had just now."""
        if self._api_key is not None:
            return {"x-api-key": self._api_key}
        async with self._lock:
            token = self._token
            if token is None or (token.expires is not None and token.expires - time.monotonic() < TOKEN_MARGIN_S):
                token = self._token = await self._fetched()
        return {"Authorization": f"Bearer {token.value}"}

    async def _fetched(self) -> Token:
        try:
            return await self._source.get(self._url)
        except Unavailable as error:  # what the token is for was not asked yet
            missing = NotSent(f"no token: {error}", code=error.code, retryable=True, retry_after=error.retry_after)
            missing.retry_budget = error.retry_budget
            raise missing from error
