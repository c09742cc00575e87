"""A person's WebSocket connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog
from starlette.websockets import WebSocket

from connectors.gateway.clock import wall_ms
from connectors.gateway.commands import NOT_TAKEN, not_taken, unavailable
from connectors.gateway.connection import Connection, Submit
from connectors.gateway.live import Speaker
from connectors.gateway.ports import Unavailable, Written, told, traced
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import (
    Action,
    Announce,
    Load,
    LoadEdited,
    LoadSuperseded,
    OpenConversation,
    SubmitFrame,
    SubmitPersonFrame,
    SubmitTurn,
)
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.user import UserSession
from connectors.gateway.showing import Showing
from streams.core.commands import CommitPersonFrame, CommitTurn
from streams.core.events import Entry

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

LOAD_RETRY_MS = 1_000


class UserConnection(Connection):
    """A person's socket."""

    kind = "user"

    def __init__(self, gateway: Gateway, websocket: WebSocket, session: UserSession) -> None:
        super().__init__(websocket, session)
        self.session = session
        self._gateway = gateway
        self._present = False
        """Whether the others were told that it is there."""
        self._showing: Showing | None = None
        """How it is shown its conversation, once that is known."""
        session.hides = lambda kind: self._showing is not None and self._showing.hides(kind)
        session.shown = lambda entry: entry if self._showing is None else self._showing.entry(entry)

    def entries(self, entries: Sequence[Entry]) -> None:
        """See `hub.ViewerPort`."""
        self.contained(lambda: self.session.entries(entries, wall_ms()))

    def relay(self, frame: bytes) -> None:
        """See `hub.ViewerPort`."""
        self.contained(lambda: self._relay(frame))

    def _relay(self, frame: bytes) -> Sequence[Action]:
        shown = frame if self._showing is None else self._showing.relayed(frame)
        return self.session.relayed(shown, wall_ms()) if shown is not None else ()

    def about(self) -> dict[str, Any]:
        """See `Connection`."""
        conversation = self.session.conversation_id
        return super().about() | ({"conversation": conversation} if conversation else {})

    def _speaker(self) -> Speaker:
        return Speaker(self.session.user, "user", self.session.claims.channel)

    def _begin(self, action: Action) -> None:
        if isinstance(action, Announce):
            self._gateway.live.announce(self._speaker(), action.conversation_id, action.signal, self)
        else:
            super()._begin(action)

    async def _do(self, action: Action) -> None:
        match action:
            case OpenConversation():
                await self._open(action.conversation_id)
            case Load():
                await self._load(action.after)
            case LoadSuperseded():
                await self._load_superseded(action.upto)
            case LoadEdited():
                await self._load_edited(action.upto)
            case _:
                raise TypeError(f"{type(action).__name__} is no action of a person's session")

    async def _open(self, conversation_id: str | None) -> None:
        gateway, claims = self._gateway, self.session.claims
        try:
            if conversation_id is None:
                conversation_id = await gateway.commands.open_conversation(claims)
            info = await gateway.conversation_for(claims, conversation_id)
            pending = await gateway.history.open_interrupts(conversation_id)
        except ProtocolError as error:
            self.perform(self.session.fail(error))
            return
        except Unavailable as error:
            self.perform(self.session.fail(unavailable(error)))
            return
        # Watched first, looked at after: what is committed in between is in one of the two.
        gateway.hub.watch(conversation_id, self)
        self._showing = Showing(gateway, conversation_id, claims.channel, info.channel)
        asked = self._showing.questions(pending)
        self.perform(self.session.opened(conversation_id, gateway.history.head(info), asked, wall_ms()))
        if not self.ending:
            self._present = True
            for frame in gateway.live.came(self._speaker(), conversation_id, self):
                self.relay(frame)
            for frame in gateway.live.catalogs(conversation_id):
                self.relay(frame)

    async def _load_superseded(self, upto: int) -> None:
        try:
            seqs = await self._gateway.history.superseded(self.session.conversation_id, upto)
        except Unavailable as error:
            # The next time that it comes back it is told; till then it shows a part that it might hide.
            log.warning(
                "what was superseded cannot be read", conversation=self.session.conversation_id, error=str(error)
            )
            return
        self.perform(self.session.told_superseded(seqs, wall_ms()))

    async def _load_edited(self, upto: int) -> None:
        try:
            edit = await self._gateway.history.edited(self.session.conversation_id, upto)
        except Unavailable as error:
            log.warning("what was edited cannot be read", conversation=self.session.conversation_id, error=str(error))
            return
        self.perform(self.session.told_edited(edit, wall_ms()))

    async def _load(self, after: int) -> None:
        await self.until_drained()
        try:
            page = await self._gateway.history.page(self.session.conversation_id, after, limits.REPLAY_BATCH)
            if self._showing is not None:
                await self._showing.seek(after)
        except Unavailable as error:
            log.warning("a replay failed", conversation=self.session.conversation_id, error=str(error))
            self.perform(self.session.load_failed(after, LOAD_RETRY_MS, wall_ms()))
            return
        self.perform(self.session.loaded(after, told(page.stored), page.head, wall_ms()))

    async def _submit(self, submit: Submit) -> None:
        if isinstance(submit, SubmitFrame):
            raise TypeError("a person's session submits no agent's frames")
        session, gateway = self.session, self._gateway
        command: CommitTurn | CommitPersonFrame
        if isinstance(submit, SubmitTurn):
            command = gateway.commands.turn(
                session.conversation_id, session.claims, session.user, submit.message, ref=submit.ref
            )
        try:
            if isinstance(submit, SubmitPersonFrame):
                command = await self._person_frame(submit)
            written = await gateway.intake.send(command, headers=traced(submit.traceparent))
        except NOT_TAKEN as error:
            self.perform(session.submit_failed(submit.ref, not_taken(error), wall_ms()))
        else:
            written.add_done_callback(lambda done: self._written(submit, done))

    async def _person_frame(self, submit: SubmitPersonFrame) -> CommitPersonFrame:
        session, frame = self.session, submit.frame
        if frame.type == "regenerate":
            frame = await self._gateway.history.named(session.conversation_id, frame)
        return CommitPersonFrame(
            at=0,
            timestamp=0,
            ref=submit.ref,
            conversation_id=session.conversation_id,
            frame=frame,
            sender=session.user,
            channel=session.claims.channel,
        )

    def _written(self, submit: SubmitTurn | SubmitPersonFrame, written: asyncio.Future[Written]) -> None:
        error = written.exception()
        if error is not None:
            self.perform(self.session.submit_failed(submit.ref, unavailable(error), wall_ms()))

    async def _gone(self) -> None:
        if self.session.conversation_id:
            self._gateway.hub.unwatch(self.session.conversation_id, self)
        if self._present:
            quietly = self._gateway.refusal() is not None
            self._gateway.live.left(self._speaker(), self.session.conversation_id, quietly=quietly)
