"""Run schedules of the simulation from a shell.

    python -m tests.simulation --seeds 0:2000              two thousand, on every core
    python -m tests.simulation --seeds 4711:4712 --trace   one, with all that happened
    python -m tests.simulation --mutants                   take each guard away: some seed must notice

Exit status: 0 every promise was kept (or every mutant was caught), 1 one was not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.mutation import hunt
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runner import Report, command_for, run_many, told
from tests.simulation.schedule import run_seed

HUNTED = 400
"""Seeds that a mutant is run under."""


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:2000", metavar="FROM:TO", help="which (default 0:2000, TO excluded)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--only", default="", metavar="FAULT,…", help="draw faults of these kinds alone")
    parser.add_argument("--trace", action="store_true", help="print what happened under every seed")
    parser.add_argument("--mutants", action="store_true", help="run the mutation gate instead")
    given = parser.parse_args()
    if given.mutants:
        return mutants()
    first, _, last = given.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    only = tuple(kind for kind in given.only.split(",") if kind)
    return traced(seeds, only) if given.trace else many(seeds, given.jobs, only)


def traced(seeds: range, only: tuple[str, ...]) -> int:
    """One after the other, in full."""
    failed = False
    for seed in seeds:
        outcome = run_seed(seed, only)
        failed |= bool(outcome.violations)
        sys.stdout.write(told(outcome, only) if outcome.violations else "\n".join(outcome.trace))
        sys.stdout.write(f"\nseed {seed}: {outcome.tally}, digest {outcome.digest}\n")
    return 1 if failed else 0


def many(seeds: range, jobs: int, only: tuple[str, ...]) -> int:
    """All of them; the first failing one in full."""

    def progress(report: Report) -> None:
        rate = report.seeds / report.seconds * 60
        sys.stderr.write(f"\r{report.seeds} of {len(seeds)}, {report.failures} failed, {rate:,.0f} a minute ")
        sys.stderr.flush()

    report = run_many(seeds, jobs=jobs, only=only, notify=progress)
    sys.stderr.write("\n")
    if report.failed:
        sys.stdout.write(told(report.failed[0], only) + "\n")
        for outcome in report.failed[1:]:
            sys.stdout.write(f"also: {outcome.violations[0]}\n  {command_for(outcome, only)}\n")
    rate = report.seeds / max(report.seconds, 1e-9) * 60
    sys.stdout.write(
        f"{report.seeds} schedules, {report.failures} failed, {rate:,.0f} a minute: {report.virtual_s / 3600:.1f} "
        f"simulated hours, {report.turns} turns, {report.takeovers} takeovers of runs, {report.fenced} frames fenced, "
        f"struck before {len(report.struck)} lines\n"
    )
    return 1 if report.failures else 0


def mutants() -> int:
    """Each guard taken away in turn."""
    survived = 0
    for mutation in MUTATIONS:
        began = time.monotonic()
        catch = hunt(mutation, range(HUNTED))
        seconds = time.monotonic() - began
        if catch is None:
            survived += 1
            sys.stdout.write(f"SURVIVED  {mutation.guard}: {mutation.without} ({HUNTED} seeds, {seconds:.0f} s)\n")
        else:
            seen = catch.outcome.violations[0]
            sys.stdout.write(f"caught    {mutation.guard}: seed {catch.outcome.seed}, {seconds:.1f} s: {seen}\n")
        sys.stdout.flush()
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
