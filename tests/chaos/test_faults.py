"""A short mix of faults on real servers and processes, and the control: without a guard the suite finds something."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.chaos.guards import Guard
from ops.chaos.run import Plan, Report, run
from ops.chaos.schedule import Nemesis

pytestmark = pytest.mark.chaos

MIX_MINUTES = 0.75
"""With start, healing and proof below three minutes on a busy machine of two cores."""
CONTROL_MINUTES = 0.25
SEED_VARIABLE = "TURNLOG_CHAOS_SEED"
STAYS_DOWN = frozenset({Nemesis.DISK_FULL, Nemesis.WORKER_STORM})
"""They take more of the time than a short mix has."""


def seed() -> int:
    """A new one each time, so that many runs see many schedules; the failing one's can be given again."""
    return int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 31))


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


async def runs(plan: Plan) -> Report:
    report = await run(plan, say)
    say(str(report.document()))
    return report


def told(violations: Sequence[str], *signs: str) -> bool:
    return any(sign in violation for violation in violations for sign in signs)


@pytest.mark.timeout(420)
async def test_a_mix_of_faults_loses_doubles_and_shows_nothing_that_it_should_not(tmp_path: Path) -> None:
    nemeses = tuple(nemesis for nemesis in Nemesis if nemesis not in STAYS_DOWN)
    report = await runs(Plan(seed=seed(), minutes=MIX_MINUTES, nemeses=nemeses, data=tmp_path / "chaos"))
    assert report.violations == [], f"again: {report.plan.command}; the data: {report.data}"
    assert report.counts["turns"] == report.counts["answered"] + report.counts["ended"]


@pytest.mark.timeout(420)
async def test_without_the_guard_against_repeats_the_same_suite_finds_turns_stored_twice(tmp_path: Path) -> None:
    plan = Plan(
        seed=1, minutes=CONTROL_MINUTES, nemeses=(Nemesis.KILL_AGENT,), without=Guard.DEDUPE, data=tmp_path / "c"
    )
    report = await runs(plan)
    assert told(report.violations, "invariant 7")
    assert told(report.violations, "more than once")
