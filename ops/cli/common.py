"""What many commands share: their options, settings, and how data and progress are written."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.errors import INTERRUPTED, NEGATIVE, USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from streams.settings import Settings


class Output(StrEnum):
    """How data is written on stdout."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="table for people, json one document, jsonl one document a line.")
]
KafkaOption = Annotated[
    str | None, typer.Option("--kafka", envvar="TURNLOG_KAFKA", help="Kafka bootstrap address, HOST:PORT.")
]
PostgresOption = Annotated[
    str | None,
    typer.Option("--postgres", envvar="TURNLOG_POSTGRES", help="PostgreSQL connection string.", show_default=False),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", envvar="TURNLOG_NAMESPACE", help="Prefix of every topic's name.")
]
LifelineOption = Annotated[
    bool, typer.Option("--lifeline", help="Stop when standard input ends: for a parent that holds it open.")
]
ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="URL",
        help="Read this archive first (a folder, s3://…), and Kafka from where it ends.",
        show_default=False,
    ),
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Read the archive alone; Kafka is not asked.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", min=0, help="Look at this partition only.")]
FollowOption = Annotated[bool, typer.Option("--follow", help="Go on as more is committed, until SIGTERM.")]
EveryOption = Annotated[str, typer.Option("--every", help="With --follow: time between two rounds (30s, 5m, 1h).")]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        envvar="TURNLOG_METRICS_PORT",
        help="With --follow: port of /metrics; 0 takes a free one. Without it nothing listens.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask before changing anything.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]

Row = Mapping[str, Any]
MOMENTS: Final = frozenset(
    {"at", "created_at", "due_at", "idle_since", "revoked_at", "settled_at", "since", "updated_at"}
)
"""Fields that are ms since the epoch: people are shown them as date and time, scripts as they are."""
ANY_WIDTH: Final = 10_000
"""Columns: more than a table needs, so that it is measured and not cut."""
CONTROLS: Final = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
"""Control characters (C0 and C1): with an escape sequence a text could rewrite a terminal's lines, or its clipboard."""
WAY_OUT: Final = "start a stack with `turnlog up`, or point TURNLOG_KAFKA and TURNLOG_POSTGRES to one"


def settings_from(kafka: str | None, postgres: str | None, namespace: str | None = None, **more: Any) -> Settings:
    """The settings of the environment and these options; `CommandFailed` names each variable that is wrong."""
    from streams.settings import SettingsError, load_settings

    try:
        return load_settings(kafka=kafka, postgres=postgres, namespace=namespace, **more)
    except SettingsError as error:
        servers = "TURNLOG_KAFKA" in str(error) or "TURNLOG_POSTGRES" in str(error)
        raise CommandFailed(f"{error}\n{WAY_OUT}" if servers else str(error)) from error


def printable(text: str) -> str:
    """The text as a terminal shows it and does nothing else: ids, and what was said, are whatever somebody chose."""
    return text.translate(CONTROLS)


def progress(message: str) -> None:
    """One line for a person on stderr."""
    sys.stderr.write(f"{printable(message)}\n")
    sys.stderr.flush()


def emit(document: Any) -> None:
    """One JSON document on one line of stdout, at once."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def emit_all(documents: Sequence[Any], output: Output) -> None:
    """`documents` for programs: as one, or each on a line of its own."""
    for document in documents if output is Output.JSONL else [list(documents)]:
        emit(document)


def show_rows(rows: Sequence[Row], columns: Sequence[str], output: Output, *, empty: str) -> None:
    """`rows` in the form asked for. A table shows `columns` only, and says `empty` on stderr when there is none.

    In a terminal that is too narrow for it, each row is shown as a list of its fields, so that no id is broken.
    """
    if output is not Output.TABLE:
        emit_all(rows, output)
    elif not rows:
        progress(empty)
    else:
        _table([[_cell(row.get(column), column) for column in columns] for row in rows], columns)


def show_document(document: Row, output: Output) -> None:
    """One document: JSON on one line, or a table of its fields."""
    if output is not Output.TABLE:
        emit(document)
        return
    _table([[name, _cell(value, name)] for name, value in document.items()], None)


def told_time(ms: int) -> str:
    """Ms since the epoch as UTC date and time for people."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def require_yes(question: str) -> None:
    """Ask a person; anything but yes ends the command with `NEGATIVE`, and so does nobody being there to ask."""
    try:
        confirmed = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C
            raise
        raise CommandFailed("\nnobody is there to be asked: `--yes` does without", NEGATIVE) from None
    if not confirmed:
        raise typer.Exit(NEGATIVE)


