"""The tables beside: made like those in use, kept until they replace them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import LockNotAvailable
from psycopg.rows import dict_row

from streams.fence.connection import bounded_dsn
from streams.fence.queries import load_queries

QUERIES: Final = load_queries("ops.rebuild")
SCHEMA: Final = "rebuild"


class Group(StrEnum):
    """Tables that speak of one position, and are only right together."""

    READ_MODEL = "read-model"
    CHECKPOINTS = "checkpoints"


TABLES: Final[Mapping[Group, tuple[str, ...]]] = {
    Group.READ_MODEL: (
        "projector_positions",
        "conversations",
        "transcript",
        "runs",
        "run_checkpoints",
        "owners",
        "members",
    ),
    Group.CHECKPOINTS: ("checkpoints", "conversation_states", "idempotency_keys"),
}
"""All that is derived from the journal. The others are not: leases, channels, secrets and keys come from a backup."""


DATA_KEYS: Final = "data_keys"
"""Not derived, and written to by who reads of an erasure: beside there is a view of the one in use."""


class CannotRebuild(Exception):
    """It would do harm now, or cannot be right; the message says what has to be done first."""


class Behind(Exception):
    """The tables in use have gone on meanwhile: read on, and try again."""


class Beside:
    """The schema `rebuild` of one database. Open it with `connect`."""

    def __init__(self, connection: AsyncConnection[dict[str, Any]], dsn: str) -> None:
        self._connection = connection
        given = conninfo_to_dict(dsn).get("options") or ""
        self.dsn = make_conninfo(dsn, options=f"{given} -c search_path={SCHEMA}".strip())
        """By which everything that is written without a schema's name goes to the tables beside."""

    @classmethod
    async def connect(cls, dsn: str) -> Beside:
        """One session. What the database's client raises."""
        connection = await AsyncConnection.connect(bounded_dsn(dsn, SCHEMA), autocommit=True, row_factory=dict_row)
        return cls(connection, dsn)

    async def close(self) -> None:
        """Close the session; the tables stay."""
        await self._connection.close()

    async def take(self) -> None:
        """Be the only rebuild until this session ends. `CannotRebuild`: there is another."""
        try:
            async with self._connection.transaction():
                await self._connection.execute(QUERIES["wait_shortly"])
                await self._connection.execute(QUERIES["take"])
        except LockNotAvailable as error:
            raise CannotRebuild(
                "another rebuild of this database is at work: let it end, or stop it, and try again"
            ) from error

    async def goes_on(self, identity: str) -> bool:
        """Whether there is an interrupted rebuild of this journal, for tables as they are now."""
        if not next(iter((await self._one("exists")).values())):
            return False
        about = await self._rows("about")
        return bool(about) and about[0] == {"identity": identity, "columns": await self._columns()}

    async def require_journal(self, identity: str) -> None:
        """`CannotRebuild`: the database belongs to another journal, whose tables would be lost."""
        kept = [row["topic_id"] for row in await self._rows("journal_topic")]
        if kept and identity not in kept:
            raise CannotRebuild(
                f"the database belongs to the journal with topic id {', '.join(kept)}, not to this one, {identity}: "
                "set TURNLOG_KAFKA and TURNLOG_NAMESPACE, or --archive, to the journal of this database. One restored "
                "from before `turnlog topic grow` is moved by that command"
            )

    async def begin(self, identity: str) -> None:
        """Empty tables beside, like those in use."""
        await self.drop()
        async with self._connection.transaction():
            await self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
            for table in (table for tables in TABLES.values() for table in tables):
                names = sql.Identifier(SCHEMA, table), sql.Identifier("public", table)
                await self._connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(*names))
            names = sql.Identifier(SCHEMA, DATA_KEYS), sql.Identifier("public", DATA_KEYS)
            await self._connection.execute(sql.SQL("CREATE VIEW {} AS TABLE {}").format(*names))
            about = sql.SQL("CREATE TABLE {} (identity text, columns text)").format(sql.Identifier(SCHEMA, "about"))
            await self._connection.execute(about)
            parameters = {"identity": identity, "columns": await self._columns()}
            await self._connection.execute(QUERIES["begin_about"], parameters)

    async def drop(self) -> None:
        """Remove them."""
        statement = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(SCHEMA))
        await self._connection.execute(statement)

    async def counts(self, tables: Sequence[str], schema: str = "public") -> dict[str, int]:
        """Rows of each table."""
        found = {}
        for table in tables:
            statement = sql.SQL("SELECT count(*) AS rows FROM {}").format(sql.Identifier(schema, table))
            row = await (await self._connection.execute(statement)).fetchone()
            found[table] = 0 if row is None else int(row["rows"])
        return found

    async def writers(self) -> dict[int, str]:
        """Which partitions are held by which workers now."""
        return {row["partition"]: row["owner"] for row in await self._rows("live_leases")}

    async def replace_read_model(self) -> None:
        """The read model in use becomes the one beside, at once. `Behind`: it has got further than that meanwhile.

        A projector that writes at the same moment waits, and then finds that the position is not the one it knew.
        """
        async with self._connection.transaction():
            in_use = {row["partition"]: row["lsn"] for row in await self._rows("lock_positions")}
            beside = {row["partition"]: row["lsn"] for row in await self._rows("beside_positions")}
            for partition, lsn in in_use.items():
                if lsn > (read := beside.get(partition, 0)):
                    raise Behind(f"the read model has partition {partition} up to lsn {lsn}, the journal up to {read}")
            for table in TABLES[Group.READ_MODEL]:
                await self._replace(table)

    async def replace_checkpoints(self) -> None:
        """The checkpoints in use become those beside, at once. `CannotRebuild`: a worker holds a partition.

        The fences stay as they are: a token is never lowered.
        """
        async with self._connection.transaction():
            held = {row["partition"]: row["owner"] for row in await self._rows("lock_leases") if row["live"]}
            if held:
                raise CannotRebuild(held_by(held))
            for table in TABLES[Group.CHECKPOINTS][1:]:
                await self._replace(table)
            await self._connection.execute(QUERIES["replace_checkpoints"])

    async def _replace(self, table: str) -> None:
        in_use, beside = sql.Identifier("public", table), sql.Identifier(SCHEMA, table)
        await self._connection.execute(sql.SQL("DELETE FROM {}").format(in_use))
        await self._connection.execute(sql.SQL("INSERT INTO {} TABLE {}").format(in_use, beside))

    async def _columns(self) -> str:
        tables = [table for tables in TABLES.values() for table in tables]
        rows = await self._rows("columns", tables=tables)
        return "\n".join(str(next(iter(row.values()))) for row in rows)

    async def _rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        return await (await self._connection.execute(QUERIES[query], parameters)).fetchall()

    async def _one(self, query: str) -> dict[str, Any]:
        return (await self._rows(query))[0]


def held_by(held: Mapping[int, str]) -> str:
    """Why checkpoints cannot be replaced, and what to stop."""
    workers = sorted(set(held.values()))
    return (
        f"checkpoints are not replaced under a worker that writes them: stop {', '.join(workers)} first "
        f"({len(held)} partitions), or rebuild the read model alone with --table read-model"
    )
