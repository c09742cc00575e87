"""From the journal's tail to whom it concerns: waiting requests, viewers, agents, this gateway's own membership."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from connectors.gateway.clock import wall_ms
from connectors.gateway.membership import Membership
from connectors.gateway.metrics import GatewayMetrics
from connectors.gateway.ports import Written
from connectors.gateway.protocol.actions import Action
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.recent import Recent
from streams.core.events import (
    BatchCommitted,
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationMoved,
    ConversationOpened,
    ConversationReopened,
    Duplicate,
    Entry,
    FrameCommitted,
    GatewayEnded,
    ListWanted,
    MemberDraining,
    MemberJoined,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)

Waiter = Callable[[Entry], None]

_ANSWERS: Final = (
    FrameCommitted,
    Duplicate,
    ConversationOpened,
    ConversationClosed,
    ConversationReopened,
    ConversationHandedOver,
    ConversationHandedBack,
    ConversationMoved,
    ConversationErased,
    TurnEdited,
    TurnRegenerated,
)
"""Events that do nothing but answer a request."""

ABORT: Final = "abort"


class ViewerPort(Protocol):
    """A connection that shows one conversation. Its methods never raise: a failure is the connection's own."""

    def entries(self, entries: Sequence[Entry]) -> None:
        """Journal entries of the conversation, in order."""

    def relay(self, frame: bytes) -> None:
        """A transient frame of somebody else."""


class AgentPort(Protocol):
    """An agent's connection."""

    def tell(self, work: Callable[[AgentSession], Sequence[Action]]) -> None:
        """Do what `work` makes of the session. Never raises: a failure is the connection's own."""

    def relay(self, conversation_id: str, frame: bytes) -> None:
        """A transient frame of a conversation that it follows. Never raises."""

    def serves(self, channel: str) -> bool:
        """Whether what people of this channel do is its business."""

    def send_away(self, by: str, reason: str) -> None:
        """End it once its runs are over, or their time is: an operator wants it to get nothing new."""


@dataclass(slots=True)
class _Waiting:
    """Who waits for the answer to a frame or command. `passed`: what to call when the journal is past it and gave none;
    `place`: where the record lies, once that is known."""

    waiter: Waiter
    passed: Callable[[], None] | None = None
    place: Written | None = None


