"""How one reader is shown a conversation: what is delivered to its channel, as that channel's middleware has it.

A conversation has its own channel, whose people see all of it, and those that this is routed to, to which it is
delivered. One object a reader, since text that is masked across the pieces of a stream is held back for each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from connectors.gateway.middleware import Middleware, hidden
from connectors.gateway.pieces import Pieces
from connectors.gateway.ports import Stored
from connectors.gateway.protocol.render import Fields, raw
from streams.core.events import Entry, FrameCommitted
from streams.core.routing import is_delivered

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

# Entries before the first one that is shown, from which streams that are open there are known: the limit of a run's
# events is 1,024, and a stream has one run.
LOOK_BACK = 1_024


class Showing:
    """Of a reader of `channel`; `own`: the conversation's channel. Entries are shown in the order of `seq`."""

    def __init__(self, gateway: Gateway, conversation_id: str, channel: str, own: str) -> None:
        self._gateway = gateway
        self._conversation_id = conversation_id
        self._channel = channel
        self._own = own
        self._pieces = Pieces()

    @property
    def _middleware(self) -> Middleware | None:
        return self._gateway.middleware.get(self._channel)

    async def seek(self, after: int) -> None:
        """The next entry that is shown is the one after this: look at what is open there. Raises `Unavailable`."""
        middleware = self._middleware
        if middleware is None or not middleware.stream_masks or self._pieces.upto == after:
            return
        self._pieces = Pieces()
        begin = max(0, after - LOOK_BACK)
        while begin < after:
            page = await self._gateway.history.page(self._conversation_id, begin, after - begin)
            if not page.stored:
                return
            for stored in page.stored:
                self._pieces.show(stored.entry, middleware.stream_masks)
            begin = page.stored[-1].entry.event.seq

    def entry(self, entry: Entry) -> Entry:
        """As the reader is shown it. What is not delivered there keeps its `seq`."""
        event = entry.event
        middleware = self._middleware
        if isinstance(event, FrameCommitted) and event.seq and not self._is_delivered(event):
            self._pieces.upto = max(self._pieces.upto, event.seq)
            return msgspec.structs.replace(entry, event=hidden(event))
        if middleware is None:
            return entry
        if not middleware.stream_masks:
            return middleware.entry(entry)
        return middleware.entry(self._pieces.show(entry, middleware.stream_masks), streams_are_masked=True)

    def _is_delivered(self, event: FrameCommitted) -> bool:
        origin = None if event.run_id is None else event.origin
        return is_delivered(self._gateway.directory.config, self._own, self._channel, origin)

    def stored(self, stored: Sequence[Stored]) -> list[Stored]:
        """As `entry`, of a part of a transcript."""
        return [msgspec.structs.replace(each, entry=self.entry(each.entry)) for each in stored]

    def hides(self, kind: str) -> bool:
        """Whether frames of this type, which have no `seq`, are not shown."""
        middleware = self._middleware
        return middleware is not None and middleware.hides(kind)

    def relayed(self, frame: bytes) -> bytes | None:
        """What others show of themselves, which has no `seq`; None: it is not shown."""
        middleware = self._middleware
        return frame if middleware is None else middleware.relayed(frame)

    def questions(self, open_: Sequence[FrameCommitted]) -> Sequence[Fields]:
        """Open questions, as they are told again."""
        delivered = [event.frame for event in open_ if self._is_delivered(event)]
        pending = [{"id": frame.id, "data": raw(frame.data or "{}")} for frame in delivered]
        middleware = self._middleware
        return pending if middleware is None else middleware.questions(pending)
