"""What came of an invocation: its events in pages and as a stream, and what its answer adds up to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent

from connectors.gateway.authorization import Caller
from connectors.gateway.call_state import Call
from connectors.gateway.clock import wall_ms
from connectors.gateway.ports import Stored, Unavailable
from connectors.gateway.protocol.render import iso, numbered
from connectors.gateway.showing import Showing
from connectors.gateway.sse import PING_S, SEND_TIMEOUT_S
from streams.core.events import FrameCommitted

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

STREAM_PAGE = 200
RETRY_S = 1.0
WAIT_S = 5.0
OUTPUT_KEPT_BYTES = 8 * 1024
"""Of a call in memory: 40 MB with as many calls as there may be. A longer one is read again for each who asks."""
NOT_SAID = frozenset({"tool_call", "skill", "event", "interrupt", "interrupt_resolved"})
"""Types of frames that are no part of the answer."""

Fields = dict[str, Any]
Record = Callable[["Gateway", Call], Awaitable[Fields]]


async def page_of(gateway: Gateway, call: Call, after: int, limit: int) -> Fields:
    """Events `after` + 1 and on, at most `limit`. `done`: it has ended, and these are its last."""
    wanted = call.frames[after : after + limit]
    ended = call.status is not None
    events: list[Fields] = []
    async for stored in _frames(gateway, call, wanted, await _showing(gateway, call, wanted)):
        events.append(_event(after + len(events) + 1, stored))
    last = after + len(events)
    return {"events": events, "next": last, "done": ended and last >= len(call.frames)}


async def _showing(gateway: Gateway, call: Call, wanted: Sequence[int]) -> Showing | None:
    """How callers are shown these frames of the call, where the thread's channel has middleware."""
    info = await gateway.history.conversation(call.thread) if gateway.middleware and wanted else None
    if info is None or info.channel not in gateway.middleware:
        return None
    showing = Showing(gateway, info.id, info.channel, info.channel)
    await showing.seek(wanted[0] - 1)
    return showing


async def _frames(gateway: Gateway, call: Call, wanted: list[int], showing: Showing | None) -> AsyncIterator[Stored]:
    """The entries of these seqs, which are all of frames of the call, ascending, as callers are shown them."""
    index = 0
    while index < len(wanted):
        page = await gateway.history.page(
            call.thread, wanted[index] - 1, min(STREAM_PAGE, wanted[-1] - wanted[index] + 1)
        )
        if not page.stored:
            raise Unavailable(f"seq {wanted[index]} of {call.thread} is in neither the read model nor memory")
        for stored in page.stored if showing is None else showing.stored(page.stored):
            if index < len(wanted) and stored.entry.event.seq == wanted[index]:
                index += 1
                yield stored


def _event(n: int, stored: Stored) -> Fields:
    frame = numbered(stored.entry, superseded=stored.superseded) or {"type": "unknown"}
    return {"n": n, "type": frame["type"], "data": frame, "at": iso(stored.entry.timestamp)}


async def output_of(gateway: Gateway, call: Call) -> Fields:
    """Its messages, streams among them as the text that they grew to, and all of their text."""
    showing = await _showing(gateway, call, call.frames)
    if call.output is not None and showing is None:
        return call.output
    messages: list[Fields] = []
    streams: dict[str, Fields] = {}
    async for stored in _frames(gateway, call, list(call.frames), showing):
        event = stored.entry.event
        if stored.superseded or not isinstance(event, FrameCommitted) or event.frame.type in NOT_SAID:
            continue
        frame = event.frame
        if frame.type != "genui":
            shown = numbered(stored.entry) or {}
            messages.append({"type": frame.type, "text": frame.text or _text(shown), "data": shown.get("data")})
            continue
        message = streams.get(frame.stream_id or "")
        if message is None:
            message = streams[frame.stream_id or ""] = {"type": "text", "text": "", "data": None}
            messages.append(message)
        message["text"] += _chunk(frame.data)
    text = "\n\n".join(message["text"] for message in messages if message["text"])
    output = {"text": text, "messages": messages}
    keeps = showing is None and call.status is not None and not call.erased
    if keeps and len(msgspec.json.encode(output)) <= OUTPUT_KEPT_BYTES:
        call.output = output
    return output


def _text(shown: Fields) -> str:
    data = shown.get("data")
    if isinstance(data, msgspec.Raw):
        data = msgspec.json.decode(data)
    text = data.get("text") if isinstance(data, dict) else None
    return text if isinstance(text, str) else ""


def _chunk(data: str | None) -> str:
    chunk = msgspec.json.decode(data or "null")
    if isinstance(chunk, dict) and chunk.get("type") == "text" and isinstance(chunk.get("content"), str):
        content: str = chunk["content"]
        return content
    return ""


class CallStream:
    """One reader of a call: its events from where the reader was, then live, and at its end the record. It ends with
    the reader's token, and resumes at any gateway behind the last event that came."""

    def __init__(self, gateway: Gateway, call: Call, after: int, caller: Caller, record: Record) -> None:
        self._gateway = gateway
        self._call = call
        self._after = after
        self._record = record
        self._expires_at = None if caller.claims is None else caller.claims.expires_at
        self.channel = None if caller.claims is None else caller.claims.channel
        """The reader's channel, if it has one."""
        self._ended = False
        self._news: asyncio.Event | None = None

    def response(self) -> EventSourceResponse:
        """What is answered."""
        return EventSourceResponse(self._events(), ping=PING_S, send_timeout=SEND_TIMEOUT_S)

    def end(self) -> None:
        """No more of it: the gateway stops."""
        self._ended = True
        if self._news is not None:
            self._news.set()

    async def _events(self) -> AsyncIterator[ServerSentEvent]:
        self._gateway.streams.add(self)
        try:
            with self._call.news() as news:
                self._news = news
                while not self._over():
                    news.clear()
                    try:
                        page = await page_of(self._gateway, self._call, self._after, STREAM_PAGE)
                    except Unavailable:
                        await asyncio.sleep(RETRY_S)
                        continue
                    for event in page["events"]:
                        self._after = event["n"]
                        yield ServerSentEvent(data=_json(event), event=event["type"], id=str(event["n"]))
                    if page["done"]:
                        yield ServerSentEvent(data=_json(await self._record(self._gateway, self._call)), event="end")
                        return
                    if not page["events"]:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(WAIT_S):
                                await news.wait()
        finally:
            self._gateway.streams.discard(self)

    def _over(self) -> bool:
        return self._ended or (self._expires_at is not None and wall_ms() >= self._expires_at)


def _json(value: Fields) -> str:
    return msgspec.json.encode(value).decode()
