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
