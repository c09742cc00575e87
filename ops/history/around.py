"""Reading a history of which something is missing: that is said first, and then what lies around it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from ops.history.port import History, Range, Recorded


async def told_missing(history: History, say: Callable[[str], None]) -> dict[int, list[Range]]:
    """What is missing of each partition of which anything is; it is said, a line a partition."""
    found = {}
    for partition in range(history.partitions):
        gone = await history.missing(partition)
        if gone:
            found[partition] = list(gone)
            say(f"MISSING: offsets {', '.join(map(str, gone))} of partition {partition} of the journal are gone")
    return found


async def around(
    history: History, partition: int, gone: Sequence[Range], start: int, end: int
) -> AsyncIterator[Sequence[Recorded]]:
    """All that is there from `start` to `end`, in chunks, around what is `gone`."""
    position = start
    for hole in [*gone, Range(end, end)]:
        until = min(hole.start, end)
        if position < until:
            async for chunk in history.read(partition, position, until):
                yield chunk
        position = max(position, hole.end)
