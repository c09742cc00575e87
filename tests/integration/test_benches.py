"""The benches of takeover, recovery and audit, small: they make their faults, and say what came of each."""

from __future__ import annotations

import pytest

from ops.bench.run import audit_bench, growth_bench, recovery_bench, takeover_bench
from ops.bench.takeover import Fault, TakeoverPlan
from ops.embedded import EmbeddedStack


@pytest.fixture(autouse=True)
def _servers(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the servers that all tests share; leases that end within a test."""
    monkeypatch.setenv("TURNLOG_KAFKA", stack.kafka)
    monkeypatch.setenv("TURNLOG_POSTGRES", stack.postgres)
    monkeypatch.setenv("TURNLOG_LEASE_TTL_MS", "3000")
    monkeypatch.setenv("TURNLOG_LEASE_HEARTBEAT_MS", "1000")


def told(_: str) -> None:
    """What people would be told."""


def test_each_fault_is_made_and_felt() -> None:
    plan = TakeoverPlan(faults=tuple(Fault), partitions=4, conversations=20, rounds=1, load=10)
    document = takeover_bench(plan, told)
    assert document["drain_errors"] == 0
    felt = {fault: document[f"{fault.value}_ms"] for fault in Fault}
    for each in felt.values():
        assert 0 < each["p50"] <= each["p99"] <= each["max"]
    assert [felt[fault]["samples"] for fault in (Fault.KILL_WORKER, Fault.STOP_WORKER, Fault.DRAIN)] == [2, 2, 2]
    assert felt[Fault.KILL_AGENT]["samples"] >= 16
    assert felt[Fault.STOP_WORKER]["p50"] > 1_000, "a stopped one is known by its lease's end only"


def test_an_heir_replays_what_no_checkpoint_holds() -> None:
    document = recovery_bench(200, 300, 250, told)
    assert document["recovery_cpu_s"] > 0
    assert document["recovery_s"] > 0
    assert document["worker_rss_mib"] > 0
    assert 0 < document["resident"] <= 200


def test_an_audit_is_held_against_reading_alone() -> None:
    document = audit_bench(3_000, 2, 1, told)
    assert document["events"] >= 3_000
    assert document["ratio_min"] <= document["ratio_median"]
    assert 0 < document["audit_per_core_per_s"] < document["plain_per_core_per_s"]
    assert 0 < document["audit_rss_mib"] < 512
    assert 0 < document["travel_s_median"] <= document["travel_s_max"]


def test_a_growth_writes_all_that_it_read_and_what_it_adds() -> None:
    document = growth_bench(3_000, 2, 2, told)
    assert document["written"] > document["events"] >= 3_000
    assert 0 < document["written_per_core_per_s"] < document["read_per_core_per_s"]
    assert document["new_partitions"] == 4
