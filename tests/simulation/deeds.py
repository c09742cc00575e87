"""What people, callers and operators do besides talking: each kind is a thing that the design makes a promise about.

Each conversation has a few of the kinds that its world has, one after the other, at drawn times. What is begun is gone
through with: who closes reopens, who takes a conversation from the agents gives it back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from streams.core.commands import (
    CancelRun,
    CloseConversation,
    Command,
    CommitPersonFrame,
    CommitTurn,
    EraseConversation,
    EraseIdle,
    HandBack,
    HandOver,
    MoveConversation,
    ReleaseRun,
    ReopenConversation,
)
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationReopened,
    Entry,
    Event,
    Frame,
    FrameCommitted,
    Invocation,
    MemberJoined,
    MemberLeft,
    Refused,
    RunEnded,
    RunMoved,
    RunOpened,
    Turn,
    TurnCommitted,
)
from streams.core.ids import invocation_message_id, message_id
from streams.core.runs import SYSTEM
from tests.simulation.place import Place

ANN = "ann"
CALLED = "agents/bots"
ERASE = "erase"
INVOKE = "invoke"
DEEDS = ("abort", "cancel", "close", "edit", ERASE, "hand over", INVOKE, "move", "regenerate", "release", "survey")
MOST = 3
"""Deeds in one conversation."""
LOOKS_AGAIN_S = 1.0
"""Who keeps a conversation open, and with its agents, looks whether it is: a late repeat may have undone that."""
TRIES = 4
"""Of a call that finds the thread busy, or nobody there."""

Ask = Callable[[Callable[[str], Command]], Awaitable[Event]]
"""Sends what it is given, which gets a ref, until there is an outcome, which it gives."""


@dataclass(slots=True)
class Known:
    """What the journal said of a conversation."""

    latest: str | None = None
    """Id of its latest turn."""
    answer: tuple[str, int] | None = None
    """Id and seq of the last message of an agent."""
    runs: dict[str, str | None] = field(default_factory=dict)
    """Open runs, and who has them."""
    closed: bool = False
    handed_over: bool = False
    head: int = 0
    lsn: int = 0
    """Of its last entry."""


class Deeds:
    """Those of everybody, in the people's process. `done`: nobody has anything more to do."""

    def __init__(self, place: Place, kinds: Sequence[str], ask: Ask) -> None:
        self._place = place
        self._random = place.branch()
        self._kinds = kinds
        self._ask = ask
        self._numbers = count(1)
        self._known: dict[str, Known] = {}
        self._members: dict[str, bool] = {}
        """Every member that there was, and whether it is there still."""
        self._doing = 0
        self._begun = False
        self._ways: dict[str, Callable[[str], Awaitable[object]]] = {
            "abort": lambda name: self._send(name, "abort"),
            "cancel": partial(self._end_run, CancelRun),
            "close": self._close,
            "edit": lambda name: self._want_anew(name, "edit"),
            ERASE: self._erase,
            "hand over": self._hand_over,
            INVOKE: self._invoke,
            "move": self._move,
            "regenerate": lambda name: self._want_anew(name, "regenerate"),
            "release": partial(self._end_run, ReleaseRun, proof="it was unplugged"),
            "survey": lambda name: self._send(name, "survey", data='{"stars":5}'),
        }

    @property
    def done(self) -> bool:
        undone = any((known.closed or known.handed_over) for known in self._known.values())
        return self._begun and not self._doing and not undone

    def see(self, entry: Entry) -> None:
        """The next entry of the journal."""
        event = entry.event
        if event.conversation_id is None:
            if isinstance(event, MemberJoined | MemberLeft):
                self._members[event.member] = isinstance(event, MemberJoined)
            return
        known = self._of(event.conversation_id)
        known.head, known.lsn = max(known.head, event.seq), entry.lsn
        match event:
            case TurnCommitted():
                known.latest = event.turn.id
                known.runs.update((given.run_id, given.member) for given in event.assigned)
            case RunOpened(run_id=run_id, member=member) | RunMoved(run_id=run_id, to_member=member):
                known.runs[run_id] = member
            case RunEnded(run_id=run_id):
                known.runs.pop(run_id, None)
            case FrameCommitted() if event.seq and event.sender != SYSTEM:
                known.answer = event.frame.id, event.seq
            case ConversationClosed():
                known.closed = True
            case ConversationReopened() | ConversationErased():  # of what is erased nobody thinks any more
                known.closed = False
            case ConversationHandedOver():
                known.handed_over = True
            case ConversationHandedBack():
                known.handed_over = False
            case _:
                pass

    def _of(self, conversation: str) -> Known:
        return self._known.setdefault(conversation, Known())

    async def do(self, conversation: str, *, called: bool = True) -> None:
        """All that is done in this conversation. `called`: agents may be called there."""
        self._doing += 1
        self._begun = True
        draw = self._random
        kinds = [kind for kind in self._kinds if called or kind != INVOKE]
        for _ in range(draw.randint(1, MOST) if kinds else 0):
            await asyncio.sleep(draw.random() * 5)
            kind = draw.choice(kinds)
            self._place.trace(f"in {conversation} somebody is to {kind}")
            await self._ways[kind](conversation)
            if kind == ERASE:
                break
        self._doing -= 1
        await self._keep(conversation)

    async def _keep(self, conversation: str) -> None:
        """Open, and the agents'. (Undoing is done without end: late repeats may come as long as there are faults.)"""
        known = self._of(conversation)
        while True:
            await asyncio.sleep(LOOKS_AGAIN_S)
            await self._undo(conversation, known)

    async def _undo(self, conversation: str, known: Known) -> None:
        number = next(self._numbers)
        if known.closed:
            await self._ask(
                lambda ref: ReopenConversation(
                    at=0, timestamp=0, ref=ref, conversation_id=conversation, by="op", id=f"o{number}"
                )
            )
        if known.handed_over:
            await self._ask(
                lambda ref: HandBack(
                    at=0, timestamp=0, ref=ref, conversation_id=conversation, by="op", reason="done", id=f"b{number}"
                )
            )

    # ------------------------------------------------------------------------------------------------- the kinds
    async def _send(self, conversation: str, kind: str, **fields: object) -> Event:
        """A frame of a person's."""
        number = next(self._numbers)

        def made(ref: str) -> CommitPersonFrame:
            frame = Frame(id=message_id(conversation, f"d{number}/{ref}"), type=kind, client_id=f"d{number}", **fields)  # type: ignore[arg-type]
            return CommitPersonFrame(
                at=0, timestamp=0, ref=ref, conversation_id=conversation, frame=frame, sender=ANN, channel="web"
            )

        return await self._ask(made)

    async def _want_anew(self, conversation: str, kind: str) -> None:
        """Of the latest turn, or by its answer, as far as the person knows them."""
        known = self._of(conversation)
        named, watermark = known.latest or "nothing", 0
        if kind == "regenerate" and known.answer is not None and self._random.random() < 0.5:
            named, watermark = known.answer
        text = "anew" if kind == "edit" else None
        await self._send(conversation, kind, text=text, extra=json.dumps({"messageId": named}), watermark=watermark)

    async def _close(self, conversation: str) -> None:
        number = next(self._numbers)
        await self._ask(
            lambda ref: CloseConversation(
                at=0, timestamp=0, ref=ref, conversation_id=conversation, by="op", reason="over", id=f"c{number}"
            )
        )
        await self._later(conversation)

    async def _hand_over(self, conversation: str) -> None:
        number = next(self._numbers)
        await self._ask(
            lambda ref: HandOver(
                at=0,
                timestamp=0,
                ref=ref,
                conversation_id=conversation,
                by="op",
                to="Eve",
                reason="hard",
                id=f"h{number}",
            )
        )
        await self._later(conversation)

    async def _erase(self, conversation: str) -> None:
        """For good: who wants it open later, or erased once more, changes nothing. Or only if it is idle, by what was
        seen of it a moment ago."""
        draw, number = self._random, next(self._numbers)
        while draw.random() < 0.6:
            known = self._of(conversation)
            head, lsn = known.head, known.lsn
            await asyncio.sleep(draw.random() * 0.5)
            await self._ask(
                lambda ref, head=head, lsn=lsn: EraseIdle(  # type: ignore[misc]
                    at=0,
                    timestamp=0,
                    ref=ref,
                    conversation_id=conversation,
                    id=f"e{number}",
                    idle_since=0,
                    head_seq=head,
                    as_of_lsn=lsn,
                )
            )
        for _ in range(draw.choice([0, 1, 1, 2])):
            await self._ask(
                lambda ref: EraseConversation(
                    at=0, timestamp=0, ref=ref, conversation_id=conversation, by="op", reason="asked", id=f"e{number}"
                )
            )
            await asyncio.sleep(draw.random() * 3)
            await self._ask(
                lambda ref: ReopenConversation(
                    at=0, timestamp=0, ref=ref, conversation_id=conversation, by="op", id=f"o{number}"
                )
            )

    async def _move(self, conversation: str) -> None:
        """To a member, which may have gone meanwhile, or away from whoever has it."""
        draw = self._random
        there = [member for member, is_there in self._members.items() if is_there]
        gone = [member for member, is_there in self._members.items() if not is_there]
        to = draw.choice([*there, *there, *gone[-1:], None])
        group = "" if to is not None else draw.choice(["", CALLED])
        await self._ask(
            lambda ref: MoveConversation(
                at=0,
                timestamp=0,
                ref=ref,
                conversation_id=conversation,
                to=to,
                by="op",
                reason="it stutters",
                group=group,
            )
        )

    async def _later(self, conversation: str) -> None:
        """Undo it, a while later."""
        await asyncio.sleep(self._random.random() * 3)
        await self._undo(conversation, self._of(conversation))

    async def _end_run(self, command: type[CancelRun | ReleaseRun], conversation: str, **fields: str) -> None:
        """Some open one: for `release` there is not always one that nobody has."""
        runs = self._of(conversation).runs
        if runs:
            orphans = [run_id for run_id, member in runs.items() if member is None]
            named = self._random.choice(orphans if command is ReleaseRun and orphans else sorted(runs))
            await self._ask(
                lambda ref: command(
                    at=0,
                    timestamp=0,
                    ref=ref,
                    conversation_id=conversation,
                    run_id=named,
                    by="op",
                    reason="old",
                    **fields,
                )
            )

    async def _invoke(self, conversation: str) -> None:
        """An agent is called in this thread until it is taken, or was tried often enough; and again under that id."""
        draw, number = self._random, next(self._numbers)
        invocation = Invocation(
            id=f"i{number}",
            group=CALLED,
            deadline_ms=draw.choice([0, 1_500, 4_000]),
            streamed=draw.random() < 0.5,
            policy=draw.choice([None, "reject", "enqueue", "interrupt"]),
            retry=draw.random() < 0.3,
            input_hash="one",
        )
        for _ in range(TRIES):
            outcome = await self._ask(partial(_called, conversation, invocation))
            if not isinstance(outcome, Refused):
                break
            await asyncio.sleep(0.2 + draw.random())
        if draw.random() < 0.3:
            await self._ask(partial(_called, conversation, invocation))
        if draw.random() < 0.3:
            await self._end_run(CancelRun, conversation)


def _called(conversation: str, invocation: Invocation, ref: str) -> CommitTurn:
    turn = Turn(
        id=invocation_message_id(conversation, invocation.id, invocation.input_hash),
        sender="caller",
        channel="web",
        type="text",
        text="call",
        invocation=invocation,
    )
    return CommitTurn(at=0, timestamp=0, ref=ref, conversation_id=conversation, turn=turn)
