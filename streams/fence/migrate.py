"""Brings a database to this release's tables: the numbered files of `migrations/`, each once, in its own transaction.

By hand: `turnlog migrate` (or `python -m streams.fence.migrate`); `turnlog up` does it by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import psycopg

from streams.fence.connection import APPLICATION_NAME, CONNECT_TIMEOUT_S
from streams.settings import SettingsError, load_settings

FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

# Held while migrating, so that processes started together wait for the first. Any constant will do; advisory locks
# are per database. The bytes spell "turnlog".
MIGRATION_LOCK = int.from_bytes(b"turnlog", "big")

HISTORY_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    sha256     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


class SchemaMismatch(Exception):
    """The database's tables are not those of this release; the message says which way and what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file. `sha256` of its text guards against a file that was changed after it was applied."""

    number: int
    name: str
    sql: str
    sha256: str


def migrations() -> Sequence[Migration]:
    """All migrations of this release, in order. Raises `ValueError` if their numbers are not 1, 2, 3 …"""
    found: list[Migration] = []
    for file in resources.files("streams.fence").joinpath("migrations").iterdir():
        match = FILE_NAME.fullmatch(file.name)
        if match is not None:
            sql = file.read_text("utf-8")
            found.append(Migration(int(match[1]), match[2], sql, hashlib.sha256(sql.encode()).hexdigest()))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must be numbered 1, 2, 3 …: {[migration.number for migration in found]}")
    return found


def migrate(dsn: str, *, dry_run: bool = False) -> Sequence[Migration]:
    """Apply what is missing and return it (with `dry_run`: only return it).

    Safe to run twice and by many processes at once. Raises `SchemaMismatch` when the database is newer than this
    release or holds another history, and psycopg's errors when it cannot be reached or refuses.
    """
    known = migrations()
    with _connect(dsn) as connection:
        # One statement a transaction for the lock and the history, one transaction a migration.
        connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
        missing = _missing(connection, known)
        if dry_run or not missing:
            return missing
        connection.execute(HISTORY_TABLE)
        for migration in missing:
            with connection.transaction():
                connection.execute(migration.sql.encode())
                connection.execute(
                    "INSERT INTO schema_migrations (number, name, sha256) VALUES (%s, %s, %s)",
                    (migration.number, migration.name, migration.sha256),
                )
        return missing


def verify(dsn: str) -> None:
    """Raise `SchemaMismatch` unless the database has exactly this release's tables. Changes nothing."""
    with _connect(dsn) as connection:
        missing = _missing(connection, migrations())
    if missing:
        names = ", ".join(f"{migration.number:04}_{migration.name}" for migration in missing)
        raise SchemaMismatch(f"the database lacks {names}: apply it with `turnlog migrate`")


def _connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(
        dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, application_name=f"{APPLICATION_NAME} migrate"
    )


def _missing(connection: psycopg.Connection, known: Sequence[Migration]) -> Sequence[Migration]:
    exists = connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchone()
    if exists is None or not exists[0]:
        return known
    applied = connection.execute("SELECT number, name, sha256 FROM schema_migrations ORDER BY number").fetchall()
    if len(applied) > len(known):
        number, name, _ = applied[-1]
        raise SchemaMismatch(
            f"the database is at migration {number:04}_{name}, newer than this release, which ends at "
            f"{known[-1].number:04}_{known[-1].name}: upgrade turnlog, or use another database"
        )
    for (number, name, sha256), migration in zip(applied, known, strict=False):
        if (number, sha256) != (migration.number, migration.sha256):
            raise SchemaMismatch(
                f"migration {number:04}_{name} in the database is not {migration.number:04}_{migration.name} of this "
                "release: the file was changed after it was applied; use a fresh database or the release that made it"
            )
    return known[len(applied) :]


def main() -> int:
    """Command line: migrate the database of `TURNLOG_POSTGRES`. Returns the exit code: 0 done, 2 could not."""
    parser = argparse.ArgumentParser(prog="python -m streams.fence.migrate", description=main.__doc__)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be applied")
    dry_run = parser.parse_args().dry_run
    try:
        # Kafka plays no part here; the setting is required of servers alone.
        applied = migrate(load_settings(kafka="unused:1").postgres, dry_run=dry_run)
    except (SettingsError, SchemaMismatch, psycopg.Error) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for migration in applied:
        sys.stdout.write(f"{'missing' if dry_run else 'applied'} {migration.number:04}_{migration.name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
