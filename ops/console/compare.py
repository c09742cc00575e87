"""What two looks tell together: rates a second, and what changed hands between them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ops.console.sample import Sample


def rates(before: Sample, now: Sample) -> dict[str, float]:
    """How many a second since the look before. A counter that went back began anew: it has no rate this time."""
    seconds = now.at - before.at
    if seconds <= 0:
        return {}
    return {
        name: (total - before.totals[name]) / seconds
        for name, total in now.totals.items()
        if name in before.totals and total >= before.totals[name]
    }


def changes(before: Sample, now: Sample) -> list[str]:
    """What happened since the look before, a sentence each; nothing where either of them saw nothing."""
    if not before.partitions and not before.members:
        return []
    return [*_partitions(before, now), *_workers(before, now), *_members(before, now), *_counted(before, now)]


def _partitions(before: Sample, now: Sample) -> Iterator[str]:
    known = {each.partition: each for each in before.partitions}
    for each in now.partitions:
        was = known.get(each.partition)
        if was is None:
            yield f"partition {each.partition} is claimed by {each.worker} (epoch {each.writer_epoch})"
        elif each.writer_epoch != was.writer_epoch:
            from_ = "itself" if each.worker == was.worker else was.worker
            yield f"partition {each.partition}: {each.worker} takes over from {from_} (epoch {each.writer_epoch})"
        elif each.stopped and not was.stopped:
            yield f"partition {each.partition} is stopped: {each.stopped}"
        elif was.live and not each.live:
            yield f"partition {each.partition}: the lease of {each.worker} has ended"


def _workers(before: Sample, now: Sample) -> Iterator[str]:
    yield from (f"worker {worker} is there" for worker in sorted(now.workers.keys() - before.workers.keys()))
    yield from (f"worker {worker} is gone" for worker in sorted(before.workers.keys() - now.workers.keys()))
    for worker, draining in now.workers.items():
        if draining and before.workers.get(worker) is False:
            yield f"worker {worker} drains"


def _members(before: Sample, now: Sample) -> Iterator[str]:
    known = {each.member: each for each in before.members}
    there = {each.member: each for each in now.members}
    yield from (f"{member} joined {there[member].group}" for member in there if member not in known)
    yield from (f"{member} left {known[member].group}" for member in known if member not in there)
    for member, each in there.items():
        if each.draining and member in known and not known[member].draining:
            yield f"{member} drains"


def _counted(before: Sample, now: Sample) -> Iterator[str]:
    for name in ("runs moved", "fenced", "dead letters"):
        more = now.totals.get(name, 0) - before.totals.get(name, now.totals.get(name, 0))
        if more > 0:
            yield f"{more:.0f} {name}"
