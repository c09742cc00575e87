"""The two kinds of WebSocket connection: a person's and an agent's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING

import structlog
from starlette.websockets import WebSocket

from connectors.gateway.clock import wall_ms
from connectors.gateway.commands import unavailable
from connectors.gateway.connection import Connection, Submit
from connectors.gateway.live import Speaker
from connectors.gateway.membership import Member, group_of
from connectors.gateway.middleware import Middleware
from connectors.gateway.ports import Stored, Unavailable, Written
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import (
    Action,
    Announce,
    DrainMember,
    FetchRun,
    FetchTurn,
    Follow,
    Load,
    LoadFor,
    LoadSuperseded,
    OpenConversation,
    OpenMember,
    RefuseGiven,
    SubmitFrame,
    SubmitPersonFrame,
    SubmitTurn,
    Unfollow,
)
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.errors import CLOSE_NORMAL, CLOSE_RESTART, ProtocolError, restart_reason
from connectors.gateway.protocol.resume import Gathering, Resume
from connectors.gateway.protocol.user import UserSession
from streams.core.commands import CommitFrame, CommitPersonFrame, CommitTurn, RefuseRun
from streams.core.events import Duplicate, Entry, FrameCommitted, Refused, TurnCommitted
from streams.runtime.codec import Unencodable

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

LOAD_RETRY_MS = 1_000
# A turn of a run that came to an agent is looked for until it is found: the run is open until then.
FETCH_RETRY_S = 0.5
# Whom an operator drained is not to be back, as a new member, before the operator stopped its process.
SENT_AWAY_MS = 30_000


class UserConnection(Connection):
    """A person's socket."""

    kind = "user"

    def __init__(self, gateway: Gateway, websocket: WebSocket, session: UserSession) -> None:
        super().__init__(websocket, session)
        self.session = session
        self._gateway = gateway
        self._present = False
        """Whether the others were told that it is there."""
        session.hides = self._hides

    def entries(self, entries: Sequence[Entry]) -> None:
        """See `hub.ViewerPort`."""
        self.contained(lambda: self.session.entries(self._as_shown(entries), wall_ms()))

    def relay(self, frame: bytes) -> None:
        """See `hub.ViewerPort`."""
        self.contained(lambda: self._relay(frame))

    def _relay(self, frame: bytes) -> Sequence[Action]:
        middleware = self._middleware()
        shown = frame if middleware is None else middleware.relayed(frame)
        return self.session.relayed(shown, wall_ms()) if shown is not None else ()

    def _as_shown(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        middleware = self._middleware()
        return entries if middleware is None else [middleware.entry(entry) for entry in entries]

    def _middleware(self) -> Middleware | None:
        return self._gateway.middleware.get(self.session.claims.channel)

    def _hides(self, kind: str) -> bool:
        middleware = self._middleware()
        return middleware is not None and middleware.hides(kind)

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
        if (middleware := self._middleware()) is not None:
            pending = middleware.questions(pending)
        self.perform(self.session.opened(conversation_id, gateway.history.head(info), pending, wall_ms()))
        if not self.ending:
            self._present = True
            for frame in gateway.live.came(self._speaker(), conversation_id, self):
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

    async def _load(self, after: int) -> None:
        await self._until_drained()
        try:
            page = await self._gateway.history.page(self.session.conversation_id, after, limits.REPLAY_BATCH)
        except Unavailable as error:
            log.warning("a replay failed", conversation=self.session.conversation_id, error=str(error))
            self.perform(self.session.load_failed(after, LOAD_RETRY_MS, wall_ms()))
            return
        shown = self._gateway.shown(self.session.claims.channel, page.stored)
        self.perform(self.session.loaded(after, _pairs(shown), page.head, wall_ms()))

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
            written = await gateway.intake.send(command)
        except Unavailable as error:
            self.perform(session.submit_failed(submit.ref, unavailable(error), wall_ms()))
        except Unencodable as error:
            refused = ProtocolError("invalid_message", str(error))
            self.perform(session.submit_failed(submit.ref, refused, wall_ms()))
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


class AgentConnection(Connection):
    """An agent's socket: one member."""

    kind = "agent"

    def __init__(self, gateway: Gateway, websocket: WebSocket, session: AgentSession) -> None:
        super().__init__(websocket, session)
        self._agent_session = session
        self._gateway = gateway
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
        own = self.channel
        return channel == own or own in self._gateway.directory.config.routes.get(channel, ())

    def send_away(self, by: str, reason: str) -> None:
        """See `hub.AgentPort`."""
        log.info("an agent is to be sent away", member=self.session.member, by=by, reason=reason)
        self._spawn(self._leave)

    async def _leave(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._gateway.settings.drain_budget_ms / 1000):
                await self._idle.wait()
        self.leave_reason = "drained"
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
        elif isinstance(action, Unfollow):
            self._followed.pop(action.conversation_id, None)
            self._gateway.hub.unfollow(action.conversation_id, self)
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

    async def _do(self, action: Action) -> None:
        match action:
            case OpenMember():
                await self._open(action)
            case FetchTurn():
                await self._fetch(action)
            case FetchRun():
                await self._adopted(action)
            case LoadFor():
                await self._load(action)
            case RefuseGiven():
                await self._refuse_run(action)
            case _:
                raise TypeError(f"{type(action).__name__} is no action of an agent's session")

    async def _open(self, hello: OpenMember) -> None:
        gateway, session = self._gateway, self.session
        channel = gateway.directory.channel(session.claims.channel)
        each = hello.group is None and channel.ungrouped == "each"
        group = group_of(channel.id, hello.group, session.member, each=each)
        member = Member(
            id=session.member,
            channel=channel.id,
            group=group,
            each=each,
            watermarks=hello.watermarks,
            continues=hello.continues,
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
        self.perform(session.opened(wall_ms()))

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
                log.warning("a run that is not taken is not given back yet", run=given.run_id, error=str(error))
                await asyncio.sleep(FETCH_RETRY_S)
            else:
                return

    async def _fetch(self, wanted: FetchTurn) -> None:
        while self.session.holds(wanted.run_id, wanted.run_epoch):
            try:
                entry = await self._gateway.history.turn(wanted.conversation_id, wanted.turn_seq)
                resume = await self._resume(wanted, wanted.checkpoint_lsn, wanted.answers) if wanted.continued else None
            except Unavailable as error:
                log.warning("a turn that moved here cannot be read yet", turn=str(wanted), error=str(error))
                await asyncio.sleep(FETCH_RETRY_S)
                continue
            if resume is not None:
                resume = await self._ahead(wanted, resume)
            self.perform(self.session.fetched(wanted, entry, resume, wall_ms()))
            return

    async def _adopted(self, wanted: FetchRun) -> None:
        while self.session.holds(wanted.run_id, wanted.run_epoch):
            try:
                resume = await self._resume(wanted)
            except Unavailable as error:
                log.warning("a run that goes on here cannot be read yet", run=str(wanted), error=str(error))
                await asyncio.sleep(FETCH_RETRY_S)
                continue
            self.perform(self.session.adopted(wanted, await self._ahead(wanted, resume), wall_ms()))
            return

    async def _resume(
        self, wanted: FetchTurn | FetchRun, checkpoint_lsn: int = 0, answers: str | None = None
    ) -> Resume:
        history = self._gateway.history
        gathering = Gathering()
        async for entries in history.run_so_far(
            wanted.conversation_id, wanted.run_id, wanted.turn_seq, wanted.moved_lsn
        ):
            gathering.add(entries)
        checkpoint = None
        if checkpoint_lsn:
            checkpoint = await history.checkpoint(wanted.conversation_id, wanted.run_id, checkpoint_lsn)
        if answers is not None:
            gathering.answered(answers)
        return gathering.resume(checkpoint)

    async def _ahead(self, wanted: FetchTurn | FetchRun, resume: Resume) -> Resume:
        """Write all but the last part of a long one; what is left of it."""
        parts, rest = resume.split()
        for part in parts:
            self.perform(self.session.resume_part(wanted, part, wall_ms()))
            await self._until_drained()
        return rest

    async def _load(self, wanted: LoadFor) -> None:
        try:
            await self._replay(wanted)
        except ProtocolError as error:
            self.perform(self.session.load_failed(wanted.conversation_id, error, wall_ms()))
        except Unavailable as error:
            log.warning("a replay failed", conversation=wanted.conversation_id, error=str(error))
            refused = ProtocolError(
                "replay_unavailable", "the history cannot be read now", retry_after_ms=LOAD_RETRY_MS
            )
            self.perform(self.session.load_failed(wanted.conversation_id, refused, wall_ms()))

    async def _replay(self, wanted: LoadFor) -> None:
        info = await self._gateway.conversation(wanted.conversation_id)
        # Its process may say that it has anything; whether a conversation of somebody else exists is not told.
        if not self.serves(info.channel):
            raise ProtocolError("conversation_not_found", "no such conversation")
        if not wanted.upto:
            raise ProtocolError("conversation_not_found", "no turn of it was given to this agent")
        given = wanted.given
        if wanted.upto > given:  # it says that it has more than this connection gave it
            given = max(
                given, await self._gateway.history.given_to(wanted.conversation_id, self.session.claims.channel)
            )
        if not given:
            raise ProtocolError("conversation_not_found", "no turn of it was given to this agent")
        after = wanted.after
        while after < wanted.upto:
            await self._until_drained()
            page = await self._gateway.history.page(wanted.conversation_id, after, limits.REPLAY_BATCH)
            shown = list(takewhile(lambda item: _may_have(item, given, wanted.upto), page.stored))
            if shown:
                self.perform(self.session.replayed(wanted.conversation_id, _pairs(shown), wall_ms()))
            if len(shown) < len(page.stored) or not shown:
                return
            after = shown[-1].entry.event.seq

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
            written = await gateway.intake.send(command)
        except Unavailable as error:
            self._failed(submit, unavailable(error))
            return
        except Unencodable as error:
            self._failed(submit, ProtocolError("invalid_message", str(error)))
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
        elif isinstance(event, Refused):
            self.tell(lambda session: session.refused(event, wall_ms()))

    async def _gone(self) -> None:
        self._gateway.hub.disconnect(self.session.member)
        for conversation_id in self._followed:
            self._gateway.hub.unfollow(conversation_id, self)
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


def _may_have(item: Stored, given: int, upto: int) -> bool:
    """Whether an agent may be shown this: up to where it says it is, and no turn beyond those that it was given (while
    a human answers, for example); the answers to its questions are given with the run that asked."""
    event = item.entry.event
    others = isinstance(event, TurnCommitted) and event.seq > given and event.joins_run is None
    return event.seq <= upto and not others


def _pairs(stored: Sequence[Stored]) -> list[tuple[Entry, bool]]:
    return [(item.entry, item.superseded) for item in stored]
