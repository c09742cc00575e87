"""Scripted people: each opens a conversation, says its turns one after the other, and says them again, under the same
key, until the journal has an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count

from streams.core.commands import Command, CommitTurn, OpenConversation
from streams.core.events import ConversationOpened, Duplicate, Entry, Turn, TurnCommitted
from streams.core.ids import message_id, turn_key
from tests.simulation.intake import Pen, Tail, Unwritten
from tests.simulation.place import Place

PATIENCE_S = 2.0
"""Without an outcome for so long, it is sent again."""


class People:
    """All of them, in one process that nothing befalls (their network may)."""

    def __init__(self, place: Place, conversations: list[str], turns: int, *, echo_until: float) -> None:
        """Until `echo_until` everybody says over and over again what was taken already: there is always something to
        commit."""
        self.process = place.loop.process("people")
        self.expected = turns * len(conversations)
        self.accepted = 0
        self._place = place
        self._random = place.branch()
        self._conversations = conversations
        self._turns = turns
        self._echo_until = echo_until
        self._refs = count(1)
        self._waiting: dict[str, asyncio.Event] = {}
        place.loop.spawn(self.process, self._run())

    @property
    def content(self) -> bool:
        """Each turn has its outcome."""
        return self.accepted == self.expected

    def told(self) -> None:
        self._tail.told()

    async def _run(self) -> None:
        self._tail = Tail(self._place, self._see)
        self._pen = Pen(self._place)
        talks = [asyncio.create_task(self._talk(name)) for name in self._conversations]
        await asyncio.gather(self._tail.follow(), *talks)

    async def _talk(self, conversation: str) -> None:
        await asyncio.sleep(self._random.random() * 2)
        await self._until_known(
            lambda ref: OpenConversation(
                at=0, timestamp=0, ref=ref, conversation_id=conversation, channel="web", participant="ann", key="open"
            )
        )
        for number in range(self._turns):
            await asyncio.sleep(self._random.random() * 3)
            key = f"k{number}"
            await self._until_known(partial(_said, conversation, key))
            self.accepted += 1
        await self._echo(conversation)

    async def _echo(self, conversation: str) -> None:
        while self._place.loop.now < self._echo_until:
            await asyncio.sleep(0.02 + self._random.random() * 0.4)
            ref = f"p{next(self._refs)}"
            try:
                await self._pen.write(_said(conversation, "k0", ref))
            except Unwritten:
                continue

    async def _until_known(self, make: Callable[[str], Command]) -> None:
        known = asyncio.Event()
        while not known.is_set():
            ref = f"p{next(self._refs)}"
            self._waiting[ref] = known
            try:
                await self._pen.write(make(ref))
                async with asyncio.timeout(PATIENCE_S * (0.5 + self._random.random())):
                    await known.wait()
            except (Unwritten, TimeoutError):
                continue

    def _see(self, _: int, entry: Entry) -> None:
        """A refusal is no outcome here: the document of channels was not there yet."""
        match entry.event:
            case ConversationOpened(ref=str(ref)) | TurnCommitted(ref=str(ref)) | Duplicate(ref=str(ref)):
                if ref in self._waiting:
                    self._waiting[ref].set()
            case _:
                pass


def _said(conversation: str, key: str, ref: str) -> CommitTurn:
    turn = Turn(
        id=message_id(conversation, turn_key("ann", key)), sender="ann", channel="web", type="text", text=key, key=key
    )
    return CommitTurn(at=0, timestamp=0, ref=ref, conversation_id=conversation, turn=turn)
