"""A search in the console looks into indexes, however many conversations there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from streams.fence.migrate import migrate
from streams.fence.queries import load_queries

QUERY = load_queries("streams.projector", "read.sql")["conversations"]
MANY = """
INSERT INTO conversations
    (id, partition, channel, participant, external_id, status, head_seq, opened_at, updated_at, last_lsn)
SELECT md5(n::text), 0, 'web', 'person-' || n / 2, 'order-' || n, 'open', 1, n, n, n FROM generate_series(1, 20000) n
"""
NOTHING = dict.fromkeys(("status", "channel", "external_id", "named", "before_at", "before_id"))


@pytest.fixture
def tables(fresh_database: str) -> Iterator[psycopg.Connection]:
    migrate(fresh_database)
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(MANY)
        connection.execute("ANALYZE conversations")
        yield connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.parametrize(
    ("asked", "indexes", "found"),
    [
        (
            {"named": "person-77"},
            {"conversations_of_participant", "conversations_of_external_id", "conversations_by_beginning"},
            2,
        ),
        ({"external_id": "order-77"}, {"conversations_of_external_id"}, 1),
        ({"status": "open"}, {"conversations_recent"}, 51),
    ],
    ids=["a name", "an external id", "the latest"],
)
def test_a_search_reads_no_whole_table(
    tables: psycopg.Connection, asked: dict[str, str], indexes: set[str], found: int
) -> None:
    wanted = {**NOTHING, "limit": 51, **asked}
    assert len(tables.execute(QUERY, wanted).fetchall()) == found
    row = tables.execute(b"EXPLAIN (FORMAT JSON) " + QUERY, wanted).fetchone()
    assert row is not None
    every = list(nodes(row[0][0]["Plan"]))
    assert "Seq Scan" not in {node["Node Type"] for node in every}, json.dumps(row[0], indent=1)
    # The primary key serves as well where the database sorts by bytes, as the tests' does.
    used = {node["Index Name"] for node in every if "Index Name" in node}
    assert {"conversations_by_beginning" if name == "conversations_pkey" else name for name in used} == indexes
