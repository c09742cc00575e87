"""A failover of PostgreSQL as the fault suite does it: a real standby, which lacks what its link held back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from ops.chaos.databases import Database
from ops.chaos.proxy import LOOPBACK, TcpProxy, Way, running
from ops.embedded.stack import EmbeddedStack
from tests.support.waiting import until

TABLE = "CREATE TABLE standby_test (written int)"


def rows(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("SELECT written FROM standby_test ORDER BY 1")]


def write(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture
async def database(stack: EmbeddedStack, fresh_database: str, tmp_path: Path) -> AsyncIterator[Database]:
    """Of a primary that outlives its end, as everybody's server has to."""
    if stack.data is None or stack.named:
        pytest.skip("a standby is a copy by the embedded server's own programs")
    ended: list[int] = []
    shared: Any = SimpleNamespace(
        postgres=fresh_database, kill_postgres=lambda: ended.append(9), signal_postgres=None, restart_postgres=None
    )
    await asyncio.to_thread(write, fresh_database, TABLE)
    made = Database(shared, tmp_path)
    yield made
    await asyncio.to_thread(made.stop)
    assert ended == [9]


async def test_a_promoted_standby_has_all_but_what_its_link_held_back_and_takes_writes(database: Database) -> None:
    primary, link = database.dsn, TcpProxy(LOOPBACK, database.port)
    async with running(link):
        standby = await asyncio.to_thread(database.standby, link.port)
        await asyncio.to_thread(write, primary, "INSERT INTO standby_test VALUES (1)")
        copy = make_conninfo(primary, port=standby.port)
        await until(lambda: rows(copy) == [1])
        link.hold(*Way)
        await asyncio.to_thread(write, primary, "INSERT INTO standby_test VALUES (2)")
        await asyncio.to_thread(database.fail_over, standby)
    assert database.port == standby.port
    await asyncio.to_thread(write, database.dsn, "INSERT INTO standby_test VALUES (3)")
    assert await asyncio.to_thread(rows, database.dsn) == [1, 3]
    await asyncio.to_thread(database.kill)
    await asyncio.to_thread(database.restart)
    assert await asyncio.to_thread(rows, database.dsn) == [1, 3]
