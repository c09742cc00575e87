"""The topics that a database belongs to: its epochs and checkpoints are of those, and of no others."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from streams.fence.connection import bounded_dsn
from streams.fence.queries import load_queries

QUERIES = load_queries("streams.fence", "topics.sql")


def database_id(dsn: str) -> str:
    """The name that this database was given when it was made. Raises psycopg's errors."""
    with psycopg.connect(bounded_dsn(dsn, "topics")) as connection:
        row = connection.execute(QUERIES["database_id"]).fetchone()
    if row is None:
        raise LookupError("the table `deployment` is empty: the database was changed by hand")
    return str(row[0])


def kept_topics(dsn: str, found: Mapping[str, str]) -> Mapping[str, str]:
    """Kafka's id of each topic that the database belongs to, by name; the first who asks makes it belong to `found`.

    Raises psycopg's errors when the database cannot be asked.
    """
    with psycopg.connect(bounded_dsn(dsn, "topics")) as connection, connection.transaction():
        connection.execute(QUERIES["lock_topics"])
        rows = connection.execute(QUERIES["kept_topics"]).fetchall()
        if rows:
            return dict(rows)
        for name, topic_id in found.items():
            connection.execute(QUERIES["keep_topic"], {"name": name, "topic_id": topic_id})
        return dict(found)
