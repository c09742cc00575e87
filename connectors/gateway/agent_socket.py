"""An agent's WebSocket connection: one member."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from starlette.websockets import WebSocket

from connectors.gateway.agent_past import AgentPast
from connectors.gateway.clock import wall_ms
from connectors.gateway.commands import NOT_TAKEN, not_taken, unavailable
from connectors.gateway.connection import Connection, Submit, Work
from connectors.gateway.followed import OwnedConversations
from connectors.gateway.live import Speaker
from connectors.gateway.membership import Member, group_of
from connectors.gateway.ports import Unavailable, Written, traced
from connectors.gateway.protocol.actions import (
    Action,
    Announce,
    DrainMember,
    FetchRun,
    FetchTurn,
    Follow,
    LoadFor,
    OpenMember,
    RefuseGiven,
    SubmitFrame,
    Unfollow,
)
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.errors import CLOSE_NORMAL, CLOSE_RESTART, ProtocolError, restart_reason
from streams.core.commands import CommitFrame, RefuseRun
from streams.core.events import Duplicate, Entry, FrameCommitted, Refused
from streams.core.membership import SENT_AWAY

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

# A run that is not taken is given back until Kafka has it.
REFUSE_RETRY_S = 0.5
# Whom an operator drained is not to be back, as a new member, before the operator stopped its process.
SENT_AWAY_MS = 30_000


class AgentConnection(Connection):
    """An agent's socket: one member."""

    kind = "agent"

    def __init__(self, gateway: Gateway, websocket: WebSocket, session: AgentSession) -> None:
        super().__init__(websocket, session)
        self._agent_session = session
        self._gateway = gateway
        self._past = AgentPast(gateway, self)
        self._owned = OwnedConversations(gateway, self)
        self._member: Member | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._lost = False
        """A frame was not taken that its sender will not send again: what it sent after that is not taken either."""
        self._numbers: Counter[int] = Counter()
        """Per partition, the number of the member's last frame."""
        self._followed: dict[str, None] = {}
        self.leave_reason: str | None = None
        """Why this side ended it, where it matters to others."""

    @property
    def session(self) -> AgentSession:
        """Its session."""
        return self._agent_session

    def tell(self, work: Callable[[AgentSession], Sequence[Action]]) -> None:
        """See `hub.AgentPort`."""
        self.contained(lambda: work(self.session))
        if self.session.runs_open:
            self._idle.clear()
        else:
            self._idle.set()

    def relay(self, conversation_id: str, frame: bytes) -> None:
        """See `hub.AgentPort`."""
        self.contained(lambda: self.session.relayed(conversation_id, frame, wall_ms()))

    def serves(self, channel: str) -> bool:
        """See `hub.AgentPort`."""
        own, routes = self.channel or "", self._gateway.directory.config.routes
        # People of a channel that a conversation is routed to are its agents' business as those of its own are.
        linked = own in routes.get(channel, ()) or channel in routes.get(own, ())
        return channel == own or linked or any({own, channel} <= {*to} for to in routes.values())

    def send_away(self, by: str, reason: str) -> None:
        """See `hub.AgentPort`."""
        log.info("an agent is to be sent away", member=self.session.member, by=by, reason=reason)
        self._spawn(self._leave)

    async def _leave(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._gateway.settings.drain_budget_ms / 1000):
                await self._idle.wait()
        self.leave_reason = SENT_AWAY
        self.end(CLOSE_RESTART, restart_reason(SENT_AWAY_MS, "drained"))

    def _may_write(self) -> bool:
        return not self._gateway.ended_by_pause()

    def _begin(self, action: Action) -> None:
        if isinstance(action, DrainMember):
            # At once: an agent without runs leaves right behind it.
            self._gateway.membership.drain([self.session.member], "agent_stops")
        elif isinstance(action, Announce):
            self._gateway.live.announce(self._speaker(), action.conversation_id, action.signal, self)
        elif isinstance(action, Follow):
            self._follow(action)
        elif isinstance(action, LoadFor):
            if not self._owned.sync(action):
                self.replay(action)
        elif isinstance(action, Unfollow):
            self._followed.pop(action.conversation_id, None)
            self._gateway.hub.unfollow(action.conversation_id, self)
            self._owned.drop(action.conversation_id)
        else:
            super()._begin(action)

    def _speaker(self) -> Speaker:
        return Speaker(self.session.claims.user, "bot", self.session.claims.channel)

    def _follow(self, wanted: Follow) -> None:
        gateway = self._gateway
        for conversation_id in wanted.conversation_ids:
            self._followed[conversation_id] = None
            gateway.hub.follow(conversation_id, self)
            if wanted.ask:
                for frame in gateway.live.follows(conversation_id):
                    self.relay(conversation_id, frame)
        if not wanted.ask:  # its hello named them
            self._owned.list({id_: self.session.watermark(id_) for id_ in wanted.conversation_ids})

    def replay(self, wanted: LoadFor) -> None:
        """What it asks for of a conversation of another channel."""
        if self._past.want(wanted):
            self._spawn(self._past.load_wanted)

    def work(self, work: Work) -> None:
        """Do something for as long as the connection is there; what fails ends it."""
        self._spawn(work)

    async def _do(self, action: Action) -> None:
        match action:
            case OpenMember():
                await self._open(action)
            case FetchTurn():
                await self._past.fetch(action)
            case FetchRun():
                await self._past.adopted(action)
            case RefuseGiven():
                await self._refuse_run(action)
            case _:
                raise TypeError(f"{type(action).__name__} is no action of an agent's session")

    async def _open(self, hello: OpenMember) -> None:
        gateway, session = self._gateway, self.session
        channel = gateway.directory.channel(session.claims.channel)
        each = hello.group is None and channel.ungrouped == "each"
        group = group_of(channel.id, hello.group, session.member, each=each)
        # A group of one connection cannot have another, so nothing is held there.
        named = hello.instance if not each else None
        proof = None if named is None else gateway.instances.prove(group, named, hello.instance_secret)
        member = Member(
            id=session.member,
            channel=channel.id,
            group=group,
            each=each,
            watermarks=hello.watermarks,
            continues=hello.continues,
            instance="" if proof is None else proof.process,
        )
        # Known before the join is written: the journal may show it, and give it turns, at any time after.
        self._member = member
        gateway.hub.connect(session.member, self)
        try:
            await gateway.membership.join(member)
        except Unavailable as error:
            self.perform(session.fail(unavailable(error)))
            return
        log.info("an agent joined", member=member.id, group=group)
        secret = None if proof is None else proof.secret
        self.perform(session.opened(wall_ms(), secret=secret, grace_ms=channel.grace_ms))

    async def _refuse_run(self, given: RefuseGiven) -> None:
        """Until Kafka has it: the run is this member's till then, and nobody works on it."""
        command = RefuseRun(
            at=0,
            timestamp=0,
            conversation_id=given.conversation_id,
            run_id=given.run_id,
            run_epoch=given.run_epoch,
            member=self.session.member,
            reason=given.reason,
        )
        self._gateway.metrics.runs_refused.inc()
        while True:
            try:
                await (await self._gateway.intake.send(command))
            except Unavailable as error:
                log.warning(
                    "a run that is not taken is not given back yet",
                    conversation=given.conversation_id,
                    run=given.run_id,
                    run_epoch=given.run_epoch,
                    error=str(error),
                )
                await asyncio.sleep(REFUSE_RETRY_S)
            else:
                return

    async def _submit(self, submit: Submit) -> None:
        if not isinstance(submit, SubmitFrame):
            raise TypeError("an agent's session submits frames")
        session, gateway = self.session, self._gateway
        if self._member is None or self._lost:
            return
        partition = gateway.partition_of(submit.conversation_id)
        self._numbers[partition] += 1
        command = CommitFrame(
            at=0,
            timestamp=0,
            ref=submit.ref or gateway.mint(),
            conversation_id=submit.conversation_id,
            frame=submit.frame,
            sender=session.claims.user,
            channel=self._member.channel,
            group=self._member.group,
            member=self._member.id,
            gateway=gateway.membership.incarnation,
            run_id=submit.run_id,
            run_epoch=submit.run_epoch,
            delivered_seq=submit.delivered_seq,
            n=self._numbers[partition],
        )
        if submit.ref is not None:
            ref = submit.ref
            gateway.hub.wait_for_frame(ref, self._outcome, lambda: self._passed(ref))
        try:
            written = await gateway.intake.send(command, headers=traced(submit.traceparent))
        except NOT_TAKEN as error:
            self._failed(submit, not_taken(error))
            return
        self._member.wrote(written)
        written.add_done_callback(lambda done: self._written(submit, done))

    def _written(self, submit: SubmitFrame, written: asyncio.Future[Written]) -> None:
        error = written.exception()
        if error is not None:
            self._failed(submit, unavailable(error))
        elif submit.ref is not None:
            self._gateway.hub.placed(submit.ref, written.result())

    def _passed(self, ref: str) -> None:
        """The journal is past a send and gave no answer."""
        self.tell(lambda session: session.unanswered(ref, wall_ms()))

    def _failed(self, submit: SubmitFrame, error: ProtocolError) -> None:
        if submit.ref is not None:
            self._gateway.hub.forget(submit.ref)
        self._lost = self._lost or (error.spec.retryable and submit.frame.client_id is None)
        self.perform(self.session.submit_failed(submit, error, wall_ms()))

    def _outcome(self, entry: Entry) -> None:
        """What the journal says of a send that waits for its ack."""
        event = entry.event
        if isinstance(event, FrameCommitted | Duplicate):
            self.tell(lambda session: session.committed(event, entry.timestamp, wall_ms()))
            if isinstance(event, FrameCommitted) and event.run_id is None:
                self._owned.list({event.conversation_id or "": event.seq})
        elif isinstance(event, Refused):
            self.tell(lambda session: session.refused(event, wall_ms()))

    async def _gone(self) -> None:
        self._gateway.hub.disconnect(self.session.member)
        for conversation_id in self._followed:
            self._gateway.hub.unfollow(conversation_id, self)
        self._owned.close()
        for ref in self.session.pending_refs:
            self._gateway.hub.forget(ref)
        if self._member is not None:
            reason = self.leave_reason or self._parting()
            log.info("an agent left", member=self._member.id, reason=reason)
            await self._gateway.membership.leave(self._member.id, reason)

    def _parting(self) -> str:
        """Why it left, where this side did not end it."""
        if self.peer_code != CLOSE_NORMAL:
            return "closed"
        return "done" if self._member is not None and self._member.draining else "left"
