"""`turnlog sql`: queries over the journal's tables."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.actions import WhyShownOption, note_shown
from ops.cli.common import (
    ArchiveOption,
    KafkaOption,
    NamespaceOption,
    OfflineOption,
    Output,
    PostgresOption,
    emit,
    progress,
    settings_from,
    show_rows,
    translated_failures,
)
from ops.cli.errors import USAGE, CommandFailed
from ops.cli.export import export_failures
from ops.cli.servers import NO_KAFKA, NO_POSTGRES, settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ops.sql.relations import Relation
    from streams.settings import Settings


class Form(StrEnum):
    """How an answer is written on stdout."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


QueryArgument = Annotated[
    str, typer.Argument(metavar="QUERY", help="One SELECT, in DuckDB's SQL; - reads it from stdin.")
]
TablesOption = Annotated[bool, typer.Option("--tables", help="List what a query may name, with each column's meaning.")]
ExportOption = Annotated[
    Path | None,
    typer.Option("--export", metavar="DIR", help="Ask an export in this folder, of any format; nothing else is read."),
]
ShowTextOption = Annotated[
    bool,
    typer.Option(
        "--show-text",
        help="Show what was said, but for erased conversations; else only how long it is. Noted in the journal; of "
        "files in that of the deployment that the settings name, if they name one.",
    ),
]
AcceptMissingOption = Annotated[
    bool, typer.Option("--accept-missing", help="Answer though records of the journal are gone for good.")
]
FormOption = Annotated[
    Form, typer.Option("-o", "--output", help="table for people, json, jsonl (a document a row), csv.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("sql", rich_help_panel="Data")(sql)


def sql(
    query: QueryArgument = "",
    tables: TablesOption = False,
    export: ExportOption = None,
    show_text: ShowTextOption = False,
    why: WhyShownOption = "",
    accept_missing: AcceptMissingOption = False,
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: FormOption = Form.TABLE,
) -> None:
    """Ask the journal in SQL: a live system, an archive, or an export.

    Views: turns, frames, ownership, membership, runs, conversations (what each is now), conversation_versions; and of a
    live system or archive journal (every event), open_runs, leases, workers. The journal is read as a whole for each
    query; for many queries on much, export it first (`turnlog export parquet DIR`) and ask that. Nothing is written,
    and a query reaches no file and no network.

    Exit code 0: answered. 2: could not be answered. 64: the query is wrong.

    Examples:

      turnlog sql --tables

      turnlog sql "select outcome, median(latency_ms) from runs group by all"

      turnlog sql "from open_runs order by given_at limit 10" -o jsonl

      turnlog sql --export ./tables "select text from turns limit 5" --show-text
    """
    with translated_failures(), export_failures(), _failures():
        if tables:
            _list(output)
            return
        from ops.sql.query import named

        text = sys.stdin.read() if query == "-" else query
        if not text.strip():
            raise CommandFailed("what is the question? give one SELECT, or --tables", USAGE)
        relations = named(text)
        if export is not None:
            if archive is not None or offline:
                raise CommandFailed("--export asks that export alone: leave --archive and --offline out", USAGE)
            if show_text:
                note_shown(None, f"sql of the export {export.absolute()}", why, kafka=kafka, namespace=namespace)
            answer = _of_export(text, relations, export.absolute(), show_text)
        else:
            work = _Work(text, relations, show_text, why, accept_missing)
            answer = work.run(kafka, postgres, namespace, archive, offline)
    _show(answer, output)


class _Work:
    """A query on a history and the live state."""

    def __init__(
        self, query: str, relations: Sequence[Relation], show_text: bool, why: str, accept_missing: bool
    ) -> None:
        self._query = query
        self._relations = relations
        self._show_text = show_text
        self._why = why
        self._accept_missing = accept_missing

    def run(
        self, kafka: str | None, postgres: str | None, namespace: str | None, archive: str | None, offline: bool
    ) -> pa.Table:
        from ops.sql.query import run
        from ops.sql.sources import STATE, of_database

        state = [relation for relation in self._relations if relation.name in STATE]
        rest = [relation for relation in self._relations if relation.name not in STATE]
        at_hand = {}
        if archive is not None and not rest:
            raise CommandFailed("--archive: this query names nothing that an archive has (see --tables)", USAGE)
        if state:
            if offline:
                raise CommandFailed(f"{state[0].name} is of a live system: leave --offline out", USAGE)
            at_hand = of_database(settings_from(kafka or NO_KAFKA, postgres, namespace).postgres, state)
        with TemporaryDirectory(prefix="turnlog-sql-") as folder:
            sources = {}
            if rest:
                settings = settings_of(kafka, NO_POSTGRES, namespace, archive=archive, offline=offline)
                if self._show_text:
                    what = f"sql of the archive {archive}" if settings is None else "sql"
                    note_shown(settings, what, self._why, kafka=kafka, namespace=namespace)
                sources = asyncio.run(self._fold(settings, archive, offline, rest, Path(folder)))
            folders = [Path(folder)]
            return run(self._query, self._relations, sources, at_hand, folders, show_text=self._show_text)

    async def _fold(
        self, settings: Settings | None, archive: str | None, offline: bool, rest: Sequence[Relation], folder: Path
    ) -> dict[str, str]:
        from ops.history import open_history
        from ops.sql.sources import of_history

        async with open_history(settings, archive, offline=offline) as history:
            return await of_history(history, rest, folder, progress, accept_missing=self._accept_missing)


def _of_export(query: str, relations: Sequence[Relation], root: Path, show_text: bool) -> pa.Table:
    from ops.sql.query import run
    from ops.sql.sources import erased_in_export, of_export

    sources = of_export(root, relations)
    if show_text and relations:
        sources |= erased_in_export(root)
    return run(query, relations, sources, {}, [root], show_text=show_text)


@contextmanager
def _failures() -> Iterator[None]:
    """What a query is refused for, as failures of the command."""
    from ops.sql.query import BadQuery
    from ops.sql.sources import NoSource

    try:
        yield
    except BadQuery as error:
        raise CommandFailed(str(error), USAGE) from error
    except NoSource as error:
        raise CommandFailed(str(error)) from error


def _list(output: Form) -> None:
    from ops.sql.relations import RELATIONS
    from ops.sql.sources import duck_type as type_name

    rows = [
        {"view": relation.name, "column": column.name, "type": type_name(column.type), "meaning": column.doc}
        for relation in RELATIONS
        for column in relation.columns
    ]
    if output is not Form.TABLE:
        _write(rows, ["view", "column", "type", "meaning"], output)
        return
    for relation in RELATIONS:
        typer.echo(f"{relation.name}: {relation.doc}")
        for column in relation.columns:
            typer.echo(f"  {column.name:<22} {type_name(column.type):<12} {column.doc}")
        typer.echo("")


def _show(answer: pa.Table, output: Form) -> None:
    rows = [{name: _plain(value) for name, value in row.items()} for row in answer.to_pylist()]
    _write(rows, answer.column_names, output)


def _write(rows: list[dict[str, Any]], columns: list[str], output: Form) -> None:
    if output is Form.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(
                [json.dumps(v, ensure_ascii=False) if isinstance(v, list | dict) else v for v in row.values()]
            )
    elif output is Form.JSON:
        emit(rows)
    else:
        show_rows(rows, columns, Output(output.value), empty="no rows")


def _plain(value: Any) -> Any:
    """A value of an answer as JSON has it: times ISO 8601, what else it has no word for as text."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
