"""What operators' commands read from Postgres: rows as dictionaries, nothing written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from streams.fence.connection import Session
from streams.fence.queries import load_queries

QUERIES = load_queries("ops")
CALL_LIMIT_S = 30.0
"""An operator would rather wait for a busy database than be told nothing."""


class Database:
    """One read-only session. Raises `FenceUnavailable` when Postgres does not answer."""

    def __init__(self, dsn: str) -> None:
        self._session = Session(dsn, "operator", limit_s=CALL_LIMIT_S, on_connect=_read_only)

    async def rows(self, query: str, **parameters: Any) -> Sequence[dict[str, Any]]:
        """All rows of the query of that name in `queries.sql`."""

        async def read(connection: AsyncConnection[Any]) -> Sequence[dict[str, Any]]:
            async with connection.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(QUERIES[query], parameters)
                return await cursor.fetchall()

        return await self._session.run(read)

    async def row(self, query: str, **parameters: Any) -> Mapping[str, Any] | None:
        """The first row, if there is one."""
        found = await self.rows(query, **parameters)
        return found[0] if found else None

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()


async def _read_only(connection: AsyncConnection[Any]) -> None:
    await connection.execute("SET default_transaction_read_only = on")
