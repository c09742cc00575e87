"""For callers without an event loop: one that runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from turnlog.errors import Unavailable
from turnlog.http import CLOSED

T = TypeVar("T")


class Portal:
    """An event loop in a daemon thread, started by its first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises. Interrupted, it cancels `work` and lets it end. Raises `Unavailable` when this
        is closed before `work` is done."""
        with self._lock:
            if self._closed:
                work.close()
                raise _closed()
            if self._thread is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="turnlog", daemon=True)
                self._thread.start()
            if self._loop is None or threading.current_thread() is self._thread:
                work.close()
                raise RuntimeError(
                    "a call that blocks was made in the event loop that has to serve it: await it instead"
                )
            # Under the lock: what is submitted later than `close` looks would never be begun, nor ended.
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError as error:
            if self._closed:
                raise _closed() from error
            raise
        except BaseException:
            future.cancel()  # of `work`'s own error nothing is left to cancel; of an interrupt, everything
            raise

    def close(self) -> None:
        """End the thread. What is running in it is cancelled, and ends first: its callers wait for it."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_end_all(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()


async def _end_all() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


def _closed() -> Unavailable:
    return Unavailable("the call was not waited for: it was closed here; what was submitted may go on", code=CLOSED)
