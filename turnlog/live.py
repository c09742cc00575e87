"""A person's socket: for what is no message, such as answers to questions, an abort, or typing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from turnlog.backoff import Backoff
from turnlog.errors import AckTimeout, TurnlogError, Unavailable, error_of
from turnlog.http import Tries
from turnlog.link import Link
from turnlog.seen import Ask, ask_in
from turnlog.tokens import TokenSource
from turnlog.traced import carried
from turnlog.wire import PROTOCOL, Frame


class Live:
    """One conversation's socket, which comes back by itself. What awaits its ack is sent again on each connection."""

    def __init__(self, url: str, tokens: TokenSource, conversation: str, *, seen: int, budget: float) -> None:
        self._link = Link([url], tokens, backoff=Backoff(first=0.1, most=5.0))
        self._conversation = conversation
        self._seen = seen
        self._budget = budget
        self._waiting: dict[str, tuple[Frame, asyncio.Future[None]]] = {}
        self._asks: dict[str, Ask] = {}
        self._running = asyncio.create_task(self._link.run(self))
        self._running.add_done_callback(self._over)

    async def say(self, frame: Mapping[str, Any], *, key: str | None = None) -> None:
        """Send a frame, and return once it is in the log. Stored once per `key`, however often it is sent."""
        tries = Tries(self._budget)
        key = key or uuid.uuid4().hex
        while True:
            try:
                await self._said({**carried(), **frame, "clientId": key}, key)
            except AckTimeout:
                raise
            except Unavailable as error:
                await tries.wait(error)
            else:
                return

    async def _said(self, frame: Frame, key: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[key] = (frame, future)
        try:
            self._check()
            await self._link.send(frame)  # or the next connection does
            async with asyncio.timeout(self._budget):
                await future
        except TimeoutError as error:
            raise AckTimeout(
                f"no acknowledgement of {frame['type']} within {self._budget:g} s: it may or may not be stored",
                code="ack_timeout",
                conversation=self._conversation,
            ) from error
        finally:
            del self._waiting[key]

    async def show(self, frame: Mapping[str, Any]) -> None:
        """Send a frame that may get lost, once there is a connection."""
        await self._until_up()
        await self._link.send(frame)

    async def asks(self) -> tuple[Ask, ...]:
        """Questions that are open now."""
        await self._until_up()
        return tuple(self._asks.values())

    async def close(self) -> None:
        """Close the socket."""
        await self._link.close()
        await asyncio.wait({self._running})

    async def _until_up(self) -> None:
        up = asyncio.create_task(self._link.wait_up(self._budget))
        await asyncio.wait({up, self._running}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
        elif up.result():
            return
        self._check()
        raise Unavailable(f"no connection to the gateway for {self._budget:g} s", code="unavailable")

    def _check(self) -> None:
        """Raises what the socket ended with for good."""
        if self._running.done():
            error = self._running.exception()
            raise error if error is not None else RuntimeError("the client was closed")

    def _over(self, running: asyncio.Task[None]) -> None:
        error = running.exception() if not running.cancelled() else None
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(error or Unavailable("the client was closed", code="unavailable"))

    # ---------------------------------------------------------------------------------------- the link's peer
    def hello(self) -> Frame:
        """It begins behind what is known: only what is open, and what comes, is of interest."""
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "conversationId": self._conversation,
            "watermark": self._seen,
        }

    async def welcomed(self) -> None:
        """Send again what was not acknowledged."""
        for frame, future in list(self._waiting.values()):
            if not future.done():
                await self._link.send(frame)

    def received(self, frame: Frame) -> None:
        """One frame off the socket."""
        kind, data = frame.get("type"), frame.get("data")
        seq = frame.get("seq")
        if isinstance(seq, int):
            self._seen = max(self._seen, seq)
        if kind == "welcome" and isinstance(data, dict):
            self._asks = {str(each["id"]): ask_in(each) for each in data.get("pending", ())}
        elif kind == "ack":
            self._settle(frame.get("clientId"), None)
        elif kind == "error" and isinstance(data, dict):
            self._settle(data.get("clientId"), error_of(data, conversation=self._conversation))
        elif kind == "interrupt":
            self._asks[str(frame.get("id"))] = ask_in(frame)
        elif kind == "interrupt_resolved":
            self._asks.pop(str(frame.get("id")), None)

    def _settle(self, key: object, error: TurnlogError | None) -> None:
        _, future = self._waiting.get(str(key), (None, None))
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
