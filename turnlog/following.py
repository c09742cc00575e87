"""The events of an invocation, pushed, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx

from turnlog.backoff import Backoff
from turnlog.errors import ProtocolViolation, Unauthorized, Unavailable
from turnlog.invocations import Event, event_in
from turnlog.sse import EventParser
from turnlog.viewer import check

ENDS = frozenset({"end", "done"})
"""Names of the last event of a stream, which is the record and has no id."""


async def follow(
    connect: Callable[[int], Awaitable[httpx.Response]],
    ended: Callable[[int], Awaitable[bool]],
    renew: Callable[[], bool],
    *,
    after: int,
) -> AsyncGenerator[Event, None]:
    """Each event behind the `after`th once, in order, to the last one.

    `connect` opens the stream behind an event. `ended`: whether that event is the last one; asked when a stream just
    ends. `renew`: the token has expired; whether another one can be had.
    """
    backoff = Backoff(first=0.1, most=5.0)
    while True:
        asked: float | None = None
        try:
            async with contextlib.aclosing(_pushed(connect, after)) as pushed:
                async for event in pushed:
                    if event is None:
                        return
                    if event.n <= after:
                        continue  # it was seen
                    if event.n > after + 1:
                        break  # one is missing: ask again behind the last one
                    after = event.n
                    backoff.reset()
                    yield event
        except Unauthorized as error:
            if error.code != "token_expired" or not renew():
                raise
        except Unavailable as error:
            asked = error.retry_after
        except httpx.TransportError:
            pass  # lost: go on behind the last one seen
        if await ended(after):
            return
        await asyncio.sleep(backoff.next(asked))


async def _pushed(
    connect: Callable[[int], Awaitable[httpx.Response]], after: int
) -> AsyncGenerator[Event | None, None]:
    """One connection's events; None: there are no more."""
    response = await connect(after)
    try:
        await check(response)
        parser = EventParser()
        async for chunk in response.aiter_bytes():
            for event in parser.feed(chunk):
                if event.id is None and event.event in ENDS:
                    yield None
                    return
                yield event_in(_object(event.data))
    finally:
        await response.aclose()


def _object(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ProtocolViolation("an event of the stream holds what is not JSON", code="bad_response") from error
    if not isinstance(value, dict):
        raise ProtocolViolation("an event of the stream holds what is not an object", code="bad_response")
    return value
