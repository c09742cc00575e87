"""The process ends in time, whatever faust waits for."""

from __future__ import annotations

import queue
import signal

import faust
import pytest

from streams import app
from streams.app import ProjectorWorker, end_within

pytestmark = pytest.mark.unit


def test_who_has_not_stopped_in_time_is_ended() -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    end_within(0.01, codes.put)
    assert codes.get(timeout=10) == 0


def test_who_has_stopped_does_not_wait_for_it() -> None:
    timer = end_within(3600.0)
    assert timer.daemon
    timer.cancel()


def test_a_signal_sets_the_limit_and_stops_as_faust_does(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(app, "end_within", done.append)
    monkeypatch.setattr(faust.Worker, "_schedule_shutdown", lambda _, number: done.append(number))
    worker = ProjectorWorker.__new__(ProjectorWorker)
    worker._schedule_shutdown(signal.SIGTERM)
    assert done == [app.STOP_WITHIN_S, signal.SIGTERM]
