"""Scripted gateways and agents: they write what real ones write to the intake, and read the committed journal.

An agent answers each run that it is given, in one of three manners; it keeps what it wrote until it sees the outcome,
and writes it again after a reconnect, under the same clientId. A gateway that is told that its incarnation ended goes
on as a new one, with its agents as new members. None of them is as careful as a real gateway after a pause: what was on
its way is written late, in the name of members that may be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from streams.core.commands import ApplyConfig, ApplyList, Command, CommitFrame, Join, Leave, ListedMember
from streams.core.events import (
    Duplicate,
    Entry,
    Frame,
    FrameCommitted,
    GatewayEnded,
    ListWanted,
    Refused,
    RunMoved,
    RunOpened,
    TurnCommitted,
)
from streams.runtime.partitioning import partition_of
from streams.runtime.signals import Goodbye, Heartbeat, Signal
from tests.simulation.agents import Agent, Given, Unacked
from tests.simulation.intake import Pen, Tail, Unwritten
from tests.simulation.place import Place

GROUP = "agents/bots"
CHANNEL = "agents"
HEARTBEAT_S = 1.0


Job = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Member:
    """A connection of an agent."""

    id: str
    agent: Agent
    inbox: asyncio.Queue[Given] = field(default_factory=asyncio.Queue)
    delivered: dict[str, int] = field(default_factory=dict)
    frames_end: dict[int, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class Gateway:
    """One gateway process. It starts by itself and goes on until it is killed, or `stop` was asked for."""

    def __init__(self, place: Place, name: str, document: tuple[int, str]) -> None:
        self.name = name
        self.process = place.loop.process(name)
        self.alive = True
        self.agents: dict[str, Agent] = {}
        self._place = place
        self._random = place.branch()
        self._document = document
        self._incarnations = count(1)
        self._members: dict[str, Member] = {}
        self._refs: dict[str, str] = {}
        """Ref of a frame -> its clientId."""
        self._ref_numbers = count(1)
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._begin()
        place.loop.spawn(self.process, self._run())

    def _begin(self) -> None:
        self.incarnation = f"gw-{self.name}.{next(self._incarnations)}"
        self._n = 0
        self._member_numbers = count(1)
        self._members = {}

    # ------------------------------------------------------------------------------------------- from outside
    def kill(self) -> list[Agent]:
        """SIGKILL; the agents that were connected to it."""
        self.alive = False
        self._place.loop.kill(self.process)
        return list(self.agents.values())

    def connect(self, agent: Agent) -> None:
        """A new connection of this agent."""
        self.agents[agent.name] = agent
        self._place.loop.later(0.001, self._jobs.put_nowait, lambda: self._join(agent))

    def disconnect(self, agent: Agent, *, abruptly: bool) -> None:
        """Its connection closes. `abruptly`: what it was writing is not written any more."""
        self.agents.pop(agent.name, None)
        self._place.loop.later(0.001, self._jobs.put_nowait, lambda: self._leave(agent, abruptly=abruptly))

    def stop(self) -> None:
        """SIGTERM: its members leave, then it says goodbye."""
        self._place.loop.later(0.001, self._jobs.put_nowait, self._goodbye)

    def told(self) -> None:
        self._tail.told()

    # ---------------------------------------------------------------------------------------------- the process
    async def _run(self) -> None:
        self._pen, self._tail = Pen(self._place), Tail(self._place, self._see)
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
        member = Member(f"{gateway}.{next(self._member_numbers)}", agent)
        member.watermarks = dict(agent.watermarks) if agent.keeps_watermarks else {}
        self._members[member.id] = member
        self._place.trace(f"{agent.name} joins as {member.id}")
        member.task = asyncio.create_task(self._serve(member))
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
            )
        )

    async def _leave(self, agent: Agent, *, abruptly: bool) -> None:
        member = next((each for each in self._members.values() if each.agent is agent), None)
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
        self._place.trace(f"{agent.name} leaves as {member.id}")
        await self._everywhere(
            lambda partition: Leave(
                at=0,
                timestamp=0,
                gateway=gateway,
                n=n,
                member=member.id,
                reason="left",
                frames_end=member.frames_end.get(partition, 0),
            )
        )

    async def _goodbye(self) -> None:
        self._members.clear()
        await self._everywhere(lambda partition: Goodbye(gateway=self.incarnation))
        self.kill()

    async def _list(self, partition: int) -> None:
        members = tuple(
            ListedMember(member.id, CHANNEL, GROUP, watermarks=self._own(member.watermarks, partition))
            for member in self._members.values()
        )
        wanted = ApplyList(at=0, timestamp=0, gateway=self.incarnation, n=self._n, members=members)
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
                    self._give(given.member, str(event.conversation_id), given.run_id, given.run_epoch, event.seq)
            case RunOpened():
                self._give(event.member, str(event.conversation_id), event.run_id, event.run_epoch, event.turn_seq)
            case RunMoved(adopted=False):
                conversation = str(event.conversation_id)
                self._give(event.to_member, conversation, event.run_id, event.run_epoch, event.turn_seq)
            case ListWanted(gateway=self.incarnation):
                self._jobs.put_nowait(lambda: self._tell(partition, event.of))
            case GatewayEnded(gateway=self.incarnation):
                self._restart(partition)
            case FrameCommitted(ref=str(ref)) | Duplicate(ref=str(ref)) | Refused(ref=str(ref)):
                self._outcome(ref)
            case _:
                pass

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

    def _give(self, member_id: str | None, conversation: str, run_id: str, run_epoch: int, turn_seq: int) -> None:
        member = self._members.get(member_id or "")
        if member is None:
            return
        member.delivered[conversation] = max(member.delivered.get(conversation, 0), turn_seq)
        member.inbox.put_nowait(Given(conversation, run_id, run_epoch, turn_seq))

    def _outcome(self, ref: str) -> None:
        client_id = self._refs.pop(ref, None)
        if client_id is not None:
            for agent in self.agents.values():
                agent.unacked.pop(client_id, None)

    # ------------------------------------------------------------------------------------------------ an agent
    async def _serve(self, member: Member) -> None:
        agent = member.agent
        for unacked in list(agent.unacked.values()):
            await self._send(member, unacked)
        begun, agent.in_hand = agent.in_hand, []
        for given, left in begun if agent.goes_on else ():
            await self._say(member, given, left)
        while True:
            given = await member.inbox.get()
            if not given.conversation:
                return
            agent.watermarks[given.conversation] = max(agent.watermarks.get(given.conversation, 0), given.turn_seq)
            await asyncio.sleep(agent.random.random() * 0.6)
            await self._say(member, given, agent.answer(given))

    async def _say(self, member: Member, given: Given, frames: list[Frame]) -> None:
        agent = member.agent
        named = agent.manner == "names"
        agent.in_hand.append((given, frames))
        while frames:
            frame = frames.pop(0)
            kept = frame.type in {"text", "genui"}
            number_of = next(agent.ids)
            made = Frame(
                id=f"{agent.name}-{number_of}",
                type=frame.type,
                client_id=f"{agent.name}.m{number_of}" if kept else None,
                text=frame.text,
                data=frame.data,
                stream_id=frame.stream_id,
                done=frame.done,
                status=frame.status,
                watermark=frame.watermark,
            )
            unacked = Unacked(
                given.conversation,
                made,
                given.run_id if named else None,
                given.run_epoch if named else None,
                member.delivered.get(given.conversation, 0),
            )
            if made.client_id is not None:
                agent.unacked[made.client_id] = unacked
            await self._send(member, unacked)
            await asyncio.sleep(agent.random.random() * 0.3)
        agent.in_hand = [each for each in agent.in_hand if each[1] is not frames]

    async def _send(self, member: Member, unacked: Unacked) -> None:
        """Write it until it is written; a connection's frames keep their order."""
        while True:
            ref = f"{self.name}-f{next(self._ref_numbers)}"
            if unacked.frame.client_id is not None:
                self._refs[ref] = unacked.frame.client_id
            command = CommitFrame(
                at=0,
                timestamp=0,
                ref=ref,
                conversation_id=unacked.conversation,
                frame=unacked.frame,
                sender=member.agent.name,
                channel=CHANNEL,
                group=GROUP,
                member=member.id,
                gateway=member.id.rpartition(".")[0],
                run_id=unacked.run_id,
                run_epoch=unacked.run_epoch,
                delivered_seq=unacked.delivered,
            )
            try:
                partition, offset = await self._pen.write(command)
            except Unwritten:
                continue
            member.frames_end[partition] = max(member.frames_end.get(partition, 0), offset + 1)
            return
