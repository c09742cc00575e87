"""Scripted people: each opens a conversation, says its turns one after the other, and says them again, under the same
key, until the journal has an outcome. Who is asked something answers, by a turn or by a `resume`. What they do besides
is in `deeds`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from streams.core.commands import Command, CommitPersonFrame, CommitTurn, OpenConversation
from streams.core.events import (
    ConversationErased,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    Turn,
    TurnCommitted,
)
from streams.core.ids import message_id, turn_key
from tests.simulation.deeds import ANN, Deeds
from tests.simulation.intake import Pen, Tail, Unwritten
from tests.simulation.place import Place
from tests.simulation.routes import AGENTS, ELSEWHERE, PHONE, WEB

PATIENCE_S = 2.0
"""Without an outcome for so long, it is sent again."""
THINKS_MOST_S = 1.5
NOTHING_OPEN = (RefusedReason.NOT_INTERRUPTED, RefusedReason.INCOMPLETE_RESUME)
"""Outcomes of a `resume` too: somebody else had answered, or asked once more."""


@dataclass(slots=True)
class Awaited:
    """What somebody waits for."""

    come: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Event | None = None


class People:
    """All of them, in one process that nothing befalls (their network may)."""

    def __init__(
        self,
        place: Place,
        conversations: list[str],
        turns: int,
        *,
        echo_until: float,
        deeds: Sequence[str] = (),
        owned: Collection[str] = (),
        routed: bool = False,
    ) -> None:
        """Until `echo_until` everybody says over and over again what was taken already: there is always something to
        commit. `deeds`: what they do besides. `owned`: which conversations are of the agents' own channel; `routed`:
        people of other channels speak too."""
        self.process = place.loop.process("people")
        self.expected = turns * len(conversations)
        self.accepted = 0
        self._place = place
        self._random = place.branch()
        self._conversations = conversations
        self._turns = turns
        self._owned = frozenset(owned)
        self._routed = routed
        self._echo_until = echo_until
        self._refs = count(1)
        self._waiting: dict[str, Awaited] = {}
        self._asks: dict[str, list[str]] = {name: [] for name in conversations}
        """Conversation -> interrupts that are open."""
        self._asked = {name: asyncio.Event() for name in conversations}
        self._erased: set[str | None] = set()
        self._deeds = Deeds(place, deeds, self._outcome_of) if deeds else None
        place.loop.spawn(self.process, self._run())

    @property
    def content(self) -> bool:
        """Each turn has its outcome, and all is done."""
        return self.accepted == self.expected and (self._deeds is None or self._deeds.done)

    def told(self) -> None:
        self._tail.told()

    async def _run(self) -> None:
        self._tail = Tail(self._place, self._see)
        self._pen = Pen(self._place)
        tasks = [asyncio.create_task(self._talk(name)) for name in self._conversations]
        tasks += [asyncio.create_task(self._answer(name)) for name in self._conversations]
        if self._deeds is not None:
            tasks += [
                asyncio.create_task(self._deeds.do(name, called=name not in self._owned))
                for name in self._conversations
            ]
        await asyncio.gather(self._tail.follow(), *tasks)

    async def _talk(self, conversation: str) -> None:
        await asyncio.sleep(self._random.random() * 2)
        channel = AGENTS if conversation in self._owned else WEB
        await self._until_taken(
            lambda ref: OpenConversation(
                at=0, timestamp=0, ref=ref, conversation_id=conversation, channel=channel, participant=ANN, key="open"
            )
        )
        for number in range(self._turns):
            await asyncio.sleep(self._random.random() * 3)
            key = f"k{number}"
            await self._until_taken(partial(_said, conversation, key, channel=self._speaks_from(conversation)))
            self.accepted += 1
            if self._routed:  # who may not speak here is refused, whatever becomes of it
                stranger = ELSEWHERE if channel == WEB else PHONE
                await self._outcome_of(partial(_said, conversation, f"s{number}", channel=stranger))
        await self._echo(conversation)

    def _speaks_from(self, conversation: str) -> str:
        """The channel that the next turn comes from."""
        if not self._routed or conversation in self._owned:
            return WEB
        return self._random.choice([WEB, PHONE])

    async def _echo(self, conversation: str) -> None:
        while self._place.loop.now < self._echo_until:
            await asyncio.sleep(0.02 + self._random.random() * 0.4)
            ref = f"p{next(self._refs)}"
            try:
                await self._pen.write(_said(conversation, "k0", ref))
            except Unwritten:
                continue

    async def _answer(self, conversation: str) -> None:
        """Whatever is asked."""
        asked, asks = self._asked[conversation], self._asks[conversation]
        for number in count(1):
            await asked.wait()
            await asyncio.sleep(self._random.random() * THINKS_MOST_S)
            if not asks:
                asked.clear()
            elif self._random.random() < 0.5:
                await self._until_taken(partial(_said, conversation, f"a{number}"))
            else:
                await self._until_taken(partial(_resumed, conversation, f"r{number}", tuple(asks)))

    async def _until_taken(self, make: Callable[[str], Command]) -> None:
        """A refusal is no outcome here: the document of channels was not there yet, an agent was busy, somebody had
        closed the conversation. In one that is erased it is: nothing is taken there any more."""
        while True:
            outcome = await self._outcome_of(make)
            if not isinstance(outcome, Refused) or outcome.reason in NOTHING_OPEN:
                return
            if outcome.conversation_id in self._erased:
                return
            await asyncio.sleep(PATIENCE_S * (0.1 + 0.4 * self._random.random()))

    async def _outcome_of(self, make: Callable[[str], Command]) -> Event:
        """Send it until the journal says what came of it, be it refused."""
        awaited = Awaited()
        while awaited.outcome is None:
            ref = f"p{next(self._refs)}"
            self._waiting[ref] = awaited
            try:
                await self._pen.write(make(ref))
                async with asyncio.timeout(PATIENCE_S * (0.5 + self._random.random())):
                    await awaited.come.wait()
            except (Unwritten, TimeoutError):
                continue
        return awaited.outcome

    def _see(self, _: int, entry: Entry) -> None:
        event = entry.event
        match event:
            case TurnCommitted():
                self._answered(event.conversation_id, event.interrupt_id)
            case PersonFrameCommitted(frame=Frame(type="resume", data=data)):
                for ask in json.loads(data or "{}")["answers"]:
                    self._answered(event.conversation_id, ask)
            case FrameCommitted(frame=Frame(type="interrupt", id=ask)):
                if ask not in self._asks[str(event.conversation_id)]:
                    self._asks[str(event.conversation_id)].append(ask)
                self._asked[str(event.conversation_id)].set()
            case FrameCommitted(frame=Frame(type="interrupt_resolved", id=ask)):
                self._answered(event.conversation_id, ask)
            case ConversationErased():
                self._erased.add(event.conversation_id)
            case _:
                pass
        if self._deeds is not None:
            self._deeds.see(entry)
        awaited = self._waiting.get(getattr(event, "ref", None) or "")
        if awaited is not None and awaited.outcome is None:
            awaited.outcome = event
            awaited.come.set()

    def _answered(self, conversation: str | None, ask: str | None) -> None:
        asks = self._asks[str(conversation)]
        if ask in asks:
            asks.remove(ask)


def _said(conversation: str, key: str, ref: str, channel: str = WEB) -> CommitTurn:
    turn = Turn(
        id=message_id(conversation, turn_key(ANN, key)), sender=ANN, channel=channel, type="text", text=key, key=key
    )
    return CommitTurn(at=0, timestamp=0, ref=ref, conversation_id=conversation, turn=turn)


def _resumed(conversation: str, key: str, asks: tuple[str, ...], ref: str) -> CommitPersonFrame:
    data = json.dumps({"answers": dict.fromkeys(asks, "that")})
    frame = Frame(id=message_id(conversation, f"{key}/{ref}"), type="resume", client_id=key, data=data)
    return CommitPersonFrame(
        at=0, timestamp=0, ref=ref, conversation_id=conversation, frame=frame, sender=ANN, channel="web"
    )
