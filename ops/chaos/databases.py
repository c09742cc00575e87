"""The PostgreSQL of a place, and its failover: the standby of a moment ago is the primary now.

The standby is a real one: a base copy of the primary (`pg_basebackup`) that streams from it, over a link of its own.
The link is held for some seconds, then the primary is killed and the standby promoted: what was written in those
seconds is gone, as with any asynchronous replication. All proxies then lead to the new primary, as a failover's new
address does. The former primary stays dead: a later failover makes a new standby.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ops.embedded import ports, postgres
from ops.embedded.errors import StackUnavailable
from ops.embedded.stack import POSTGRES, EmbeddedStack
from ops.embedded.supervision import Supervision
from ops.embedded.supervisor import Plan, ServerPlan

ADMINISTRATION: Final = "postgres"
HOST: Final = "127.0.0.1"
START_S, STOP_S = 60.0, 15.0
STREAMS_WITHIN_S: Final = 20.0
LOOK_S: Final = 0.1
READY: Final = "database system is ready to accept"
"""A standby is ready for read-only connections, a primary for all."""
STREAMING: Final = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
PROMOTE: Final = "SELECT pg_promote()"
TRIES: Final = 10
"""A server that a busy machine starts too slowly is started again: that it is slow is nothing that is tried here."""


class Server(Protocol):
    """One server's process."""

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""

    def signal(self, number: int) -> None:
        """Any other signal."""

    def restart(self) -> None:
        """Stop it in order if it runs, and start it on its data; returns when it is ready. `StackUnavailable`."""


class EmbeddedPostgres:
    """The one of an embedded stack."""

    def __init__(self, stack: EmbeddedStack) -> None:
        self.kill, self.signal, self.restart = stack.kill_postgres, stack.signal_postgres, stack.restart_postgres


class Standby:
    """A copy that streams from a primary until it is promoted."""

    def __init__(self, folder: Path, primary: str) -> None:
        """Copy it, and start. `primary`: its DSN, over the link. Raises `StackUnavailable`."""
        self.folder = folder
        home, log = folder / "data", folder / "postgres.log"
        home.mkdir(mode=0o700, parents=True)
        self.port = ports.choose(0, 0)
        plan = postgres.plan(home, log, port=self.port, throwaway=False)
        self._lock = os.open(folder / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._supervision = Supervision(
            Plan([copying(plan, primary)], None, START_S, STOP_S), lock=self._lock, errors=folder / "supervisor.log"
        )
        try:
            ended = self._supervision.wait_running()
        except RuntimeError as error:
            self.stop()
            raise StackUnavailable(f"no standby: {error}") from error
        if ended:
            self.stop()
            raise StackUnavailable(f"no standby: {ended[POSTGRES]}")

    def kill(self) -> None:
        """See `Server`."""
        self._supervision.kill(POSTGRES)

    def signal(self, number: int) -> None:
        """See `Server`."""
        self._supervision.signal(POSTGRES, number)

    def restart(self) -> None:
        """See `Server`."""
        if (ended := self._supervision.restart(POSTGRES)) is not None:
            raise StackUnavailable(f"the former standby {ended}")

    def stop(self) -> None:
        """For good."""
        self._supervision.stop()
        os.close(self._lock)


def copying(plan: ServerPlan, primary: str) -> ServerPlan:
    """The plan of a server that begins as a copy of `primary`, and follows it."""
    parts = conninfo_to_dict(primary)
    source = make_conninfo(host=parts["host"], port=parts["port"], user=parts["user"])
    data = plan.command[plan.command.index("-D") + 1]
    copy = [
        str(Path(plan.command[0]).with_name("pg_basebackup")),
        *["--pgdata", data, "--dbname", source, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync"],
    ]
    environment: Mapping[str, str] = {**plan.environment, "PGPASSWORD": str(parts["password"])}
    return replace(plan, prepare=copy, ready=READY, environment=dict(environment))


class Database:
    """The primary of the moment. All of it waits for servers: call it from a thread."""

    def __init__(self, stack: EmbeddedStack, folder: Path) -> None:
        """`folder`: where standbys are kept."""
        self._server: Server = EmbeddedPostgres(stack)
        self._folder = folder
        self._standbys: list[Standby] = []
        self.dsn = stack.postgres
        """Without any proxy."""

    @property
    def port(self) -> int:
        """Where the primary listens."""
        return int(str(conninfo_to_dict(self.dsn)["port"]))

    @property
    def data(self) -> Path | None:
        """Of the primary, when it is no longer the stack's own."""
        return self._standbys[-1].folder if self._standbys else None

    def kill(self) -> None:
        """SIGKILL of the primary."""
        self._server.kill()

    def signal(self, number: int) -> None:
        """Any other signal to it."""
        self._server.signal(number)

    def restart(self) -> None:
        """Stop it in order if it runs, and start it again; a machine that is too busy gets more than one chance.
        Raises `StackUnavailable`."""
        restarted(self._server)

    def standby(self, link_port: int) -> Standby:
        """A new standby that streams by now, through the link that listens on `link_port`. `StackUnavailable`."""
        folder = self._folder / f"standby-{len(self._standbys) + 1}"
        if folder.exists():  # of a failover that did not come about
            shutil.rmtree(folder)
        made = Standby(folder, make_conninfo(self.dsn, port=link_port))
        try:
            self._wait_streaming()
        except BaseException:
            made.stop()
            raise
        return made

    def _wait_streaming(self) -> None:
        ends_at = time.monotonic() + STREAMS_WITHIN_S
        with psycopg.connect(self.dsn, dbname=ADMINISTRATION, autocommit=True) as connection:
            while connection.execute(STREAMING).fetchone() == (0,):
                if time.monotonic() > ends_at:
                    raise StackUnavailable(f"the standby did not stream within {STREAMS_WITHIN_S:g} s")
                time.sleep(LOOK_S)

    def fail_over(self, standby: Standby) -> None:
        """The primary is killed for good, and `standby` takes its place, with what had reached it."""
        self._server.kill()
        self.dsn = make_conninfo(self.dsn, port=standby.port)
        with psycopg.connect(self.dsn, dbname=ADMINISTRATION, autocommit=True) as connection:
            connection.execute(PROMOTE)
        former = self._server
        self._server = standby
        self._standbys.append(standby)
        if isinstance(former, Standby):
            former.stop()
            shutil.rmtree(former.folder)

    def stop(self) -> None:
        """The last standby, if it took over; the stack's own server is the stack's."""
        if isinstance(self._server, Standby):
            self._server.stop()


def restarted(server: Server) -> None:
    """`restart`, again and again while the machine is too busy for it."""
    for attempt in range(1, TRIES + 1):
        try:
            server.restart()
        except StackUnavailable:
            if attempt == TRIES:
                raise
        else:
            return
