"""What chaos does inside a process: failpoints, a wrong clock, a guard taken out. Each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.chaos.failpoints import Failpoints, around
from ops.chaos.guards import CONTROLS, Guard
from ops.chaos.schedule import Failpoint


def python(script: str, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Signals that this process would have sent itself."""
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    return signals


def armed(orders: Path, point: str, do: str) -> Failpoints:
    orders.write_text(json.dumps({"point": point, "do": do}))
    points = Failpoints(orders)
    points.read(signal.SIGUSR1, None)
    return points


def test_a_failpoint_does_what_it_was_told_at_its_own_place_and_once(tmp_path: Path, sent: list[int]) -> None:
    points = armed(tmp_path / "orders", "before-commit", "kill")
    points.passing(Failpoint.AFTER_COMMIT)
    assert sent == []
    points.passing(Failpoint.BEFORE_COMMIT)
    points.passing(Failpoint.BEFORE_COMMIT)
    assert sent == [signal.SIGKILL]


def test_an_empty_order_disarms(tmp_path: Path, sent: list[int]) -> None:
    points = armed(tmp_path / "orders", "before-commit", "stop")
    (tmp_path / "orders").write_text("")
    points.read(signal.SIGUSR1, None)
    points.passing(Failpoint.BEFORE_COMMIT)
    assert sent == []


async def test_failpoints_lie_in_front_of_a_method_and_behind_it(tmp_path: Path, sent: list[int]) -> None:
    seen: list[list[int]] = []

    async def method(number: int) -> int:
        seen.append(list(sent))
        return number

    before = armed(tmp_path / "before", "before-commit", "stop")
    assert await around(before, Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, method)(7) == 7
    after = armed(tmp_path / "after", "after-commit", "kill")
    assert await around(after, Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, method)(8) == 8
    assert seen == [[signal.SIGSTOP], [signal.SIGSTOP]]
    assert sent == [signal.SIGSTOP, signal.SIGKILL]


WIRED = """
import os; os.environ["TURNLOG_CHAOS_ORDERS"] = "none"
from pathlib import Path
from ops.chaos.diary import Diary
from ops.chaos.notes import Notebook
from ops.chaos.failpoints import Failpoints
from ops.chaos.worker import furnish
furnish(Failpoints(Path("none")), Diary(Notebook(Path("/dev/null"))))
from streams import worker
names = ("KafkaJournalProducer", "KafkaJournalReader", "KafkaIntake", "PostgresCheckpoints", "PostgresLeases")
names += ("Heartbeat",)
print(all(getattr(worker, name).__module__ == "ops.chaos.worker" for name in names))
"""
SHOWN = """
from pathlib import Path
from ops.chaos.failpoints import Failpoints
from ops.chaos.server import furnish
from connectors.gateway.commands import Commands
from connectors.gateway.hub import Hub
before = Hub.apply, Commands._send, Commands._outcome
furnish(Failpoints(Path("none")))
print([new is not old for new, old in zip((Hub.apply, Commands._send, Commands._outcome), before)])
"""


def test_the_workers_one_wiring_place_takes_the_parts_with_failpoints_and_diary() -> None:
    assert python(WIRED) == "True"


def test_a_gateway_gets_failpoints_between_what_kafka_has_and_what_it_tells() -> None:
    assert python(SHOWN) == "[True, True, True]"


CLOCK = """
from ops.chaos import clock; import time; right, steady = time.time(), time.monotonic(); clock.skew()
from datetime import UTC, datetime; from calendar import timegm
now = [time.time(), time.time_ns() / 1e9, datetime.now(UTC).timestamp(), time.clock_gettime(time.CLOCK_REALTIME)]
now += [timegm(time.gmtime()), time.mktime(time.localtime()), time.mktime(time.strptime(time.ctime()))]
now += [time.mktime(time.strptime(time.asctime())), time.mktime(time.strptime(time.strftime("%c")))]
now += [datetime.today().timestamp(), datetime.utcnow().replace(tzinfo=UTC).timestamp()]
print({round((each - right) / 10) for each in now}, round((time.monotonic() - steady) / 10))
"""


@pytest.mark.parametrize(("seconds", "tens"), [("3600", 360), ("-3600", -360), ("0", 0)])
def test_a_wrong_clock_is_wrong_for_all_who_ask_the_time_of_day_and_for_no_monotonic_one(
    seconds: str, tens: int
) -> None:
    assert python(CLOCK, TURNLOG_CHAOS_CLOCK_S=seconds) == f"{ {tens} } 0"


def test_every_guard_can_be_taken_out_and_none_is_unless_it_is_named() -> None:
    assert set(CONTROLS) == set(Guard)
    script = "from ops.chaos import guards; from streams.core import keys; before = keys.find; guards.take_out()"
    assert python(f"{script}; print(keys.find is before)") == "True"
    for guard in Guard:
        python(script, TURNLOG_CHAOS_GUARD_OFF=guard)
    assert python(f"{script}; print(keys.find is before)", TURNLOG_CHAOS_GUARD_OFF="dedupe") == "False"
