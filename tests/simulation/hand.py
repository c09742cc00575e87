"""What every kind of fault is made with: who is there, a place to strike, and the undoing of what lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.agents import Agent
from tests.simulation.gateways import Gateway
from tests.simulation.loop import Process
from tests.simulation.network import Server
from tests.simulation.place import Place
from tests.simulation.poison import Poison
from tests.simulation.promises import Watch
from tests.simulation.workers import Worker

FUSE_MOST = 40
LINES_MOST = 30
"""Of the product's coroutines; a step of a worker has ten or so."""


@dataclass(slots=True)
class Cast:
    """Who is there now, and how to make one more."""

    place: Place
    watch: Watch
    workers: list[Worker]
    gateways: list[Gateway]
    agents: list[Agent]
    new_worker: Callable[[], Worker]
    new_gateway: Callable[[], Gateway]
    poison: Poison
    lease_ttl_s: float
    clock_was_set: bool = False


class Hand:
    """Draws whom a fault strikes, when and for how long. Each kind of fault extends it; all draw from one source."""

    LIES_IN_WAIT_S = 4.0

    def __init__(self, cast: Cast, random: Random, *, heal_at: float) -> None:
        self._cast = cast
        self._place = cast.place
        self._loop = cast.place.loop
        self._random = random
        self._heal_at = heal_at

    def _some(self, longest: float, shortest: float = 0.1) -> float:
        return shortest + self._random.random() * (longest - shortest)

    def _until_heal(self, delay: float, undo: Callable[..., object], *arguments: object) -> None:
        """Undo it then; the healing undoes it anyway."""
        self._loop.later(delay, undo, *arguments)

    def _worker(self) -> Worker | None:
        alive = [worker for worker in self._cast.workers if worker.alive]
        return self._random.choice(alive) if alive else None

    def _gateway(self) -> Gateway | None:
        open_ones = [gateway for gateway in self._cast.gateways if gateway.open]
        return self._random.choice(open_ones) if open_ones else None

    def _light(self, process: Process, effect: Callable[[], None], steps_most: int = FUSE_MOST) -> None:
        """Strike between two of its steps, drawn, or before a line of one of them."""
        draw = self._random.randint
        lines = draw(1, LINES_MOST) if self._random.random() < 0.5 else 0
        process.light(draw(0, steps_most), lines, effect)

    def _new_worker(self) -> None:
        worker = self._cast.new_worker()
        self._cast.workers.append(worker)
        self._place.trace(f"{worker.name} starts")

    def _new_gateway(self) -> None:
        gateway = self._cast.new_gateway()
        self._cast.gateways.append(gateway)
        self._place.trace(f"{gateway.name} starts")

    def _connected(self, agent: Agent) -> Gateway | None:
        return next((each for each in self._cast.gateways if each.alive and agent.name in each.agents), None)

    def _reconnect(self, agent: Agent) -> None:
        if self._connected(agent) is not None:
            return
        gateway = self._gateway()
        if gateway is None:
            self._loop.later(0.5, self._reconnect, agent)
        else:
            gateway.connect(agent)

    def _mend(self, name: str, server: Server) -> None:
        self._place.network.links.pop((name, server.name), None)
