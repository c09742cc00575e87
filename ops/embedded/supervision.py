"""The parent's end of the supervisor: start it, tell it what to do, know what its servers do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.embedded.supervisor import Plan

# What a supervisor may add to the patience that its plan gives the servers before it counts as stuck.
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A server that runs no more: its exit status (negative: the signal), or None when it never ran."""

    status: int | None
    late: bool
    tail: str

    def __str__(self) -> str:
        how = "did not start" if self.status is None else f"ended with status {self.status}"
        why = " after its time was up" if self.late else ""
        return f"{how}{why}; the end of its log:\n{self.tail}" if self.tail else how + why


class Supervision:
    """A running supervisor. Its pipe closes with this process, however that ends, and its servers end with it."""

    def __init__(self, plan: Plan, *, lock: int, errors: Path) -> None:
        self._plan = plan
        self._errors = errors
        self._changed = threading.Condition()
        self._pids: dict[str, int] = {}
        self._ended: dict[str, Ended] = {}
        self._starts = {server.name: 0 for server in plan.servers}
        self._ends = {server.name: 0 for server in plan.servers}
        self._over = False
        # Isolated (-I): no variable and no module of the parent's reaches it. Its own session: a Ctrl-C in the
        # terminal is for the parent, which then stops it in order.
        with errors.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).with_name("supervisor.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
                cwd="/",
            )
        self._reader = threading.Thread(target=self._read, name="embedded-stack", daemon=True)
        self._reader.start()
        self._send(plan.to_json())

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def server_pid(self, server: str) -> int | None:
        """The process id of a running server, None while it does not run."""
        with self._changed:
            return self._pids.get(server)

    def ended(self) -> dict[str, Ended]:
        """The servers that do not run any more, and how each of them ended."""
        with self._changed:
            return dict(self._ended)

    def gone(self) -> str | None:
        """What became of the supervisor, if it ended without being asked to; its servers ended with it."""
        asked = self._process.stdin is None or self._process.stdin.closed
        with self._changed:
            return self._gone() if self._over and not asked else None

    def wait_running(self) -> dict[str, Ended]:
        """Wait until every server runs or one has ended; the ended ones (none is good news)."""
        with self._changed:
            self._wait(lambda: bool(self._ended) or len(self._pids) == len(self._starts), self._plan.start_s)
            return dict(self._ended)

    def signal(self, server: str, number: int) -> None:
        """Send a signal to a server's process."""
        self._send(json.dumps({"do": "signal", "server": server, "signal": int(number)}))

    def kill(self, server: str) -> None:
        """End a server as a crash does, and wait until it is gone; nothing happens when it does not run."""
        with self._changed:
            if server not in self._pids:
                return
            ends = self._ends[server]
            self._send(json.dumps({"do": "signal", "server": server, "signal": 9}))
            self._wait(lambda: self._ends[server] > ends, self._plan.stop_s)

    def restart(self, server: str) -> Ended | None:
        """Stop a server in order if it runs, start it, wait until it is ready; how it ended if it could not start."""
        with self._changed:
            starts, ends = self._starts[server], self._ends[server]
            # A running server ends once before it starts again.
            expected_end = ends + (1 if server in self._pids else 0)
            self._send(json.dumps({"do": "restart", "server": server}))
            self._wait(
                lambda: self._starts[server] > starts or self._ends[server] > expected_end,
                self._plan.start_s + self._plan.stop_s,
            )
            return None if self._starts[server] > starts else self._ended[server]

    def stop(self, *, keep: bool = False) -> None:
        """Stop all servers and the supervisor; returns when nothing of them runs any more. Safe to repeat.

        `keep` leaves the plan's folder in place even if it is a temporary one.
        """
        if keep:
            self._send(json.dumps({"do": "keep"}))
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(2 * self._plan.stop_s + GRACE_S)
        self._reader.join(GRACE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _send(self, line: str) -> None:
        if self._process.stdin is None or self._process.poll() is not None:
            raise RuntimeError(self._gone())
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _wait(self, done: Any, patience_s: float) -> None:
        if not self._changed.wait_for(lambda: self._over or done(), patience_s + GRACE_S):
            raise RuntimeError(f"the embedded stack's supervisor (process {self.pid}) does not answer")
        if not done():
            raise RuntimeError(self._gone())

    def _gone(self) -> str:
        detail = self._errors.read_text("utf-8", "replace").strip() if self._errors.exists() else ""
        return f"the embedded stack's supervisor is gone (status {self._process.poll()}) {detail}".rstrip()

    def _read(self) -> None:
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            self._note(json.loads(line))
        self._process.wait()  # the pipe ends with the process: how it ended is known in a moment
        with self._changed:
            self._over = True
            self._pids.clear()
            self._changed.notify_all()

    def _note(self, report: dict[str, Any]) -> None:
        server = report["server"]
        with self._changed:
            if report["event"] == "running":
                self._pids[server] = report["pid"]
                self._ended.pop(server, None)
                self._starts[server] += 1
            else:
                self._pids.pop(server, None)
                self._ended[server] = Ended(report["status"], report["late"], report["tail"])
                self._ends[server] += 1
            self._changed.notify_all()
