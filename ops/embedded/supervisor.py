"""The process that owns the embedded servers and outlives whoever started it by just long enough to end them.

It runs as a script of its own, on the standard library alone, so that it starts at once and nothing of the parent's
environment can break it. The parent holds the other end of its standard input: the first line is the `Plan`, each
further line a command, and its end (an exit, a crash, a SIGKILL of the parent) means "stop everything". On standard
output it reports one JSON object a line: `running` (with `pid`), `ended` (with `status` and the log's `tail`).

The life of one server:

    ENDED ──▶ CLEARING ──▶ PREPARING ──▶ STARTING ──▶ RUNNING ──▶ STOPPING ──▶ ENDED
                  │                      ▲
                  └── (prepared before) ─┘

From each phase a server that dies, cannot start or is late goes to ENDED; before RUNNING it may be stopped as well.
CLEARING waits until no process of an earlier run is left on the server's folder: every process of a server inherits a
descriptor of that server's lock file, so that the lock is free when the last of them is gone.

On Linux the kernel kills the servers too should this process itself be killed (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
POLL_S = 0.02  # how often a server's log is read while it starts
TAIL_LINES = 20


class Phase(Enum):
    """Where a server is in its life; see the picture at the top of this module."""

    CLEARING = "clearing"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


NEXT_PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.CLEARING: frozenset({Phase.PREPARING, Phase.STARTING, Phase.ENDED}),
    Phase.PREPARING: frozenset({Phase.STARTING, Phase.STOPPING, Phase.ENDED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.STOPPING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.ENDED}),
    Phase.STOPPING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset({Phase.CLEARING}),
}


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How one server is prepared, started, known to be ready, and ended.

    `prepare` runs once, before the first start on its folder; `prepared` is the file that says it was done, and
    `home` is emptied first when it was not. `stale` are files of an earlier run to remove before a start. `ready` is
    the text in the server's log that says it takes connections.
    """

    name: str
    home: str
    prepared: str
    prepare: list[str]
    command: list[str]
    lock: str
    stale: list[str]
    log: str
    ready: str
    environment: dict[str, str]
    stop_signal: int
    abort_signal: int
    user: int | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a supervisor is to run: its servers, the folder to remove at the end, if any, and its patience."""

    servers: list[ServerPlan]
    remove: str | None
    start_s: float
    stop_s: float

    def to_json(self) -> str:
        """The plan as the one line that the supervisor reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Plan:
        """The plan from the line that `to_json` made."""
        raw = json.loads(line)
        return cls(**{**raw, "servers": [ServerPlan(**server) for server in raw["servers"]]})


@dataclass(slots=True)
class Server:
    """One server: its plan, its phase and, while it has one, its process."""

    plan: ServerPlan
    phase: Phase = Phase.ENDED
    process: subprocess.Popen[bytes] | None = None
    lock: int | None = None
    deadline: float = float("inf")
    restart: bool = False
    late: bool = False

    def enter(self, phase: Phase) -> None:
        """Go on to `phase`; a step that the picture does not have is a bug and raises `ValueError`."""
        if phase not in NEXT_PHASES[self.phase]:
            raise ValueError(f"{self.plan.name}: {self.phase.value} cannot be followed by {phase.value}")
        self.phase = phase


