"""The benches as commands: servers to run on, the parts in order, and what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ops import embedded
from ops.bench.floor import Floor, measure_floor

Notify = Callable[[str], None]


@contextmanager
def _servers(notify: Notify) -> Iterator[embedded.EmbeddedStack]:
    with embedded.servers(None, progress=notify) as servers:
        yield servers


def _rounded(floor: Floor) -> dict[str, Any]:
    return {
        "floor_per_s": round(floor.floor_per_s),
        "cpu_us_per_turn": round(floor.cpu_us_per_turn, 2),
        "transactions": floor.transactions,
        "turns": floor.turns,
    }


async def floor_bench(turns: int, partitions: int, notify: Notify) -> dict[str, Any]:
    """`turnlog bench floor`."""
    with _servers(notify) as servers:
        notify(f"copying {turns:,} turns")
        return _rounded(await measure_floor(servers.kafka, turns, partitions))
