"""Migrations on a real Postgres: once each, by many processes at once, and never backwards."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from streams.fence.migrate import SchemaMismatch, migrate, migrations, verify
from tests.support.command import turnlog

ROOT = Path(__file__).parents[2]
ALL = [migration.number for migration in migrations()]


def tables(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {row[0] for row in rows}


def command(dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streams.fence.migrate", *options],
        cwd=ROOT,
        env={"TURNLOG_POSTGRES": dsn, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_tells_what_is_missing_and_applies_it(fresh_database: str) -> None:
    there = {"TURNLOG_POSTGRES": fresh_database}
    dry = turnlog("migrate", "--dry-run", "-o", "json", environment=there)
    assert [row["migration"][:4] for row in dry.document] == [f"{number:04}" for number in ALL]
    assert {row["applied"] for row in dry.document} == {False}
    assert turnlog("migrate", environment=there).out.splitlines()[0] == "applied 0001_fence"
    verify(fresh_database)
    again = turnlog("migrate", environment=there)
    assert (again.code, again.out) == (0, "")
    assert "nothing to change" in again.err


def test_each_migration_is_applied_once(fresh_database: str) -> None:
    assert [migration.number for migration in migrate(fresh_database)] == ALL
    assert {"leases", "checkpoints", "transcript", "schema_migrations"} <= tables(fresh_database)
    assert migrate(fresh_database) == []
    verify(fresh_database)


def test_a_dry_run_changes_nothing(fresh_database: str) -> None:
    assert [migration.number for migration in migrate(fresh_database, dry_run=True)] == ALL
    assert tables(fresh_database) == set()


COLUMNS = """
SELECT table_name || '.' || column_name, udt_name, is_nullable, column_default IS NOT NULL OR is_identity = 'YES'
FROM information_schema.columns WHERE table_schema = 'public'
"""
# Primary keys, unique and foreign keys, checks, exclusions; and indexes that forbid a second row.
RULES = """
SELECT conrelid::regclass || ': ' || conname || ' ' || pg_get_constraintdef(oid), conrelid::regclass::text
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'u', 'f', 'c', 'x')
UNION ALL
SELECT pg_get_indexdef(indexrelid), indrelid::regclass::text FROM pg_index
WHERE indisunique AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""
WIDER = {"conversations: conversations_status_check": "takes the status `erased` beside the others"}
"""Rules of tables that were there, which let through all that the ones before them did."""


def shape(connection: psycopg.Connection) -> tuple[dict[str, tuple[str, str, bool]], dict[str, str]]:
    """Each column with its type, whether it takes null, and whether it is filled in; each rule with its table."""
    columns = {name: (kind, null, filled) for name, kind, null, filled in connection.execute(COLUMNS)}
    return columns, dict(connection.execute(RULES).fetchall())


def broken(connection: psycopg.Connection, sql: str) -> list[str]:
    """Apply a migration; what of it a process of the release before would stumble over."""
    (before, rules), _ = shape(connection), connection.execute(sql.encode())
    after, new_rules = shape(connection)
    known = {name.partition(".")[0] for name in before}
    gone = [f"{name} is gone" for name in before.keys() - after.keys()]
    other = [f"{name} has another type" for name in before.keys() & after.keys() if before[name][0] != after[name][0]]
    strict = [
        f"{name} must be given, and is not known"
        for name, (_, null, filled) in after.items()
        if name.partition(".")[0] in known and null == "NO" and not filled and before.get(name) != after[name]
    ]
    added = [f"{rule}: a rule more" for rule in new_rules.keys() - rules.keys() if new_rules[rule] in known]
    return [*gone, *other, *strict, *(each for each in added if not each.startswith(tuple(WIDER)))]


def test_each_migration_leaves_what_processes_of_the_release_before_read_and_write(fresh_database: str) -> None:
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        assert {each.name: broken(connection, each.sql) for each in migrations()} == {
            each.name: [] for each in migrations()
        }


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("ALTER TABLE leases DROP COLUMN stopped", "leases.stopped is gone"),
        ("ALTER TABLE leases RENAME COLUMN stopped TO halted", "leases.stopped is gone"),
        ("DROP TABLE run_checkpoints", "run_checkpoints.data is gone"),
        ("ALTER TABLE leases ALTER COLUMN partition TYPE bigint", "leases.partition has another type"),
        ("ALTER TABLE leases ADD COLUMN why text NOT NULL", "leases.why must be given, and is not known"),
        ("ALTER TABLE leases ALTER COLUMN stopped SET NOT NULL", "leases.stopped must be given, and is not known"),
        ("CREATE UNIQUE INDEX one_lease ON leases (owner)", "one_lease"),
        ("ALTER TABLE leases ADD CHECK (owner <> '')", "leases_owner_check"),
    ],
)
def test_what_a_migration_must_not_do_is_found(fresh_database: str, sql: str, told: str) -> None:
    migrate(fresh_database)
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        assert [each for each in broken(connection, sql) if told in each]


def test_processes_started_together_apply_each_once(fresh_database: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        applied = list(pool.map(migrate, [fresh_database] * 6))
    assert sorted(migration.number for batch in applied for migration in batch) == ALL


def test_a_database_that_lacks_some_says_which_and_what_to_do(fresh_database: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"lacks 0001_fence, .*turnlog migrate"):
        verify(fresh_database)


def test_a_newer_database_is_refused(fresh_database: str) -> None:
    migrate(fresh_database)
    with psycopg.connect(fresh_database) as connection:
        connection.execute(
            "INSERT INTO schema_migrations (number, name, sha256) VALUES (%s, 'later', '')", (len(ALL) + 1,)
        )
    for refused in (migrate, verify):
        with pytest.raises(SchemaMismatch, match="newer than this release"):
            refused(fresh_database)


def test_a_file_changed_after_it_was_applied_is_refused(fresh_database: str) -> None:
    migrate(fresh_database)
    with psycopg.connect(fresh_database) as connection:
        connection.execute("UPDATE schema_migrations SET sha256 = 'other' WHERE number = 1")
    with pytest.raises(SchemaMismatch, match="changed after it was applied"):
        migrate(fresh_database)


def test_a_migration_that_fails_leaves_nothing_of_itself(fresh_database: str) -> None:
    with psycopg.connect(fresh_database) as connection:
        connection.execute("CREATE TABLE conversations (mine integer)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(fresh_database)
    assert "leases" in tables(fresh_database)
    assert "projector_positions" not in tables(fresh_database)
    with psycopg.connect(fresh_database) as connection:
        connection.execute("DROP TABLE conversations")
    assert [migration.number for migration in migrate(fresh_database)] == ALL[1:]


def test_it_runs_by_hand(fresh_database: str) -> None:
    assert command(fresh_database, "--dry-run").stdout.startswith("missing 0001_fence")
    assert command(fresh_database).stdout.startswith("applied 0001_fence")
    assert command(fresh_database).stdout == ""
    unreachable = command("host=127.0.0.1 port=1 user=u password=hidden dbname=d")
    assert unreachable.returncode == 2
    assert "hidden" not in unreachable.stderr
