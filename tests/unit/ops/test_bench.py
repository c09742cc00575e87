"""What the benches compute from what they saw."""

from __future__ import annotations

import asyncio
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from ops.bench.latency import quantile
from ops.bench.logs import log_folder
from ops.bench.recovery import weigh
from ops.bench.sequencer import BenchFailed, Sequenced, _begun, _Look
from ops.bench.takeover import Felt

pytestmark = pytest.mark.unit


def test_the_logs_of_a_bench_are_kept_and_named_only_if_it_fails() -> None:
    said: list[str] = []
    with log_folder(said.append) as (folder, told):
        told("worker-1 ended unexpectedly (SIGKILL)\n  worker-1 | {...}")
    assert said == ["worker-1 ended unexpectedly (SIGKILL)"]
    assert not folder.exists()
    with pytest.raises(BenchFailed), log_folder(said.append) as (folder, told):
        raise BenchFailed("nothing was committed")
    assert said[-1].endswith(str(folder))
    folder.rmdir()


def test_a_quantile_is_the_nearest_rank() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert (quantile(ordered, 0.5), quantile(ordered, 0.99), quantile(ordered, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([7.0], 0.99) == 7.0


def look(at: float, written: int, opened: int) -> _Look:
    return _Look(at, at / 10, written, opened, {})


def test_the_clock_runs_from_when_all_partitions_are_open() -> None:
    looks = [look(9.0, 0, 0), look(9.5, 300, 1), look(10.0, 500, 2), look(12.0, 1_020, 2)]
    assert _begun(looks, 2) is looks[2]
    result = Sequenced(500, 2.0, 1.0)
    assert (result.turns_per_s, result.cpu_us_per_turn) == (250.0, 2_000.0)


def test_a_worker_that_did_not_open_all_partitions_gives_no_figure() -> None:
    with pytest.raises(BenchFailed, match="opened 1 of 2"):
        _begun([look(9.0, 0, 0), look(9.5, 300, 1)], 2)


def test_a_worker_that_wrote_before_it_was_looked_at_gives_no_figure() -> None:
    with pytest.raises(BenchFailed, match="before it was first looked at"):
        _begun([look(10.0, 3, 1), look(12.0, 1_020, 2)], 2)


def test_what_a_fault_came_to_is_shown_over_all_that_felt_it() -> None:
    felt = Felt([float(n) for n in range(200, 0, -1)], errors=3)
    assert felt.document() == {"p50": 100.0, "p99": 198.0, "max": 200.0, "samples": 200}


def test_an_idle_conversation_with_its_64_keys_and_last_16_runs_takes_2_kib_at_most() -> None:
    # In a process of its own: this one has free memory from earlier tests, which would be filled first.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        assert 64 * 22 < fresh.submit(_weigh).result() <= 2_048


def _weigh() -> float:
    return asyncio.run(weigh(2_000))
