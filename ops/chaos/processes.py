"""A place in a stack under test that a process fills: whoever dies is followed by the next, unless it is to stay down.

```
              ready               killed, stopped, or ended by itself
 STARTING ─────────────▶ UP ──────────────────────────────▶ DOWN
     ▲                                                        │
     └──── wanted (at once, or when its fault is over) ◀──────┘
```
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psutil

from ops.children import Child, ChildFailed, ChildPlan

START_WITHIN_S: Final = 60.0
AGAIN_S: Final = 0.5
AGAIN_MOST_S: Final = 8.0
"""A start that fails is tried again after twice as long each time, as any supervisor does: five processes that start
again and again without a pause would keep a machine too busy for the broker that they wait for."""
STATE_POLL_S: Final = 0.02
STOP_S: Final = 15.0


@dataclass(slots=True)
class Process:
    """A process through its lives. `live` keeps it; the other methods are what nemeses do to it."""

    plan: ChildPlan
    notify: Callable[[str], None]
    starts: int = 0
    unasked: list[str] = field(default_factory=list)
    """How it ended when nobody had it ended."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    extra: Mapping[str, str] = field(default_factory=dict)
    """Variables that its next start gets on top."""
    _child: Child | None = None
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _blamed: str | None = None
    """The fault that its next end is put down to."""
    _task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The place's name."""
        return self.plan.name

    @property
    def document(self) -> dict[str, Any]:
        """Its ready line."""
        return {} if self._child is None else self._child.ready

    @property
    def pid(self) -> int | None:
        """Of the present process; None while there is none."""
        return self._child.pid if self._child is not None and self._child.started else None

    @property
    def wanted(self) -> bool:
        """Whether it is to be there."""
        return self._wanted.is_set()

    def begin(self) -> None:
        """Keep it alive from here on."""
        self._wanted.set()
        self._task = asyncio.create_task(self._live(), name=f"live {self.name}")

    async def _live(self) -> None:
        again_s = AGAIN_S
        while True:
            await self._wanted.wait()
            environment = {**self.plan.environment, **self.extra}
            child = self._child = Child(replace(self.plan, environment=environment), self.notify)
            try:
                await child.start(START_WITHIN_S)
            except ChildFailed as failure:
                self._ended(f"did not start: {str(failure).partition(chr(10))[0]}")
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, AGAIN_MOST_S)
                continue
            again_s = AGAIN_S
            self.starts += 1
            self._blamed = None
            self.ready.set()
            code = await child.ended()
            self.ready.clear()
            self._ended(f"ended with {code}")

    def _ended(self, how: str) -> None:
        """Say it, and remember it, unless somebody had it ended."""
        asked_for = self._blamed is not None or not self._wanted.is_set()
        self._blamed = None
        if not asked_for:
            self.unasked.append(how)
            self.notify(f"{self.name} {how}; its log: {self.plan.log}")

    def blame(self, fault: str) -> None:
        """Its next end is this fault's doing."""
        self._blamed = fault

    def blame_no_more(self) -> None:
        """The fault is over."""
        self._blamed = None

    def kill(self) -> None:
        """SIGKILL; it stays down until `revive`."""
        self.blame("kill")
        self._wanted.clear()
        self.send(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM; it stays down until `revive`."""
        self.blame("terminate")
        self._wanted.clear()
        self.send(signal.SIGTERM)

    def revive(self) -> None:
        """It may start again."""
        self.extra = {}
        self._wanted.set()

    def revive_with(self, extra: Mapping[str, str]) -> None:
        """It may start again, with these variables on top."""
        self.extra = extra
        self._wanted.set()

    def send(self, number: signal.Signals) -> None:
        """A signal to the present process, if there is one."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def is_stopped(self) -> bool:
        """Whether it is there, and stands still."""
        if (pid := self.pid) is None:
            return False
        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    async def end(self) -> None:
        """For good: SIGTERM, then SIGKILL."""
        self._wanted.clear()
        self.send(signal.SIGCONT)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._child is not None and self._child.started:
            await self._child.stop(STOP_S)
