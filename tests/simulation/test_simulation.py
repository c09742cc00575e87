"""The simulation keeps its own promises, and the sequencers keep theirs under every seed."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiokafka.errors import ProducerFenced

from streams.runtime.kafka import closed
from tests.simulation.cluster import Cluster, Fate
from tests.simulation.loop import SimLoop
from tests.simulation.place import CODEC
from tests.simulation.runner import command_for, run_many, told
from tests.simulation.schedule import run_seed

ROOT = Path(__file__).parents[2]
SEEDS = range(400)
"""Half a minute on one core. `python -m tests.simulation` runs as many as it is asked for."""


def test_every_promise_is_kept_whatever_dies_and_whenever() -> None:
    report = run_many(SEEDS, jobs=os.cpu_count() or 1)
    assert not report.failed, told(report.failed[0])
    # A simulation in which nothing happens keeps every promise.
    assert report.seeds == len(SEEDS)
    assert report.turns > 5 * report.seeds
    assert report.takeovers > report.seeds / 10
    assert report.fenced > 0


def test_a_seed_is_the_same_schedule_everywhere_and_always() -> None:
    seed = 11
    first = run_seed(seed)
    run_seed(seed + 1)
    again = run_seed(seed)
    assert (again.digest, again.trace) == (first.digest, first.trace)
    command = [sys.executable, *command_for(first).split()[1:]]
    elsewhere = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "4711"}, capture_output=True, text=True, check=True
    )
    assert f"digest {first.digest}" in elsewhere.stdout


def test_workers_die_and_stop_in_the_middle_of_steps_too() -> None:
    """On many lines: a simulation that strikes at a few places shows little."""
    lines: set[str] = set()
    for seed in range(20):
        outcome = run_seed(seed, ("kill at", "pause at", "kill worker", "pause worker"))
        assert not outcome.violations, told(outcome)
        lines.update(outcome.struck)
    assert len(lines) > 10


def test_another_seed_is_another_schedule() -> None:
    assert run_seed(1).digest != run_seed(2).digest


def test_a_killed_process_makes_no_step_and_a_paused_one_makes_them_later() -> None:
    loop = SimLoop.seeded(Random(1))
    steps: list[str] = []

    async def count(name: str) -> None:
        for number in range(3):
            steps.append(f"{name}{number}")
            await _sleep(loop, 1.0)

    killed, paused = loop.process("killed"), loop.process("paused")
    loop.spawn(killed, count("k"))
    loop.spawn(paused, count("p"))
    loop.later(0.5, loop.kill, killed)
    loop.later(0.5, loop.pause, paused)
    loop.run(10.0, lambda: False)
    assert sorted(steps) == ["k0", "p0"]
    loop.resume(paused)
    loop.run(20.0, lambda: False)
    assert steps[2:] == ["p1", "p2"]
    loop.dispose()


@pytest.mark.parametrize("stop", [SimLoop.kill, SimLoop.pause])
def test_a_step_is_struck_between_any_two_of_its_lines_though_nothing_in_it_waits(stop: Any) -> None:
    done_by_then: set[int] = set()
    for lines in range(1, 12):
        loop = SimLoop.seeded(Random(1))
        process, others = loop.process("struck"), loop.process("other")
        things = [_Thing(loop) for _ in range(3)]
        loop.spawn(process, closed(*things))
        process.light(0, lines, partial(stop, loop, process))
        others_done = loop.spawn(others, _after(loop, 0.5))
        loop.later(1.0, loop.resume, process)
        loop.run(0.9, others_done.done)
        done_by_then.add(sum(thing.closed_at == 0.0 for thing in things))
        loop.run(5.0, lambda: False)
        later = [thing.closed_at for thing in things if thing.closed_at != 0.0]
        assert later == [None if stop is SimLoop.kill else 1.0] * len(later)
        assert not loop.errors
        loop.dispose()
    assert done_by_then == {0, 1, 2, 3}


class _Thing:
    """Can be closed at once."""

    def __init__(self, loop: SimLoop) -> None:
        self.closed_at: float | None = None
        self._loop = loop

    async def close(self) -> None:
        self.closed_at = self._loop.now


async def _after(loop: SimLoop, seconds: float) -> None:
    await _sleep(loop, seconds)


def _sleep(loop: SimLoop, seconds: float) -> Any:
    done = loop.create_future()
    loop.call_later(seconds, done.set_result, None)
    return done


def test_a_late_end_of_one_transaction_commits_the_open_half_of_the_next() -> None:
    """The hazard of the first protocol, for which the doubt rule is there."""
    cluster = Cluster(SimLoop.seeded(Random(1)), Random(1), CODEC)
    where, answers = (cluster.topics.conversations, 0), list[Any]()
    cluster.init_producer("t-0", answers.append)
    epoch = answers[-1]
    for sequence in (0, 1):
        cluster.add_partitions("t-0", epoch, where, answers.append)
        cluster.produce("t-0", epoch, where, sequence, [(None, b"%d" % sequence, [])], answers.append)
        if sequence == 0:
            cluster.commit("t-0", epoch, "w", answers.append)
    cluster.commit("t-0", epoch, "w", answers.append)  # the first one's repeat, late
    assert [record.value for record in cluster.committed(*where)] == [b"0", b"1"]


def test_a_new_epoch_aborts_what_is_open_and_refuses_what_comes_late() -> None:
    cluster = Cluster(SimLoop.seeded(Random(1)), Random(1), CODEC)
    where, answers = (cluster.topics.conversations, 0), list[Any]()
    cluster.init_producer("t-0", answers.append)
    old = answers[-1]
    cluster.add_partitions("t-0", old, where, answers.append)
    cluster.produce("t-0", old, where, 0, [(None, b"open", [])], answers.append)
    log = cluster.logs[where]
    assert log.stable_end == 0
    cluster.init_producer("t-0", answers.append)
    assert [record.fate for record in log.records] == [Fate.ABORTED, Fate.MARKER]
    assert log.stable_end == 2
    cluster.produce("t-0", old, where, 1, [(None, b"late", [])], answers.append)
    cluster.commit("t-0", old, "w", answers.append)
    assert [type(answer) for answer in answers[-2:]] == [ProducerFenced, ProducerFenced]
    assert cluster.committed(*where) == []
