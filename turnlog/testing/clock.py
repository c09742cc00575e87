"""A clock that can be turned: the event loop's own, plus what a test added to it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from itertools import count
from typing import Any

SETTLED = 50
"""Rounds of the event loop in which what a timer set off gets done, but for what waits for a socket or a thread."""


class Clock:
    """While it is entered, `loop.time()` is real time plus all that `advance` added, and timers go by it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._offset = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()

    def __enter__(self) -> Clock:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            return self  # another kind of loop keeps its own time: `advance` says so
        if "time" in vars(loop):
            raise RuntimeError("one harness at a time: this event loop's clock is in another one's hands")
        real_time, real_call_at = loop.time, loop.call_at

        def call_at(
            when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
        ) -> asyncio.TimerHandle:
            handle = real_call_at(when, callback, *args, context=context)
            heapq.heappush(self._timers, (when, next(self._order), handle))
            return handle

        vars(loop).update(time=lambda: real_time() + self._offset, call_at=call_at)
        self._loop = loop
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            del vars(self._loop)["time"], vars(self._loop)["call_at"]
            self._loop = None

    async def advance(self, seconds: float) -> None:
        """Let so much time pass: what was to happen within it happens in its order, each at its time."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("advance: needs asyncio's own event loop, inside `async with` of the harness")
        end = loop.time() + seconds
        await _settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled() and when > loop.time():
                self._offset += when - loop.time()
                await _settle()
        self._offset += max(0.0, end - loop.time())
        await _settle()


async def _settle() -> None:
    for _ in range(SETTLED):
        await asyncio.sleep(0)
