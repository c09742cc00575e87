"""A conversation's life (rule 10) and what people say in it (rules 1, 3, 8).

A turn, in this order: unknown conversation; a repeat (`Duplicate`); closed; content (sizes, text); channel not
active; one that may not write here. What passes gets the next seq and, in each group that its conversation's channel is
routed to, an owner:

- a group whose run asks something (an open interrupt of a run that has a member) gets it as the answer: the turn
  joins that run and opens none there. One ask takes one answer: the one that `reply_to` names, else the oldest. Other
  groups get their own run;
- every other group gets a run of its own, held by the rendezvous winner. Where that is another member than the last
  turn's, `OwnerChanged` comes first. A group whose policy is not `deliver` may be busy: see `policies`;
- an agent channel without any member: the turn waits for the first group that joins there.

A conversation's people are those of its own channel, and of the people's channels that this is routed to. Whichever of
them a turn comes from, it goes to the agents of the conversation's own channel.

A conversation whose own channel is one of agents is that channel's to follow and to write in: its turns go to the
other agents' channels that it is routed to, and never to the channel itself.

A channel that is routed nowhere is for people among themselves: its turns open no run and wait for nobody.

Close ends the open runs (cancelled, reason `closed`), and with `ConversationClosed` the turns that wait. Close of a
closed conversation and reopen of an open one are repeats: `Duplicate` of the last such update, seq 0 when there was
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from streams.core import keys
from streams.core.commands import CloseConversation, CommitTurn, OpenConversation, ReopenConversation
from streams.core.draft import Draft
from streams.core.due import watch
from streams.core.events import (
    Assignment,
    ConversationClosed,
    ConversationOpened,
    ConversationReopened,
    Entry,
    Event,
    OwnerChanged,
    RefusedReason,
    RunStatus,
    TurnCommitted,
)
from streams.core.ids import is_of_one, key_of_turn, open_key, run_id
from streams.core.invocations import decide_invocation
from streams.core.limits import problem_of_ids, problem_of_text, problem_of_turn
from streams.core.ownership import change_owner, choose
from streams.core.policies import make_room, rejecting, why_not_taken
from streams.core.refusals import NO_CONVERSATION, refused, repeat_of
from streams.core.routing import AGENT_KIND, NOBODY, Plan, may_write, owns, plan_of
from streams.core.run_events import bind, forget_waiting, note_asks, open_run
from streams.core.runs import end
from streams.core.state import Conversation, ImpossibleEvent, Latest, Partition, Run, Terms, Update, WaitingTurn
from streams.core.unassigned import refuse_unassigned, wait

OWNERS_MAX: Final = 64
"""Beyond so many owners, those are forgotten that were a group by themselves (`ungrouped: each`) and are gone: their
group does not come again, and a conversation would remember every connection that ever was."""

# ------------------------------------------------------------------------------------------------ decide


def decide_open(state: Partition, command: OpenConversation) -> list[Event]:
    """A repeat of the key that opened it is a repeat; any other second opening is refused."""
    id_ = command.conversation_id
    known = state.conversations.get(id_)
    if known is not None:
        record = None if command.key is None else keys.find(known, open_key(command.key), command.at)
        if record is not None and command.key is not None:
            return [keys.repeat(known, record, open_key(command.key), command.ref)]
        return [refused(command, RefusedReason.CONVERSATION_EXISTS, "conversation_id: it exists")]
    problem = problem_of_ids(
        (
            ("conversation_id", id_),
            ("key", command.key),
            ("participant", command.participant),
            ("external_id", command.external_id),
        )
    ) or problem_of_text("metadata", command.metadata)
    if problem is not None:
        return [refused(command, *problem)]
    if plan_of(state, command.channel) is None:
        detail = f"channel: {command.channel} is not an active channel of document version {state.config.version}"
        return [refused(command, RefusedReason.CHANNEL_UNKNOWN, detail)]
    if state.config.channel(command.channel).kind == AGENT_KIND and not owns(state.config, command.channel):
        detail = f"channel: {command.channel} is of agents and routed nowhere: nobody could write in its conversations"
        return [refused(command, RefusedReason.CHANNEL_NOT_ROUTED, detail)]
    return [
        ConversationOpened(
            conversation_id=id_,
            channel=command.channel,
            participant=command.participant,
            external_id=command.external_id,
            key=command.key,
            metadata=command.metadata,
            ref=command.ref,
        )
    ]


def decide_turn(state: Partition, command: CommitTurn) -> list[Event]:
    """The order of refusals and who gets it: see above."""
    id_ = command.conversation_id
    conversation = state.conversations.get(id_)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    turn = command.turn
    if turn.invocation is not None:
        return decide_invocation(state, conversation, command, turn.invocation)
    key = key_of_turn(turn)
    if key is not None and (known := keys.find(conversation, key, command.at)) is not None:
        return [keys.repeat(conversation, known, key, command.ref, turn.client_id)]
    if not conversation.open:
        return [refused(command, RefusedReason.CONVERSATION_CLOSED, "conversation_id: it is closed")]
    problem = problem_of_turn(turn)
    if problem is not None:
        return [refused(command, *problem, turn.client_id)]
    plan = plan_of(state, conversation.channel)
    if plan is None:
        detail = f"channel: {conversation.channel} is not an active channel of document version {state.config.version}"
        return [refused(command, RefusedReason.CHANNEL_UNKNOWN, detail)]
    if not may_write(state.config, conversation.channel, turn.channel):
        detail = f"channel: {conversation.channel} is not routed to {turn.channel}"
        return [refused(command, RefusedReason.CHANNEL_NOT_ROUTED, detail, turn.client_id)]
    # A human answers: it opens no run and waits for nobody.
    return _decide_taken(state, conversation, command, NOBODY if conversation.handed_over else plan)


def _decide_taken(state: Partition, conversation: Conversation, command: CommitTurn, plan: Plan) -> list[Event]:
    """The turn with its runs, unless a group that is busy rejects it."""
    id_, turn = conversation.id, command.turn
    draft = Draft()
    asking = _asking_run(conversation, turn.reply_to) if conversation.asking else None
    left_out = [] if asking is None else [asking[0].group]
    queued: tuple[str, ...] = ()
    if not plan.plain:
        busy = rejecting(state, conversation, plan)
        if busy and asking is None:
            return [refused(command, RefusedReason.BUSY, why_not_taken(state, busy[0]), turn.client_id)]
        left_out += busy
        queued = make_room(state, draft, conversation, [g.id for g in plan.groups if g.id not in left_out])
        left_out += queued
    seq = draft.next_seq(conversation)
    assigned = _assign(conversation, plan, _When(command.at, seq), left_out, draft)
    draft.add(
        TurnCommitted(
            conversation_id=id_,
            seq=seq,
            turn=turn,
            assigned=assigned,
            queued=queued,
            waiting=plan.waiting,
            joins_run=None if asking is None else asking[0].id,
            interrupt_id=None if asking is None else asking[1],
            ref=command.ref,
        )
    )
    if plan.waiting:
        given = bool(assigned or queued or asking)
        refuse_unassigned(state, draft, conversation, WaitingTurn(seq, turn.id), plan.waiting, given=given)
    return draft.events


class _When(NamedTuple):
    """A turn's log time and seq."""

    at: int
    seq: int


