"""Doing something again and again until asked to stop, as a process that its deployment restarts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from aiokafka.errors import KafkaError

from ops.history.place import PlaceUnavailable
from streams.runtime.kafka import KafkaUnavailable

AWAY = (KafkaError, KafkaUnavailable, PlaceUnavailable, ConnectionError, TimeoutError)
"""What passes by itself: the next round tries again."""
ENDS = (signal.SIGTERM, signal.SIGINT)


async def follow(once: Callable[[], Awaitable[object]], every_s: float, notify: Callable[[str], None]) -> None:
    """Await `once` every `every_s` seconds until SIGTERM or SIGINT; a round that has begun ends first.

    A server that is away is told and tried again in the next round; all else ends it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ENDS:
        loop.add_signal_handler(number, stop.set)
    try:
        while not stop.is_set():
            try:
                await once()
            except AWAY as error:
                notify(f"{type(error).__name__}: {error}; next try in {every_s:g} s")
            await _stopped_within(stop, every_s)
    finally:
        for number in ENDS:
            loop.remove_signal_handler(number)


async def _stopped_within(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
