"""A process that holds leases until it is killed: `python -m … DSN WORKER TTL_MS PARTITIONS`."""

from __future__ import annotations

import asyncio
import sys

from streams.fence.lease import PostgresLeases
from streams.fence.port import Lease


async def hold(dsn: str, worker: str, ttl_ms: int, partitions: int) -> None:
    leases = PostgresLeases(dsn, worker, ttl_ms=ttl_ms)
    await leases.open()
    for partition in range(partitions):
        assert isinstance(await leases.claim(partition), Lease)
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