def _assign(
    conversation: Conversation, plan: Plan, when: _When, left_out: Sequence[str], draft: Draft
) -> tuple[Assignment, ...]:
    """One run in each group but those left out: the one that the turn joins, and those that give it none now.
    `OwnerChanged` goes to the draft."""
    id_, seq = conversation.id, when.seq
    owners = conversation.owners
    if conversation.plan is plan and not left_out:  # chosen before, by all members, and nothing changed since
        if (only := plan.only) is not None:
            return (Assignment(only, owners[only], f"{id_}/{seq}/{only}"),)
        return tuple([Assignment(g.id, owners[g.id], f"{id_}/{seq}/{g.id}") for g in plan.groups])
    assigned = []
    for group in plan.groups:
        if group.id in left_out:
            continue
        owner = choose(group.members.values(), id_, when.at, pinned=conversation.pinned(group.id))
        change_owner(draft, conversation, group.id, owner, group.members)
        assigned.append(Assignment(group.id, owner, run_id(id_, seq, group.id)))
    return tuple(assigned)


def _asking_run(conversation: Conversation, reply_to: str | None) -> tuple[Run, str] | None:
    """The run and the interrupt that a turn answers. (One that is to stop asks nothing: it ends instead.)"""
    asks = [
        (seq, run, ask)
        for run in conversation.runs.values()
        if run.member is not None and run.progress is not None
        for ask, seq in run.progress.asks.items()
    ]
    if not asks:
        return None
    _, run, ask = min((a for a in asks if a[2] == reply_to), default=None, key=_by_seq) or min(asks, key=_by_seq)
    return run, ask


def _by_seq(ask: tuple[int, Run, str]) -> int:
    return ask[0]


def decide_close(state: Partition, command: CloseConversation) -> list[Event]:
    """End what is open, then close."""
    id_ = command.conversation_id
    conversation = state.conversations.get(id_)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    if not conversation.open:
        return [repeat_of(command, conversation.update, "close")]
    problem = problem_of_ids((("id", command.id), ("by", command.by))) or problem_of_text("reason", command.reason)
    if problem is not None:
        return [refused(command, *problem)]
    draft = Draft()
    for run in conversation.runs.values():
        end(draft, conversation, run, RunStatus.CANCELLED, "closed")
    draft.add(
        ConversationClosed(
            conversation_id=id_,
            seq=draft.next_seq(conversation),
            by=command.by,
            reason=command.reason,
            id=command.id,
            ref=command.ref,
        )
    )
    return draft.events