class Supervisor:
    """Runs the servers of a plan until its commands end.

    `keep`: the folder that the plan says to remove stays after all, since the parent goes on with it.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._servers = {server.name: Server(server) for server in plan.servers}
        self._stopping = False
        self.keep = False
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def run(self, commands: int, wakeup: int) -> None:
        """Serve commands from the descriptor `commands` until every server has ended for good.

        `wakeup` is readable whenever a signal came (a child ended, or this process is to end).
        """
        os.set_blocking(commands, False)
        for server in self._servers.values():
            self._begin(server)
        sources, pending = [commands, wakeup], b""
        while not (self._stopping and all(server.phase is Phase.ENDED for server in self._servers.values())):
            ready, _, _ = select.select(sources, [], [], self._wait_s())
            if wakeup in ready and signal.SIGTERM in os.read(wakeup, 512):
                self._stop_all()
            if commands in ready:
                received = os.read(commands, 65536)
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
                if not received:
                    sources.remove(commands)
                    self._stop_all()
            for server in self._servers.values():
                self._advance(server)

    def _wait_s(self) -> float | None:
        phases = {server.phase for server in self._servers.values()}
        if phases & {Phase.CLEARING, Phase.PREPARING, Phase.STARTING}:
            return POLL_S
        return 1.0 if Phase.STOPPING in phases else None

    def _obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "keep":
            self.keep = True
            return
        server = self._servers[command["server"]]
        if command["do"] == "signal" and server.process is not None:
            server.process.send_signal(command["signal"])
        elif command["do"] == "restart" and not self._stopping:
            server.restart = True
            self._stop(server)

    def _stop_all(self) -> None:
        self._stopping = True
        for server in self._servers.values():
            server.restart = False
            self._stop(server)

    def _stop(self, server: Server) -> None:
        if server.process is None:
            if server.phase is Phase.CLEARING and not server.restart:
                self._end(server, status=None)
            return
        if server.phase is Phase.STOPPING:
            return
        # A folder that goes away needs no orderly end, only a quick one.
        abort = self._plan.remove is not None and not server.restart
        server.process.send_signal(server.plan.abort_signal if abort else server.plan.stop_signal)
        server.deadline = time.monotonic() + self._plan.stop_s
        server.enter(Phase.STOPPING)

    def _begin(self, server: Server) -> None:
        server.restart = server.late = False
        server.deadline = time.monotonic() + self._plan.start_s
        server.lock = os.open(server.plan.lock, os.O_RDWR | os.O_CREAT, 0o600)
        server.enter(Phase.CLEARING)

    def _advance(self, server: Server) -> None:
        late = time.monotonic() > server.deadline
        if server.process is None:
            if server.phase is Phase.CLEARING:
                self._clear(server, late)
            elif server.restart:
                self._begin(server)
            return
        status = server.process.poll()
        if status is not None:
            self._ended(server, status)
        elif server.phase is Phase.STARTING and server.plan.ready in _text(server.plan.log):
            server.enter(Phase.RUNNING)
            server.deadline = float("inf")
            _report("running", server, pid=server.process.pid)
        elif late:
            server.late = True
            stopping = server.phase is Phase.STOPPING
            server.process.send_signal(signal.SIGKILL if stopping else server.plan.abort_signal)
            server.deadline = time.monotonic() + self._plan.stop_s

    def _clear(self, server: Server, late: bool) -> None:
        plan = server.plan
        if server.lock is None or not _locked(server.lock):
            if late:
                self._end(server, status=None, tail=f"a process of an earlier run still holds {plan.lock}")
            return
        for path in plan.stale:
            Path(path).unlink(missing_ok=True)
        if Path(plan.prepared).exists():
            server.enter(Phase.STARTING)
            self._spawn(server, plan.command)
        else:
            _empty(Path(plan.home))
            server.enter(Phase.PREPARING)
            self._spawn(server, plan.prepare)

    def _ended(self, server: Server, status: int) -> None:
        server.process = None
        if server.phase is Phase.PREPARING and status == 0:
            _mark(Path(server.plan.prepared))
            server.enter(Phase.STARTING)
            self._spawn(server, server.plan.command)
            return
        self._end(server, status, "\n".join(_text(server.plan.log).splitlines()[-TAIL_LINES:]))

    def _end(self, server: Server, status: int | None, tail: str = "") -> None:
        if server.lock is not None:
            os.close(server.lock)
            server.lock = None
        server.enter(Phase.ENDED)
        _report("ended", server, status=status, late=server.late, tail=tail)
        if server.restart:
            self._begin(server)

    def _spawn(self, server: Server, command: list[str]) -> None:
        plan = server.plan
        log = Path(plan.log)
        if log.exists():
            log.replace(log.with_suffix(".previous.log"))
        with log.open("wb") as output:
            try:
                server.process = subprocess.Popen(
                    command,
                    cwd=plan.home,
                    env=plan.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[] if server.lock is None else [server.lock],
                    start_new_session=True,
                    user=plan.user,
                    group=plan.group,
                    extra_groups=None if plan.user is None else [],
                    preexec_fn=_die_with_parent(self._libc, os.getpid(), plan.abort_signal),  # noqa: PLW1509 - one thread
                )
            except OSError as error:
                self._end(server, status=None, tail=f"{command[0]}: {error.strerror}")


def _die_with_parent(libc: ctypes.CDLL | None, parent: int, death_signal: int) -> Callable[[], None] | None:
    if libc is None:
        return None

    def arrange() -> None:
        # Runs in the child after the change of user, which would reset it.
        libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def _locked(descriptor: int) -> bool:
    """Take the lock if it is free; whether this process has it now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _mark(path: Path) -> None:
    """Make `path` exist for good: what it says must not be lost when the machine dies now."""
    with path.open("wb") as marker:
        os.fsync(marker.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _text(log: str) -> str:
    return Path(log).read_text("utf-8", "replace")


def _report(event: str, server: Server, **details: Any) -> None:
    line = json.dumps({"event": event, "server": server.plan.name, **details}) + "\n"
    try:
        os.write(1, line.encode())
    except BrokenPipeError:
        # The parent is gone: the end of standard input says so too, and that is what stops the servers.
        return


def main() -> None:
    """Read the plan, run it to its end, and remove the folder if it was a temporary one."""
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    os.umask(0o077)

    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    plan = Plan.from_json(line.decode())
    supervisor = Supervisor(plan)
    supervisor.run(0, wakeup)
    if plan.remove is not None and not supervisor.keep:
        shutil.rmtree(plan.remove)


if __name__ == "__main__":
    main()
