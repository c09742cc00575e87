"""Checkpoint rows in Postgres: `Checkpoints` of the port.

The partition's row is the fence. A save updates it first, under its own token's condition: that takes the row's lock,
so a `take` waits for the save or the save finds the taker's token, however late either arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection

from streams.fence.connection import Session
from streams.fence.lease import CALL_LIMIT_S, QUERIES
from streams.fence.port import Checkpoint, ConversationRow, Fenced, KeyRow, Positions, Token

# A checkpoint of 20,000 conversations takes about 0.2 s, a first one of a cold database several times that. A save that
# hangs holds the row against the next owner's `take` until the server ends it.
SAVE_LIMIT_S = 10.0

STATE_TYPES = ("text", "int8", "bool", "bytea")
KEY_TYPES = ("text", "text", "int8", "text", "int8", "int8")


class PostgresCheckpoints:
    """`Checkpoints` for all partitions of a worker: one session for takes and loads, one for saves."""

    def __init__(self, dsn: str, *, limit_s: float = CALL_LIMIT_S, save_limit_s: float = SAVE_LIMIT_S) -> None:
        self._loads = Session(dsn, "checkpoint load", limit_s=limit_s)
        self._saves = Session(dsn, "checkpoint save", limit_s=save_limit_s, on_connect=_create_staging)

    async def close(self) -> None:
        """Close both sessions; a save in progress ends first."""
        await self._saves.close()
        await self._loads.close()

    async def take(self, partition: int, token: Token) -> Checkpoint | None:
        """See the port. The checkpoint comes back under my token. Safe to repeat."""

        async def take(connection: AsyncConnection[Any]) -> Checkpoint | None:
            cursor = connection.cursor(binary=True)
            await cursor.execute(QUERIES["take_checkpoint"], _of(partition, token))
            row = await cursor.fetchone()
            if row is None:
                await cursor.execute(QUERIES["checkpoint_epoch"], {"partition": partition})
                highest, holder = await cursor.fetchone() or (0, "nobody")
                raise Fenced(
                    f"partition {partition}: epoch {token.writer_epoch} is not the newest at the checkpoint, which has "
                    f"epoch {highest} of {holder}",
                    highest,
                )
            lsn, journal_offset, turns, frames, membership, state = row
            if lsn == 0:
                return None
            return Checkpoint(token, lsn, journal_offset, Positions(turns, frames, membership), state)

        return await self._loads.run(take)

    async def discard(self, partition: int, token: Token) -> None:
        """See the port."""

        async def discard(connection: AsyncConnection[Any]) -> None:
            cursor = await connection.execute(QUERIES["discard_checkpoint"], _of(partition, token))
            if cursor.rowcount == 0:
                raise Fenced(f"partition {partition}: the checkpoint is not epoch {token.writer_epoch}'s any more")

        await self._loads.run(discard)

    async def load_hot(self, partition: int, token: Token, lsn: int) -> Sequence[ConversationRow]:
        """See the port."""
        rows = await self._load("load_hot", partition, token, lsn)
        return [ConversationRow(*row) for row in rows]

    async def load(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str]
    ) -> Mapping[str, ConversationRow]:
        """See the port."""
        # PostgreSQL's text has no place for NUL, and refuses the whole query: such a name is never stored.
        storable = [name for name in conversations if "\0" not in name]
        rows = await self._load("load_conversations", partition, token, lsn, conversations=storable)
        return {row[0]: ConversationRow(*row) for row in rows}

    async def load_keys(
        self, partition: int, token: Token, lsn: int, conversations: Iterable[str], not_before: int
    ) -> Sequence[KeyRow]:
        """See the port."""
        rows = await self._load(
            "load_keys", partition, token, lsn, conversations=list(conversations), not_before=not_before
        )
        return [KeyRow(*row) for row in rows]

    async def save(
        self,
        partition: int,
        checkpoint: Checkpoint,
        rows: Sequence[ConversationRow],
        keys: Sequence[KeyRow],
        drop_keys_before: int,
        *,
        stored_lsn: int = 0,
    ) -> None:
        """See the port. `rows` and `keys` name each conversation, or (conversation, key), once."""

        async def save(connection: AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await _advance(connection, partition, checkpoint, stored_lsn)
                if rows:
                    await _copy(connection, "copy_states", STATE_TYPES, map(_state_record, rows))
                    await connection.execute(QUERIES["store_states"], {"partition": partition})
                if keys:
                    await _copy(connection, "copy_keys", KEY_TYPES, map(_key_record, keys))
                    await connection.execute(QUERIES["store_keys"], {"partition": partition})
                await connection.execute(QUERIES["drop_keys"], {"partition": partition, "before": drop_keys_before})

        await self._saves.run(save)

    async def _load(self, name: str, partition: int, token: Token, lsn: int, **more: Any) -> Sequence[tuple[Any, ...]]:
        """Rows of a query that brings the fence's row along; the first three columns are (epoch, worker, lsn)."""

        async def load(connection: AsyncConnection[Any]) -> Sequence[tuple[Any, ...]]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(QUERIES[name], {"partition": partition, **more})
            rows = await cursor.fetchall()
            if not rows:
                raise Fenced(f"partition {partition}: its checkpoint row is gone: PostgreSQL lost history")
            writer_epoch, worker, stored_lsn = rows[0][:3]
            if Token(writer_epoch, worker) != token:
                raise Fenced(
                    f"partition {partition}: epoch {writer_epoch} of {worker} took the checkpoint from epoch "
                    f"{token.writer_epoch} of {token.worker}"
                )
            if stored_lsn < lsn:
                raise Fenced(f"partition {partition}: stored lsn {stored_lsn} is below {lsn}: PostgreSQL lost history")
            return [row[3:] for row in rows if row[3] is not None]

        return await self._loads.run(load)


async def _create_staging(connection: AsyncConnection[Any]) -> None:
    await connection.execute(QUERIES["create_staging"])


async def _advance(connection: AsyncConnection[Any], partition: int, checkpoint: Checkpoint, stored_lsn: int) -> None:
    parameters = {
        **_of(partition, checkpoint.token),
        "lsn": checkpoint.lsn,
        "journal_offset": checkpoint.journal_offset,
        "turns": checkpoint.positions.turns,
        "frames": checkpoint.positions.frames,
        "membership": checkpoint.positions.membership,
        "state": checkpoint.state,
        "stored_lsn": stored_lsn,
    }
    cursor = await connection.execute(QUERIES["advance_checkpoint"], parameters, binary=True)
    if cursor.rowcount == 0:
        raise Fenced(
            f"partition {partition}: the snapshot of epoch {checkpoint.token.writer_epoch} at lsn {checkpoint.lsn} is "
            f"refused: another token, a newer snapshot, or one older than lsn {stored_lsn} is stored"
        )


async def _copy(
    connection: AsyncConnection[Any], name: str, types: Sequence[str], records: Iterable[tuple[Any, ...]]
) -> None:
    async with connection.cursor() as cursor, cursor.copy(QUERIES[name]) as copy:
        copy.set_types(types)
        for record in records:
            await copy.write_row(record)


def _state_record(row: ConversationRow) -> tuple[Any, ...]:
    return (row.conversation_id, row.lsn, row.hot, row.state)


def _key_record(row: KeyRow) -> tuple[Any, ...]:
    return (row.conversation_id, row.key, row.seq, row.id, row.at, row.timestamp)


def _of(partition: int, token: Token) -> dict[str, Any]:
    return {"partition": partition, "writer_epoch": token.writer_epoch, "worker": token.worker}
