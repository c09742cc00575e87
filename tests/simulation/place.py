"""Where everything happens: the loop, the network, the two servers, and the trace of what went on."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import structlog

from streams.core import fold, keys, store
from streams.core.commands import Command, CommitTurn
from streams.core.events import Entry
from streams.core.state import KEYS_IN_ROW, Partition
from streams.runtime import balancer, kafka, kafka_producers, partition, writer
from streams.runtime.codec import Codec
from streams.runtime.partitioning import partition_of
from tests.simulation.clients import SimConsumer, SimProducer
from tests.simulation.cluster import Cluster
from tests.simulation.database import Database
from tests.simulation.loop import PROCESS, Process, SimLoop, current
from tests.simulation.network import Network

CODEC = Codec()
CURSED = "the core fails on this"
"""A turn of this text makes it fail: what a bug of the core would look like to the runtime."""
BALANCE_EVERY_S = 0.5
"""Seldomer than the product does: looking at the lease table, and at the intake, is what an idle worker does."""
POLL_WAIT_MS = 500
TIMED = ("streams.runtime.", "streams.fence.", "streams.worker")
"""Modules that read clocks."""
RUNNING_LOOP = ("get_running_loop", "_get_running_loop", "_get_event_loop")
"""How asyncio finds the loop: in C it asks the system for the process's id each time, which was a tenth of all work."""


class Place:
    """One world. `random` is the seed's only source."""

    def __init__(self, seed: int, partitions: int) -> None:
        self.random = Random(seed)
        self.partitions = partitions
        self.codec = CODEC
        self.loop = SimLoop.seeded(self.branch())
        self.network = Network(self.loop, self.branch())
        self.cluster = Cluster(self.loop, self.branch(), self.codec)
        self.database = Database(self.loop, self.network)
        self.keys_in_row = KEYS_IN_ROW
        """So many of a conversation's idempotency keys are in its row; the table of older ones has the rest."""
        self.lines: list[str] = []
        self.violations: list[str] = []
        self._ambushes: dict[str, list[Callable[[Process], None]]] = {}
        self.network.reached = self.reached

    def branch(self) -> Random:
        """A source of its own for each part, so that one more draw in one of them does not change all others."""
        return Random(self.random.getrandbits(64))

    def ambush(self, step: str, strike: Callable[[Process], None]) -> None:
        """The next process that takes this step of the protocol is struck."""
        self._ambushes.setdefault(step, []).append(strike)

    def reached(self, step: str) -> None:
        """The running process is about to send what `step` names."""
        waiting = self._ambushes.get(step)
        if waiting and not current().dead:
            waiting.pop()(current())

    def trace(self, line: str) -> None:
        """What happened, when, and in which process."""
        process = PROCESS.get(self.loop.outside)
        if process.dead:
            return
        self.lines.append(f"{self.loop.now:9.4f}  {process.name:<14} {line}")

    def broken(self, promise: str) -> None:
        """A promise was broken, here and now."""
        self.violations.append(promise)
        self.trace(f"BROKEN: {promise}")

    @property
    def digest(self) -> str:
        """Of the trace and all that is in the logs: the same for the same seed."""
        whole = hashlib.blake2b(digest_size=8)
        for line in self.lines:
            whole.update(line.encode())
        for name in sorted(self.cluster.logs):
            for record in self.cluster.logs[name].records:
                whole.update(f"{name}{record.offset}{record.timestamp}{record.fate.name}".encode())
                whole.update(record.value or b"")
        return whole.hexdigest()

    def journal(self, partition: int) -> list[tuple[int, Entry]]:
        return self.cluster.journal(partition)

    def conversation_ids(self, partition: int, count: int) -> list[str]:
        """Ids that belong to `partition`."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            name = f"c{number}"
            if self._is_of(name, partition):
                found.append(name)
            number += 1
        return found

    def owned_ids(self) -> list[str]:
        """One more id of each partition, for the agents' own conversations."""
        return [next(f"own{n}" for n in count() if self._is_of(f"own{n}", each)) for each in range(self.partitions)]

    def _is_of(self, name: str, partition: int) -> bool:
        return partition_of(name, self.partitions) == partition

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While this lasts, the product's clocks, jitter and Kafka clients are this place's; its log is the trace."""
        loop = self.loop
        now, here = loop.time, lambda *_, **__: loop
        clock = SimpleNamespace(monotonic=now, perf_counter=now)
        swaps = [
            (partition, "random", self.branch()),
            (balancer, "BALANCE_EVERY_S", BALANCE_EVERY_S),
            (writer, "POLL_WAIT_MS", POLL_WAIT_MS),
            (writer, "step", _failing),
            (keys, "KEYS_IN_ROW", self.keys_in_row),
            (store, "KEYS_IN_ROW", self.keys_in_row),
            (kafka_producers, "AIOKafkaProducer", partial(SimProducer, self.network, self.cluster)),
            (kafka, "AIOKafkaConsumer", partial(SimConsumer, self.network, self.cluster)),
            *((asyncio, name, here) for name in RUNNING_LOOP if hasattr(asyncio, name)),
            *((asyncio.events, name, here) for name in RUNNING_LOOP),
        ]
        for module in [module for name, module in sys.modules.items() if name.startswith(TIMED)]:
            if getattr(module, "time", None) is time:
                swaps.append((module, "time", clock))
            if hasattr(module, "monotonic_s"):
                swaps.append((module, "monotonic_s", now))
        with _swapped(swaps), _logged(self._note):
            yield

    def _note(self, _: Any, level: str, fields: dict[str, Any]) -> dict[str, Any]:
        event = fields.pop("event", "")
        fields.pop("exc_info", None)
        told = " ".join(f"{name}={value}" for name, value in fields.items())
        self.trace(f"{level}: {event} {told}")
        raise structlog.DropEvent


def _failing(state: Partition, command: Command, writer_epoch: int) -> list[Entry]:
    """The core's step, but for cursed turns."""
    if type(command) is CommitTurn and command.turn.text == CURSED:
        raise ZeroDivisionError(CURSED)
    return fold.step(state, command, writer_epoch)


@contextmanager
def _swapped(swaps: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """What `unittest.mock.patch` does, dozens of times a schedule, at a fraction of its time."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in swaps]
    for owner, name, new in swaps:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


@contextmanager
def _logged(processor: Any) -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(
        processors=[processor],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
