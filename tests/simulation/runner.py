"""Many seeds on several processes, and what is told of them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

from tests.simulation.schedule import Outcome, run_seed

CHUNK = 16
"""Seeds that a process is given at a time: about a second of work."""


FAILURES_KEPT = 5


@dataclass(slots=True)
class Report:
    """What many schedules came to. `failed`: the first few, whole."""

    seeds: int = 0
    failures: int = 0
    turns: int = 0
    takeovers: int = 0
    fenced: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    struck: set[str] = field(default_factory=set)
    """Lines of the product before which a process was killed or paused."""
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        self.seeds += 1
        self.turns += outcome.tally.turns
        self.takeovers += outcome.tally.takeovers
        self.fenced += outcome.tally.fenced
        self.virtual_s += outcome.virtual_s
        self.struck.update(outcome.struck)
        if outcome.violations:
            self.failures += 1
            self.failed = sorted([*self.failed, outcome], key=_seed_of)[:FAILURES_KEPT]


def _seed_of(outcome: Outcome) -> int:
    return outcome.seed


def run_chunk(seeds: Sequence[int], only: tuple[str, ...] = ()) -> list[Outcome]:
    """Run some in this process; traces of those that kept every promise are dropped."""
    return [_slim(run_seed(seed, only)) for seed in seeds]


def _slim(outcome: Outcome) -> Outcome:
    return outcome if outcome.violations else outcome.without_trace()


def run_many(
    seeds: Iterable[int],
    *,
    jobs: int,
    only: tuple[str, ...] = (),
    within_s: float = float("inf"),
    notify: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Run `seeds`, or as many of them as can be begun within the time. `notify` after each chunk."""
    report, began = Report(), time.monotonic()

    def took(outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            report.add(outcome)
        report.seconds = time.monotonic() - began
        notify(report)

    source = iter(seeds)
    chunks = iter(lambda: list(islice(source, CHUNK)), [])
    if jobs == 1:
        for chunk in chunks:
            if time.monotonic() - began > within_s:
                break
            took(run_chunk(chunk, only))
        return report
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[list[Outcome]]] = set()
        for chunk in chunks:
            if time.monotonic() - began > within_s:
                break
            running.add(pool.submit(run_chunk, chunk, only))
            while len(running) >= 2 * jobs:
                done, running = wait(running, return_when="FIRST_COMPLETED")
                for future in done:
                    took(future.result())
        for future in running:
            took(future.result())
    return report


def command_for(outcome: Outcome, only: tuple[str, ...] = ()) -> str:
    """What reruns this very schedule."""
    kinds = f' --only "{",".join(only)}"' if only else ""
    return f"python -m tests.simulation --seeds {outcome.seed}:{outcome.seed + 1}{kinds} --trace"


def told(outcome: Outcome, only: tuple[str, ...] = ()) -> str:
    """A failing schedule in full: trace, broken promises, and how to see it again."""
    lines = [*outcome.trace, "", f"seed {outcome.seed} breaks:"]
    lines += [f"  {violation}" for violation in outcome.violations]
    return "\n".join([*lines, f"digest {outcome.digest}; again with:", f"  {command_for(outcome, only)}"])
