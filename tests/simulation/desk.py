"""What agents do at their connections to a gateway: answer, ask, refuse, and say again what has no outcome yet.

An agent answers each run that it is given, in one of five manners; it keeps what it wrote until it sees the outcome,
and writes it again after a reconnect, under the same clientId. One that can continue is given a run with what was
committed of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import msgspec

from streams.core.commands import CommitFrame, RefuseRun
from streams.core.events import Frame
from streams.runtime.partitioning import partition_of
from tests.simulation.agents import Agent, Given, Script, Story, Unacked, Wait
from tests.simulation.intake import Pen, Unwritten
from tests.simulation.place import Place
from tests.simulation.routes import NEWS

GROUP = "agents/bots"
CHANNEL = "agents"
KEYED = frozenset({"text", "checkpoint", "interrupt", "interrupt_resolved"})
"""Types of frames that are given a clientId though their script names none, and are sent again until there is an
outcome; pieces of a stream have one only where the script does."""


@dataclass(slots=True)
class Member:
    """A connection of an agent."""

    id: str
    agent: Agent
    instance: str
    """The process that it is a connection of; empty: it declared none."""
    inbox: asyncio.Queue[Given] = field(default_factory=asyncio.Queue)
    delivered: dict[str, int] = field(default_factory=dict)
    numbers: Counter[int] = field(default_factory=Counter)
    """Per partition, the number of its last frame."""
    frames_end: dict[int, int] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    draining: bool = False
    untold: set[int] = field(default_factory=set)
    """Partitions that have yet to hear that it drains."""


class Desk:
    """Of all connections to one gateway."""

    pen: Pen
    """The gateway's, once it runs."""

    def __init__(self, place: Place, name: str, is_there: Callable[[Member], bool]) -> None:
        """`is_there`: whether the gateway has the connection still."""
        self.stories: dict[str, Story] = {}
        """Run -> what is known of it while it is open."""
        self._place = place
        self._name = name
        self._is_there = is_there
        self._refs: dict[str, str] = {}
        """Ref of a frame -> its clientId."""
        self._ref_numbers = count(1)
        self._refusing: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        """Set for a moment when something became of a run."""

    def tell_waiting(self) -> None:
        """Something became of a run."""
        self._news.set()
        self._news.clear()

    def outcome(self, ref: str, agents: Iterable[Agent]) -> None:
        """The journal says what came of a frame."""
        client_id = self._refs.pop(ref, None)
        if client_id is not None:
            for agent in agents:
                agent.unacked.pop(client_id, None)

    def refuse(self, member: Member, given: Given) -> None:
        """It does not take the run."""
        self._refusing.append(asyncio.create_task(self._refuse(member, given)))

    async def _refuse(self, member: Member, given: Given) -> None:
        """Say so until it is written: nobody else would get the run."""
        self._place.trace(f"{member.id} refuses {given.run_id}")
        refusal = RefuseRun(
            at=0,
            timestamp=0,
            conversation_id=given.conversation,
            run_id=given.run_id,
            run_epoch=given.run_epoch,
            member=member.id,
            reason="busy",
        )
        while self._is_there(member):
            try:
                await self.pen.write(refusal)
            except Unwritten:
                continue
            return

    async def serve(self, member: Member) -> None:
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
            if agent.owned:
                await self._tell_news(member)

    async def _tell_news(self, member: Member) -> None:
        """Say something in a conversation of its own channel, which is of no run."""
        agent = member.agent
        number = next(agent.ids)
        news = Frame(id=f"{agent.name}-{number}", type="text", text="news", client_id=f"{agent.name}{NEWS}{number}")
        unacked = Unacked(agent.random.choice(agent.owned), news, None, None, 0)
        agent.unacked[str(news.client_id)] = unacked
        await self._send(member, unacked)

    async def _answer_to(self, given: Given, ask: str) -> None:
        """Wait until there is one, or the run is over, or another's."""
        while True:
            story = self.stories.get(given.run_id)
            if story is None or story.epoch != given.run_epoch or ask in story.answered:
                return
            await self._news.wait()

    async def _say(self, member: Member, given: Given, script: Script) -> None:
        agent = member.agent
        agent.in_hand.append((given, script))
        while script:
            agent.heard(given, script)
            if not script:
                break
            frame = script[0]
            if isinstance(frame, Wait):
                await self._answer_to(given, frame.ask)
                script.pop(0)
                continue
            script.pop(0)
            number_of = next(agent.ids)
            own = f"{agent.name}.m{number_of}" if frame.type in KEYED else None
            made = msgspec.structs.replace(
                frame, id=frame.id or f"{agent.name}-{number_of}", client_id=frame.client_id or own
            )
            unacked = Unacked(
                given.conversation,
                made,
                given.run_id if agent.names else None,
                given.run_epoch if agent.names else None,
                member.delivered.get(given.conversation, 0),
            )
            if made.client_id is not None:
                agent.unacked[made.client_id] = unacked
            await self._send(member, unacked)
            await asyncio.sleep(agent.random.random() * 0.3)
        agent.in_hand = [each for each in agent.in_hand if each[1] is not script]

    async def _send(self, member: Member, unacked: Unacked) -> None:
        """Write it until it is written; a connection's frames keep their order, and their numbers."""
        partition = partition_of(unacked.conversation, self._place.partitions)
        member.numbers[partition] += 1
        while True:
            ref = f"{self._name}-f{next(self._ref_numbers)}"
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
                n=member.numbers[partition],
            )
            try:
                partition, offset = await self.pen.write(command)
            except Unwritten:
                continue
            member.frames_end[partition] = max(member.frames_end.get(partition, 0), offset + 1)
            return
