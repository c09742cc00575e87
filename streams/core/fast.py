"""The common turn in one go: what `decide_turn` and `evolve_turn` come to when there is nothing to decide anew.

That is: a known, open conversation that asks nothing; a turn from its own channel, which has one group and none without
members; an owner chosen before by all its members, with the roster and the document unchanged since; no limit on when a
run begins.
Nearly every turn under load is one of these. A property test holds it to the same entry and the same state as the long
way.
"""

from __future__ import annotations

from streams.core import keys
from streams.core.commands import CommitTurn
from streams.core.events import Assignment, Entry, TurnCommitted
from streams.core.limits import problem_of_turn
from streams.core.state import KeyRecord, Partition, Run


def step_turn(state: Partition, command: CommitTurn, writer_epoch: int) -> Entry | None:
    """The entry, evolved; None, and nothing changed, when the turn needs the long way."""
    id_ = command.conversation_id
    conversation = state.conversations.get(id_)
    if conversation is None:
        return None
    plan = conversation.plan
    if plan is None or plan is not state.plans.get(conversation.channel) or (group := plan.only) is None:
        return None
    at = command.at
    if not conversation.open or conversation.asking or plan.waiting or at < state.at:
        return None
    turn = command.turn
    if turn.invocation is not None or turn.channel != conversation.channel:
        return None
    if writer_epoch != state.writer_epoch or problem_of_turn(turn) is not None:
        return None
    seq = conversation.head + 1
    timestamp = command.timestamp
    if turn.key is not None:
        key = f"user:{turn.sender}:{turn.key}"
        taken = conversation.keys
        if key in taken or (
            (conversation.fingerprints or conversation.older) and keys.kept(conversation, key) is not None
        ):
            return None
        issued = conversation.keys_issued + 1
        if issued % keys.FORGET_EVERY:
            conversation.keys_issued = issued
            taken[key] = KeyRecord(seq, turn.id, at, timestamp, issued)
        else:
            keys.take(conversation, key, seq, turn.id, at=at, timestamp=timestamp)
    owner = conversation.owners[group]
    run_id = f"{id_}/{seq}/{group}"
    lsn = state.lsn + 1
    conversation.head = seq
    conversation.lsn = state.lsn = lsn
    state.at = at
    conversation.runs[run_id] = Run(run_id, seq, turn.id, group, owner, at, turn.sender)
    held = state.members[owner].conversations
    held[id_] = held.get(id_, 0) + 1
    state.dirty.add(id_)
    event = TurnCommitted(turn, (Assignment(group, owner, run_id),), conversation_id=id_, seq=seq, ref=command.ref)
    return Entry(lsn, at, timestamp, writer_epoch, event)
