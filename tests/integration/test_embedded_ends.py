"""Nothing of an embedded stack is left running, however the process that started it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import ops.embedded
from tests.support.processes import eventually, nothing_runs_on, open_handles, wait_ended

ROOT = Path(__file__).parents[2]
END_S = 20.0


@dataclass(frozen=True, slots=True)
class Held:
    """A stack that another process holds."""

    holder: subprocess.Popen[str]
    data: Path
    postgres: str
    servers: list[int]
    supervisor: int


@contextmanager
def held(data: Path | None) -> Iterator[Held]:
    """A stack in a process of its own, which is a process group of its own as in a terminal."""
    command = [sys.executable, "-m", "tests.support.stack_holder", *([str(data)] if data else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0) as holder:
        try:
            assert holder.stdout is not None
            told = json.loads(holder.stdout.readline())
            yield Held(holder, Path(told["data"]), told["postgres"], told["servers"], told["supervisor"])
        finally:
            holder.kill()


def end_by(how: signal.Signals, running: Held) -> bool:
    """End the holder by a signal to its group; whether supervisor and servers ended too."""
    handles = open_handles([*running.servers, running.supervisor])
    os.killpg(running.holder.pid, how)
    running.holder.wait(END_S)
    return wait_ended(handles, END_S)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_a_temporary_stack_is_gone_with_its_parent(how: signal.Signals) -> None:
    with held(None) as running:
        assert running.data.exists()
        assert end_by(how, running)
        assert not running.data.exists()


def test_a_kept_stack_ends_in_order_when_its_parent_is_killed(tmp_path: Path) -> None:
    with held(tmp_path) as running:
        with psycopg.connect(running.postgres) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        assert end_by(signal.SIGKILL, running)
    assert nothing_runs_on(tmp_path)
    assert "database system is shut down" in (tmp_path / "logs" / "postgres.log").read_text()
    with ops.embedded.start(tmp_path) as again, psycopg.connect(again.postgres) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_a_second_start_works_after_everything_was_killed(tmp_path: Path) -> None:
    with held(tmp_path) as running:
        with psycopg.connect(running.postgres) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        handles = open_handles([*running.servers, running.supervisor])
        for pid in (running.holder.pid, running.supervisor, *running.servers):
            os.kill(pid, signal.SIGKILL)
        assert wait_ended(handles, END_S)
    assert (tmp_path / "postgres" / "data" / "postmaster.pid").exists()
    with ops.embedded.start(tmp_path) as again, psycopg.connect(again.postgres) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process's life to its parent's")
def test_the_servers_end_when_only_their_supervisor_is_killed(tmp_path: Path) -> None:
    with held(tmp_path) as running:
        handles = open_handles(running.servers)
        os.kill(running.supervisor, signal.SIGKILL)
        assert wait_ended(handles, END_S)


def test_a_supervisor_that_was_killed_is_a_failure_that_its_parent_is_told_of(tmp_path: Path) -> None:
    with ops.embedded.start(tmp_path) as stack:
        assert stack.failure() is None
        os.kill(stack.supervisor_pid, signal.SIGKILL)
        assert eventually(lambda: "supervisor is gone (status -9)" in str(stack.failure()), END_S)
    assert stack.failure() is None


def test_a_parent_that_is_killed_before_the_stack_is_ready_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.stack_holder", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        # The first program that prepares a server writes here.
        assert eventually((tmp_path / "logs" / "kafka.log").exists, END_S)
        holder.kill()
        assert holder.stdout is not None
        assert holder.stdout.read() == ""
    assert eventually(lambda: nothing_runs_on(tmp_path), END_S)
    with ops.embedded.start(tmp_path) as again, psycopg.connect(again.postgres) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
