"""A process that audits the partitions that it is told: `python -m ops.audit.worker KEPT`, started by `shared`.

It reads partition numbers from its standard input, a line each, and writes lines of JSON: how far it is (`note`), the
`result` of a partition, or why it could not be had (`error`). When its input ends it keeps what it knows and ends.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import uvloop

from ops.audit.asked import Asked
from ops.audit.kept import Kept
from ops.audit.partition import Paused
from ops.audit.shared import asked_by
from ops.audit.single import Keeping, audit_partition
from ops.cli.common import translated_failures
from ops.cli.errors import CommandFailed
from ops.history import open_history
from streams.settings import load_settings


class _Orders:
    """What the parent wants: partitions, until it wants no more, or is gone."""

    def __init__(self) -> None:
        self._partitions: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.stopping = threading.Event()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._partitions.put(int(line))
        self.stopping.set()
        self._partitions.put(None)

    def next(self) -> int | None:
        """The next partition; None: no more."""
        partition = self._partitions.get()
        return None if self.stopping.is_set() else partition


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _audit(asked: Asked, partition: int, keeping: Keeping) -> dict[str, Any]:
    where = asked.where
    async with open_history(asked.settings, where.archive, offline=where.offline) as history:
        audited = await audit_partition(history, asked, partition, lambda note: _say({"note": note}), keeping)
    return audited.document()


def _most_memory() -> int:
    """The most resident memory that this process had, bytes. Linux's `ru_maxrss` counts what the parent had when it
    forked; the kernel's high-water mark of the address space, which begins with the program, does not."""
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """See above. An interrupt from the terminal is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kept = Kept.named(sys.argv[1])
    plan = kept.plan()
    asked = asked_by(plan, None if plan["where"]["offline"] else load_settings())
    orders = _Orders()
    # An audit makes millions of objects that are gone by their count, and few in circles: those are collected where it
    # keeps what it knows (see `single`), and after each partition.
    gc.collect()
    gc.freeze()
    gc.disable()
    begun = time.process_time()
    keeping = Keeping(kept, orders.stopping.is_set)
    while (partition := orders.next()) is not None:
        try:
            with translated_failures():
                result = uvloop.run(_audit(asked, partition, keeping))
        except Paused:
            break
        except CommandFailed as failure:
            _say({"partition": partition, "error": str(failure)})
            break
        kept.finish(partition, result)
        gc.collect()
        cpu_s = time.process_time() - begun
        _say({"partition": partition, "pid": os.getpid(), "cpu_s": cpu_s, "rss_bytes": _most_memory()})


if __name__ == "__main__":
    main()