def _table(rows: Sequence[Sequence[str]], columns: Sequence[str] | None) -> None:
    from rich.console import Console

    # A pipe has no width: a person's `| less` or `| grep` should not get cells broken at 80 columns.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 200)
    table = _drawn(rows, columns)
    needed = console.measure(table, options=console.options.update(max_width=ANY_WIDTH)).minimum
    if columns is None or needed <= console.width:
        console.print(table)
        return
    for row in rows:
        console.print(_drawn([*zip((name.replace("_", " ") for name in columns), row, strict=True)], None))


def _drawn(rows: Iterable[Sequence[str]], columns: Sequence[str] | None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_header=columns is not None, pad_edge=False)
    for column in columns or ("", ""):
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _cell(value: Any, name: str) -> str:
    if value is None:
        return "-"
    if name in MOMENTS and isinstance(value, int):
        return told_time(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return printable(json.dumps(value, ensure_ascii=False)) if value else "-"
    return printable(str(value))


STRAY: Final = (
    "no worker writes such a record: find its partition with `turnlog audit verify`, and its writer; what lies before "
    "and behind it is read with --from and --to, where the command has them"
)


@contextmanager
def translated_failures(*, quiet: bool = True) -> Iterator[None]:
    """States of the world that stop a command become `CommandFailed`; what is left is a mistake and keeps its trace.

    `quiet`: the clients' own log lines are left out, for commands that are no servers.
    """
    # Imported here: by now the command runs, and needs most of it anyway.
    import psycopg
    from aiokafka.errors import KafkaError

    from ops.audit.kept import CannotResume
    from ops.audit.source import CouldNotVerify
    from ops.bench.sequencer import BenchFailed
    from ops.children import ChildFailed
    from ops.decided import CannotNote
    from ops.embedded import StackUnavailable
    from ops.history import HistoryUnavailable
    from streams.fence.channels import InvalidDocument, VersionConflict
    from streams.fence.migrate import SchemaMismatch
    from streams.fence.port import FenceUnavailable
    from streams.fence.signing import MasterKeyError
    from streams.runtime.kafka import KafkaUnavailable
    from streams.runtime.records import Undecodable
    from streams.sealing.store import CopiesUnavailable
    from streams.topics import TopicsError

    if quiet:
        # What a client retries by itself is no news to a person; what it gives up on is raised.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        yield
    except (CannotNote, InvalidDocument, MasterKeyError, VersionConflict) as error:
        raise CommandFailed(str(error), USAGE) from error
    except (KafkaError, KafkaUnavailable, CopiesUnavailable) as error:
        raise CommandFailed(f"Kafka: {error}\n{WAY_OUT}") from error
    except (psycopg.Error, FenceUnavailable) as error:
        said = str(error).strip().removeprefix("PostgreSQL is not available: ")
        raise CommandFailed(f"PostgreSQL: {said}\n{WAY_OUT}") from error
    except (BenchFailed, CannotResume, CouldNotVerify, ChildFailed, HistoryUnavailable, StackUnavailable) as error:
        raise CommandFailed(str(error)) from error
    except (SchemaMismatch, TopicsError) as error:
        raise CommandFailed(str(error)) from error
    except Undecodable as error:
        raise CommandFailed(f"{error}\n{STRAY}") from error


@contextmanager
def resumable(way_on: str) -> Iterator[None]:
    """Ctrl-C ends the command with `INTERRUPTED`, and with `way_on`: what stays, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandFailed(way_on, INTERRUPTED) from None


def ready_line(what: str, output: Output) -> Callable[[Row], None]:
    """What a process calls once it is ready: prints its document for scripts, or a sentence for people."""

    def announce(document: Row) -> None:
        if output is not Output.TABLE:
            emit({"event": "ready", **document})
        else:
            where = document.get("url") or document.get("metrics") or ""
            progress(f"{what} {document['id']} is ready (pid {document['pid']}) {where}".rstrip())

    return announce


def require_port(host: str, port: int) -> None:
    """`CommandFailed` unless a server could listen there now: said before anything is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            way_out = "choose another port with --port (0: any free one)"
            raise CommandFailed(f"cannot listen on {host}:{port}: {error.strerror}; {way_out}") from error
