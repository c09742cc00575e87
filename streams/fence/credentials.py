"""Who may log in: channel secrets and tenant API keys, kept as SHA-256; the plain text is seen once, at creation.

They are 256 random bits, not passwords: a fast hash is enough, and finding a row by it tells a guesser nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation

from streams.fence.channels import QUERIES
from streams.fence.connection import Session
from streams.fence.lease import CALL_LIMIT_S

SECRET_BYTES = 256 // 8
CHANNEL_PREFIX = "tlc_"
API_PREFIX = "tlk_"
OPERATOR_PREFIX = "tlo_"


class NameTaken(Exception):
    """An API key of that name exists already."""


class CredentialStore:
    """Secrets and keys in Postgres. Raises `FenceUnavailable` when it cannot be reached."""

    def __init__(self, dsn: str) -> None:
        self._session = Session(dsn, "credentials", limit_s=CALL_LIMIT_S)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def add_channel_secret(self, channel: str, plain: str | None = None) -> str:
        """One more secret of the channel, `plain` or a new one; returns it. Those it has stay valid."""
        chosen = plain or new_channel_secret()
        parameters = {"channel": channel, "sha256": _sha256(chosen)}
        await self._session.run(lambda connection: connection.execute(QUERIES["add_channel_secret"], parameters))
        return chosen

    async def keep_only_channel_secret(self, channel: str, plain: str) -> None:
        """End a rotation: every other secret of the channel is void."""
        parameters = {"channel": channel, "sha256": _sha256(plain)}

        async def keep(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(QUERIES["add_channel_secret"], parameters)
                await connection.execute(QUERIES["drop_other_channel_secrets"], parameters)

        await self._session.run(keep)

    async def drop_channel_secrets(self, plain: Iterable[str]) -> None:
        """These secrets are void; those that are none are none still."""
        parameters = {"sha256": [_sha256(each) for each in plain]}
        await self._session.run(lambda connection: connection.execute(QUERIES["drop_channel_secrets"], parameters))

    async def channel_of(self, plain: str) -> str | None:
        """The channel that this secret logs in to; whether that channel is active is the document's matter.

        A secret given to several channels names the first by id: give each its own.
        """
        return await self._owner("find_channel_secret", plain)

    async def secret_counts(self) -> Mapping[str, int]:
        """How many valid secrets each channel has."""

        async def counts(connection: AsyncConnection[Any]) -> Mapping[str, int]:
            return dict(await (await connection.execute(QUERIES["count_channel_secrets"])).fetchall())

        return await self._session.run(counts)

    async def add_api_key(self, name: str, plain: str | None = None) -> str:
        """A key of the tenant API, `plain` or a new one; returns it. Raises `NameTaken`."""
        chosen = plain or _new(API_PREFIX)
        parameters = {"name": name, "sha256": _sha256(chosen)}
        try:
            await self._session.run(lambda connection: connection.execute(QUERIES["add_api_key"], parameters))
        except UniqueViolation:
            raise NameTaken(f"an API key named {name} (or this very key) exists already") from None
        return chosen

    async def drop_api_key(self, name: str) -> bool:
        """The key of that name is void; False: there was none."""

        async def drop(connection: AsyncConnection[Any]) -> bool:
            return (await connection.execute(QUERIES["drop_api_key"], {"name": name})).rowcount > 0

        return await self._session.run(drop)

    async def api_key_name(self, plain: str) -> str | None:
        """The name of this API key; None: it is no key."""
        return await self._owner("find_api_key", plain)

    async def api_keys(self) -> Sequence[tuple[str, int]]:
        """Names of all API keys, each with its creation time in ms since the epoch."""

        async def names(connection: AsyncConnection[Any]) -> Sequence[tuple[str, int]]:
            return await (await connection.execute(QUERIES["list_api_keys"])).fetchall()

        return await self._session.run(names)

    async def add_operator(self, name: str) -> str:
        """A token of an operator of that name; returns it. Raises `NameTaken`, for a revoked one's name too."""
        chosen = _new(OPERATOR_PREFIX)
        parameters = {"name": name, "sha256": _sha256(chosen)}
        try:
            await self._session.run(lambda connection: connection.execute(QUERIES["add_operator_token"], parameters))
        except UniqueViolation:
            raise NameTaken(f"an operator named {name} exists, or existed: a name is never given twice") from None
        return chosen

    async def revoke_operator(self, name: str) -> bool:
        """The token of that name is void; False: there was none that was good."""

        async def revoke(connection: AsyncConnection[Any]) -> bool:
            return (await connection.execute(QUERIES["revoke_operator_token"], {"name": name})).rowcount > 0

        return await self._session.run(revoke)

    async def operator_of(self, plain: str) -> str | None:
        """The name of the operator with this token; None: it is none, or was revoked."""
        return await self._owner("find_operator_token", plain)

    async def operators(self) -> Sequence[tuple[str, int, int | None]]:
        """Name, creation time and, of those that were revoked, when, in ms since the epoch."""

        async def names(connection: AsyncConnection[Any]) -> Sequence[tuple[str, int, int | None]]:
            return await (await connection.execute(QUERIES["list_operator_tokens"])).fetchall()

        return await self._session.run(names)

    async def _owner(self, query: str, plain: str) -> str | None:
        sha256 = _sha256(plain)

        async def find(connection: AsyncConnection[Any]) -> str | None:
            row = await (await connection.execute(QUERIES[query], {"sha256": sha256})).fetchone()
            if row is None or not hmac.compare_digest(row[1], sha256):
                return None
            return str(row[0])

        return await self._session.run(find)


def new_channel_secret() -> str:
    """A fresh secret, valid once it is added to a channel."""
    return _new(CHANNEL_PREFIX)


def _new(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def _sha256(plain: str) -> bytes:
    # What comes in a header may hold anything, lone surrogates included: it must hash, not fail.
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()
