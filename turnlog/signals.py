"""The end of a process, told to all agents that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

NUMBERS = (signal.SIGTERM, signal.SIGINT)
_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], object]]] = WeakKeyDictionary()
"""By event loop, which has one place for each signal: what is to be called. Empty: the signals are not taken."""


@contextlib.contextmanager
def stopping(stop: Callable[[], object]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` once, and that of whoever else waits for them in this event loop; the second one
    acts as if nothing were installed. Nothing is, but in the main thread."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread() or not hasattr(loop, "add_signal_handler"):
        yield
        return
    stops = _stops.setdefault(loop, [])
    if not stops:
        for number in NUMBERS:
            loop.add_signal_handler(number, _stop_all, loop)
    stops.append(stop)
    try:
        yield
    finally:
        if stop in stops:
            stops.remove(stop)
            if not stops:
                _give_back(loop)


def _stop_all(loop: asyncio.AbstractEventLoop) -> None:
    _give_back(loop)
    stops = _stops[loop]
    called = list(stops)
    stops.clear()
    for stop in called:
        stop()


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    for number in NUMBERS:
        loop.remove_signal_handler(number)
