"""One query on DuckDB: read-only, with nothing in reach but the relations that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from ops.sql.relations import BY_NAME, RELATIONS, Relation, view
from ops.sql.sources import ERASED, Sources

READING: Final = "SELECT"


class BadQuery(ValueError):
    """A query that cannot be run; the message says why, as DuckDB does."""


def named(query: str) -> list[Relation]:
    """The relations that a query names, found before anything is read. Raises `BadQuery`.

    It is bound against empty tables, so that a wrong column is told at once.
    """
    with duckdb.connect() as connection:
        query = _statement(connection, query)
        for relation in RELATIONS:
            empty = relation.schema.empty_table()
            connection.register("empty", empty)
            connection.execute(f'CREATE TABLE "{relation.name}" AS FROM empty')
            connection.unregister("empty")
        # To bind a query is to open the files and addresses that it names.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            connection.sql(query)
            [(tree,)] = connection.execute("SELECT json_serialize_sql($1)", [query]).fetchall()
        except duckdb.Error as error:
            raise BadQuery(_told(error)) from None
    found = set(_tables(json.loads(tree)))
    return [relation for name, relation in BY_NAME.items() if name in found]


def _tables(node: Any) -> Iterator[str]:
    """The tables that a query's syntax tree names."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield str(node["table_name"]).lower()
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _tables(item)


def _statement(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise BadQuery(_told(error)) from None
    if len(statements) != 1:
        raise BadQuery(f"one statement at a time; these are {len(statements)}")
    kind = statements[0].type.name
    if kind != READING:
        raise BadQuery(f"only reading is possible here (SELECT); this is {kind}")
    return query.rstrip().rstrip(";")


def _told(error: duckdb.Error) -> str:
    return str(error).strip()


def run(
    query: str,
    relations: Sequence[Relation],
    sources: Sources,
    tables: Mapping[str, pa.Table],
    folders: Sequence[Path],
    *,
    show_text: bool,
) -> pa.Table:
    """The query's answer. `sources`: what each table is read from; `tables`: relations that are at hand; `folders`:
    all that may be opened. `show_text`: but for what was said in conversations that `sources` call erased. Raises
    `BadQuery`."""
    with duckdb.connect() as connection:
        query = _statement(connection, query)
        connection.execute("SET TimeZone = 'UTC'")
        if hides := show_text and ERASED in sources:
            connection.execute(f'CREATE VIEW "{ERASED}" AS FROM {sources[ERASED]}')
        for relation in relations:
            name = relation.table or relation.name
            if relation.name in tables:
                connection.register(f"at_hand_{relation.name}", tables[relation.name])
                source = f"at_hand_{relation.name}"
            else:
                source = sources[name]
            connection.execute(view(relation, source, show_text=show_text, erased=ERASED if hides else None))
        allowed = ", ".join("'" + str(folder).replace("'", "''") + "'" for folder in folders)
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            answer: Any = connection.sql(query)
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise BadQuery(_told(error)) from None
