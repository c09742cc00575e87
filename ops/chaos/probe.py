"""Once all is quiet: a viewer that stops reading while much is said delays nobody else.

Texts are long, so that what the slow viewer does not take fills every buffer on its way and piles up in the gateway.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import httpx

from ops.chaos.notes import Notebook
from ops.chaos.people import Person
from ops.chaos.standstill import Standstill
from ops.chaos.viewers import By, Viewer

LINES: Final = 20
LINE_BYTES: Final = 50_000
"""A line and its answer are 100 kB; all of them 2 MB, more than the kernel keeps for one that does not read."""
HEARD_WITHIN_S: Final = 10.0
"""Each answer, by each of the others. It takes 30 ms; a busy machine gets the rest."""
TAKEN_BYTES: Final = 128 * 1024
"""What the kernel takes in for the viewer that does not read: two segments of the loopback interface."""
CAUGHT_UP_S: Final = 30.0
LOOK_S: Final = 0.05


def slow_viewer(person: Person, urls: Sequence[str], notebook: Notebook) -> Viewer:
    """A viewer of this person's conversation that has seen nothing yet, with little room of its own."""
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKEN_BYTES)]
    return Viewer(person.conversation, person.token, urls, By.SSE, notebook, socket_options=options)


async def slow_reader_delays_nobody(
    http: httpx.AsyncClient,
    person: Person,
    slow: Viewer,
    others: Sequence[Viewer],
    *,
    problems: list[str],
    standstill: Standstill,
    state: Callable[[], Awaitable[str]],
) -> float:
    """Let `person` talk while `slow` reads nothing; then let it read the rest. Returns the longest that one of `others`
    waited for an answer, in seconds; what is wrong goes to `problems`, with what `state` says of the place where that
    may tell why. What `standstill` measures does not count."""
    looking = asyncio.create_task(slow.look())
    slowest_s = 0.0
    try:
        before = others[0].last
        if not await _up_to(slow, before, standstill):
            problems.append(
                f"liveness: a new viewer saw {slow.last} of {before}, which were there before, over {slow.connections} "
                f"connections, of which failed: {slow.ends[-5:]}; {await state()}"
            )
        slow.stop_reading()
        for _ in range(LINES):
            began = standstill.now()
            line = await person.say(http, padding=LINE_BYTES)
            heard = await _heard(others, line.text, standstill)
            slowest_s = max(slowest_s, standstill.ran_s(began))
            if not heard:
                problems.append(
                    f"liveness: while a viewer reads nothing, another one waits for {line.key}'s answer for more than "
                    f"{HEARD_WITHIN_S:g} s"
                )
                break
        slow.go_on()
        if not await _up_to(slow, others[0].last, standstill):
            problems.append(f"liveness: a viewer that reads again saw {slow.last} of {others[0].last}")
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    return slowest_s


async def _heard(viewers: Sequence[Viewer], text: str, standstill: Standstill) -> bool:
    """Whether all of them saw the answer to `text` in time."""
    try:
        async with standstill.within(HEARD_WITHIN_S):
            await asyncio.gather(*(viewer.hears(text) for viewer in viewers))
    except TimeoutError:
        return False
    return True


async def _up_to(viewer: Viewer, seq: int, standstill: Standstill) -> bool:
    try:
        async with standstill.within(CAUGHT_UP_S):
            while viewer.last < seq:  # noqa: ASYNC110 -- looked at a few times, once a run
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return False
    return True
