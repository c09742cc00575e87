"""A client's pings: a gateway closes a connection of which it hears nothing for a minute, as real clients know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from websockets.exceptions import ConnectionClosed

from tests.support.gateway_world import Peer

EVERY_S = 20.0
"""A third of the gateway's idle time-out, as the public clients do."""


@asynccontextmanager
async def pinging(peer: Peer) -> AsyncIterator[Peer]:
    """It pings for as long as the block runs, or its connection lasts."""
    task = asyncio.create_task(_ping(peer))
    try:
        yield peer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _ping(peer: Peer) -> None:
    with suppress(ConnectionClosed):  # whoever reads it is told
        while True:
            await asyncio.sleep(EVERY_S)
            await peer.send({"type": "ping"})
