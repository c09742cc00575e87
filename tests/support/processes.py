"""Whether processes that nobody here started have ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def open_handles(pids: Iterable[int]) -> list[int]:
    """Handles on running processes (Linux), so that a later look cannot meet another process with the same number."""
    return [os.pidfd_open(pid) for pid in pids]


def wait_ended(handles: list[int], within_s: float) -> bool:
    """Whether all of these processes ended in time; closes the handles."""
    deadline = time.monotonic() + within_s
    waiting = list(handles)
    try:
        while waiting and (left := deadline - time.monotonic()) > 0:
            ended, _, _ = select.select(waiting, [], [], left)
            waiting = [handle for handle in waiting if handle not in ended]
    finally:
        for handle in handles:
            os.close(handle)
    return not waiting


def nothing_runs_on(data: Path) -> bool:
    """Whether no process of a stack on this folder is left: supervisor, servers and their children hold its locks."""
    with contextlib.ExitStack() as opened:
        for lock in (data / "lock", data / "kafka" / "lock", data / "postgres" / "lock"):
            try:
                fcntl.flock(opened.enter_context(lock.open("rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


def eventually(true: Callable[[], bool], within_s: float) -> bool:
    """Whether something that other processes do, and that nothing reports, comes true in time."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
