"""How fast the audit is, and as a ratio to what reading and decoding the same events alone costs in the same run."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.audit.asked import Asked, Scope, partitions_of
from ops.audit.shared import Team, begin
from ops.bench.history import BEGAN_AT
from ops.bench.past import fill
from ops.bench.sequencer import BenchFailed
from ops.history import History, open_history
from ops.history.decoding import parts
from ops.replay import Target, Traveller
from streams.settings import Settings

POINTS: Final = 10
LOOKED_AT: Final = 1_000
"""Offsets at the end of the journal, to find when it ends."""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AuditRound:
    """One reading and one audit of the same events, one after the other. CPU seconds of all their processes, from when
    they have started."""

    events: int
    plain_cpu_s: float
    audit_cpu_s: float
    audit_wall_s: float
    rss_bytes: int
    """The most that any one process of the audit had."""

    @property
    def per_core(self) -> float:
        """Events that the audit takes in a second of CPU."""
        return self.events / self.audit_cpu_s

    @property
    def plain_per_core(self) -> float:
        """Events that are read and decoded in a second of CPU."""
        return self.events / self.plain_cpu_s

    @property
    def ratio(self) -> float:
        """Of the audit's speed to that of reading and decoding."""
        return self.plain_cpu_s / self.audit_cpu_s


async def measure_audit(
    settings: Settings, events: int, partitions: int, rounds: int, notify: Notify
) -> Sequence[AuditRound]:
    """On a new deployment (its topics and tables are there): fill it, then read it and audit it, `rounds` times."""
    notify(f"writing {events:,} events")
    written = await fill(settings, events, partitions, notify)
    return [await _round(settings, written, notify) for _ in range(rounds)]


async def _round(settings: Settings, written: int, notify: Notify) -> AuditRound:
    async with open_history(settings) as history:
        cpu, read = time.process_time(), 0
        for partition in range(history.partitions):
            async for chunk in history.read(partition):
                for part in parts(chunk):  # as the audit does, for it is faster so
                    read += len(history.decode_all(part))
        plain_cpu_s = time.process_time() - cpu
        partitions = partitions_of(Scope(), history.partitions)
        identity = history.identity
    team = Team(os.cpu_count() or 1, lambda _: None)
    wall = time.perf_counter()
    verdict = await begin(Asked(settings, Scope()), identity, partitions, team)
    wall = time.perf_counter() - wall
    if not verdict.ok or read != written or verdict.tally.events != written:
        raise BenchFailed(f"of {written:,} events {read:,} were read; the audit says {verdict.document()}")
    cpu_s = sum(team.usage.cpu_s.values())
    round_ = AuditRound(written, plain_cpu_s, cpu_s, wall, team.usage.rss_bytes)
    notify(f"{round_.per_core:,.0f} events/s a core, {round_.ratio:.2f} of reading and decoding alone")
    return round_


async def measure_travel(settings: Settings, notify: Notify) -> Sequence[float]:
    """Go to `POINTS` times of the history, evenly over it and in no order, with states kept on the way there once: how
    long each took, s, over all partitions."""
    took = []
    with tempfile.TemporaryDirectory(prefix="turnlog-bench-") as folder:
        async with open_history(settings) as history:
            await _travel(history, Target(), Path(folder))
            first, last = BEGAN_AT, await _last_time(history)
            for number in range(POINTS):
                moment = first + (last - first) * (number * 7 % POINTS + 1) // POINTS
                begun = time.perf_counter()
                await _travel(history, Target(time_ms=moment), Path(folder))
                took.append(time.perf_counter() - begun)
    notify(f"any point in time within {max(took):.2f} s")
    return took


async def _travel(history: History, target: Target, folder: Path) -> None:
    for partition in range(history.partitions):
        traveller = Traveller(history, partition, folder=folder)
        try:
            await traveller.to(target)
        finally:
            traveller.close()


async def _last_time(history: History) -> int:
    bounds = await history.bounds(0)
    last = BEGAN_AT
    async for chunk in history.read(0, max(bounds.start, bounds.end - LOOKED_AT), bounds.end):
        last = chunk[-1].timestamp
    return last


def summary(rounds: Sequence[AuditRound], travel: Sequence[float]) -> dict[str, float | int]:
    """What is printed."""
    ratios = [each.ratio for each in rounds]
    return {
        "events": rounds[0].events,
        "audit_per_core_per_s": round(statistics.median(each.per_core for each in rounds)),
        "plain_per_core_per_s": round(statistics.median(each.plain_per_core for each in rounds)),
        "ratio_min": round(min(ratios), 3),
        "ratio_median": round(statistics.median(ratios), 3),
        "audit_s": round(statistics.median(each.audit_wall_s for each in rounds), 2),
        "audit_rss_mib": round(max(each.rss_bytes for each in rounds) / 2**20),
        "travel_s_median": round(statistics.median(travel), 2),
        "travel_s_max": round(max(travel), 2),
        "rounds": len(rounds),
    }
