"""Grows a deployment in processes that are killed: `python -m tests.support.killed_growth PARTITIONS SEED [POINT …]`.

One process imports what is needed and forks the others, so that each of them begins at once, and runs the command that
a person types. Each tells what it is about to do; the n-th is killed some milliseconds after it told the n-th point,
wherever that is: a point is the name of a call, with `*2` for the second one of a life. Prints, a line for each, the
last thing that it told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

from psycopg import AsyncConnection

from ops.cli.command_line import run
from ops.grow import copying, database, deletion, plan  # noqa: F401 -- imported before the forks, not in each
from ops.grow import run as moving
from ops.history import live
from streams.runtime.kafka_producers import KafkaJournalProducer

SOME_RECORDS: Final = 4
"""In a transaction, and in what is read at once: a small journal takes many of each."""
LATE_S: Final = 0.004
CALLS: Final = (
    (plan, "verify"),
    (moving, "_new_topics"),
    (moving, "_own"),
    (moving, "_copy_keys"),
    (KafkaJournalProducer, "start"),
    (KafkaJournalProducer, "append"),
    (KafkaJournalProducer, "commit"),
    (database.Database, "switch"),
    (AsyncConnection, "execute"),
    (moving, "_require_unchanged"),
    (moving, "_forget_keys"),
    (moving, "_mark"),
)


def telling(call: Callable[..., Any], name: str, pipe: int) -> Callable[..., Any]:
    """The same call, told of before."""

    @wraps(call)
    async def told(*arguments: Any, **named: Any) -> Any:
        os.write(pipe, f"{name}\n".encode())
        return await call(*arguments, **named)

    return told


def live_one(arguments: Sequence[str], pipe: int) -> int:
    """A life: the command, which tells what it does."""
    for owner, name in CALLS:
        setattr(owner, name, telling(getattr(owner, name), name, pipe))
    vars(copying).update(TRANSACTION_RECORDS=SOME_RECORDS)
    vars(live).update(CHUNK_RECORDS=SOME_RECORDS)
    return run(list(arguments))


def killed(arguments: Sequence[str], point: str, late_s: float) -> str:
    """One life, ended by SIGKILL; the last that it told. Exits where it came to an end by itself."""
    call, _, times = point.partition("*")
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.dup2(2, 1)
        os._exit(live_one(arguments, theirs))
    os.close(theirs)
    with os.fdopen(ours) as told:
        left, last = int(times or 1), ""
        for line in told:
            last = line.strip()
            left -= last == call
            if not left:
                time.sleep(late_s)  # the fault: it goes on meanwhile, and dies wherever it is
                os.kill(child, signal.SIGKILL)
                break
        last = ([last, *told.read().split()])[-1]
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"the process that was to die at {point} ended by itself, with {status}, after {last}")
    return last


def main(partitions: str, seed: str, points: Sequence[str]) -> None:
    """Kill a process at each of `points`, in this order."""
    chance = random.Random(seed)
    arguments = ("topic", "grow", "--partitions", partitions, "--yes", "-o", "json")
    for point in points:
        sys.stdout.write(f"{killed(arguments, point, chance.uniform(0, LATE_S))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
