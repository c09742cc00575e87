"""The database's side: who stands in the way, and the move itself, one transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from psycopg import AsyncConnection, sql

from ops.grow.split import CannotGrow
from ops.rebuild.beside import TABLES, Group
from streams.fence.connection import bounded_dsn
from streams.fence.port import Positions
from streams.fence.queries import load_queries

QUERIES: Final = load_queries("ops.grow")
GONE_WITHIN_S: Final = 3.0
"""A process that ended may be shown as connected for a moment."""
LOOK_AGAIN_S: Final = 0.1


class Database:
    """One session. Open it with `connect`."""

    def __init__(self, connection: AsyncConnection[Any], dsn: str) -> None:
        self._connection = connection
        self.dsn = dsn

    @classmethod
    async def connect(cls, dsn: str) -> Database:
        """Raises what the database's client raises."""
        return cls(await AsyncConnection.connect(bounded_dsn(dsn, "grow"), autocommit=True), dsn)

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()

    async def kept_topics(self) -> Mapping[str, str]:
        """Kafka's id of each topic that the database belongs to, by name."""
        return dict(await self._rows("kept_topics"))

    async def positions(self) -> Mapping[int, tuple[int, Positions]]:
        """Of each checkpoint, its lsn and the intake that it covers."""
        return {
            partition: (lsn, Positions(turns, frames, membership))
            for partition, lsn, turns, frames, membership in await self._rows("checkpoints")
        }

    async def destroyed(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that were destroyed."""
        cursor = await self._connection.execute(QUERIES["destroyed"], {"keys": list(keys)})
        return {str(row[0]) for row in await cursor.fetchall()}

    async def in_the_way(self) -> list[str]:
        """Processes that must be stopped first; none of one that has just ended."""
        until = time.monotonic() + GONE_WITHIN_S
        while (found := await self._running()) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_AGAIN_S)
        return found

    async def _running(self) -> list[str]:
        workers = [str(row[0]) for row in await self._rows("live_workers")]
        sessions = [str(row[0]).removeprefix("turnlog ") for row in await self._rows("other_sessions")]
        found = []
        if workers:
            found.append(
                f"workers are running: stop {', '.join(workers)} (a killed one counts until its lease ends, 15 s)"
            )
        if sessions:
            found.append(
                f"processes of Turnlog are connected to the database ({', '.join(sessions)}): stop every worker, "
                "gateway, projector and connector"
            )
        return found

    async def switch(
        self, topics: Mapping[str, str], epochs: Mapping[int, int], unchanged: Callable[[], Awaitable[None]]
    ) -> None:
        """The move: from the end of this transaction on the database belongs to `topics`.

        `epochs`: of each new partition, the highest writer epoch in its journal. `unchanged` raises where Kafka is not
        as it was when it was copied; nobody of this database can write there any more when it is asked. The tables that
        are derived from the journal are emptied: workers and projectors make them anew. Raises `CannotGrow`.
        """
        async with self._connection.transaction():
            await self._connection.execute(QUERIES["lock"])
            if running := await self._running():
                raise CannotGrow("; ".join(running))
            await unchanged()
            for partition, epoch in sorted(epochs.items()):
                await self._connection.execute(QUERIES["raise_lease"], {"partition": partition, "writer_epoch": epoch})
                await self._connection.execute(QUERIES["raise_fence"], {"partition": partition})
            for table in (*TABLES[Group.CHECKPOINTS][1:], *TABLES[Group.READ_MODEL]):
                await self._connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
            await self._connection.execute(QUERIES["forget_topics"])
            for name, topic_id in topics.items():
                await self._connection.execute(QUERIES["keep_topic"], {"name": name, "topic_id": topic_id})

    async def _rows(self, query: str) -> list[Any]:
        return await (await self._connection.execute(QUERIES[query])).fetchall()
