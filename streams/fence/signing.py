"""Keys that sign access tokens, shared by all gateways: the newest signs, all that are not retired verify.

With a master key they are sealed by AES-256-GCM before they reach Postgres: a copy of the database signs nothing then.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from psycopg import AsyncConnection
from pydantic import SecretStr

from streams.fence.channels import QUERIES
from streams.fence.connection import Session
from streams.fence.lease import CALL_LIMIT_S

KEY_BYTES = 256 // 8
NONCE_BYTES = 96 // 8  # what AES-GCM is specified for (NIST SP 800-38D, section 8.2)


class MasterKeyError(Exception):
    """A stored key is sealed, and TURNLOG_MASTER_KEY is missing or not the one that sealed it."""


@dataclass(frozen=True, slots=True)
class KeyRing:
    """`kid` signs; `keys` verify, by their id. The secrets are not in its repr."""

    kid: str
    keys: Mapping[str, bytes] = field(repr=False)

    @property
    def secret(self) -> bytes:
        """The secret that signs."""
        return self.keys[self.kid]


class SigningKeyStore:
    """Signing keys in Postgres. Raises `FenceUnavailable` when it cannot be reached, `MasterKeyError` as named."""

    def __init__(self, dsn: str, master_key: SecretStr | None) -> None:
        self._session = Session(dsn, "signing keys", limit_s=CALL_LIMIT_S)
        self._sealer = None if master_key is None else _sealer(master_key)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def load(self) -> KeyRing:
        """All keys in use; the first caller ever makes the first. Load again at times, and for an unknown kid."""

        async def load(connection: AsyncConnection[Any]) -> KeyRing:
            ring = await self._ring(connection)
            if ring is not None:
                return ring
            async with connection.transaction():
                await connection.execute(QUERIES["lock_signing_keys"])
                # Another process may have made it while this one waited.
                return await self._ring(connection) or await self._add(connection)

        return await self._session.run(load)

    async def rotate(self, *, token_ttl_s: float) -> KeyRing:
        """A new key signs from now on. Keys that stopped signing longer ago than a token lives are retired."""

        async def rotate(connection: AsyncConnection[Any]) -> KeyRing:
            async with connection.transaction():
                await connection.execute(QUERIES["lock_signing_keys"])
                parameters = {"older_than": timedelta(seconds=token_ttl_s)}
                await connection.execute(QUERIES["retire_signing_keys"], parameters)
                return await self._add(connection)

        return await self._session.run(rotate)

    async def _ring(self, connection: AsyncConnection[Any]) -> KeyRing | None:
        rows = await (await connection.execute(QUERIES["list_signing_keys"])).fetchall()
        if not rows:
            return None
        return KeyRing(rows[0][0], {kid: self._opened(kid, secret, wrapped) for kid, secret, wrapped in rows})

    async def _add(self, connection: AsyncConnection[Any]) -> KeyRing:
        kid, secret = secrets.token_hex(8), secrets.token_bytes(KEY_BYTES)
        parameters = {"kid": kid, "secret": self._sealed(kid, secret), "wrapped": self._sealer is not None}
        await connection.execute(QUERIES["add_signing_key"], parameters)
        ring = await self._ring(connection)
        return ring if ring is not None else KeyRing(kid, {kid: secret})

    def _sealed(self, kid: str, secret: bytes) -> bytes:
        if self._sealer is None:
            return secret
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._sealer.encrypt(nonce, secret, kid.encode())

    def _opened(self, kid: str, stored: bytes, wrapped: bool) -> bytes:
        if not wrapped:
            return stored
        if self._sealer is None:
            raise MasterKeyError(f"signing key {kid} is sealed: set TURNLOG_MASTER_KEY to the key that sealed it")
        try:
            return self._sealer.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], kid.encode())
        except InvalidTag:
            raise MasterKeyError(f"signing key {kid} was sealed by another TURNLOG_MASTER_KEY than this one") from None


def _sealer(master_key: SecretStr) -> AESGCM:
    derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"turnlog signing keys 1")
    return AESGCM(derived.derive(master_key.get_secret_value().encode()))
