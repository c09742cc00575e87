"""What goes wrong, and when: a seed's choice of faults, each at a time, some at a step.

A seed enables only some kinds (what never happens together would else hide what one kind alone shows) and draws a few
faults of them. Killing and pausing strike after a drawn number of further steps of the process, so that every await of
every process is a place to die. What the kinds do is in `faults_of_workers`, `faults_of_gateways`, `faults_of_servers`
and `faults_of_intake`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.faults_of_gateways import GatewayFaults
from tests.simulation.faults_of_intake import IntakeFaults
from tests.simulation.faults_of_servers import ServerFaults
from tests.simulation.faults_of_workers import WorkerFaults
from tests.simulation.hand import Cast, Hand


class Healer(Hand):
    """Undoes what lasts, and brings back who is needed."""

    def heal(self) -> None:
        """From here on nothing goes wrong any more."""
        cast, place = self._cast, self._place
        place.trace("HEAL")
        place.network.heal()
        place.cluster.refusing = place.cluster.forgets_marker = place.cluster.breaks_at_end = False
        for server in (place.cluster.server, place.database.server):
            place.network.revive(server)
        for worker in cast.workers:
            worker.process.fuse = -1
            if worker.alive:
                worker.resume()
        for gateway in cast.gateways:
            gateway.process.fuse = -1
            if gateway.alive:
                place.loop.resume(gateway.process)
        if not any(worker.staying for worker in cast.workers):
            self._new_worker()
        if not any(gateway.open for gateway in cast.gateways):
            self._new_gateway()
        for agent in cast.agents:
            self._reconnect(agent)


class Director(Hand):
    """Makes the faults of a plan happen, and undoes what lasts."""

    def __init__(self, cast: Cast, random: Random, *, heal_at: float) -> None:
        super().__init__(cast, random, heal_at=heal_at)
        workers = WorkerFaults(cast, random, heal_at=heal_at)
        intake = IntakeFaults(cast, random, heal_at=heal_at)
        self._healer = Healer(cast, random, heal_at=heal_at)
        self._special = workers.special() | intake.special()
        """To be named only: among the others each of them would hardly ever be drawn."""
        self._kinds: dict[str, Callable[[], None]] = {
            **workers.kinds(),
            **GatewayFaults(cast, random, heal_at=heal_at).kinds(),
            **ServerFaults(cast, random, heal_at=heal_at).kinds(),
            **intake.kinds(),
            "late words": cast.poison.late_words,
            "poison": cast.poison.spill,
            "core fails": cast.poison.curse,
        }

    @property
    def kinds(self) -> list[str]:
        """All there are."""
        return sorted(self._kinds)

    def plan(self, only: tuple[str, ...] | None = None) -> None:
        """Draw the faults, of these kinds alone; None: of any."""
        draw = self._random
        if unknown := set(only or ()) - self._kinds.keys() - self._special.keys():
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(self.kinds)}")
        kinds = draw.sample(self.kinds, draw.randint(1, 6)) if only is None else list(only)
        for _ in range(draw.randint(2, 9) if kinds else 0):
            kind = draw.choice(kinds)
            self._loop.later(draw.random() * (self._heal_at - 0.5), self._strike, kind)
        self._loop.later(self._heal_at, self._healer.heal)

    def _strike(self, kind: str) -> None:
        self._place.trace(f"FAULT: {kind}")
        (self._kinds.get(kind) or self._special[kind])()
