"""The guard that tells a paused process from a busy one."""

from __future__ import annotations

from connectors.gateway.clock import PauseGuard, steady_s


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_process_whose_loop_runs_is_not_paused() -> None:
    clock = Clock()
    guard = PauseGuard(2.5, clock)
    for _ in range(100):
        clock.now += 0.1
        guard.beat()
        assert not guard.paused()


def test_a_pause_is_seen_before_the_loop_beats_again_and_stays_until_it_is_dealt_with() -> None:
    clock = Clock()
    guard = PauseGuard(2.5, clock)
    clock.now += 2.6
    assert guard.paused()
    guard.beat()
    assert guard.paused()
    guard.resume()
    assert not guard.paused()


def test_the_clock_only_goes_forward() -> None:
    readings = [steady_s() for _ in range(1_000)]
    assert readings == sorted(readings)
