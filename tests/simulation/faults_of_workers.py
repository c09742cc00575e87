"""Faults of workers: killed, stopped, wedged and restarted, at any step that they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.simulation.hand import Hand
from tests.simulation.loop import Process
from tests.simulation.workers import Worker

AMBUSH_FUSE_MOST = 12
STEPS = ("init", "take", "confirm", "produce", "end", "save")
"""Of the protocols with Kafka and Postgres."""


class WorkerFaults(Hand):
    """What befalls a worker by itself."""

    def kinds(self) -> dict[str, Callable[[], None]]:
        """By what a seed or a shell calls them."""
        return {
            "kill worker": self._kill_worker,
            "pause worker": self._pause_worker,
            "wedge worker": self._wedge_worker,
            "stop worker": self._stop_worker,
            "one more worker": self._one_more_worker,
            "kill at": partial(self._ambush, self._kill_this),
            "pause at": partial(self._ambush, self._pause_this),
        }

    def special(self) -> dict[str, Callable[[], None]]:
        """To be named only."""
        return {
            f"{what} at {step}": partial(self._ambush, strike, step)
            for what, strike in (("kill", self._kill_this), ("pause", self._pause_this))
            for step in STEPS
        }

    def _kill_worker(self) -> None:
        worker = self._worker()
        if worker is None:
            return
        self._light(worker.process, lambda: self._kill_this(worker))

    def _pause_worker(self) -> None:
        worker = self._worker()
        if worker is None:
            return
        self._light(worker.process, lambda: self._pause_this(worker))

    def _wedge_worker(self) -> None:
        """Its event loop hangs while its heartbeat's thread lives."""
        worker = self._worker()
        if worker is None:
            return
        length = self._some(2 * self._cast.lease_ttl_s, 0.5)

        def strike() -> None:
            self._place.trace(f"{worker.name}'s event loop hangs for {length:.1f} s")
            self._loop.pause(worker.process)
            self._until_heal(length, worker.resume)

        self._light(worker.process, strike)

    def _ambush(self, strike: Callable[[Worker], None], step: str = "") -> None:
        """Whoever takes this step of the protocol next, or a drawn one, is struck some steps later."""
        step = step or self._random.choice(STEPS)

        def struck(process: Process) -> None:
            worker = next((each for each in self._cast.workers if each.process is process and each.alive), None)
            if worker is not None and self._loop.now < self._heal_at:
                self._light(process, lambda: strike(worker), AMBUSH_FUSE_MOST)

        self._place.trace(f"whoever comes to {step} next …")
        self._place.ambush(step, struck)

    def _kill_this(self, worker: Worker) -> None:
        self._place.trace(f"{worker.name} is killed")
        self._cast.watch.died(worker.name)
        worker.kill()
        self._loop.later(self._some(4.0), self._new_worker)

    def _pause_this(self, worker: Worker) -> None:
        length = self._some(3 * self._cast.lease_ttl_s, 0.5)
        self._place.trace(f"{worker.name} is stopped for {length:.1f} s")
        worker.pause()
        self._until_heal(length, worker.resume)

    def _stop_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            worker.stop()
            self._loop.later(self._some(3.0), self._new_worker)

    def _one_more_worker(self) -> None:
        if sum(worker.alive for worker in self._cast.workers) < 3:
            self._new_worker()