def decide_reopen(state: Partition, command: ReopenConversation) -> list[Event]:
    """Take turns again; what was ended stays ended."""
    id_ = command.conversation_id
    conversation = state.conversations.get(id_)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    if conversation.open:
        return [repeat_of(command, conversation.update, "reopen")]
    if conversation.erased:
        detail = "conversation_id: it is erased, and stays closed; begin a new one"
        return [refused(command, RefusedReason.CONVERSATION_CLOSED, detail)]
    problem = problem_of_ids((("id", command.id), ("by", command.by)))
    if problem is not None:
        return [refused(command, *problem)]
    return [
        ConversationReopened(
            conversation_id=id_, seq=conversation.head + 1, by=command.by, id=command.id, ref=command.ref
        )
    ]


# ------------------------------------------------------------------------------------------------ evolve


def evolve_conversation_opened(state: Partition, entry: Entry, event: ConversationOpened) -> Conversation:
    """The new conversation, loaded."""
    id_ = event.conversation_id or ""
    if id_ in state.conversations:
        raise ImpossibleEvent(f"conversation {id_} is open already")
    conversation = state.conversations[id_] = Conversation(id_, event.channel)
    if event.key is not None:
        keys.take(conversation, open_key(event.key), 0, id_, at=entry.at, timestamp=entry.timestamp)
    return conversation


def evolve_turn(state: Partition, conversation: Conversation, entry: Entry, event: TurnCommitted) -> None:
    """Its key, its runs, what waits, and the answer that it may be."""
    turn = event.turn
    seq = event.seq
    if not conversation.open:
        raise ImpossibleEvent(f"conversation {conversation.id} is closed: it takes no turn")
    key = key_of_turn(turn)
    if key is not None:
        keys.take(conversation, key, seq, turn.id, at=entry.at, timestamp=entry.timestamp)
    speaker = turn.sender if turn.invocation is None else ""
    origin = "" if turn.channel == conversation.channel or turn.invocation is not None else turn.channel
    conversation.latest = Latest(seq, turn.id, speaker, origin=origin)
    owners = conversation.owners
    for assignment in event.assigned:
        group, member = assignment.group, assignment.member
        run = Run(assignment.run_id, seq, turn.id, group, member, entry.at, speaker)
        open_run(state, conversation, bind(state, run, turn.invocation, entry.at, origin))
        if member is not None:
            owners[group] = member
    if len(owners) > OWNERS_MAX:
        gone = [group for group in owners if is_of_one(group) and group not in state.groups]
        for group in gone:
            del owners[group]
    for group in event.queued:
        run = Run(run_id(conversation.id, seq, group), seq, turn.id, group, None, entry.at, terms=Terms(queued=True))
        open_run(state, conversation, bind(state, run, turn.invocation, entry.at, origin))
    for channel in event.waiting:
        wait(state, conversation, channel, WaitingTurn(seq, turn.id, at=entry.at, origin=origin))
    if event.joins_run is not None:
        _join(state, conversation, entry, event)
        return
    if conversation.handed_over or turn.invocation is not None:
        return
    plan = plan_of(state, conversation.channel)
    if conversation.plan is not plan and plan is not None and plan.plain:
        conversation.plan = plan if entry.at >= plan.settled_at else None


def _join(state: Partition, conversation: Conversation, entry: Entry, event: TurnCommitted) -> None:
    run = conversation.runs.get(event.joins_run or "")
    progress = None if run is None else run.progress
    if run is None or progress is None or event.interrupt_id not in progress.asks:
        raise ImpossibleEvent(f"run {event.joins_run} does not ask {event.interrupt_id}")
    del progress.asks[event.interrupt_id]
    conversation.asking -= 1
    note_asks(run, progress, entry.at)
    progress.joined.append(event.turn.id)
    progress.active_at = entry.at
    if run.adopted_at:  # who adopted it could say nothing until now
        run.adopted_at = entry.at
    watch(state, conversation, run)


def evolve_owner_changed(_: Partition, conversation: Conversation, __: Entry, event: OwnerChanged) -> None:
    """The group's owner from the next turn on."""
    if event.owner is None:
        conversation.owners.pop(event.group, None)
    else:
        conversation.owners[event.group] = event.owner


def evolve_closed(state: Partition, conversation: Conversation, entry: Entry, event: ConversationClosed) -> None:
    """Nothing of it waits any more."""
    if not conversation.open or conversation.runs:
        raise ImpossibleEvent(f"conversation {conversation.id} cannot close: it is closed, or has open runs")
    conversation.open = False
    conversation.update = Update(event.seq, event.id, entry.timestamp)
    forget_waiting(state, conversation)


def evolve_reopened(_: Partition, conversation: Conversation, entry: Entry, event: ConversationReopened) -> None:
    """It takes turns again."""
    if conversation.open or conversation.erased:
        raise ImpossibleEvent(f"conversation {conversation.id} is open, or erased")
    conversation.open = True
    conversation.update = Update(event.seq, event.id, entry.timestamp)
