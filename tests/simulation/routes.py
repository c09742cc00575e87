"""Who may speak where, and who is given what: channels, their routes, and what must hold of them, read off the journal.

People of `web` speak in its conversations, and so may those of `phone`, which it is routed to; those of `elsewhere`
may not. `agents` has conversations of its own, in which its agents speak, and people of `web`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streams.core.events import (
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationOpened,
    Entry,
    FrameCommitted,
    Refused,
    RefusedReason,
    RunOpened,
    TurnCommitted,
)
from streams.core.runs import SYSTEM
from tests.simulation.roster import Roster

WEB = "web"
PHONE = "phone"
ELSEWHERE = "elsewhere"
AGENTS = "agents"
ROUTES = {WEB: (AGENTS, PHONE), AGENTS: (WEB,)}
SPEAKERS = {WEB: (WEB, PHONE), AGENTS: (WEB,)}
"""Channels of people that may speak in conversations of each."""

OWN = "own"
"""Agents have conversations of their own channel."""
ROUTE = "route"
"""People of other channels speak, too."""
NEWS = ".own"
"""In the clientId of what an agent says in a conversation of its own channel."""


def document(rules: Mapping[str, object]) -> str:
    """The document of channels. `rules`: of the agents' one."""
    return json.dumps(
        {
            "version": 1,
            "channels": [
                {"id": WEB, "kind": "web", "retain_days": 1},
                {"id": PHONE, "kind": "web"},
                {"id": ELSEWHERE, "kind": "web"},
                {"id": AGENTS, "kind": "websocket", **rules},
            ],
            "routes": [{"from": channel, "to": to} for channel, to in ROUTES.items()],
        }
    )


@dataclass(slots=True)
class Talk:
    """One conversation so far."""

    channel: str
    handed_over: bool = False
    spoken: dict[int, str] = field(default_factory=dict)
    """Turn -> its channel, where that is not the conversation's."""
    turns: dict[str, int] = field(default_factory=dict)
    """Run -> turn."""
    news: set[str] = field(default_factory=set)
    """Client ids of what its agents said of themselves."""


def broken(entries: Iterable[Entry]) -> Iterator[str]:
    """What one partition's journal shows."""
    talks: dict[str, Talk] = {}
    roster = Roster()
    for entry in entries:
        event: Any = entry.event
        if isinstance(event, ConversationOpened):
            talks[str(event.conversation_id)] = Talk(event.channel)
        talk = talks.get(str(event.conversation_id))
        roster.see(event)
        for problem in () if talk is None else _seen(talk, event, roster):
            yield f"lsn {entry.lsn}: {problem}"


def _seen(talk: Talk, event: Any, roster: Roster) -> Iterator[str]:
    match event:
        case TurnCommitted():
            yield from _turn(talk, event)
        case RunOpened():
            talk.turns[event.run_id] = event.turn_seq
            if talk.channel == AGENTS:
                yield f"{event.run_id} is opened in a conversation of its agents' own"
        case FrameCommitted():
            yield from _frame(talk, event)
        case Refused(reason=RefusedReason.FENCED) if NEWS in (event.client_id or ""):
            if event.member in roster.members:
                yield f"{event.member} may not speak in its channel's own conversation: {event.detail}"
        case ConversationHandedOver():
            talk.handed_over = True
        case ConversationHandedBack():
            talk.handed_over = False
        case _:
            pass


def _turn(talk: Talk, turn: TurnCommitted) -> Iterator[str]:
    """It is taken of people who may speak there only, and given to whom the conversation is routed to."""
    channel = turn.turn.channel
    if channel not in SPEAKERS[talk.channel]:
        yield f"turn {turn.seq} of {channel} is taken in a conversation of {talk.channel}, which is not routed to it"
    if channel != talk.channel and turn.turn.invocation is None:
        talk.spoken[turn.seq] = channel
    talk.turns.update((given.run_id, turn.seq) for given in turn.assigned)
    given = bool(turn.assigned or turn.queued or turn.waiting or turn.joins_run)
    if talk.channel == AGENTS and given:
        yield f"turn {turn.seq} is given to agents whose own conversation it is in"
    if talk.channel != AGENTS and not given and not talk.handed_over:
        yield f"turn {turn.seq} of {channel} is given to nobody"


def _frame(talk: Talk, frame: FrameCommitted) -> Iterator[str]:
    """An answer says which channel its turn came from; what is said in a conversation of one's own answers nothing."""
    if frame.sender == SYSTEM:
        return
    if talk.channel == AGENTS:
        if frame.run_id is not None:
            yield f"what {frame.member} says in its channel's own conversation is of {frame.run_id}"
        client_id = str(frame.frame.client_id)
        if client_id in talk.news:
            yield f"{client_id} is stored twice"
        talk.news.add(client_id)
    elif frame.run_id in talk.turns:
        origin = talk.spoken.get(talk.turns[frame.run_id], "")
        if frame.origin != origin:
            yield f"an answer to turn {talk.turns[frame.run_id]} of {origin or 'web'} is marked {frame.origin or 'web'}"
