"""Who runs which partition, read off the lease table; pure.

With P partitions and W workers that count, each of them runs P // W, and P % W of them run one more. A worker with more
than that hands the surplus back, drained; one with less claims what nobody holds. Each worker decides for itself, from
the same table, so it may act on a row that has just changed: the claim itself settles that.

- A worker that drains, or that does not reach Kafka, counts for no share. One that reaches it again counts once it has
  done so for `STEADY_MS`, so that a link that comes and goes does not drag partitions along.
- One that has not reached Kafka for some time hands back what it has, if another one reaches it steadily. Where nobody
  does, Kafka is what is away: everybody counts as before, and nothing moves when it is back.
- A partition that its holder has stopped (an operator must look) belongs to no share; its holder keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from streams.fence.port import HeldBy, WorkerRow

# Workers find out that Kafka is back up to a request's time limit (5 s by default) and a second apart.
STEADY_MS = 10_000
# That Kafka has gone they find out a second apart (each asks once a second), and a look at the table later.
CUT_OFF_MS = 3_000


class Moves(msgspec.Struct, frozen=True, gc=False):
    """What this worker should do now. `resume`: its own live leases that nothing here runs, as after a claim whose
    answer was lost; to be claimed again, with a new epoch."""

    claim: tuple[int, ...] = ()
    hand_back: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()


class View(msgspec.Struct, frozen=True, gc=False):
    """What `me` sees: its own partitions, `leaving` ones that it is giving up already among them, and the tables.

    `cut_off_ms`: for how long it has known that it does not reach Kafka; 0: it does.
    """

    me: str
    mine: frozenset[int]
    leaving: frozenset[int]
    workers: Sequence[WorkerRow]
    table: Sequence[HeldBy]
    partitions: int
    cut_off_ms: int = 0


def target(me: str, held: int, others: Mapping[str, int], partitions: int) -> int:
    """How many of `partitions` worker `me`, which holds `held`, should have beside `others`, with what they hold."""
    floor, extra = divmod(partitions, len(others) + 1)
    richer = [name for name, count in others.items() if count > floor]
    if held > floor:
        # Of those above the floor, as many as there are extra ones keep theirs: the first by name.
        rank = sorted([*richer, me]).index(me)
        return floor + 1 if rank < extra else floor
    return floor + 1 if len(richer) < extra else floor


def moves(view: View) -> Moves:
    """Claims and hand-backs for `view.me`.

    Partitions are claimed in an order that differs from worker to worker, so that two of them seldom try the same one.
    """
    others = [row for row in view.workers if row.live and not row.draining and row.worker != view.me]
    steady = [row for row in others if _is_steady(row)]
    live = {row.partition: row.worker for row in view.table if row.live}
    stopped = {row.partition for row in view.table if row.live and row.stopped}
    staying = sorted(view.mine - view.leaving - stopped)
    i_am_steady = not view.cut_off_ms and all(_is_steady(row) for row in view.workers if row.worker == view.me)
    if steady and not i_am_steady:
        return Moves(hand_back=tuple(staying)) if view.cut_off_ms >= CUT_OFF_MS else Moves()
    resume = [number for number, holder in live.items() if holder == view.me and number not in view.mine | stopped]
    counts = Counter(holder for number, holder in live.items() if number not in stopped)
    counted = steady if i_am_steady else others
    held = len(staying) + len(resume)
    wanted = target(view.me, held, {row.worker: counts[row.worker] for row in counted}, view.partitions - len(stopped))
    if held > wanted and not resume:
        return Moves(hand_back=tuple(staying[wanted:]))
    start = sum(view.me.encode()) % view.partitions
    order = [(start + step) % view.partitions for step in range(view.partitions)]
    free = [number for number in order if number not in live and number not in view.mine]
    return Moves(claim=tuple(free[: max(wanted - held, 0)]), resume=tuple(resume))


def _is_steady(row: WorkerRow) -> bool:
    return row.reaches_kafka_ms is not None and row.reaches_kafka_ms >= STEADY_MS
