"""Data keys in Postgres, each sealed by the master key, and their copy in the topic of keys.

A key is used only once both have it: a Postgres that lost its last seconds, or was restored from an older backup, must
not have lost what people said since. What is missing there is found in the topic, and put back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from psycopg import AsyncConnection
from pydantic import SecretStr

from streams.fence.connection import SessionPool
from streams.fence.queries import load_queries
from streams.fence.signing import MasterKeyError
from streams.sealing.records import Missing
from streams.sealing.token import NONCE_BYTES, SECRET_BYTES, DataKey, new_key

QUERIES: Final = load_queries("streams.sealing", "keys.sql")
CALL_LIMIT_S: Final = 3.0
SHREDDING_LIMIT_S: Final = 30.0
"""Nobody waits for it, and a look at everything takes a second for each million of keys or so."""
SESSIONS: Final = 2
RESTORE_AT_ONCE: Final = 1_000
LATE_MS: Final = 60 * 60 * 1000
EVER_MS: Final = 1000 * 366 * 24 * LATE_MS
"""More than a thousand years."""
WHOLE_EVERY_S: Final = 600.0
WHOLE_AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A key as it is stored: sealed by the master key. None: it was destroyed."""

    id: str
    conversation_id: str
    wrapped: bytes | None


class KeyCopies(Protocol):
    """The topic of keys: the copy that outlives a Postgres."""

    async def put(self, keys: Sequence[WrappedKey]) -> None:
        """Write these, or their tombstones, durably. Raises `CopiesUnavailable`."""

    async def all(self, seen: Callable[[Sequence[WrappedKey]], Awaitable[None]]) -> None:
        """Show every key that is not destroyed, in chunks. Raises `CopiesUnavailable`."""


class CopiesUnavailable(Exception):
    """The topic of keys cannot be read or written now."""


class NoKeys:
    """Where there is no master key: nothing can be sealed, and what is sealed stays so."""

    async def current(self, conversation_id: str, copies: KeyCopies) -> DataKey:  # noqa: ARG002
        """None to be had. Raises `MasterKeyError`."""
        raise MasterKeyError(f"conversation {conversation_id} cannot be sealed: set TURNLOG_MASTER_KEY")

    async def find(self, key_ids: Collection[str]) -> Mapping[str, DataKey | Missing]:
        """Each is missing."""
        return dict.fromkeys(key_ids, Missing.SEALED)

    async def restore(self, copies: KeyCopies) -> None:
        """Nothing to restore."""


