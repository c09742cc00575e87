"""Writes the read model: a batch's rows and the position that they bring it to, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from psycopg import AsyncConnection

from streams.fence.connection import Session
from streams.fence.port import Fenced
from streams.fence.queries import load_queries
from streams.projector.rows import Rows
from streams.projector.tables import Row

QUERIES = load_queries("streams.projector")

# A batch of some thousand rows takes tens of milliseconds; the limit is for a database that hangs.
WRITE_LIMIT_S = 15.0

_encode = msgspec.json.Encoder().encode


class Position(msgspec.Struct, frozen=True, gc=False):
    """How far the read model has got in a partition: the last lsn in it, and the next journal offset to read."""

    lsn: int
    journal_offset: int


class ProjectionStore(Protocol):
    """Where the read model is kept."""

    async def positions(self, partitions: Collection[int]) -> Mapping[int, Position]:
        """Where each of these partitions is; lsn 0 for one that was never written."""

    async def write(self, partition: int, after: Position, rows: Rows, upto: Position) -> None:
        """The rows of the entries after `after` up to `upto`, with the new position, at once or not at all.

        Raises `Fenced` when the stored position is not `after`: another projector was faster.
        """


class PostgresProjection:
    """The read model in Postgres. Raises `FenceUnavailable` when it cannot be reached."""

    def __init__(self, dsn: str) -> None:
        self._session = Session(dsn, "projector", limit_s=WRITE_LIMIT_S)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def positions(self, partitions: Collection[int]) -> Mapping[int, Position]:
        """See `ProjectionStore`."""

        async def load(connection: AsyncConnection[Any]) -> Mapping[int, Position]:
            parameters = {"partitions": sorted(partitions)}
            await connection.execute(QUERIES["create_positions"], parameters)
            cursor = await connection.execute(QUERIES["load_positions"], parameters)
            return {partition: Position(lsn, offset) for partition, lsn, offset in await cursor.fetchall()}

        return await self._session.run(load)

    async def write(self, partition: int, after: Position, rows: Rows, upto: Position) -> None:
        """See `ProjectionStore`."""
        parameters = {
            "partition": partition,
            "after": after.lsn,
            "lsn": upto.lsn,
            "journal_offset": upto.journal_offset,
        }

        async def write(connection: AsyncConnection[Any]) -> None:
            async with connection.pipeline(), connection.transaction():
                cursor = await connection.execute(QUERIES["advance_position"], parameters)
                if await cursor.fetchone() is None:
                    raise Fenced(f"partition {partition}: the read model is not at lsn {after.lsn} any more")
                for name, records in _statements(rows):
                    document = _encode(records).decode()
                    await connection.execute(QUERIES[name], {"partition": partition, "rows": document})

        await self._session.run(write)


def _statements(rows: Rows) -> Iterator[tuple[str, Sequence[Row]]]:
    """Statements and their rows, in an order in which what is changed has been inserted before."""
    owners = list(rows.owners.values())
    statements: tuple[tuple[str, Sequence[Row]], ...] = (
        ("open_conversations", rows.opened_conversations),
        ("change_conversations", list(rows.changed_conversations.values())),
        ("add_lines", rows.lines),
        ("hide_lines", rows.superseded),
        ("edit_lines", list(rows.edited.values())),
        ("open_runs", rows.opened_runs),
        ("change_runs", list(rows.changed_runs.values())),
        ("set_checkpoints", list(rows.checkpoints.values())),
        ("drop_checkpoints", rows.ended_runs),
        ("set_owners", owners),
        ("drop_owners", [owner for owner in owners if owner.member is None]),
        ("add_members", rows.joined_members),
        ("drain_members", rows.draining_members),
        ("end_members", rows.left_members),
        ("forget_members", rows.left_members),
        # Last: of what else is in this batch, the words go too.
        ("erase_conversations", rows.erased),
        ("erase_lines", rows.erased),
        ("erase_handovers", rows.erased),
        ("erase_runs", rows.erased),
        ("erase_checkpoints", rows.erased),
        ("destroy_keys", rows.erased),
    )
    return ((name, records) for name, records in statements if records)
