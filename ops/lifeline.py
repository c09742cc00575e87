"""A child's lifeline: standard input is a pipe that its parent holds open, so its end means that the parent is gone.

A pipe's end reaches the child however the parent died, SIGKILL included, and on every POSIX system; asking the kernel
for a signal on the parent's death (`PR_SET_PDEATHSIG`) is Linux only and fires when the parent's *thread* ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

PARENT_GONE_GRACE_S = 5.0
"""A child drains for at most so long without its parent: the servers that it talks to may be going down with it."""


def hold_on_to_parent(grace_s: float = PARENT_GONE_GRACE_S) -> None:
    """From here on this process gets SIGTERM when its standard input ends, and ends by force `grace_s` s later."""
    lifeline = os.dup(sys.stdin.fileno())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)
    threading.Thread(target=_watch, args=(lifeline, grace_s), name="lifeline", daemon=True).start()


def _watch(lifeline: int, grace_s: float) -> None:
    while os.read(lifeline, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(grace_s)
    sys.stderr.write("the parent process is gone and draining took too long: ending\n")
    sys.stderr.flush()
    os._exit(1)
