"""The gateway's parts, put together, and its life: catching up, ready, draining, stopped.

STARTING ──tail caught up──▶ READY ──SIGTERM──▶ DRAINING ──sockets closed──▶ STOPPED
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Protocol

import structlog

from connectors.gateway.agent_socket import AgentConnection
from connectors.gateway.auth import Tokens
from connectors.gateway.authorization import Authorizer
from connectors.gateway.calls import Calls
from connectors.gateway.clock import PauseGuard, wall_ms
from connectors.gateway.commands import Commands
from connectors.gateway.connection import Connection
from connectors.gateway.directory import Directory
from connectors.gateway.history import History, Horizon, JournalScan
from connectors.gateway.hub import Hub
from connectors.gateway.instances import Instances
from connectors.gateway.journal_pages import JournalPages
from connectors.gateway.live import Live, LivePort
from connectors.gateway.membership import Membership
from connectors.gateway.metrics import GatewayMetrics
from connectors.gateway.middleware import Middleware, middleware_of
from connectors.gateway.ports import ConversationInfo, Intake, ReadModel, Store, Stored, Unavailable
from connectors.gateway.protocol.errors import CLOSE_RESTART, ProtocolError, restart_reason
from connectors.gateway.protocol.session import Claims, Scope
from connectors.gateway.recent import Recent
from connectors.gateway.showing import Showing
from streams.core.routing import may_write
from streams.runtime.partitioning import partition_of
from streams.settings import Settings

if TYPE_CHECKING:
    from connectors.gateway.call_events import CallStream
    from connectors.gateway.sse import EventStream

log = structlog.get_logger(__name__)

TICK_S = 1.0
# Connections that are told of the time in one go: 11,000 at once would hold up everything else for 30 ms.
TICKED_AT_ONCE = 256
REACH_EVERY_S = 1.0
# A beat is this many times more often than the pause that ends the agents' connections.
BEATS = 20
# Clients of a gateway that goes away come back after about so long, each at another moment; agents sooner, since turns
# wait for them when all of their group were here.
RECONNECT_MS = 500
AGENT_RECONNECT_MS = 200
# Where there are many of them, the moments are further apart: opening a person's socket is 1.7 ms of work for both ends
# together, an agent's is that and a record for each partition, and others want something of that gateway, too.
PEOPLE_PER_S = 400
AGENTS_PER_S = 200
CLOSE_WAIT_S = 5.0
DRAIN_POLL_S = 0.05
STARTING_RETRY_MS = 500


class TailPort(Horizon, Protocol):
    """The journal's tail, as far as the gateway asks it anything."""

    async def reach(self) -> None:
        """Return once Kafka has answered. Raises `Unavailable`."""


