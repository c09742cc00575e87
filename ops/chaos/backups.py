"""A backup of the deployment's database beside it on the same server, and the way back to it."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

ADMINISTRATION: Final = "postgres"
EMPTY_WITHIN_TRIES: Final = 500
PAUSE_S: Final = 0.02

SESSIONS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
)
LOCK_HOLDER: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND ((classid::bigint << 32) | objid::bigint) = %s
"""
LEFT: Final = "SELECT count(*), pg_sleep(%s) FROM pg_stat_activity WHERE datname = %s"


class Backups:
    """Of the database that `dsn` names. PostgreSQL copies a database that nobody is connected to: its sessions are
    ended, and new ones are refused until the copy is there."""

    def __init__(self, dsn: str) -> None:
        self._name = str(conninfo_to_dict(dsn)["dbname"])
        self._copy = f"{self._name}_backup"
        self._administration = make_conninfo(dsn, dbname=ADMINISTRATION)

    def end_sessions(self) -> None:
        """End all of them, whatever they do; they may come back at once."""
        with psycopg.connect(self._administration, autocommit=True) as connection:
            connection.execute(SESSIONS, [self._name])

    def end_lock(self, key: int) -> None:
        """End the session that holds this advisory lock, if there is one."""
        with psycopg.connect(self._administration, autocommit=True) as connection:
            connection.execute(LOCK_HOLDER, [key])

    def make(self) -> None:
        """A new backup in place of the last one."""
        with psycopg.connect(self._administration, autocommit=True) as connection:
            self._drop(connection, self._copy)
            self._close(connection)
            try:
                self._copied(connection, self._name, self._copy)
            finally:
                connection.execute(
                    sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(sql.Identifier(self._name))
                )

    def restore(self) -> None:
        """The database as it was in the last backup; what was stored since is lost."""
        with psycopg.connect(self._administration, autocommit=True) as connection:
            self._close(connection)
            self._drop(connection, self._name)
            self._copied(connection, self._copy, self._name)

    def _close(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(self._name)))
        for _ in range(EMPTY_WITHIN_TRIES):
            connection.execute(SESSIONS, [self._name])
            found = connection.execute(LEFT, [PAUSE_S, self._name]).fetchone()
            if found is not None and found[0] == 0:
                return
        raise RuntimeError(f"sessions of the database {self._name} do not end")

    def _drop(self, connection: psycopg.Connection[Any], name: str) -> None:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _copied(self, connection: psycopg.Connection[Any], source: str, target: str) -> None:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(target), sql.Identifier(source))
        )
