"""Child processes: ready, restarted, drained, and ended with their parent. Real processes, small ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ops.children import Child, ChildFailed, ChildPlan, ChildState
from tests.support.processes import open_handles, wait_ended
from tests.support.waiting import until

pytestmark = pytest.mark.unit

READY = 'print(\'{"event": "ready", "id": "a"}\', flush=True); [time.sleep(0.01) for _ in iter(int, 1)]'
GOOD = f"import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); {READY}"
STUBBORN = f"import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"


def child(folder: Path, program: str, told: list[str]) -> Child:
    plan = ChildPlan(name="w", command=[sys.executable, "-c", program], environment={}, log=folder / "w.log")
    return Child(plan, told.append)


async def test_it_is_ready_when_it_says_so_and_drains_on_sigterm(tmp_path: Path) -> None:
    told: list[str] = []
    good = child(tmp_path, GOOD, told)
    await good.start()
    assert (good.state, good.ready["id"]) == (ChildState.READY, "a")
    assert await good.stop(10)
    assert (good.state, told) == (ChildState.STOPPED, [])


async def test_one_that_ends_before_it_is_ready_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    bad = child(tmp_path, "import sys; sys.stderr.write('no such broker\\n'); sys.exit(3)", [])
    with pytest.raises(ChildFailed, match=r"exit code 3(?s:.)*no such broker"):
        await bad.start()
    assert await bad.stop(1)


async def test_one_that_is_never_ready_is_killed_and_an_error(tmp_path: Path) -> None:
    slow = child(tmp_path, "import time; print('starting', flush=True); time.sleep(600)", [])
    with pytest.raises(ChildFailed, match=r"not ready within 0.5 s"):
        await slow.start(0.5)
    assert slow.state is ChildState.DOWN
    assert wait_ended(_handles(slow), 5)


def _handles(of: Child) -> list[int]:
    try:
        return open_handles([of.pid])
    except ProcessLookupError:
        return []


async def test_one_that_does_not_stop_is_killed_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    stubborn = child(tmp_path, STUBBORN, told)
    await stubborn.start()
    assert not await stubborn.stop(0.2)
    assert "did not stop within 0.2 s" in told[0]


async def test_of_one_whose_server_has_ended_no_log_is_shown(tmp_path: Path) -> None:
    told: list[str] = []
    stubborn = child(tmp_path, "import sys; print('Traceback', file=sys.stderr)\n" + STUBBORN, told)
    await stubborn.start()
    stubborn.excused = True
    assert not await stubborn.stop(0.2)
    assert told == [f"{stubborn.plan.name} did not stop within 0.2 s: killed"]


async def test_one_that_stops_with_an_error_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    failing = child(tmp_path, GOOD.replace("sys.exit(0)", "sys.exit(5)"), told)
    await failing.start()
    assert not await failing.stop(10)
    assert "stopped with exit code 5" in told[0]


async def test_one_that_dies_is_told_and_started_again(tmp_path: Path) -> None:
    told: list[str] = []
    dying = child(tmp_path, GOOD, told)
    await dying.start()
    first = dying.pid
    supervisor = asyncio.create_task(dying.supervise())
    os.kill(first, signal.SIGKILL)
    await until(lambda: dying.restarts == 1)
    assert dying.pid != first
    assert "ended unexpectedly (SIGKILL)" in told[0]
    supervisor.cancel()
    await asyncio.wait({supervisor})
    assert await dying.stop(10)


async def test_one_that_cannot_start_again_is_tried_until_it_can(tmp_path: Path) -> None:
    told: list[str] = []
    flag = tmp_path / "broken"
    program = f"import pathlib, sys; pathlib.Path({str(flag)!r}).exists() and sys.exit(9); " + GOOD
    flaky = child(tmp_path, program, told)
    await flaky.start()
    supervisor = asyncio.create_task(flaky.supervise())
    flag.touch()
    os.kill(flaky.pid, signal.SIGKILL)
    await until(lambda: any("exit code 9" in line for line in told))
    flag.unlink()
    await until(lambda: flaky.restarts == 1)
    supervisor.cancel()
    await asyncio.wait({supervisor})
    assert await flaky.stop(10)


async def test_one_that_cannot_be_spawned_is_an_error_and_tried_again_where_it_ran_before(tmp_path: Path) -> None:
    """No process can be made now, or its program is being replaced: whoever supervises it must not give up."""
    told: list[str] = []
    moved = child(tmp_path, GOOD, told)
    await moved.start()
    good = moved.plan
    moved.plan = replace(good, command=[str(tmp_path / "nowhere")])
    supervisor = asyncio.create_task(moved.supervise())
    os.kill(moved.pid, signal.SIGKILL)
    await until(lambda: any("could not be started" in line for line in told))
    moved.plan = good
    await until(lambda: moved.restarts == 1)
    supervisor.cancel()
    await asyncio.wait({supervisor})
    assert await moved.stop(10)


async def test_one_whose_start_is_cancelled_before_there_is_a_process_can_be_stopped(tmp_path: Path) -> None:
    never = child(tmp_path, GOOD, [])
    starting = asyncio.create_task(never.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    assert await never.stop(10)


def test_a_child_ends_with_its_parent_however_that_ends() -> None:
    code = "from ops.lifeline import hold_on_to_parent; import signal, sys, time; hold_on_to_parent(0.5); "
    polite = code + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('on', flush=True); time.sleep(600)"
    deaf = code + "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    for program, ended_with in ((polite, 0), (deaf, 1)):
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == b"on\n"
            process.stdin.close()
            assert process.wait(10) == ended_with
