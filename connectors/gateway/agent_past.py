"""What was said before, for an agent: turns of runs that came to it, their answers so far, and replays."""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import structlog

from connectors.gateway.clock import wall_ms
from connectors.gateway.ports import Stored, Unavailable, told
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import FetchRun, FetchTurn, LoadFor
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.resume import Gathering, Resume
from streams.core.events import TurnCommitted

if TYPE_CHECKING:
    from connectors.gateway.agent_socket import AgentConnection
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

LOAD_RETRY_MS = 1_000
# A turn of a run that came to an agent is looked for until it is found: the run is open until then.
FETCH_RETRY_S = 0.5
# Replays that one connection reads at the same time, and conversations of it that wait for theirs.
REPLAYS_AT_ONCE = 8
REPLAYS_WAITING_MAX = limits.MAX_CONVERSATIONS


class AgentPast:
    """Reads history for one agent's connection, and writes it there no faster than it is taken."""

    def __init__(self, gateway: Gateway, agent: AgentConnection) -> None:
        self._gateway = gateway
        self._agent = agent
        self._wanted: dict[str, LoadFor] = {}
        """By conversation, the replay that waits; it was asked for in this order."""
        self._replaying: set[str] = set()
        self._readers = 0

    async def fetch(self, wanted: FetchTurn) -> None:
        """Give it the turn of a run that came here, with what was answered so far where it goes on."""
        while self._agent.session.holds(wanted.run_id, wanted.run_epoch):
            try:
                entry = await self._gateway.history.turn(wanted.conversation_id, wanted.turn_seq)
                resume = await self._resume(wanted, wanted.checkpoint_lsn, wanted.answers) if wanted.continued else None
            except Unavailable as error:
                log.warning("a turn that moved here cannot be read yet", **_about(wanted), error=str(error))
                await asyncio.sleep(FETCH_RETRY_S)
                continue
            if resume is not None:
                resume = await self._ahead(wanted, resume)
            self._agent.perform(self._agent.session.fetched(wanted, entry, resume, wall_ms()))
            return

    async def adopted(self, wanted: FetchRun) -> None:
        """Tell it what was answered so far of a run that it had and goes on with."""
        while self._agent.session.holds(wanted.run_id, wanted.run_epoch):
            try:
                resume = await self._resume(wanted)
            except Unavailable as error:
                log.warning("a run that goes on here cannot be read yet", **_about(wanted), error=str(error))
                await asyncio.sleep(FETCH_RETRY_S)
                continue
            self._agent.perform(self._agent.session.adopted(wanted, await self._ahead(wanted, resume), wall_ms()))
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
            self._agent.perform(self._agent.session.resume_part(wanted, part, wall_ms()))
            await self._agent.until_drained()
        return rest

    def want(self, wanted: LoadFor) -> bool:
        """A replay is asked for; whether another `load_wanted` is to be run. What a conversation asks again while its
        replay waits, or is read, it gets once, behind that: the later word of where it is counts."""
        if wanted.conversation_id not in self._wanted and len(self._wanted) >= REPLAYS_WAITING_MAX:
            busy = ProtocolError(
                "too_many_in_flight",
                f"{REPLAYS_WAITING_MAX} conversations wait for their replay",
                retry_after_ms=LOAD_RETRY_MS,
            )
            self._agent.perform(self._agent.session.load_failed(wanted.conversation_id, busy, wall_ms()))
            return False
        self._wanted[wanted.conversation_id] = wanted
        if self._readers >= REPLAYS_AT_ONCE or wanted.conversation_id in self._replaying:
            return False
        self._readers += 1
        return True

    async def load_wanted(self) -> None:
        """Replay what waits, one conversation after the other, until nothing does."""
        try:
            while (wanted := self._next_wanted()) is not None:
                self._replaying.add(wanted.conversation_id)
                try:
                    await self._load(wanted)
                finally:
                    self._replaying.discard(wanted.conversation_id)
        finally:
            self._readers -= 1

    def _next_wanted(self) -> LoadFor | None:
        """One that is not being replayed: whoever does that takes it next."""
        found = next((each for each in self._wanted if each not in self._replaying), None)
        return None if found is None else self._wanted.pop(found)

    async def _load(self, wanted: LoadFor) -> None:
        try:
            await self._replay(wanted)
        except ProtocolError as error:
            self._agent.perform(self._agent.session.load_failed(wanted.conversation_id, error, wall_ms()))
        except Unavailable as error:
            log.warning("a replay failed", conversation=wanted.conversation_id, error=str(error))
            refused = ProtocolError(
                "replay_unavailable", "the history cannot be read now", retry_after_ms=LOAD_RETRY_MS
            )
            self._agent.perform(self._agent.session.load_failed(wanted.conversation_id, refused, wall_ms()))

    async def _replay(self, wanted: LoadFor) -> None:
        info = await self._gateway.conversation(wanted.conversation_id)
        # Its process may say that it has anything; whether a conversation of somebody else exists is not told.
        if not self._agent.serves(info.channel):
            raise ProtocolError("conversation_not_found", "no such conversation")
        if not wanted.upto:
            raise ProtocolError("conversation_not_found", "no turn of it was given to this agent")
        given = wanted.given
        if wanted.upto > given:  # it says that it has more than this connection gave it
            given = max(
                given, await self._gateway.history.given_to(wanted.conversation_id, self._agent.session.claims.channel)
            )
        if not given:
            raise ProtocolError("conversation_not_found", "no turn of it was given to this agent")
        after = wanted.after
        while after < wanted.upto:
            await self._agent.until_drained()
            page = await self._gateway.history.page(wanted.conversation_id, after, limits.REPLAY_BATCH)
            shown = list(takewhile(lambda item: _may_have(item, given, wanted.upto), page.stored))
            if shown:
                self._agent.perform(self._agent.session.replayed(wanted.conversation_id, told(shown), wall_ms()))
            if len(shown) < len(page.stored) or not shown:
                return
            after = shown[-1].entry.event.seq


def _may_have(item: Stored, given: int, upto: int) -> bool:
    """Whether an agent may be shown this: up to where it says it is, and no turn beyond those that it was given (while
    a human answers, for example); the answers to its questions are given with the run that asked."""
    event = item.entry.event
    others = isinstance(event, TurnCommitted) and event.seq > given and event.joins_run is None
    return event.seq <= upto and not others


def _about(wanted: FetchTurn | FetchRun) -> dict[str, Any]:
    """What log lines say of it; not what people answered, which it has too."""
    return {
        "conversation": wanted.conversation_id,
        "run": wanted.run_id,
        "run_epoch": wanted.run_epoch,
        "seq": wanted.turn_seq,
    }
