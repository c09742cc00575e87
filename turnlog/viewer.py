"""What a viewer of a conversation sees: numbered frames once and in order, and the messages that they make up."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from turnlog.backoff import Backoff
from turnlog.errors import ProtocolViolation, TurnlogError, Unavailable
from turnlog.seen import Edited, Seen, seen_in
from turnlog.sse import EventParser, ServerEvent
from turnlog.tokens import checked
from turnlog.wire import Frame

Connect = Callable[[int], Awaitable[httpx.Response]]
"""Opens the event stream behind a seq; the response's body is still to be read."""


CUT_OFF = "closed"
"""Id of the last chunk of a stream that was closed in its owner's stead: it died, and another one answers."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """One frame. `seq` None: transient (a run's state, typing), shown as it happens and never again."""

    seq: int | None
    type: str
    frame: Frame = field(repr=False)

    @property
    def seen(self) -> Seen | None:
        """What it says, typed (`turnlog.seen`); None: its type is not known here."""
        return seen_in(self.type, self.frame)


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
    """The frame that completed it, or by which it was edited."""
    edited: bool = False
    """It was shown before, and this is what it says now."""


class Frames:
    """Frames behind a seq, over as many connections as it takes, without end. Raises what cannot be retried.

    Its connection is closed by `aclose`, by closing the client, or (late) by the garbage collector.
    """

    def __init__(self, connect: Connect, *, after: int) -> None:
        self._connect = connect
        self._seen = after
        self._backoff = Backoff(first=0.1, most=5.0)
        self._response: httpx.Response | None = None
        self._bytes: AsyncIterator[bytes] | None = None
        self._parser = EventParser()
        self._ready: deque[ServerEvent] = deque()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Viewed:
        while not self._closed:
            while self._ready:
                viewed = _viewed(self._ready.popleft())
                self._backoff.reset()
                if viewed.seq is None:
                    return viewed
                if viewed.seq == self._seen + 1:
                    self._seen = viewed.seq
                    return viewed
                if viewed.seq > self._seen:
                    await self._disconnect()  # one is missing: ask again behind the last one seen
            await self._read()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """No more frames."""
        self._closed = True
        await self._disconnect()

    async def _read(self) -> None:
        """Get more events; on any loss get ready for the next attempt."""
        asked: float | None = None
        try:
            if self._bytes is None:
                self._response = await self._connect(self._seen)
                await check(self._response)
                self._bytes = self._response.aiter_bytes()
            self._ready.extend(self._parser.feed(await anext(self._bytes)))
            return
        except Unavailable as error:
            asked = error.retry_after
        except (httpx.TransportError, StopAsyncIteration):
            pass  # the connection was lost, or the server ended it: go on behind the last one seen
        except TurnlogError:
            await self.aclose()
            raise
        await self._disconnect()
        await asyncio.sleep(self._backoff.next(asked))

    async def _disconnect(self) -> None:
        response, self._response, self._bytes = self._response, None, None
        self._parser = EventParser()
        self._ready.clear()
        if response is not None:
            await response.aclose()


class Joiner:
    """Frames in, whole messages out. A stream is one once its owner ended it; one that was cut off never is. A message
    that was edited comes again, once for each edit; `after`: up to where everything was shown before."""

    def __init__(self, *, after: int = 0) -> None:
        self._streams: dict[str, list[str]] = {}
        self._seen = after
        self._edit: Edited | None = None

    def add(self, viewed: Viewed) -> Message | None:
        """The message that this frame completes or edits, if any."""
        if viewed.type == "edited":
            return self._edited(viewed)
        if viewed.seq is None:
            return None
        self._seen = viewed.seq
        if viewed.frame.get("superseded") is True:
            return None
        if viewed.type == "genui":
            return self._streamed(viewed.seq, viewed.frame)
        return _message(viewed.seq, viewed.type, viewed.frame)

    def _edited(self, viewed: Viewed) -> Message | None:
        """Told again on every new connection; of what was not shown yet, the message itself says it."""
        edit = viewed.seen
        if not isinstance(edit, Edited) or edit == self._edit or edit.seq > self._seen:
            return None
        self._edit = edit
        return Message(edit.seq, edit.message, "user", "text", edit.text, viewed.frame, edited=True)

    def _streamed(self, seq: int, frame: Frame) -> Message | None:
        stream_id, chunk = str(frame.get("streamId")), frame.get("chunk")
        chunk = chunk if isinstance(chunk, dict) else {}
        pieces = self._streams.setdefault(stream_id, [])
        if chunk.get("type") == "text":
            pieces.append(str(chunk.get("content", "")))
        if frame.get("done") is not True:
            return None
        del self._streams[stream_id]
        if chunk.get("id") == CUT_OFF:
            return None
        return Message(seq=seq, id=stream_id, role=_role(frame), type="genui", text="".join(pieces), frame=frame)


class Messages:
    """Whole messages. A stream is one once its owner ended it; one that was cut off by its owner's loss never is. One
    that its person edits later comes again (`message.edited`), with the `id` and `seq` that it had."""

    def __init__(self, frames: Frames, *, after: int = 0) -> None:
        self._frames = frames
        self._joiner = Joiner(after=after)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = self._joiner.add(await anext(self._frames))
            if message is not None:
                return message

    async def aclose(self) -> None:
        """No more messages."""
        await self._frames.aclose()


def _message(seq: int, kind: str, frame: Frame) -> Message | None:
    data = frame.get("data")
    if not isinstance(data, dict) or "from" not in frame:
        return None
    text = data.get("text")
    return Message(
        seq=seq,
        id=str(frame.get("id")),
        role=_role(frame),
        type=kind,
        text=text if isinstance(text, str) else "",
        frame=frame,
    )


def _role(frame: Frame) -> str:
    sender = frame.get("sender")
    role = sender.get("role") if isinstance(sender, dict) else None
    return role if isinstance(role, str) else str(frame.get("from", "bot"))


async def check(response: httpx.Response) -> None:
    """Raises the typed error of an event stream that was refused."""
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
    return viewed_in(frame, event.event)


def viewed_in(frame: Frame, kind: str = "") -> Viewed:
    """`frame` as viewers see it; `kind`: its type where it names none."""
    seq = frame.get("seq")
    return Viewed(seq if isinstance(seq, int) else None, str(frame.get("type", kind)), frame)
