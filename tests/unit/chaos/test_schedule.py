"""The schedule of faults follows from the seed, and from nothing else."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.chaos.nemeses import DEEDS
from ops.chaos.schedule import ALONE, CUTS, DROPPED, HELD, OF_GATEWAYS, OF_WORKERS, SHAPES, Nemesis, Target, schedule

SEEDS = st.integers(0, 2**31)


def test_every_nemesis_has_a_shape_and_a_deed() -> None:
    assert set(SHAPES) == set(DEEDS) == set(Nemesis)


@given(SEEDS)
def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    assert schedule(seed, 120) == schedule(seed, 120)


def test_another_process_makes_the_same_schedule_whatever_its_hash_seed() -> None:
    script = "from ops.chaos.schedule import schedule; print(schedule(7, 300))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{schedule(7, 300)}\n"}


@given(SEEDS, st.floats(1, 600))
def test_faults_come_in_order_within_the_time_given_and_last_as_long_as_their_kind_says(
    seed: int, seconds: float
) -> None:
    faults = schedule(seed, seconds)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    for fault in faults:
        shape = SHAPES[fault.nemesis]
        assert 0 <= fault.at_s < seconds
        assert shape.least_s - 0.01 <= fault.for_s <= shape.most_s + 0.01
        assert fault.process in shape.target.value


@given(SEEDS)
def test_nothing_begins_while_a_fault_that_must_be_alone_goes_on(seed: int) -> None:
    faults = schedule(seed, 300)
    for fault, after in itertools.pairwise(faults):
        if fault.nemesis in ALONE:
            assert after.at_s >= fault.at_s + fault.for_s


@given(SEEDS)
def test_a_failpoint_is_one_of_its_process_and_a_cut_says_how_it_is_made(seed: int) -> None:
    for fault in schedule(seed, 300):
        if fault.nemesis in {Nemesis.FAILPOINT_KILL, Nemesis.FAILPOINT_STOP}:
            assert fault.detail in (OF_WORKERS if fault.process in Target.WORKER.value else OF_GATEWAYS)
        elif fault.nemesis in CUTS:
            assert fault.detail in {DROPPED, HELD}
        else:
            assert fault.detail == ""


@pytest.mark.parametrize("nemesis", Nemesis)
def test_a_choice_of_nemeses_is_kept_to(nemesis: Nemesis) -> None:
    assert {fault.nemesis for fault in schedule(1, 60, [nemesis])} == {nemesis}


def test_a_long_run_has_every_kind_of_fault() -> None:
    assert {fault.nemesis for fault in schedule(3, 900)} == set(Nemesis)
