"""An event loop without time, threads or sockets: a seed decides who goes next, and nobody ever waits.

Everything that runs belongs to a `Process`, which its context carries: callbacks, timers and tasks inherit it. Within a
process callbacks keep their order, as asyncio promises; between processes the seed picks. The clock moves to the next
timer when nobody can go on.

A process can be killed or paused between any two of its steps, which is wherever an await really waits, and also
*within a step, before any line of any coroutine of the product*: a signal does not wait for an await, and an await that
has nothing to wait for is a place to die as well. (What a plain function does has no effect outside before it returns.)
A step that is struck there is traced; one that is killed unwinds without any effect, one that is paused stands still on
the stack while a loop within it lets all others go on.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from inspect import CO_COROUTINE
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Self

import streams

PRODUCT = str(Path(streams.__file__).parent)
UNDER_LOCK = "heartbeat.py"
"""Its lines in the worker's process hold a lock for which the heartbeat's own thread would wait: here, for ever."""
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
    """What dies and stops together. `fuse`: after so many steps more, and `lines` of the product's coroutines in the
    next ones, `on_fuse` is called."""

    __slots__ = ("dead", "frozen", "fuse", "lines", "listed", "name", "on_fuse", "paused", "ready", "steps")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Step | TimedStep] = deque()
        self.listed = False
        """Whether it is among those that can go on (or was a moment ago)."""
        self.steps = 0
        """That it has made."""
        self.paused = False
        self.frozen = False
        """It was paused within a step, which has to be gone on with before any other."""
        self.dead = False
        self.fuse = -1
        self.lines = 0
        self.on_fuse: Callable[[], None] = lambda: None

    def light(self, steps: int, lines: int, effect: Callable[[], None]) -> None:
        """Have it struck after so many of its steps, and so many lines of coroutines after them."""
        self.fuse, self.lines, self.on_fuse = steps, lines, effect


PROCESS: ContextVar[Process] = ContextVar("process")


def current() -> Process:
    """The process whose step this is."""
    return PROCESS.get()


class Stuck(Exception):
    """Nothing can ever happen again, or too much happens without time going on."""


class Killed(BaseException):
    """Unwinds the step in which its process was killed; nothing that it does on its way out has any effect."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the module. `now` is virtual seconds since the start."""

    STEPS_A_MOMENT_MAX = 20_000

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.outside = Process("outside")
        """The network, the servers and the director of faults: never killed, never paused."""
        self.steps = 0
        self.errors: list[str] = []
        self._random = random
        self._able: list[Process] = []
        """Those with a step to make. Who cannot make it any more is taken out when it is drawn."""
        self._timers: list[tuple[float, int, Process | None, Any, tuple[Any, ...]]] = []
        """When, in which order, whose (None: the outside's), a step, or what to call and with what."""
        self._order = count()
        self._context = copy_context()
        self._context.run(PROCESS.set, self.outside)
        self._closing = False
        self._stuck: Stuck | None = None
        self._moment_ends = self.STEPS_A_MOMENT_MAX
        """So many steps, and the clock has to have moved."""
        self._tracing = False
        self.struck: list[str] = []
        """Lines of the product before which a process was killed or paused."""
        self._tasks: list[asyncio.Task[Any]] = []
        """All: a killed process's must not be collected, and so finished, while the others go on."""

    @classmethod
    def seeded(cls, random: Random) -> Self:
        """A new one. (It lacks what has to do with sockets, threads and subprocesses.)"""
        return cls(random)

    # ------------------------------------------------------------------------------------------------- processes
    def process(self, name: str) -> Process:
        """A new one."""
        return Process(name)

    def spawn(self, process: Process, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it as a task of `process`."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coroutine, context=context)

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Call it from outside of all processes."""
        heapq.heappush(self._timers, (self.now + delay_s, next(self._order), None, callback, args))

    def kill(self, process: Process) -> None:
        """It makes no step any more."""
        process.dead = True
        process.ready.clear()

    def pause(self, process: Process) -> None:
        """It makes no step until `resume`; what comes for it waits."""
        process.paused = True

    def resume(self, process: Process) -> None:
        process.paused = False
        if process.ready and not process.frozen:
            self._list(process)

    # ------------------------------------------------------------------------------------------------------- run
    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Go on until the clock is at `until_s`, or `done` (asked whenever time moves)."""
        asyncio._set_running_loop(self)
        try:
            while not done():
                self._drain()
                if self._stuck is not None:
                    raise self._stuck
                if not self._timers or self._timers[0][0] > until_s:
                    self.now = until_s
                    return
                self._move_on()
        finally:
            asyncio._set_running_loop(None)

    def _drain(self) -> None:
        """All steps that can be made at this moment."""
        able, random = self._able, self._random.random
        while able:
            index = int(random() * len(able)) if len(able) > 1 else 0
            process = able[index]
            ready = process.ready
            if process.paused or process.frozen or not ready:
                process.listed = False
                able[index] = able[-1]
                able.pop()
                continue
            self.steps += 1
            process.steps += 1
            if process.fuse >= 0 and self._fuse_burns(process):
                continue
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as error:  # noqa: BLE001 -- as asyncio does: told, and the loop goes on
                self.call_exception_handler({"message": f"a callback of {process.name} failed", "exception": error})
            if self.steps > self._moment_ends:
                self._stuck = Stuck(f"{process.name} goes round without time going on")
                return

    def _fuse_burns(self, process: Process) -> bool:
        """Whether it was struck instead of its next step, or made it while each line was looked at."""
        if process.fuse:
            process.fuse -= 1
            return False
        if process.lines and not self._tracing:
            self._step_by_line(process)
        else:
            process.fuse = -1
            self._context.run(process.on_fuse)
        return True

    def _step_by_line(self, process: Process) -> None:
        """Make the next step, and strike when the process comes to the line of a coroutine that it is to."""

        def called(frame: FrameType, event: str, argument: object) -> Any:
            code = frame.f_code
            if not code.co_flags & CO_COROUTINE or code.co_filename.endswith(UNDER_LOCK):
                return None
            return line if code.co_filename.startswith(PRODUCT) else None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line" and process.fuse >= 0:
                process.lines -= 1
                if process.lines <= 0:
                    self.struck.append(f"{frame.f_code.co_filename[len(PRODUCT) :]}:{frame.f_lineno}")
                    self._strike(process)
            return line

        handle, before = process.ready.popleft(), sys.gettrace()
        if handle._cancelled:
            return
        self._tracing = True
        sys.settrace(called)
        try:
            handle._context.run(handle._callback, *handle._args)
        except Killed:
            pass  # struck within the step: its process is gone, and nothing of it runs on
        except Exception as error:  # noqa: BLE001 -- as in `_drain`
            self.call_exception_handler({"message": f"a callback of {process.name} failed", "exception": error})
        finally:
            sys.settrace(before)
            self._tracing = False

    def _strike(self, process: Process) -> None:
        """Within a step. (Python traces nothing while it is in here.)"""
        process.fuse = -1
        self._context.run(process.on_fuse)
        if process.paused and not process.dead:
            self._stand_still(process)
        if process.dead:
            raise Killed

    def _stand_still(self, process: Process) -> None:
        """The step on top of the stack is paused: let all others go on until it is resumed."""
        process.frozen = True
        task = asyncio.current_task(self)
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        while process.paused and not process.dead:
            self._drain()
            if self._stuck is not None or not self._timers:
                break
            self._move_on()
        if task is not None:
            asyncio.tasks._enter_task(self, task)
        process.frozen = False
        if process.ready:
            self._list(process)

    def _move_on(self) -> None:
        """To the time of the next timer."""
        self._moment_ends = self.steps + self.STEPS_A_MOMENT_MAX
        self.now = max(self.now, self._timers[0][0])
        self._context.run(self._due)

    def _due(self) -> None:
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            _, _, process, what, args = heapq.heappop(timers)
            if process is None:
                try:
                    what(*args)
                except Exception as error:  # noqa: BLE001 -- told, and the loop goes on
                    self.call_exception_handler({"message": "a callback from outside failed", "exception": error})
            elif not (what._cancelled or process.dead):
                self._make_ready(process, what)

    def _make_ready(self, process: Process, step: Step | TimedStep) -> None:
        process.ready.append(step)
        self._list(process)

    def _list(self, process: Process) -> None:
        if not process.listed:
            process.listed = True
            self._able.append(process)

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
            if not process.listed:
                process.listed = True
                self._able.append(process)
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
            heapq.heappush(self._timers, (when, next(self._order), process, handle, ()))
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
        error = context.get("exception")
        if self._closing or isinstance(error, Killed):
            return
        self.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Nothing: a cancelled timer is dropped when its time comes."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
