"""Turns for an agent channel that has no member (rule 3): they wait for its first group, or end by its policy.

`unassigned: refuse` ends such a turn for the channel as soon as it is committed, `wait_ms` once it has waited so long.
Where nobody else was given the turn, the person is told (`bot_unavailable`). A turn that has ended so is given to
nobody that joins later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streams.core.draft import Draft
from streams.core.events import Entry, TurnUnassigned
from streams.core.routing import REFUSE
from streams.core.run_events import take_waiting
from streams.core.state import Conversation, ImpossibleEvent, Partition, WaitingTurn

REFUSED: Final = "refused"
"""The channel lets no turn wait."""
NO_MEMBER: Final = "no_member"
"""It waited as long as the channel lets one."""

_SEPARATOR: Final = "\x1f"

# ------------------------------------------------------------------------------------------------ decide


def refuse_unassigned(
    state: Partition,
    draft: Draft,
    conversation: Conversation,
    turn: WaitingTurn,
    waiting: Iterable[str],
    *,
    given: bool,
) -> None:
    """End the turn, just committed, for those of the channels in `waiting` that let none wait. `given`: somebody has
    it, or will."""
    channels = list(waiting)
    refusing = [channel for channel in channels if state.config.channel(channel).unassigned == REFUSE]
    nobody = not given and refusing == channels
    for channel in refusing:
        last = nobody and channel == refusing[-1]
        draft.add(_unassigned(conversation, turn, channel, REFUSED, nobody=last))


def decide_waits(state: Partition, draft: Draft, at: int) -> None:
    """End the turns that have waited as long as their channel lets them, the longest first."""
    fired = []
    for conversation_id, name in state.waits.candidates(at):
        channel, turn = _named(state, conversation_id, name)
        when = None if turn is None else _due(state, channel, turn)
        if turn is not None and when is not None and when <= at:
            fired.append((when, conversation_id, turn.turn_seq, channel, turn))
    over: set[tuple[str, int, str]] = set()
    for _, conversation_id, seq, channel, turn in sorted(fired, key=lambda each: each[:4]):
        over.add((conversation_id, seq, channel))
        conversation = state.conversations[conversation_id]
        nobody = not _is_given(conversation, seq) and not any(
            other.turn_seq == seq and (conversation_id, seq, elsewhere) not in over
            for elsewhere, turns in conversation.waiting.items()
            for other in turns
        )
        draft.add(_unassigned(conversation, turn, channel, NO_MEMBER, nobody=nobody))


def _is_given(conversation: Conversation, seq: int) -> bool:
    """Some group has a run of the turn, or had one lately."""
    of_turn = f"{conversation.id}/{seq}/"
    return any(run.turn_seq == seq for run in conversation.runs.values()) or any(
        run_id.startswith(of_turn) for run_id in conversation.ended
    )


def _unassigned(
    conversation: Conversation, turn: WaitingTurn, channel: str, reason: str, *, nobody: bool
) -> TurnUnassigned:
    return TurnUnassigned(
        conversation_id=conversation.id,
        turn_seq=turn.turn_seq,
        turn_id=turn.turn_id,
        channel=channel,
        reason=reason,
        nobody=nobody,
    )


def _due(state: Partition, channel: str, turn: WaitingTurn) -> int | None:
    """Log time at which it has waited long enough, counted from the present writer's begin if that is later."""
    limit = state.config.channel(channel).wait_ms
    return max(turn.at, state.restarted_at) + limit if limit else None


# ------------------------------------------------------------------------------------------------ evolve


def wait(state: Partition, conversation: Conversation, channel: str, turn: WaitingTurn) -> None:
    """The turn waits for the channel's first group from here on."""
    conversation.waiting.setdefault(channel, []).append(turn)
    state.waiting.setdefault(channel, set()).add(conversation.id)
    _watch(state, conversation, channel, turn)


def watch_waits(state: Partition, conversation: Conversation) -> None:
    """Make sure that what waits is looked at when its time is up: it was loaded, or the document has changed."""
    for channel, turns in conversation.waiting.items():
        for turn in turns:
            _watch(state, conversation, channel, turn)


def _watch(state: Partition, conversation: Conversation, channel: str, turn: WaitingTurn) -> None:
    when = _due(state, channel, turn)
    if when is not None:
        state.waits.add(_SEPARATOR.join((channel, str(turn.turn_seq), conversation.id)), conversation.id, when)


def _named(state: Partition, conversation_id: str, name: str) -> tuple[str, WaitingTurn | None]:
    """The channel, and the turn that waits for it; None: it does so no more."""
    channel, seq, _ = name.split(_SEPARATOR, 2)
    conversation = state.conversations.get(conversation_id)
    turns = [] if conversation is None else conversation.waiting.get(channel, [])
    return channel, next((turn for turn in turns if turn.turn_seq == int(seq)), None)


def evolve_unassigned(state: Partition, conversation: Conversation, _: Entry, event: TurnUnassigned) -> None:
    """It waits for the channel no more."""
    if take_waiting(state, conversation, event.channel, event.turn_seq) is None:
        raise ImpossibleEvent(f"turn {event.turn_seq} does not wait for channel {event.channel}")


def advance_waits(state: Partition, at: int) -> None:
    """After `decide_waits` was evolved: what is over is forgotten, what is not due moves to where it is. Derived state
    only."""
    for conversation_id, name in state.waits.candidates(at):
        channel, turn = _named(state, conversation_id, name)
        when = None if turn is None else _due(state, channel, turn)
        state.waits.drop(name)
        if when is not None:
            state.waits.add(name, conversation_id, when)
