"""A database of a test's own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ops.chaos.backups import Backups


@contextmanager
def database(server: str) -> Iterator[str]:
    """A new, empty database on `server` as a connection string; dropped at the end, open sessions included."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    _run(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield in_database(server, name)
    finally:
        _run(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def backups(dsn: str) -> Iterator[Backups]:
    """Of the database that `dsn` names; removed after."""
    yield Backups(dsn)
    name = f"{conninfo_to_dict(dsn)['dbname']}_backup"
    _run(in_database(dsn, "postgres"), sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))


def in_database(dsn: str, name: str) -> str:
    """`dsn` with another database, in the form that it has: a URL stays one."""
    if dsn.startswith(("postgresql://", "postgres://")):
        return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    return make_conninfo(dsn, dbname=name)


def _run(dsn: str, statement: sql.Composed) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)
