"""Requests between processes and servers: late, lost, answered late, answered never; and what became of them.

A request takes effect when it arrives, whatever its sender knows by then, and even if its sender died. A *cut* loses
what is sent, in one direction or both; a *spell* makes everything slow, and now and then lets one request hang for
seconds. A connection that breaks is noticed by the sender, whether or not its request got through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.loop import SimLoop, current


class Reset(Exception):
    """The connection broke: the request took effect, will, or never does."""


Reply = Callable[[Any], None]


@dataclass(slots=True)
class Server:
    """One that answers. While `down` it refuses; while it `stalls`, what arrives waits."""

    name: str
    down: bool = False
    stalls: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class Link:
    """Between one process and one server. Times in seconds."""

    lose_requests: bool = False
    lose_answers: bool = False
    breaks: float = 0.0
    """Chance of a request's connection to break."""
    hangs: float = 0.0
    """Chance of a request, or its answer, to be seconds late."""
    slow: float = 1.0
    """How many times slower than usual."""


CALM = Link()


class Network:
    """All links. `latency_s`: of one way, at its usual pace (uniform up to it)."""

    LATENCY_S = 0.004
    HANG_S = 12.0

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self.links: dict[tuple[str, str], Link] = {}
        self.paces: dict[str, float] = {}
        """Server -> how many times slower than usual it is by nature."""
        self.reached: Callable[[str], None] = lambda step: None

    def announce(self, step: str) -> None:
        """The running process is about to take this step of a protocol."""
        self.reached(step)

    def heal(self) -> None:
        """All links are good from here on; what is under way stays so."""
        self.links.clear()
        self.paces = {}

    def link(self, process: str, server: Server) -> Link:
        """To change."""
        return self.links.setdefault((process, server.name), Link())

    def revive(self, server: Server) -> None:
        """It goes on, with what waited."""
        server.down = server.stalls = False
        waiting, server.waiting = server.waiting, []
        for arrival in waiting:
            arrival()

    def ask(self, server: Server, effect: Callable[[Reply], None], limit_s: float | None = None) -> asyncio.Future[Any]:
        """Send a request. `effect` runs at the server and gives the answer, or an exception, to its argument, now or
        later. The future raises `Reset` when the connection breaks, and `TimeoutError` when there is no answer within
        the limit; without a limit it never completes when a message is lost."""
        process = current()
        sender = process.name
        answer: asyncio.Future[Any] = asyncio.Future(loop=self._loop)
        if process.dead:
            return answer  # it is on its way out of the step in which it was killed
        link = self.links.get((sender, server.name), CALM)
        if limit_s is not None:
            self._loop.later(limit_s, _expire, answer)
        if link.breaks and self._random.random() < link.breaks:
            self._loop.later(self.delay(CALM), _complete, answer, Reset("the connection broke"))
            if self._random.random() < 0.5:
                return answer
        if not link.lose_requests:
            delay = self.delay(link) * self.paces.get(server.name, 1.0)
            self._loop.later(delay, _Request(self, sender, server, effect, answer).arrive)
        return answer

    def answer(self, sender: str, server: Server, answer: asyncio.Future[Any], value: Any) -> None:
        """Send it on its way back."""
        link = self.links.get((sender, server.name), CALM)
        if not link.lose_answers:
            delay = self.delay(link) * self.paces.get(server.name, 1.0)
            self._loop.later(delay, _complete, answer, value)

    def delay(self, link: Link) -> float:
        """Of one message."""
        draw = self._random.random
        if link.hangs and draw() < link.hangs:
            return draw() * self.HANG_S
        return draw() * self.LATENCY_S * link.slow


class _Request:
    """On its way to a server. (A class: closures that know each other would be left to the garbage collector.)"""

    __slots__ = ("_answer", "_effect", "_network", "_sender", "_server")

    def __init__(
        self,
        network: Network,
        sender: str,
        server: Server,
        effect: Callable[[Reply], None],
        answer: asyncio.Future[Any],
    ) -> None:
        self._network, self._sender, self._server, self._effect, self._answer = network, sender, server, effect, answer

    def arrive(self) -> None:
        if self._server.stalls:
            self._server.waiting.append(self.arrive)
        elif self._server.down:
            self._reply(Reset(f"{self._server.name} is down"))
        else:
            self._effect(self._reply)

    def _reply(self, value: Any) -> None:
        self._network.answer(self._sender, self._server, self._answer, value)


def _expire(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        _complete(answer, TimeoutError())


def _complete(answer: asyncio.Future[Any], value: Any) -> None:
    if answer.done():
        return
    if isinstance(value, BaseException):
        answer.set_exception(value)
        answer.exception()  # a sender that was killed never looks
    else:
        answer.set_result(value)


def run_now(coroutine: Any) -> Any:
    """The outcome of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")