class Phase(StrEnum):
    """Where a gateway is in its life; see the module."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.READY, Phase.DRAINING}),
    Phase.READY: frozenset({Phase.DRAINING}),
    Phase.DRAINING: frozenset({Phase.STOPPED}),
    Phase.STOPPED: frozenset(),
}


class Gateway:
    """What requests and sockets work with. The ports are given; see `app` for the real ones."""

    def __init__(
        self,
        settings: Settings,
        *,
        intake: Intake,
        read_model: ReadModel,
        scan: JournalScan,
        pages: JournalPages,
        horizon: TailPort,
        store: Store,
        live: LivePort,
    ) -> None:
        self.settings = settings
        self.metrics = GatewayMetrics()
        self.intake = intake
        self.read_model = read_model
        self.pages = pages
        self.directory = Directory(store)
        self.tokens = Tokens(self.directory, settings.token_ttl_s)
        self.instances = Instances(self.directory)
        self.recent = Recent(intake.partitions)
        self.membership = Membership(
            intake, heartbeat_ms=settings.gateway_heartbeat_ms, on_ended=self._incarnation_ended
        )
        self.directory.on_document.append(self.membership.set_config)
        self.middleware: Mapping[str, Middleware] = {}
        """What is done, by channel, with what its people are shown; of channels that have any."""
        self.directory.on_document.append(self._set_middleware)
        self.hub = Hub(self.recent, self.membership, self.metrics)
        self.live = Live(self.hub, live, lambda: self.membership.incarnation)
        self.hub.on_gateway_ended.append(self.live.gateway_ended)
        self.history = History(read_model, self.recent, scan, horizon, partition_of=self.partition_of)
        nonce, numbers = secrets.token_hex(6), count(1)
        self.mint: Callable[[], str] = lambda: f"{nonce}-{next(numbers)}"
        self.commands = Commands(intake, self.hub, self.metrics, self.mint, settings.commit_wait_ms)
        self.calls = Calls(read_model, self.history, partition_of=self.partition_of, last_lsn=self.recent.last_lsn)
        self.hub.on_entry.append(self.calls.apply)
        self.authorizer = Authorizer(self)
        self.carried: Callable[[str, str], str | None] = lambda _run, _member: None
        """What a run's turn carries to its member of the trace that it is of; None: nobody traces."""
        self.phase = Phase.STARTING
        self._horizon = horizon
        self._kafka_error = ""
        """Why Kafka did not answer when it was last asked; empty: it did."""
        self._guard = PauseGuard(settings.member_ttl_ms / 2 / 1000)
        self._connections: set[Connection] = set()
        self.streams: set[EventStream | CallStream] = set()
        """Open server-sent event streams."""
        self._requests = 0
        self.directory.on_document.append(self._close_inactive)

    # ------------------------------------------------------------------------------------------------------ life
    async def run(self) -> None:
        """The background work; runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.directory.run())
            tasks.create_task(self.membership.run())
            tasks.create_task(self._beat())
            tasks.create_task(self._tick())
            tasks.create_task(self._reach())

    def ready(self) -> None:
        """The tail is caught up."""
        if self.phase is Phase.STARTING:
            self._move(Phase.READY)
            self.metrics.ready.set(1)

    async def drain(self) -> None:
        """Take nobody in; get nothing new; let accepted runs end within the budget; close every socket; say goodbye.

        An agent that continues, and whose runs all wait for people, goes at once: they go on elsewhere as they are.
        """
        self._move(Phase.DRAINING)
        self.metrics.ready.set(0)
        self.membership.drain(list(self.membership.members), "gateway_stops")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.drain_budget_ms / 1000
        while True:
            self._end_viewers()
            for agent in (agents := self._agents()):
                if not agent.session.runs_at_work:
                    self._leave(agent, _agent_back_ms(len(agents)))
            if loop.time() >= deadline or not (self._agents() or self._requests):
                break
            await asyncio.sleep(DRAIN_POLL_S)
        for agent in (agents := self._agents()):
            self._leave(agent, _agent_back_ms(len(agents)))
        await self._until_closed()
        await self.membership.goodbye()
        self._move(Phase.STOPPED)

    def refusal(self) -> ProtocolError | None:
        """Why nobody can be served now; None: they can."""
        match self.phase:
            case Phase.READY:
                return None
            case Phase.STARTING:
                return ProtocolError(
                    "unavailable", "the gateway is catching up with the journal", retry_after_ms=STARTING_RETRY_MS
                )
            case _:
                return ProtocolError("unavailable", "the gateway is stopping", retry_after_ms=RECONNECT_MS)

    def unready(self) -> ProtocolError | None:
        """Why nobody should be sent here now: as `refusal`, or Kafka is away. While only PostgreSQL is away turns are
        still taken: who is known already is served."""
        refusal = self.refusal()
        if refusal is None and self._kafka_error:
            return ProtocolError("unavailable", f"Kafka cannot be reached: {self._kafka_error}")
        return refusal

    def dependencies(self) -> dict[str, dict[str, object]]:
        """Which servers answer."""
        errors = {"kafka": self._kafka_error, "postgres": self.directory.error}
        return {name: {"ok": not error, "error": error} for name, error in errors.items()}

    # ----------------------------------------------------------------------------------------------- connections
    @contextmanager
    def answering(self) -> Iterator[None]:
        """While a request is answered: a gateway that stops waits for it, within its budget."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    @asynccontextmanager
    async def serving(self, connection: Connection) -> AsyncIterator[None]:
        """While a connection is served."""
        self._connections.add(connection)
        gauge = self.metrics.connections.labels(connection.kind)
        gauge.inc()
        connection.on_close = lambda code: self.metrics.closes.labels(str(code)).inc()
        try:
            yield
        finally:
            gauge.dec()
            self._connections.discard(connection)

    def ended_by_pause(self) -> bool:
        """Whether this process stood still so long that its agents may have lost their runs; then they are closed."""
        if not self._guard.paused():
            return False
        log.warning("this process stood still: the agents' connections are closed before anything is written to them")
        self._guard.resume()
        self._end_agents("gateway_paused")
        return True

    def _agents(self) -> list[AgentConnection]:
        return [c for c in self._connections if isinstance(c, AgentConnection) and not c.ending]

    def _end_viewers(self) -> None:
        """Send people away. Again and again while draining: one may have come in just before."""
        for connection in list(self._connections):
            if not isinstance(connection, AgentConnection):
                back_ms = RECONNECT_MS + secrets.randbelow(1 + len(self._connections) * 1000 // PEOPLE_PER_S)
                connection.end(CLOSE_RESTART, restart_reason(back_ms))
        for stream in list(self.streams):
            stream.end()

    def _close_inactive(self, _version: int, _document: str) -> None:
        """Whom the new document lets in no longer is sent away."""
        for connection in list(self._connections):
            scope = Scope.CHANNEL if isinstance(connection, AgentConnection) else Scope.CONVERSATION
            refusal = self._refusal_of(connection.channel, scope)
            if refusal is not None:
                connection.refuse(refusal)
        for stream in list(self.streams):
            if self._refusal_of(stream.channel, Scope.CONVERSATION) is not None:
                stream.end()

    def _set_middleware(self, _version: int, document: str) -> None:
        self.middleware = middleware_of(document)

    async def shown(self, channel: str, info: ConversationInfo, after: int, stored: Sequence[Stored]) -> list[Stored]:
        """A part of a transcript, what follows `after`, as people of this channel are shown it. Raises
        `Unavailable`."""
        showing = Showing(self, info.id, channel, info.channel)
        await showing.seek(after)
        return showing.stored(stored)

    def _refusal_of(self, channel: str | None, scope: Scope) -> ProtocolError | None:
        try:
            if channel is not None:
                self.directory.channel_for(channel, scope)
        except ProtocolError as error:
            return error
        return None

    def _leave(self, agent: AgentConnection, back_ms: int) -> None:
        agent.leave_reason = "drained"
        agent.end(CLOSE_RESTART, restart_reason(back_ms))

    def _incarnation_ended(self) -> None:
        self.metrics.incarnations.inc()
        self.live.announce_all()
        self._end_agents("gateway_expired")

    def _end_agents(self, reason: str) -> None:
        for agent in (agents := self._agents()):
            agent.give_up(CLOSE_RESTART, restart_reason(_agent_back_ms(len(agents)), reason))

    async def _until_closed(self) -> None:
        waiting = [asyncio.create_task(connection.closed.wait()) for connection in self._connections]
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSE_WAIT_S)
            for task in waiting:
                task.cancel()

    # ------------------------------------------------------------------------------------------------ conversations
    def partition_of(self, conversation_id: str) -> int:
        """Where a conversation lies."""
        return partition_of(conversation_id, self.intake.partitions)

    async def conversation_for(self, claims: Claims, conversation_id: str) -> ConversationInfo:
        """The conversation, if these claims give access to it; raises the `ProtocolError` that refuses it."""
        if claims.conversation_id is not None and claims.conversation_id != conversation_id:
            raise ProtocolError("forbidden", "the token is for another conversation")
        info = await self.conversation(conversation_id)
        # Whether a conversation of somebody else exists is not told.
        if not self._may_see(claims, info):
            raise ProtocolError("conversation_not_found", "no such conversation")
        return info

    def _may_see(self, claims: Claims, info: ConversationInfo) -> bool:
        """Its person may, whom a token that is bound to it stands for. In a channel that its own is routed to: who is
        the same person by the word of both channels' backends, or where that channel has `sees: all`, everybody whom
        its backend names."""
        if info.channel == claims.channel:
            return claims.conversation_id is not None or info.participant == claims.user
        config = self.directory.config
        if not claims.named or not may_write(config, info.channel, claims.channel):
            return False
        return config.channel(claims.channel).sees == "all" or info.external_id == claims.user

    async def own_conversation(self, claims: Claims, conversation_id: str) -> ConversationInfo:
        """As `conversation_for`, for what only people of its own channel may do."""
        info = await self.conversation_for(claims, conversation_id)
        if info.channel != claims.channel:
            raise ProtocolError("forbidden", f"only people of its own channel, {info.channel}, may do that")
        return info

    async def conversation(self, conversation_id: str) -> ConversationInfo:
        """The conversation; raises `conversation_not_found` or `unavailable`."""
        try:
            info = await self.history.conversation(conversation_id)
        except Unavailable as error:
            raise ProtocolError(
                "unavailable", f"the conversation cannot be read now: {error}", retry_after_ms=STARTING_RETRY_MS
            ) from error
        if info is None:
            raise ProtocolError("conversation_not_found", "no such conversation")
        return info

    async def check_watermark(self, info: ConversationInfo, seen: int) -> None:
        """Raise `invalid_watermark` for one above the conversation's head."""
        if seen > self.history.head(info):
            page = await self.history.page(info.id, seen, 1)
            if seen > page.head:
                raise ProtocolError(
                    "invalid_watermark",
                    f"watermark: {seen} is above the conversation's head {page.head}",
                    details={"watermark": seen, "headSeq": page.head},
                )

    # ---------------------------------------------------------------------------------------------------- details
    async def _beat(self) -> None:
        interval = self.settings.member_ttl_ms / 2 / 1000 / BEATS
        while True:
            await asyncio.sleep(interval)
            if not self.ended_by_pause():
                self._guard.beat()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            connections = list(self._connections)
            for begin in range(0, len(connections), TICKED_AT_ONCE):
                for connection in connections[begin : begin + TICKED_AT_ONCE]:
                    connection.tick()
                await asyncio.sleep(0)
            self.live.tick(wall_ms())

    async def _reach(self) -> None:
        while True:
            await asyncio.sleep(REACH_EVERY_S)
            try:
                await self._horizon.reach()
            except Unavailable as error:
                if not self._kafka_error:
                    log.warning("Kafka cannot be reached", error=str(error))
                self._kafka_error = str(error)
            else:
                self._kafka_error = ""

    def _move(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise AssertionError(f"a gateway cannot go from {self.phase} to {phase}")
        self.phase = phase


def _agent_back_ms(count: int) -> int:
    """When one of so many agents that are sent away is to come back, so that they do not all come at once."""
    return AGENT_RECONNECT_MS + secrets.randbelow(1 + count * 1000 // AGENTS_PER_S)
