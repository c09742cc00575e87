"""An event loop without time, threads or sockets: a seed decides who goes next, and nobody ever waits.

Everything that runs belongs to a `Process`, which its context carries: callbacks, timers and tasks inherit it. Within a
process callbacks keep their order, as asyncio promises; between processes the seed picks. The clock moves to the next
timer when nobody can go on. A process can be killed or paused *between any two of its steps*, which is at every await:
what a killed one still had to do is dropped, what a paused one has to do waits.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Self

CLOSE_ATTEMPTS = 50
"""A coroutine that awaits while it is being closed is closed again, so often at most."""


class Step(asyncio.Handle):
    """A callback that has its turn to come; as little of asyncio's own handle as does it."""

    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: Context) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class TimedStep(asyncio.TimerHandle):
    """The same, with its time."""

    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: Context
    ) -> None:
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled, self._when = False, when

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Process:
    """What dies and stops together. `fuse`: after so many steps more, `on_fuse` is called, before the next one."""

    __slots__ = ("dead", "fuse", "name", "on_fuse", "paused", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Step | TimedStep] = deque()
        self.paused = False
        self.dead = False
        self.fuse = -1
        self.on_fuse: Callable[[], None] = lambda: None


PROCESS: ContextVar[Process] = ContextVar("process")


def current() -> Process:
    """The process whose step this is."""
    return PROCESS.get()


class Stuck(Exception):
    """Nothing can ever happen again, or too much happens without time going on."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the module. `now` is virtual seconds since the start."""

    STEPS_A_SECOND_MAX = 20_000

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.outside = Process("outside")
        """The network, the servers and the director of faults: never killed, never paused."""
        self.steps = 0
        self.errors: list[str] = []
        self._random = random
        self._processes = [self.outside]
        self._timers: list[tuple[float, int, TimedStep, Process]] = []
        self._order = count()
        self._context = copy_context()
        self._context.run(PROCESS.set, self.outside)
        self._closing = False
        self._tasks: list[asyncio.Task[Any]] = []
        """All: a killed process's must not be collected, and so finished, while the others go on."""

    @classmethod
    def seeded(cls, random: Random) -> Self:
        """A new one. (It lacks what has to do with sockets, threads and subprocesses.)"""
        return cls(random)

    # ------------------------------------------------------------------------------------------------- processes
    def process(self, name: str) -> Process:
        """A new one."""
        made = Process(name)
        self._processes.append(made)
        return made

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it as a task of `process`."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coroutine, context=context)

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call it from outside of all processes."""
        return self.call_at(self.now + delay_s, callback, *args, context=self._context)

    def kill(self, process: Process) -> None:
        """It makes no step any more."""
        process.dead = True
        process.ready.clear()
        self._processes.remove(process)

    def pause(self, process: Process) -> None:
        """It makes no step until `resume`; what comes for it waits."""
        process.paused = True

    def resume(self, process: Process) -> None:
        process.paused = False

    # ------------------------------------------------------------------------------------------------------- run
    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Go on until the clock is at `until_s`, or `done` (asked whenever time moves)."""
        asyncio._set_running_loop(self)
        try:
            while not done():
                self._drain()
                if not self._timers or self._timers[0][0] > until_s:
                    self.now = until_s
                    return
                self.now = max(self.now, self._timers[0][0])
                self._due()
        finally:
            asyncio._set_running_loop(None)

    def _drain(self) -> None:
        """All steps that can be made at this moment."""
        limit = self.steps + self.STEPS_A_SECOND_MAX
        while True:
            able = [process for process in self._processes if process.ready and not process.paused]
            if not able:
                return
            process = able[0] if len(able) == 1 else able[int(self._random.random() * len(able))]
            self._step(process)
            if self.steps > limit:
                raise Stuck(f"{process.name} goes round without time going on")

    def _step(self, process: Process) -> None:
        self.steps += 1
        if process.fuse >= 0:
            process.fuse -= 1
            if process.fuse < 0:
                self._context.run(process.on_fuse)
                return
        handle = process.ready.popleft()
        if handle._cancelled:
            return
        try:
            handle._context.run(handle._callback, *handle._args)
        except Exception as error:  # noqa: BLE001 -- as asyncio does: told, and the loop goes on
            self.call_exception_handler({"message": f"a callback of {process.name} failed", "exception": error})

    def _due(self) -> None:
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            _, _, handle, process = heapq.heappop(timers)
            if not (handle._cancelled or process.dead):
                process.ready.append(handle)

    def dispose(self) -> None:
        """Close what was left behind, the dead ones' coroutines too: nothing of this run is left to complain."""
        self._closing = True
        self._timers.clear()
        for task in self._tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            for _ in range(CLOSE_ATTEMPTS):
                try:
                    coroutine.close()
                    break
                except RuntimeError:
                    continue  # it awaited on its way out
                except BaseException:  # noqa: BLE001 -- what a killed process would have raised concerns nobody
                    break

    # ------------------------------------------------------------------------------------------- what asyncio needs
    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        if context is None:
            context = copy_context()
        handle = Step(callback, args, self, context)
        process = context.get(PROCESS, self.outside)
        if not (process.dead or self._closing):
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        if context is None:
            context = copy_context()
        handle = TimedStep(when, callback, args, self, context)
        process = context.get(PROCESS, self.outside)
        if not (process.dead or self._closing):
            heapq.heappush(self._timers, (when, next(self._order), handle, process))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "", context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closing:
            return
        error = context.get("exception")
        self.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Nothing: a cancelled timer is dropped when its time comes."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
