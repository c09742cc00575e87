"""Who runs which partition, read off the lease table; pure.

With P partitions and W live workers each worker runs P // W of them, and P % W workers run one more. A worker with more
than that hands the surplus back, drained; one with less claims what nobody holds. Each worker decides for itself, from
the same table, so it may act on a row that has just changed: the claim itself settles that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from streams.fence.port import HeldBy, WorkerRow


class Moves(msgspec.Struct, frozen=True, gc=False):
    """What this worker should do now."""

    claim: tuple[int, ...] = ()
    hand_back: tuple[int, ...] = ()


class View(msgspec.Struct, frozen=True, gc=False):
    """What `me` sees: its own partitions, `leaving` ones that it is giving up already among them, and the tables."""

    me: str
    mine: frozenset[int]
    leaving: frozenset[int]
    workers: Sequence[WorkerRow]
    table: Sequence[HeldBy]
    partitions: int


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
    names = [row.worker for row in view.workers if row.live and not row.draining and row.worker != view.me]
    live = {row.partition: row.worker for row in view.table if row.live}
    counts = Counter(live.values())
    staying = sorted(view.mine - view.leaving)
    wanted = target(view.me, len(staying), {name: counts[name] for name in names}, view.partitions)
    if len(staying) > wanted:
        return Moves(hand_back=tuple(staying[wanted:]))
    start = sum(view.me.encode()) % view.partitions
    order = [(start + step) % view.partitions for step in range(view.partitions)]
    free = [number for number in order if number not in live and number not in view.mine]
    return Moves(claim=tuple(free[: wanted - len(staying)]))
