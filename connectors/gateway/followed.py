"""Conversations of an agents' channel itself, as its connections follow them: everything with a `seq`.

In conversations that are routed to its channel an agent is given turns. A conversation that its channel opened is its
own: a connection that lists it, writes in it, or asks for a replay of it, is shown all that is said there, from where
it is on, as a person's connection would be. Nothing of it is given to anybody of the channel, so what a connection has
of it claims no run.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from connectors.gateway.clock import wall_ms
from connectors.gateway.ports import Stored, Unavailable
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import LoadFor
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.render import (
    Fields,
    edited,
    encode,
    followed,
    superseded_before,
    superseded_seqs,
)
from connectors.gateway.protocol.viewer import Item, Phase, Viewer
from streams.core.events import Entry, FrameCommitted
from streams.core.routing import owns

if TYPE_CHECKING:
    from connectors.gateway.agent_socket import AgentConnection
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

# History that could not be read is asked for again until it is there.
RETRY_S = 0.5
# Conversations of one connection that are looked up, or read, at the same time.
READERS = 8


class Followed:
    """One conversation, for one connection: history from where it was, then live, each `seq` once, but its own."""

    def __init__(self, owned: OwnedConversations, agent: AgentConnection, conversation_id: str, watermark: int) -> None:
        self._owned = owned
        self._agent = agent
        self._conversation_id = conversation_id
        self.viewer = Viewer(watermark, 0)  # where it ends, its history says
        self.behind = watermark > 0
        """What it has may have changed while it was away."""

    def entries(self, entries: Sequence[Entry]) -> None:
        """See `hub.ViewerPort`."""
        for entry in entries:
            if entry.event.seq:
                self.put(self.viewer.offer(self.item(Stored(entry))))
            else:
                self.tell(superseded_seqs(entry), edited(entry))
        if self.viewer.load_after is not None:
            self._owned.want(self._conversation_id)

    def relay(self, frame: bytes) -> None:
        """See `hub.ViewerPort`. It is told as one that follows, too: twice would be once too often."""

    def tell(self, *changes: Fields | None) -> None:
        """What became of what was shown, as far as its process asked for that."""
        wanted = self._agent.session.told
        self.put([encode(change) for change in changes if change is not None and change["type"] in wanted])

    def item(self, stored: Stored) -> Item:
        """What is written for an entry; nothing for what this connection said itself."""
        return Item(stored.entry.event.seq, lambda: self._frame(stored))

    def _frame(self, stored: Stored) -> bytes:
        event = stored.entry.event
        if isinstance(event, FrameCommitted) and event.member == self._agent.session.member:
            return b""
        return encode(followed(stored.entry, superseded=stored.superseded, edited_at=stored.edited_at))

    def put(self, frames: Sequence[bytes]) -> None:
        """Write them."""
        for frame in frames:
            if frame:
                self._agent.relay(self._conversation_id, frame)


class OwnedConversations:
    """Those that one connection follows. What is read is read no faster than it is taken."""

    def __init__(self, gateway: Gateway, agent: AgentConnection) -> None:
        self._gateway = gateway
        self._agent = agent
        self._followed: dict[str, Followed] = {}
        self._listed: OrderedDict[str, int] = OrderedDict()
        """Conversations of which it is not known yet whether they are its channel's, and where the connection is."""
        self._asked: dict[str, LoadFor] = {}
        """Replays that were asked for there."""
        self._wanted: dict[str, None] = {}
        self._readers = 0

    def list(self, watermarks: Mapping[str, int]) -> None:
        """The connection is there in these: it follows those that are its channel's own."""
        if not owns(self._gateway.directory.config, self._agent.session.claims.channel):
            return
        for conversation_id, watermark in watermarks.items():
            if conversation_id not in self._followed:
                self._listed.setdefault(conversation_id, watermark)
        self._read()

    def sync(self, wanted: LoadFor) -> bool:
        """It asks for all that follows, and follows it from then on; False: its channel has no such conversations."""
        conversation_id = wanted.conversation_id
        found = self._followed.get(conversation_id)
        if found is not None:
            found.viewer.sync(wanted.after)
            found.behind = wanted.after > 0
            self.want(conversation_id)
        elif owns(self._gateway.directory.config, self._agent.session.claims.channel):
            self._asked[conversation_id] = wanted
            self._listed[conversation_id] = wanted.after
            self._read()
        else:
            return False
        return True

    def drop(self, conversation_id: str) -> None:
        """It follows it no more. Safe to call for any conversation."""
        self._listed.pop(conversation_id, None)
        self._asked.pop(conversation_id, None)
        found = self._followed.pop(conversation_id, None)
        if found is not None:
            self._gateway.hub.unwatch(conversation_id, found)

    def close(self) -> None:
        """The connection is gone."""
        self._listed.clear()
        self._asked.clear()
        for conversation_id in [*self._followed]:
            self.drop(conversation_id)

    def want(self, conversation_id: str) -> None:
        """Its history is to be read."""
        self._wanted[conversation_id] = None
        self._read()

    def _read(self) -> None:
        while self._readers < min(READERS, len(self._listed) + len(self._wanted)):
            self._readers += 1
            self._agent.work(self._work)

    async def _work(self) -> None:
        try:
            while self._listed or self._wanted:
                if self._wanted:
                    conversation_id = next(iter(self._wanted))
                    del self._wanted[conversation_id]
                    await self._load(conversation_id)
                else:
                    await self._look_up(*self._listed.popitem(last=False))
        finally:
            self._readers -= 1

    async def _look_up(self, conversation_id: str, watermark: int) -> None:
        try:
            info = await self._gateway.history.conversation(conversation_id)
        except Unavailable as error:
            log.warning("whose a conversation is cannot be read yet", conversation=conversation_id, error=str(error))
            await asyncio.sleep(RETRY_S)
            self._listed.setdefault(conversation_id, watermark)
            return
        asked = self._asked.pop(conversation_id, None)
        if info is None or info.channel != self._agent.session.claims.channel:
            if asked is not None:
                self._agent.replay(asked)
        elif not (conversation_id in self._followed or self._agent.ending):
            self._agent.tell(lambda session: session.follows(conversation_id, wall_ms()))
            after = watermark if asked is None else asked.after  # asked meanwhile for more than what led here
            found = self._followed[conversation_id] = Followed(self, self._agent, conversation_id, after)
            self._gateway.hub.watch(conversation_id, found)
            self.want(conversation_id)

    async def _load(self, conversation_id: str) -> None:
        found = self._followed.get(conversation_id)
        after = None if found is None else found.viewer.wants_load()
        if found is None or after is None:
            return
        await self._agent.until_drained()
        try:
            if found.behind and self._agent.session.told:
                await self._tell_changes(found, conversation_id, after)
            page = await self._gateway.history.page(conversation_id, after, limits.REPLAY_BATCH)
        except Unavailable as error:
            log.warning("a replay failed", conversation=conversation_id, error=str(error))
            await asyncio.sleep(RETRY_S)
            self._again(found, conversation_id)
            return
        if found.viewer.delivered != after:
            pass  # a later `sync` counts
        elif found.viewer.above_head(after, page.head):
            found.put([encode(_above_head(after, page.head).frame())])
        else:
            found.put(found.viewer.loaded([found.item(stored) for stored in page.stored], page.head))
            if found.viewer.phase is Phase.STALLED:  # one part of a long replay, or history is behind for a moment
                if not page.stored:
                    await asyncio.sleep(RETRY_S)
                self._again(found, conversation_id)
        if found.viewer.load_after is not None:
            self.want(conversation_id)

    async def _tell_changes(self, found: Followed, conversation_id: str, seen: int) -> None:
        seqs = await self._gateway.history.superseded(conversation_id, seen)
        if seqs:
            found.tell(superseded_before(seqs))
        edit = await self._gateway.history.edited(conversation_id, seen)
        if edit is not None:
            found.tell(edited(edit))
        found.behind = False

    def _again(self, found: Followed, conversation_id: str) -> None:
        found.viewer.sync(found.viewer.delivered)
        self.want(conversation_id)


def _above_head(watermark: int, head: int) -> ProtocolError:
    rule = f"watermark: {watermark} is above the conversation's head {head}"
    return ProtocolError("invalid_watermark", rule, details={"watermark": watermark, "headSeq": head})