class Wrapping:
    """Seals data keys by the master key: a copy of the database or of the topic opens nothing."""

    def __init__(self, master_key: SecretStr) -> None:
        derived = HKDF(SHA256(), SECRET_BYTES, salt=None, info=b"turnlog data keys 1")
        self._cipher = AESGCM(derived.derive(master_key.get_secret_value().encode()))

    def wrap(self, key: DataKey) -> bytes:
        """The key as it may be stored."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key.secret, f"{key.id} {key.conversation_id}".encode())

    def unwrap(self, stored: WrappedKey) -> DataKey:
        """The key. Raises `MasterKeyError` when another master key sealed it."""
        wrapped = stored.wrapped or b""
        try:
            secret = self._cipher.decrypt(
                wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], f"{stored.id} {stored.conversation_id}".encode()
            )
        except (InvalidTag, ValueError):
            raise MasterKeyError(
                f"data key {stored.id} was sealed by another TURNLOG_MASTER_KEY than this one"
            ) from None
        return DataKey(stored.id, stored.conversation_id, secret)


class DataKeyStore:
    """Keys of conversations. Methods raise `FenceUnavailable` when Postgres does not answer, and `MasterKeyError`."""

    def __init__(self, dsn: str, wrapping: Wrapping) -> None:
        self._sessions = SessionPool(dsn, "data keys", size=SESSIONS, limit_s=CALL_LIMIT_S)
        self._wrapping = wrapping

    async def close(self) -> None:
        """Close the connections."""
        await self._sessions.close()

    async def current(self, conversation_id: str, copies: KeyCopies) -> DataKey | None:
        """The key that this conversation's words are sealed by; the first caller makes it. None: it is erased.

        Raises `CopiesUnavailable` too: a key that has no copy seals nothing.
        """
        found = await self._current(conversation_id)
        if found is None:
            return None
        key, copied = found
        return key if copied or await self._copied(key, copies) else None

    async def _copied(self, key: DataKey, copies: KeyCopies) -> bool:
        """Copy it; False: it was destroyed meanwhile. A copy that comes later than its tombstone would outlive it, also
        one whose outcome is not known."""
        try:
            await copies.put([WrappedKey(key.id, key.conversation_id, self._wrapping.wrap(key))])
        except CopiesUnavailable:
            await self._run("doubtful", key=key.id)
            raise
        rows = await self._run("copied", key=key.id)
        return not rows or bool(rows[0][0])  # a row that Postgres lost meanwhile is in the topic

    async def _current(self, conversation_id: str) -> tuple[DataKey, bool] | None:
        fresh = new_key(conversation_id)
        parameters = {"conversation": conversation_id, "key": fresh.id, "wrapped": self._wrapping.wrap(fresh)}

        async def find(connection: AsyncConnection[Any]) -> tuple[str, bytes, bool] | None:
            while True:
                row = await (await connection.execute(QUERIES["current_key"], parameters)).fetchone()
                if row is not None:
                    key_id, wrapped, copied = row
                    return key_id, wrapped, copied
                if not (await connection.execute(QUERIES["add_key"], parameters)).rowcount:
                    [[erased]] = await (await connection.execute(QUERIES["is_erased"], parameters)).fetchall()
                    if erased:
                        return None

        found = await self._sessions.run(find)
        if found is None:
            return None
        key_id, wrapped, copied = found
        return self._wrapping.unwrap(WrappedKey(key_id, conversation_id, wrapped)), copied

    async def find(self, key_ids: Collection[str]) -> Mapping[str, DataKey | Missing]:
        """What is known of these keys; one that is not in the answer is not known here."""
        rows = await self._run("keys", keys=list(key_ids))
        return {
            key_id: Missing.ERASED
            if wrapped is None
            else self._wrapping.unwrap(WrappedKey(key_id, conversation_id, wrapped))
            for key_id, conversation_id, wrapped in rows
        }

    async def restore(self, copies: KeyCopies) -> None:
        """Put back every key that the topic has and Postgres has not. Raises `CopiesUnavailable`."""
        await _restore(self._sessions, copies)

    async def _run(self, query: str, **parameters: Any) -> Sequence[tuple[Any, ...]]:
        return await _run(self._sessions, query, **parameters)


class Shredder:
    """Makes the table and the topic of keys agree on what is destroyed. Needs no master key.

    A key that is put into its table while a projector erases its conversation is seen by neither of the two
    transactions. Such keys are looked for each time among what was erased within an hour; and, first of all and every
    `WHOLE_EVERY_S`, among all that is erased: a projector that reads old history (after a restore, `topic grow`, a long
    outage) erases now what happened long ago.
    """

    def __init__(self, dsn: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._sessions = SessionPool(dsn, "shredder", size=1, limit_s=SHREDDING_LIMIT_S)
        self._clock = clock
        self._whole_at = clock()

    async def close(self) -> None:
        """Close the connection."""
        await self._sessions.close()

    async def shred(self, copies: KeyCopies) -> int:
        """Write the tombstones of destroyed keys that have none yet; returns how many. Raises `CopiesUnavailable`."""
        written = 0
        await self._destroy_late()
        while rows := await self._run("erased_to_copy"):
            await copies.put([WrappedKey(key_id, "", None) for key_id, _ in rows])
            await self._run("gone", keys=[key_id for key_id, _ in rows], erased_at=[at for _, at in rows])
            written += len(rows)
        return written

    async def _destroy_late(self) -> None:
        now = self._clock()
        if now < self._whole_at:
            await self._run("destroy_late", age_ms=LATE_MS)
            return
        self._whole_at = now + WHOLE_AGAIN_S  # where it takes too long, tombstones are written all the same
        await self._run("destroy_late", age_ms=EVER_MS)
        self._whole_at = now + WHOLE_EVERY_S

    async def restore(self, copies: KeyCopies) -> None:
        """Put back every key that the topic has and Postgres has not: what is not there cannot be destroyed."""
        await _restore(self._sessions, copies)

    async def _run(self, query: str, **parameters: Any) -> Sequence[tuple[Any, ...]]:
        return await _run(self._sessions, query, **parameters)


async def _restore(sessions: SessionPool, copies: KeyCopies) -> None:
    async def put_back(keys: Sequence[WrappedKey]) -> None:
        await _run(
            sessions,
            "restore_keys",
            keys=[key.id for key in keys],
            conversations=[key.conversation_id for key in keys],
            wrapped=[key.wrapped for key in keys],
        )

    await copies.all(put_back)


async def _run(sessions: SessionPool, query: str, **parameters: Any) -> Sequence[tuple[Any, ...]]:
    async def ask(connection: AsyncConnection[Any]) -> Sequence[tuple[Any, ...]]:
        cursor = await connection.execute(QUERIES[query], parameters)
        return await cursor.fetchall() if cursor.description is not None else []

    return await sessions.run(ask)
