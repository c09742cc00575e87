"""Scripted gateways: they write what real ones write to the intake, and read the committed journal.

What agents do at their connections is in `desk`. A gateway that is told that its incarnation ended goes on as a new
one, with its agents as new members. None of them is as careful as a real gateway after a pause: what was on its way is
written late, in the name of members that may be gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    Command,
    Drain,
    Join,
    Leave,
    ListedMember,
)
from streams.core.events import (
    Duplicate,
    Entry,
    Frame,
    FrameCommitted,
    GatewayEnded,
    ListWanted,
    PersonFrameCommitted,
    Refused,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    TurnCommitted,
)
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Goodbye, Heartbeat, Signal
from tests.simulation.agents import Agent, Given, Story
from tests.simulation.desk import CHANNEL, GROUP, Desk, Member
from tests.simulation.intake import Pen, Tail, Unwritten
from tests.simulation.place import Place

HEARTBEAT_S = 1.0
DRAIN_S = 3.0
"""Of a gateway that is asked to stop."""
Job = Callable[[], Coroutine[Any, Any, None]]


class Gateway:
    """One gateway process. It starts by itself and goes on until it is killed, or `stop` was asked for."""

    def __init__(self, place: Place, name: str, document: tuple[int, str]) -> None:
        self.name = name
        self.process = place.loop.process(name)
        self.alive = True
        self.open = True
        """Alive, and not asked to stop: an agent may connect."""
        self.agents: dict[str, Agent] = {}
        self.loses = 0
        """So many of its next leaves are written nowhere: its partitions have to ask."""
        self._place = place
        self._random = place.branch()
        self._document = document
        self._incarnations = count(1)
        self._members: dict[str, Member] = {}
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._desk = Desk(place, name, lambda member: member.id in self._members)
        self._begin()
        place.loop.spawn(self.process, self._run())

    def _begin(self) -> None:
        self.incarnation = f"gw-{self.name}.{next(self._incarnations)}"
        self._n = 0
        self._member_numbers = count(1)
        self._members = {}
        self._frames_end: dict[int, int] = {}
        """Where the last frames end of the members that are gone."""

    # ------------------------------------------------------------------------------------------- from outside
    def kill(self) -> list[Agent]:
        """SIGKILL; the agents that were connected to it."""
        self.alive = self.open = False
        self._place.loop.kill(self.process)
        return list(self.agents.values())

    def connect(self, agent: Agent) -> None:
        """A new connection of this agent."""
        self.agents[agent.name] = agent
        self._place.loop.later(0.001, self._jobs.put_nowait, lambda: self._join(agent))

    def disconnect(self, agent: Agent, reason: str, *, abruptly: bool = True) -> None:
        """Its connection closes. `abruptly`: what it was writing is not written any more."""
        if self.agents.pop(agent.name, None) is not None:
            leave = partial(self._leave, agent, abruptly=abruptly, reason=reason)
            self._place.loop.later(0.001, self._jobs.put_nowait, leave)

    def drain(self, agent: Agent) -> None:
        """This agent is to get nothing new."""
        self._place.loop.later(0.001, self._jobs.put_nowait, lambda: self._drain(agent))

    def stop(self) -> list[Agent]:
        """SIGTERM: its members drain, and leave when they have nothing in hand, or the budget ends; then it says
        goodbye. The agents that have to connect elsewhere."""
        self._place.loop.later(0.001, self._jobs.put_nowait, self._leave_all)
        self.open = False
        orphans, self.agents = list(self.agents.values()), {}
        return orphans

    def told(self) -> None:
        self._tail.told()

    # ---------------------------------------------------------------------------------------------- the process
    async def _run(self) -> None:
        self._pen, self._tail = Pen(self._place), Tail(self._place, self._see)
        self._desk.pen = self._pen
        self._place.loop.spawn(self.process, self._tail.follow())
        self._place.loop.spawn(self.process, self._beat())
        while True:
            job = await self._jobs.get()
            try:
                await job()
            except Unwritten:
                self._place.trace("a membership change is not written everywhere: they will ask")

    async def _beat(self) -> None:
        await self._jobs.put(lambda: self._everywhere(self._config))
        while True:
            await self._jobs.put(lambda: self._everywhere(self._heartbeat))
            for member in self._members.values():
                if member.untold:
                    await self._jobs.put(partial(self._say_that_it_drains, member))
            await asyncio.sleep(HEARTBEAT_S)

    def _config(self, _: int) -> Command:
        version, document = self._document
        return ApplyConfig(at=0, timestamp=0, version=version, document=document)

    def _heartbeat(self, partition: int) -> Signal:
        return Heartbeat(gateway=self.incarnation, n=self._n, config_version=self._document[0])

    async def _everywhere(self, message: Callable[[int], Command | Signal]) -> None:
        for partition in range(self._place.partitions):
            await self._pen.write(message(partition), partition)

    async def _join(self, agent: Agent) -> None:
        if agent.name not in self.agents:
            return
        self._n += 1
        n, gateway = self._n, self.incarnation
        member = Member(f"{gateway}.{next(self._member_numbers)}", agent, agent.instance)
        member.watermarks = dict(agent.watermarks) if agent.keeps_watermarks else {}
        self._members[member.id] = member
        self._place.trace(f"{agent.name} joins as {member.id}")
        member.task = asyncio.create_task(self._desk.serve(member))
        await self._everywhere(
            lambda partition: Join(
                at=0,
                timestamp=0,
                gateway=gateway,
                n=n,
                member=member.id,
                channel=CHANNEL,
                group=GROUP,
                watermarks=self._own(member.watermarks, partition),
                continues=agent.continues,
                instance=member.instance,
            )
        )

    def agent_of(self, member: str) -> Agent | None:
        """Whose connection it is, while it is there."""
        known = self._members.get(member)
        return None if known is None else known.agent

    def _member_of(self, agent: Agent) -> Member | None:
        return next((each for each in self._members.values() if each.agent is agent), None)

    async def _drain(self, agent: Agent) -> None:
        member = self._member_of(agent)
        if member is None or member.draining:
            return
        self._place.trace(f"{agent.name} drains as {member.id}")
        member.draining = True
        member.untold = set(range(self._place.partitions))
        await self._say_that_it_drains(member)

    async def _say_that_it_drains(self, member: Member) -> None:
        for partition in sorted(member.untold):
            drain = Drain(at=0, timestamp=0, member=member.id, by=self.incarnation, reason="asked")
            await self._pen.write(drain, partition)
            member.untold.discard(partition)

    async def _leave(self, agent: Agent, *, abruptly: bool, reason: str) -> None:
        member = self._member_of(agent)
        if member is None:
            return
        if member.task is not None and abruptly:
            member.task.cancel()
        elif member.task is not None:
            member.inbox.put_nowait(Given("", "", 0, 0))
            await asyncio.wait({member.task})
        if self._members.pop(member.id, None) is None:
            return
        self._n += 1
        n, gateway = self._n, self.incarnation
        for partition, end in member.frames_end.items():
            self._frames_end[partition] = max(self._frames_end.get(partition, 0), end)
        self._place.trace(f"{agent.name} leaves as {member.id}")
        if self.loses:
            self.loses -= 1
            self._place.trace("nobody is told")
            await self._everywhere(self._heartbeat)
            return
        await self._everywhere(
            lambda partition: Leave(
                at=0,
                timestamp=0,
                gateway=gateway,
                n=n,
                member=member.id,
                reason=reason,
                frames_end=member.frames_end.get(partition, 0),
            )
        )

    async def _leave_all(self) -> None:
        agents = [member.agent for member in self._members.values()]
        for agent in agents:
            await self._unless_unwritten(self._drain(agent))
        until = self._place.loop.now + DRAIN_S
        while self._place.loop.now < until and any(agent.in_hand for agent in agents):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for agent in agents:
            await self._unless_unwritten(self._leave(agent, abruptly=True, reason="drained"))
        await self._unless_unwritten(self._everywhere(lambda partition: Goodbye(gateway=self.incarnation)))
        self._place.trace(f"{self.name} has stopped")
        self.kill()

    async def _unless_unwritten(self, job: Coroutine[Any, Any, None]) -> None:
        """A process that ends leaves it to its silence to tell what Kafka did not take."""
        try:
            await job
        except Unwritten:
            self._place.trace("not written everywhere")

    async def _list(self, partition: int) -> None:
        members = tuple(
            ListedMember(
                member.id,
                CHANNEL,
                GROUP,
                watermarks=self._own(member.watermarks, partition),
                continues=member.agent.continues,
                draining=member.draining,
                instance=member.instance,
            )
            for member in self._members.values()
        )
        end = self._frames_end.get(partition, 0)
        wanted = ApplyList(at=0, timestamp=0, gateway=self.incarnation, n=self._n, members=members, frames_end=end)
        await self._pen.write(wanted, partition)

    def _own(self, watermarks: dict[str, int], partition: int) -> dict[str, int]:
        return {
            name: seq for name, seq in watermarks.items() if partition_of(name, self._place.partitions) == partition
        }

    # ---------------------------------------------------------------------------------------------- the journal
    def _see(self, partition: int, entry: Entry) -> None:
        event = entry.event
        match event:
            case TurnCommitted():
                for given in event.assigned:
                    self._open(event.conversation_id, given.run_id, given.member, event.seq)
                if event.joins_run in self._desk.stories:
                    self._desk.stories[event.joins_run].answered.add(str(event.interrupt_id))
                    self._desk.tell_waiting()
            case PersonFrameCommitted(frame=Frame(type="resume")):
                self._see_answers(event)
            case RunOpened():
                self._open(event.conversation_id, event.run_id, event.member, event.turn_seq)
            case RunMoved():
                self._see_moved(event)
            case RunEnded() | RunCancelling():
                self._see_over(event)
            case ListWanted(gateway=self.incarnation):
                self._jobs.put_nowait(lambda: self._tell(partition, event.of))
            case GatewayEnded(gateway=self.incarnation):
                self._restart(partition)
            case FrameCommitted():
                self._see_frame(event)
            case Duplicate(ref=str(ref)) | Refused(ref=str(ref)):
                self._desk.outcome(ref, self.agents.values())
            case _:
                pass

    def _open(self, conversation: str | None, run_id: str, member: str | None, turn_seq: int) -> None:
        self._desk.stories[run_id] = Story(member, 1)
        self._give(member, Given(str(conversation), run_id, 1, turn_seq))

    def _see_frame(self, frame: FrameCommitted) -> None:
        if frame.ref is not None:
            self._desk.outcome(frame.ref, self.agents.values())
        story, client_id = self._desk.stories.get(frame.run_id or ""), frame.frame.client_id
        if story is None or client_id is None:
            return
        if frame.seq:
            story.said[frame.seq] = client_id
        else:
            story.noted.add(client_id)

    def _see_answers(self, event: PersonFrameCommitted) -> None:
        for ask in json.loads(event.frame.data or "{}")["answers"]:
            story = self._desk.stories.get(ask.partition("?")[0])
            if story is not None:
                story.answered.add(ask)
        self._desk.tell_waiting()

    def _see_over(self, event: RunEnded | RunCancelling) -> None:
        """Tell the agent that has it."""
        member = self._members.get(event.member or "")
        if member is not None:
            (member.agent.over if isinstance(event, RunEnded) else member.agent.to_stop).add(event.run_id)
        if isinstance(event, RunEnded):
            self._desk.stories.pop(event.run_id, None)
            self._desk.tell_waiting()

    def _see_moved(self, moved: RunMoved) -> None:
        """Given again unless it is adopted silently; who can continue is told in any case what was said of it."""
        story = self._desk.stories[moved.run_id]
        story.member, story.epoch = moved.to_member, moved.run_epoch
        for seq in moved.superseded:
            story.said.pop(seq, None)
        if not (moved.continued or moved.adopted or moved.to_member is None):
            story.noted.clear()
        self._desk.tell_waiting()
        member = self._members.get(moved.to_member or "")
        if member is not None and (member.agent.continues or not moved.adopted):
            said = frozenset({*story.said.values(), *story.noted})
            given = Given(str(moved.conversation_id), moved.run_id, moved.run_epoch, moved.turn_seq)
            self._give(member.id, replace(given, said=said, answered=frozenset(story.answered)))

    async def _tell(self, partition: int, what: str) -> None:
        """A partition asked for it."""
        if what == "config":
            await self._pen.write(self._config(partition), partition)
        else:
            await self._list(partition)

    def _restart(self, partition: int) -> None:
        """Go on as a new incarnation."""
        ended = self.incarnation
        self._place.trace(f"{ended} was ended by partition {partition}")
        for member in self._members.values():
            if member.task is not None:
                member.task.cancel()
        self._begin()
        self._jobs.put_nowait(lambda: self._everywhere(lambda partition: Goodbye(gateway=ended)))
        for agent in self.agents.values():
            self._jobs.put_nowait(partial(self._join, agent))

    def _give(self, member_id: str | None, given: Given) -> None:
        member = self._members.get(member_id or "")
        if member is None:
            return
        if member.agent.refusals:
            member.agent.refusals -= 1
            self._desk.refuse(member, given)
            return
        name = given.conversation
        member.delivered[name] = max(member.delivered.get(name, 0), given.turn_seq)
        member.inbox.put_nowait(given)
