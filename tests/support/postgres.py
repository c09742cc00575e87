"""A database of a test's own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo


@contextmanager
def database(server: str) -> Iterator[str]:
    """A new, empty database on `server` as a connection string; dropped at the end, open sessions included."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    _run(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield in_database(server, name)
    finally:
        _run(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def in_database(dsn: str, name: str) -> str:
    """`dsn` with another database, in the form that it has: a URL stays one."""
    if dsn.startswith(("postgresql://", "postgres://")):
        return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    return make_conninfo(dsn, dbname=name)


def _run(dsn: str, statement: sql.Composed) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)
