"""A member's connection through memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from turnlog.connection import Limits, Peer
from turnlog.wire import Frame, dump

if TYPE_CHECKING:
    from turnlog.testing.gateway import Gateway

ABILITIES = frozenset({"drain", "adopt", "continue"})
LIMITS = Limits(in_flight=1_000)


class Wire:
    """One process's `Connection`. What goes over it is JSON, as on a socket: what is not fails here as there."""

    def __init__(self, gateway: Gateway) -> None:
        self.generation = 0
        self.connection: str | None = None
        self.abilities = ABILITIES
        self.limits = LIMITS
        self.draining = False
        self._gateway = gateway
        self._peer: Peer | None = None
        self._up = asyncio.Event()
        self._closing = asyncio.Event()

    @property
    def up(self) -> bool:
        return self._up.is_set()

    async def run(self, peer: Peer) -> None:
        self._peer = peer
        await self.connect()
        await self._closing.wait()

    async def connect(self) -> None:
        """A new connection, and with it a new member."""
        if self._peer is None:
            raise RuntimeError("connect: it was never run")
        self.generation += 1
        self._up.set()
        self.connection = self._gateway.join(self)
        await self._peer.welcomed()

    def drop(self) -> None:
        """The connection is gone; nobody is told."""
        self._up.clear()

    async def close(self) -> None:
        if self.up:
            self._up.clear()
            self._gateway.leave(self)
        self._closing.set()

    async def wait_up(self, timeout: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            return self.up
        return True

    async def pace(self) -> None:
        return

    async def send(self, frame: Mapping[str, object]) -> bool:
        sent = json.loads(dump(frame))
        await asyncio.sleep(0)
        if not self.up:
            return False
        self._gateway.take(self, sent)
        return True

    def deliver(self, conversation: str, frame: Frame) -> None:
        """The gateway says something to the process; lost when there is no connection."""
        generation = self.generation
        envelope = json.loads(dump({"conversationId": conversation, "frame": frame}))

        def arrive() -> None:
            if self._peer is not None and self.up and self.generation == generation:
                self._peer.received(envelope)

        asyncio.get_running_loop().call_soon(arrive)