class Hub:
    """Knows who waits, who watches, and which agents are connected. All of it is this process's memory."""

    def __init__(self, recent: Recent, membership: Membership, metrics: GatewayMetrics) -> None:
        self._recent = recent
        self._membership = membership
        self._metrics = metrics
        self._waiting: dict[str, _Waiting] = {}
        self._frames: dict[int, dict[str, int]] = {}
        """Partition -> ref -> offset of the frames whose answer is waited for and whose place is known."""
        self._consumed: dict[int, int] = {}
        """Partition -> the offset in `frames` up to which the journal has all answers."""
        self._viewers: dict[str, dict[ViewerPort, None]] = {}
        self._followers: dict[str, dict[AgentPort, None]] = {}
        self.on_unwatched: list[Callable[[str], None]] = []
        """Called with a conversation that nobody here watches or follows any more."""
        self.on_gateway_ended: list[Callable[[str], None]] = []
        """Called with a gateway's incarnation that a partition ended."""
        self._agents: dict[str, AgentPort] = {}
        self._runs: dict[str, str] = {}
        """Run to the member of this gateway that holds it."""
        self._runs_of: dict[str, set[str]] = {}
        """The same the other way round."""
        self.on_entry: list[Callable[[Entry], None]] = []
        """Called with each entry of a conversation, before whoever waits for it is told."""

    # ----------------------------------------------------------------------------------------------- registration
    def wait(self, ref: str, waiter: Waiter) -> None:
        """Call `waiter` once with the journal's answer to the command of this `ref`."""
        self._waiting[ref] = _Waiting(waiter)

    def wait_for_frame(self, ref: str, waiter: Waiter, passed: Callable[[], None]) -> None:
        """As `wait`, for an agent's frame. The journal answers only the first refusals of a zombie: `passed` is called
        when it covers the frame's place (see `placed`) and has given no answer, which then is: refused."""
        self._waiting[ref] = _Waiting(waiter, passed)

    def placed(self, ref: str, place: Written) -> None:
        """The frame of this `ref` lies there. Nothing happens if nobody waits for it any more."""
        waiting = self._waiting.get(ref)
        if waiting is None:
            return
        waiting.place = place
        self._frames.setdefault(place.partition, {})[ref] = place.offset
        # The journal may be seen before the broker's word of where the frame lies.
        if place.offset < self._consumed.get(place.partition, 0):
            self._pass(ref)

    def forget(self, ref: str) -> None:
        """Nobody waits any more."""
        self._take(ref)

    def _take(self, ref: str) -> _Waiting | None:
        waiting = self._waiting.pop(ref, None)
        if waiting is not None and waiting.place is not None:
            self._frames[waiting.place.partition].pop(ref, None)
        return waiting

    def _pass(self, ref: str) -> None:
        waiting = self._take(ref)
        if waiting is not None and waiting.passed is not None:
            waiting.passed()

    def watch(self, conversation_id: str, viewer: ViewerPort) -> None:
        """Show the viewer what comes from now on."""
        self._viewers.setdefault(conversation_id, {})[viewer] = None

    def unwatch(self, conversation_id: str, viewer: ViewerPort) -> None:
        """Stop showing. Safe to call twice."""
        viewers = self._viewers.get(conversation_id)
        if viewers is not None:
            viewers.pop(viewer, None)
            if not viewers:
                del self._viewers[conversation_id]
                self._if_unconcerned(conversation_id)

    def follow(self, conversation_id: str, agent: AgentPort) -> None:
        """Tell the agent what goes on there."""
        self._followers.setdefault(conversation_id, {})[agent] = None

    def unfollow(self, conversation_id: str, agent: AgentPort) -> None:
        """Not any more. Safe to call twice."""
        followers = self._followers.get(conversation_id)
        if followers is not None:
            followers.pop(agent, None)
            if not followers:
                del self._followers[conversation_id]
                self._if_unconcerned(conversation_id)

    def concerned(self, conversation_id: str) -> bool:
        """Whether anybody here watches or follows it."""
        return conversation_id in self._viewers or conversation_id in self._followers

    def _if_unconcerned(self, conversation_id: str) -> None:
        if not self.concerned(conversation_id):
            for tell in self.on_unwatched:
                tell(conversation_id)

    def connect(self, member: str, agent: AgentPort) -> None:
        """An agent's connection is there."""
        self._agents[member] = agent

    def disconnect(self, member: str) -> None:
        """It is gone. Safe to call twice."""
        if self._agents.pop(member, None) is not None:
            for run_id in self._runs_of.pop(member, ()):
                del self._runs[run_id]

    def _hold(self, run_id: str, member: str) -> None:
        self._release(run_id)
        self._runs[run_id] = member
        self._runs_of.setdefault(member, set()).add(run_id)

    def _release(self, run_id: str) -> str | None:
        """Who held it."""
        holder = self._runs.pop(run_id, None)
        if holder is not None:
            runs = self._runs_of[holder]
            runs.discard(run_id)
            if not runs:
                del self._runs_of[holder]
        return holder

    def relay(
        self,
        conversation_id: str,
        frame: bytes,
        sender: object = None,
        *,
        channel: str = "",
        people: bool = True,
        agents: bool = True,
    ) -> None:
        """Show a transient frame, of somebody of this channel, to all viewers of the conversation but its sender, and
        to the agents that follow it and serve the channel."""
        for viewer in list(self._viewers.get(conversation_id, ())) if people else ():
            if viewer is not sender:
                viewer.relay(frame)
        for agent in list(self._followers.get(conversation_id, ())) if agents else ():
            if agent is not sender and agent.serves(channel):
                agent.relay(conversation_id, frame)

    # ---------------------------------------------------------------------------------------------------- journal
    def apply(self, partition: int, entries: Sequence[Entry]) -> None:
        """The partition's next entries."""
        for entry in entries:
            self._recent.add(partition, entry)
            if entry.event.conversation_id is not None:
                for follow in self.on_entry:
                    follow(entry)
            self._route(partition, entry)

    def _route(self, partition: int, entry: Entry) -> None:
        event = entry.event
        match event:
            case TurnCommitted() | PersonFrameCommitted():
                self._said(entry, event)
                self._answer(event.ref, entry)
            case _ if isinstance(event, _ANSWERS):
                self._answer(event.ref, entry)
            case Refused():
                self._refused(entry, event)
            case MemberJoined():
                self._joined(partition, event)
            case RunOpened() | RunMoved() | RunCancelling() | RunEnded():
                self._run(entry, event)
            case ListWanted():
                self._membership.list_wanted(partition, event)
            case MemberDraining():
                self._draining(event)
            case GatewayEnded():
                self._gateway_ended(event)
            case BatchCommitted():
                self._batch(partition, event)
            case _:
                pass
        if event.conversation_id is not None:
            for viewer in list(self._viewers.get(event.conversation_id, ())):
                viewer.entries((entry,))

    def _answer(self, ref: str | None, entry: Entry) -> None:
        if ref is not None and (waiting := self._take(ref)) is not None:
            waiting.waiter(entry)

    def _batch(self, partition: int, event: BatchCommitted) -> None:
        """Every answer to the frames below its position was in this batch or an earlier one."""
        self._consumed[partition] = event.frames
        for ref in [ref for ref, offset in self._frames.get(partition, {}).items() if offset < event.frames]:
            self._pass(ref)

    def _said(self, entry: Entry, event: TurnCommitted | PersonFrameCommitted) -> None:
        if isinstance(event, TurnCommitted):
            self._turn(entry, event)
        else:
            self._person_frame(event)

    def _turn(self, entry: Entry, event: TurnCommitted) -> None:
        for assigned in event.assigned:
            agent = self._agents.get(assigned.member) if assigned.member is not None else None
            if agent is not None and assigned.member is not None:
                self._hold(assigned.run_id, assigned.member)
                give = partial(AgentSession.run_given, run_id=assigned.run_id, run_epoch=assigned.run_epoch)
                agent.tell(partial(give, entry=entry, now=wall_ms()))
                self._metrics.delivered(wall_ms() - entry.timestamp)
        run = event.joins_run
        if run is not None and (holder := self._runs.get(run)) is not None:
            self._agents[holder].tell(lambda session: session.answer_given(run, entry, wall_ms()))

    def _person_frame(self, event: PersonFrameCommitted) -> None:
        """To whom the partition said; an abort ends their runs, and that is what they are told."""
        if event.frame.type == ABORT:
            return
        for given in event.to:
            agent = self._agents.get(given.member) if given.member is not None else None
            if agent is not None:
                agent.tell(partial(AgentSession.person_frame, event=event, given=given, now=wall_ms()))

    def _refused(self, entry: Entry, event: Refused) -> None:
        self._metrics.refused(event.reason)
        if event.reason is RefusedReason.GATEWAY_ENDED and event.member is not None:
            if event.member.startswith(f"{self._membership.incarnation}."):
                self._membership.restart("refused as ended")
            return
        if event.ref in self._waiting:
            self._answer(event.ref, entry)
            return
        agent = self._agents.get(event.member) if event.member is not None else None
        if agent is not None:
            agent.tell(lambda session: session.refused(event, wall_ms()))

    def _gateway_ended(self, event: GatewayEnded) -> None:
        self._membership.gateway_ended(event)
        for tell in self.on_gateway_ended:
            tell(event.gateway)

    def _joined(self, partition: int, event: MemberJoined) -> None:
        self._membership.member_joined(event.member, partition)
        agent = self._agents.get(event.member)
        if agent is not None:
            agent.tell(lambda session: session.joined(partition, wall_ms()))

    def _draining(self, event: MemberDraining) -> None:
        """Somebody else wants a member of this gateway to get nothing new: it is sent away once its runs are over."""
        agent = self._agents.get(event.member)
        if agent is not None and self._membership.member_draining(event.member):
            agent.send_away(event.by, event.reason)

    def _run(self, entry: Entry, event: RunOpened | RunMoved | RunCancelling | RunEnded) -> None:
        if isinstance(event, RunCancelling | RunEnded):
            self._stopped(event)
            self._answer(event.ref, entry)
        else:
            self._given(event, entry.lsn)

    def _given(self, event: RunOpened | RunMoved, lsn: int) -> None:
        to_member = event.member if isinstance(event, RunOpened) else event.to_member
        if isinstance(event, RunMoved) and event.from_member != to_member:
            self._run_over(event.run_id, lambda session: session.run_lost(event.run_id, wall_ms()))
        agent = self._agents.get(to_member) if to_member is not None else None
        if agent is None or to_member is None:
            return
        self._hold(event.run_id, to_member)
        agent.tell(lambda session: session.run_taken_over(event, lsn, wall_ms()))

    def _stopped(self, event: RunCancelling | RunEnded) -> None:
        """Its member is to stop working on it: it is over, or is once the member says so."""
        if isinstance(event, RunEnded):
            self._run_over(event.run_id, lambda session: session.run_ended(event.run_id, event.status, wall_ms()))
            return
        agent = self._agents.get(event.member) if event.member is not None else None
        if agent is not None:
            agent.tell(lambda session: session.run_cancelling(event, wall_ms()))

    def _run_over(self, run_id: str, work: Callable[[AgentSession], Sequence[Action]]) -> None:
        holder = self._release(run_id)
        agent = self._agents.get(holder) if holder is not None else None
        if agent is not None:
            agent.tell(work)
