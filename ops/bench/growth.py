"""How fast `turnlog topic grow` moves a journal of its own making, against reading and decoding it alone."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Final

from ops.bench.past import fill
from ops.grow.database import Database
from ops.grow.plan import planned
from ops.grow.run import grow
from ops.history import History, open_history
from streams.deployment import joined
from streams.settings import Settings

Notify = Callable[[str], None]
BY: Final = "bench"


async def measure_growth(
    settings: Settings, events: int, partitions: int, times: int, notify: Notify
) -> dict[str, float | int]:
    """Fill a new deployment, and move it to `times` as many partitions. Its processes are none: nothing stands in the
    way."""
    await joined(settings)
    await fill(settings, events, partitions, notify)
    database = await Database.connect(settings.postgres)
    try:
        async with open_history(settings) as history:
            began, cpu_s = time.monotonic(), time.process_time()
            read = await _read(history)
            read_s, read_cpu_s = time.monotonic() - began, time.process_time() - cpu_s
            notify(f"{read:,} events are read; moving them")
            plan = await planned(settings, history, database, partitions * times, None)
            began, cpu_s = time.monotonic(), time.process_time()
            copied = await grow(plan, history, database, BY, notify)
            wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_s
    finally:
        await database.close()
    written = sum(each.events for each in copied.values())
    return {
        "written_per_s": round(written / wall_s),
        "written_per_core_per_s": round(written / cpu_s),
        "read_per_s": round(read / read_s),
        "read_per_core_per_s": round(read / read_cpu_s),
        "events": read,
        "written": written,
        "partitions": partitions,
        "new_partitions": partitions * times,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


async def _read(history: History) -> int:
    count = 0
    for partition in range(history.partitions):
        async for chunk in history.read(partition):
            count += len(history.decode_all(chunk))
    return count
