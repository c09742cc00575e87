"""Child processes of `turnlog up`: started, waited for until ready, logged to files, started again, and drained.

```
            spawn              ready line            exits unasked
 (new) ──────────────▶ STARTING ─────────▶ READY ───────────────────▶ DOWN
                          │                  │                         │ after the backoff: STARTING
                          │ exits, time-out  │ stop()                  │ stop()
                          ▼                  ▼                         ▼
                        DOWN              STOPPING ──────────────▶  STOPPED
```
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from streams.settings import Settings

READY_TIMEOUT_S = 60.0
TAIL_LINES = 25
LOG_KEPT_BYTES = 16 << 20
BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 30.0
HEALTHY_AFTER_S = 60.0
"""A child that lived for so long after its start had nothing wrong with its start: the backoff begins anew."""


def environment_of(settings: Settings) -> dict[str, str]:
    """By which a process is of the deployment that `settings` name."""
    return {
        "TURNLOG_KAFKA": settings.kafka,
        "TURNLOG_POSTGRES": settings.postgres,
        "TURNLOG_NAMESPACE": settings.namespace,
    }


class ChildFailed(RuntimeError):
    """A child ended before it was ready, or never became ready; the message holds the end of its log."""


class ChildState(StrEnum):
    """Where a child is in its life; see the module's diagram."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    STOPPING = "stopping"
    STOPPED = "stopped"


TRANSITIONS: Mapping[ChildState, frozenset[ChildState]] = {
    ChildState.NEW: frozenset({ChildState.STARTING, ChildState.STOPPED}),
    ChildState.STARTING: frozenset({ChildState.READY, ChildState.DOWN, ChildState.STOPPING}),
    ChildState.READY: frozenset({ChildState.DOWN, ChildState.STOPPING}),
    ChildState.DOWN: frozenset({ChildState.STARTING, ChildState.STOPPED}),
    ChildState.STOPPING: frozenset({ChildState.STOPPED}),
    ChildState.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    """What to run. The command prints one JSON line with `"event": "ready"` on stdout when it is."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path


@dataclass(slots=True)
class Child:
    """One child process through its restarts."""

    plan: ChildPlan
    notify: Callable[[str], None]
    state: ChildState = ChildState.NEW
    ready: dict[str, Any] = field(default_factory=dict)
    """The ready line's document of the present process."""
    restarts: int = 0
    excused: bool = False
    """A server that it needs has ended: how it stops is no news, and its log would only tell of that."""
    _process: asyncio.subprocess.Process | None = None
    _drain: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """A process was started; it may have ended since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Process id of the present process. `RuntimeError` before the first start."""
        if self._process is None:
            raise RuntimeError(f"{self.plan.name} was never started")
        return self._process.pid

    def _become(self, state: ChildState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"{self.plan.name} cannot go from {self.state} to {state}")
        self.state = state

    async def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start the process and wait for its ready line. `ChildFailed` if it ends first or takes too long."""
        self._become(ChildState.STARTING)
        try:
            await self._spawn()
        except BaseException as error:
            self._become(ChildState.DOWN)
            if not isinstance(error, OSError):
                raise
            raise ChildFailed(f"{self.plan.name} could not be started: {error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                self.ready = await self._ready_line()
        except TimeoutError:
            await self._end_failed_start()
            raise ChildFailed(f"{self.plan.name} was not ready within {timeout_s:g} s\n{self.tail()}") from None
        except (ChildFailed, asyncio.CancelledError):
            await self._end_failed_start()
            raise
        self._drain = asyncio.create_task(self._copy_stdout(), name=f"{self.plan.name} stdout")
        self._become(ChildState.READY)

    async def _spawn(self) -> None:
        _rotate(self.plan.log)
        with self.plan.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.plan.command,
                stdin=asyncio.subprocess.PIPE,  # the child's lifeline: it ends when this process does
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.plan.environment},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the children in order
            )

    async def _end_failed_start(self) -> None:
        self._signal(signal.SIGKILL)
        await self._running().wait()
        self._become(ChildState.DOWN)

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None  # noqa: S101 -- private, called after the spawn only
        return self._process

    async def _ready_line(self) -> dict[str, Any]:
        process = self._running()
        assert process.stdout is not None  # noqa: S101 -- spawned with a pipe
        while line := await process.stdout.readline():
            document = _json_object(line)
            if document.get("event") == "ready":
                return document
            _append(self.plan.log, line)
        code = await process.wait()
        raise ChildFailed(f"{self.plan.name} ended ({_how(code)}) before it was ready\n{self.tail()}")

    async def _copy_stdout(self) -> None:
        stdout = self._running().stdout
        assert stdout is not None  # noqa: S101 -- spawned with a pipe
        while chunk := await stdout.read(1 << 16):
            _append(self.plan.log, chunk)

    async def ended(self) -> int:
        """Wait for the end of the present process: its exit code, negative for a signal. Not beside `supervise`."""
        return await self._running().wait()

    async def supervise(self) -> None:
        """Keep it running: say loudly when it ends unasked, and start it again, waiting longer each time."""
        backoff_s = BACKOFF_FIRST_S
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            code = await self._running().wait()
            self._become(ChildState.DOWN)
            backoff_s = BACKOFF_FIRST_S if clock() - started > HEALTHY_AFTER_S else backoff_s
            self.notify(
                f"{self.plan.name} (pid {self.pid}) ended unexpectedly ({_how(code)}); "
                f"starting it again in {backoff_s:g} s; its log: {self.plan.log}\n{self.tail()}"
            )
            back = False
            while not back:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MOST_S)
                back = await self._start_again(backoff_s)

    async def _start_again(self, next_backoff_s: float) -> bool:
        try:
            await self.start()
        except ChildFailed as failure:
            self.notify(f"{failure}\ntrying again in {next_backoff_s:g} s")
            return False
        self.restarts += 1
        self.notify(f"{self.plan.name} is back (pid {self.pid})")
        return True

    async def stop(self, budget_s: float) -> bool:
        """SIGTERM, wait up to `budget_s`, then SIGKILL. False unless it ended with 0. Cancel `supervise` first."""
        if self.state in {ChildState.NEW, ChildState.DOWN}:
            self._become(ChildState.STOPPED)
        if self.state is ChildState.STOPPED:
            return True
        self._become(ChildState.STOPPING)
        self._signal(signal.SIGTERM)
        drained = True
        try:
            async with asyncio.timeout(budget_s):
                await self._running().wait()
        except TimeoutError:
            drained = False
            self.notify(f"{self.plan.name} did not stop within {budget_s:g} s: killed{self._why()}")
            self._signal(signal.SIGKILL)
            await self._running().wait()
        if self._drain is not None:
            await self._drain
        self._become(ChildState.STOPPED)
        code = self._running().returncode
        if drained and code and not self.excused:
            self.notify(f"{self.plan.name} stopped with {_how(code)}{self._why()}")
        return drained and code == 0

    def kill(self) -> None:
        """SIGKILL, for someone who will not wait."""
        if self._process is not None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        process = self._running()
        if process.returncode is None:
            process.send_signal(number)

    def _why(self) -> str:
        return "" if self.excused else f"\n{self.tail()}"

    def tail(self) -> str:
        """The last lines of its log, each marked with its name."""
        if not self.plan.log.exists():
            return ""
        with self.plan.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - (64 << 10)))
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {self.plan.name} | {line}" for line in lines)


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as log:
        log.write(data)


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
        log.replace(log.with_suffix(log.suffix + ".1"))
