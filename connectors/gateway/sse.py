"""`GET /v1/conversations/{id}/stream`: a conversation as server-sent events, resumed by `Last-Event-ID`.

Each event's name is the frame's type, its data the frame, its id the `seq`; what has no `seq` has no id, so that a
client that comes back continues after the last thing that is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.clock import wall_ms
from connectors.gateway.http import claims_of, conversation_id
from connectors.gateway.ports import ConversationInfo, Stored, Unavailable
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.render import (
    edited,
    encode,
    numbered,
    superseded_before,
    superseded_seqs,
    transient,
)
from connectors.gateway.protocol.session import Claims
from connectors.gateway.protocol.viewer import Item, Phase, Viewer
from connectors.gateway.showing import Showing
from streams.core.events import Entry

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

PING_S = 15
# A reader that does not take an event for so long is cut off; it resumes where it was.
SEND_TIMEOUT_S = 30.0
RETRY_MS = 1_000


class _Head(msgspec.Struct):
    type: str
    seq: int | None = None


def routes(gateway: Gateway) -> list[Route]:
    """The stream's route."""
    return [http.route(gateway, "/v1/conversations/{conversation_id}/stream", stream)]


async def stream(gateway: Gateway, request: Request) -> Response:
    """Open it; the credential may be in the query (`token`), since browsers' EventSource sends no headers."""
    token = request.query_params.get("token") or http.bearer(request)
    claims = await claims_of(gateway, token)
    info = await gateway.conversation_for(claims, conversation_id(request))
    after = _resume_after(request)
    await gateway.check_watermark(info, after)
    events = EventStream(gateway, info, after, claims)
    return EventSourceResponse(events.events(), ping=PING_S, send_timeout=SEND_TIMEOUT_S)


def _resume_after(request: Request) -> int:
    last = request.headers.get("last-event-id")
    if last is None or last == "":
        return http.watermark(request)
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise ProtocolError("invalid_watermark", "Last-Event-ID: must be a seq of this conversation")
    return int(last)


class EventStream:
    """One reader: history from where it was, then live, merged as for a socket. It ends with its token."""

    def __init__(self, gateway: Gateway, info: ConversationInfo, after: int, claims: Claims) -> None:
        self._gateway = gateway
        self._expires_at = claims.expires_at
        self.channel = claims.channel
        """The reader's channel."""
        self._showing = Showing(gateway, info.id, claims.channel, info.channel)
        self._conversation = info.id
        self._viewer = Viewer(after, gateway.history.head(info))
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._ended = False

    def entries(self, entries: Sequence[Entry]) -> None:
        """See `hub.ViewerPort`."""
        try:
            self._show(entries)
        except Exception:
            log.exception("an event stream failed", conversation=self._conversation)
            self.end()

    def _show(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.event.seq:
                self._put(self._viewer.offer(self._item(Stored(entry))))
                continue
            shown = self._showing.entry(entry)
            if self._viewer.phase is Phase.LIVE:
                self._put([encode(frame) for frame in transient(shown) if not self._showing.hides(frame["type"])])
            notices = (superseded_seqs(entry), edited(shown))
            self._put([encode(notice) for notice in notices if notice is not None])
        if self._viewer.load_after is not None:
            self._news.set()

    def relay(self, frame: bytes) -> None:
        """See `hub.ViewerPort`."""
        try:
            shown = self._showing.relayed(frame)
        except Exception:
            log.exception("an event stream failed", conversation=self._conversation)
            self.end()
            return
        if shown is not None:
            self._put([shown])

    def end(self) -> None:
        """No more of it: clients resume behind the last event that they got, here or at another gateway."""
        self._ended = True
        self._frames.clear()
        self._bytes = 0
        self._news.set()

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """The events, for as long as the reader stays."""
        self._gateway.hub.watch(self._conversation, self)
        self._gateway.streams.add(self)
        try:
            yield ServerSentEvent(comment="open", retry=RETRY_MS)
            for frame in self._gateway.live.streams(self._conversation):
                self.relay(frame)
            await self._tell_changes()
            while not self._ended and wall_ms() < self._expires_at:
                while self._frames:
                    frame = self._frames.popleft()
                    self._bytes -= len(frame)
                    yield _event(frame)
                after = self._viewer.wants_load()
                if after is not None:
                    await self._load(after)
                elif self._viewer.phase is Phase.STALLED:
                    return  # the reader comes back with the last id that it got
                elif not self._frames:
                    await self._until_news()
        finally:
            self._gateway.streams.discard(self)
            self._gateway.hub.unwatch(self._conversation, self)

    async def _tell_changes(self) -> None:
        """What the reader has may have been superseded or edited while it was away."""
        seen, history = self._viewer.delivered, self._gateway.history
        if not seen:
            return
        try:
            seqs = await history.superseded(self._conversation, seen)
            if seqs:
                self._put([encode(superseded_before(seqs))])
            edit = await history.edited(self._conversation, seen)
        except Unavailable as error:
            log.warning("what has changed cannot be read", conversation=self._conversation, error=str(error))
            return
        changed = None if edit is None else edited(self._showing.entry(edit))
        if changed is not None:
            self._put([encode(changed)])

    async def _until_news(self) -> None:
        """Wait for something to do, or for the token's end."""
        self._news.clear()
        left_s = max(0.0, (self._expires_at - wall_ms()) / 1000)
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._news.wait()

    async def _load(self, after: int) -> None:
        try:
            page = await self._gateway.history.page(self._conversation, after, limits.REPLAY_BATCH)
            await self._showing.seek(after)
        except Unavailable:
            self._viewer.stall()
            return
        if not self._viewer.above_head(after, page.head):
            self._put(self._viewer.loaded([self._item(stored) for stored in page.stored], page.head))

    def _item(self, stored: Stored) -> Item:
        return Item(stored.entry.event.seq, lambda: self._numbered(stored))

    def _numbered(self, stored: Stored) -> bytes:
        shown = numbered(self._showing.entry(stored.entry), superseded=stored.superseded, edited_at=stored.edited_at)
        return encode(shown or {"type": "unknown", "seq": stored.entry.event.seq})

    def _put(self, frames: Sequence[bytes]) -> None:
        if self._ended:
            return  # nobody takes them: what it was cut off from grows no more
        crowded = self._bytes > limits.OUTBOUND_BYTES
        self._frames.extend(frames)
        self._bytes += sum(map(len, frames))
        if crowded or len(self._frames) > limits.OUTBOUND_FRAMES:
            self.end()  # a slow reader: it resumes
        self._news.set()


def _event(frame: bytes) -> ServerSentEvent:
    head = msgspec.json.decode(frame, type=_Head)
    return ServerSentEvent(data=frame.decode(), event=head.type, id=str(head.seq) if head.seq is not None else None)
