"""What a process that copies the journal in rounds (`--follow`) tells Prometheus: how far it is behind.

Where the journal ends is asked between the rounds, too: what comes in a long round is behind as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge

from ops.history.following import AWAY
from ops.history.port import History
from streams.runtime.health import HealthServer

Address: TypeAlias = tuple[str, int | None]
"""Host, and port: 0 takes a free one; None: nothing listens."""

LOOK_EVERY_S: Final = 15.0
"""Between two looks at the journal's ends: a scrape interval."""
LATE_ROUNDS: Final = 3
LATE_S: Final = 300.0
"""Late is who has been behind for longer than three rounds and 5 minutes, which a long round may take; the rule
`TurnlogCopyBehind` says the same."""


class RoundMetrics:
    """The metrics of one such process, in a registry of their own. `of`: what it makes of the journal; `to`: where, for
    people; `clock`: seconds since the epoch."""

    def __init__(self, of: str, to: str, every_s: float, *, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._names = (of, to)
        self.clock = clock
        self.every_s = every_s

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ("of", "to", *labels), namespace="turnlog_copy", registry=self.registry)

        self._until = gauge("until_timestamp_seconds", "All that was committed before this moment is copied.").labels(
            *self._names
        )
        gauge("every_seconds", "How often it copies what is new.").labels(*self._names).set(every_s)
        self._behind = gauge("behind_offsets", "Offsets of the journal that are readable and not copied.", "partition")
        self._failed = Counter(
            "failed_rounds",
            "Rounds that ended since a server was away.",
            ("of", "to"),
            namespace="turnlog_copy",
            registry=self.registry,
        ).labels(*self._names)
        self.caught_up_at = clock()
        """When the last round began that came to its end; before the first one, when the process began."""
        self._until.set(self.caught_up_at)

    def done(self, began: float) -> None:
        """A round that began then (seconds since the epoch) has copied all that was committed before."""
        self.caught_up_at = began
        self._until.set(began)

    def failed(self) -> None:
        """A round did not come to its end."""
        self._failed.inc()

    def behind(self, partition: int, offsets: int) -> None:
        """So many are not copied."""
        self._behind.labels(*self._names, partition).set(offsets)

    def healthy(self) -> tuple[bool, dict[str, Any]]:
        """Whether it is in time."""
        behind_s = self.clock() - self.caught_up_at
        return behind_s < LATE_ROUNDS * self.every_s + LATE_S, {
            "of": self._names[0],
            "to": self._names[1],
            "behind_s": round(behind_s, 1),
        }


def counted(once: Callable[[], Awaitable[object]], metrics: RoundMetrics) -> Callable[[], Awaitable[None]]:
    """The same round, told of."""

    async def counting() -> None:
        began = metrics.clock()
        try:
            await once()
        except AWAY:
            metrics.failed()
            raise
        metrics.done(began)

    return counting


@asynccontextmanager
async def shown(
    metrics: RoundMetrics,
    history: History,
    upto: Mapping[int, int],
    address: Address,
    notify: Callable[[str], None],
    *,
    most: int | None = None,
) -> AsyncIterator[None]:
    """`/metrics`, `/healthz` and `/readyz` at this address for as long as the block runs.

    upto: by partition, the offset up to which it is copied, as the copying goes on. most: the offset from which on
    nothing is wanted. Raises `OSError` for a taken port.
    """
    host, port = address
    if port is None:
        yield
        return
    server = HealthServer(metrics.registry, healthy=metrics.healthy, ready=metrics.healthy)
    notify(f"metrics at {server.start(host, port)}/metrics")
    looking = asyncio.create_task(_look(metrics, history, upto, most))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait({looking})
        server.stop()
        if not looking.cancelled():
            looking.result()


async def _look(metrics: RoundMetrics, history: History, upto: Mapping[int, int], most: int | None) -> None:
    while True:
        for partition, copied in sorted(upto.items()):
            try:
                end = (await history.bounds(partition)).end
            except AWAY:
                break  # the next round says so, and counts
            wanted = end if most is None else min(end, most)
            metrics.behind(partition, max(0, wanted - copied))
        await asyncio.sleep(LOOK_EVERY_S)
