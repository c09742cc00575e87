"""What a viewer of a conversation sees: numbered frames once and in order, and the messages that they make up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx

from turnlog.backoff import Backoff
from turnlog.errors import ProtocolViolation, TurnlogError, Unavailable
from turnlog.sse import EventParser, ServerEvent
from turnlog.tokens import checked
from turnlog.wire import Frame

Connect = Callable[[int], AbstractAsyncContextManager[httpx.Response]]
"""Opens the event stream behind a seq."""


CUT_OFF = "closed"
"""Id of the last chunk of a stream that was closed in its owner's stead: it died, and another one answers."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """One frame. `seq` None: transient (a run's state, typing), shown as it happens and never again."""

    seq: int | None
    type: str
    frame: Frame = field(repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One whole message of a person or an agent."""

    seq: int
    """Of the frame that completed it."""
    id: str
    """Message id, or the stream's id for a streamed one."""
    role: str
    """`user`, `bot`, `agent` or `system`."""
    type: str
    text: str
    frame: Frame = field(repr=False)
    """The frame that completed it."""


async def watch(connect: Connect, *, after: int) -> AsyncIterator[Viewed]:
    """Frames behind `after`, over as many connections as it takes. Raises what cannot be retried."""
    backoff = Backoff(first=0.1, most=5.0)
    seen = after
    while True:
        asked: float | None = None
        try:
            async with connect(seen) as response:
                await _check(response)
                async for event in _events(response):
                    viewed = _viewed(event)
                    backoff.reset()
                    if viewed.seq is None:
                        yield viewed
                    elif viewed.seq == seen + 1:
                        seen = viewed.seq
                        yield viewed
                    elif viewed.seq > seen:
                        break  # one is missing: ask again behind the last one seen
        except Unavailable as error:
            asked = error.retry_after
        except httpx.TransportError:
            pass  # the connection was lost: go on behind the last one seen
        await asyncio.sleep(backoff.next(asked))


async def messages_of(frames: AsyncIterator[Viewed]) -> AsyncIterator[Message]:
    """Whole messages. A stream is one once its owner ended it; one that was cut off by its owner's loss never is."""
    streams: dict[str, list[str]] = {}
    async for viewed in frames:
        if viewed.seq is None or viewed.frame.get("superseded") is True:
            continue
        if viewed.type == "genui":
            message = _streamed(viewed.seq, viewed.frame, streams)
            if message is not None:
                yield message
        elif isinstance(data := viewed.frame.get("data"), dict) and "from" in viewed.frame:
            text = data.get("text")
            yield Message(
                seq=viewed.seq,
                id=str(viewed.frame.get("id")),
                role=_role(viewed.frame),
                type=viewed.type,
                text=text if isinstance(text, str) else "",
                frame=viewed.frame,
            )


def _streamed(seq: int, frame: Frame, streams: dict[str, list[str]]) -> Message | None:
    stream_id, chunk = str(frame.get("streamId")), frame.get("chunk")
    chunk = chunk if isinstance(chunk, dict) else {}
    pieces = streams.setdefault(stream_id, [])
    if chunk.get("type") == "text":
        pieces.append(str(chunk.get("content", "")))
    if frame.get("done") is not True:
        return None
    del streams[stream_id]
    if chunk.get("id") == CUT_OFF:
        return None
    return Message(seq=seq, id=stream_id, role=_role(frame), type="genui", text="".join(pieces), frame=frame)


def _role(frame: Frame) -> str:
    sender = frame.get("sender")
    role = sender.get("role") if isinstance(sender, dict) else None
    return role if isinstance(role, str) else str(frame.get("from", "bot"))


async def _events(response: httpx.Response) -> AsyncIterator[ServerEvent]:
    parser = EventParser()
    async for chunk in response.aiter_bytes():
        for event in parser.feed(chunk):
            yield event


async def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    await response.aread()
    checked(response)
    raise TurnlogError(f"{response.url.path}: HTTP {response.status_code}")


def _viewed(event: ServerEvent) -> Viewed:
    try:
        frame: Any = json.loads(event.data)
    except ValueError as error:
        raise ProtocolViolation(
            "the event stream holds an event whose data is not JSON", code="bad_response"
        ) from error
    if not isinstance(frame, dict):
        raise ProtocolViolation("the event stream holds an event that is not a frame", code="bad_response")
    seq = frame.get("seq")
    return Viewed(seq if isinstance(seq, int) else None, str(frame.get("type", event.event)), frame)
