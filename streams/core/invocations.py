"""Invocations: a turn that calls one group, by an id of the caller's, with a claim on its thread (rules 7, 9).

A thread is a conversation. An invocation's id is unique in it: the same id with the same input is a repeat, with
another input a conflict (the input's hash is part of the turn's message id, which is what the key stands for). It goes
to its group alone. While an invocation of the thread or a run of its group is open, the next one is refused
(`conversation_busy`), or waits in line, or interrupts, as it or its group says; it never runs beside another.

It ends as every run does, and besides: by its deadline; with its owner, unless it or the group says that it may be
executed again; cancelled, at once if it has not begun, else when its agent says so or is gone; released by an operator
once its owner is gone.
"""

from __future__ import annotations

from typing import Final

from streams.core import keys
from streams.core.commands import CancelRun, CommitTurn, ReleaseRun
from streams.core.draft import Draft
from streams.core.events import (
    Assignment,
    Duplicate,
    Event,
    Invocation,
    RefusedReason,
    RunCancelling,
    RunEnded,
    RunStatus,
    TurnCommitted,
)
from streams.core.ids import channel_of_group, invocation_message_id, key_of_turn, run_id
from streams.core.limits import problem_of_ids, problem_of_text, problem_of_turn
from streams.core.ownership import change_owner, choose
from streams.core.policies import is_full
from streams.core.refusals import NO_CONVERSATION, refused, repeat_of
from streams.core.routing import AGENT_KIND, DELIVER, ENQUEUE, INTERRUPT, POLICIES, REJECT
from streams.core.runs import CANCELLED, INTERRUPTED, close_open_work, end
from streams.core.state import Conversation, Member, Partition, Run, Update

DEADLINE_MAX_MS: Final = 3_600_000
"""One hour."""

RELEASED: Final = "released"


def decide_invocation(
    state: Partition, conversation: Conversation, command: CommitTurn, invocation: Invocation
) -> list[Event]:
    """A repeat, a refusal, or the turn with its one run. Refusals come in a turn's order, the thread's claim last."""
    turn = command.turn
    key = key_of_turn(turn)
    if key is not None and (known := keys.find(conversation, key, command.at)) is not None:
        if known.id != turn.id:
            detail = f"id: the thread has an invocation {invocation.id} with another input"
            return [refused(command, RefusedReason.INVOCATION_CONFLICT, detail)]
        return [keys.repeat(conversation, known, key, command.ref, turn.client_id)]
    if not conversation.open:
        return [refused(command, RefusedReason.CONVERSATION_CLOSED, "thread: it is closed")]
    if conversation.handed_over:
        return [refused(command, RefusedReason.HANDED_OVER, "thread: a human answers in it")]
    problem = problem_of_turn(turn) or _problem_of(conversation, turn.id, invocation)
    if problem is not None:
        return [refused(command, *problem)]
    if not _is_agents(state, channel_of_group(invocation.group)):
        detail = f"agent: {channel_of_group(invocation.group)} is not an active channel of agents"
        return [refused(command, RefusedReason.CHANNEL_UNKNOWN, detail)]
    members = _ready(state, invocation.group)
    if not members:
        detail = f"agent: {invocation.group} has no member that takes calls"
        return [refused(command, RefusedReason.AGENT_UNAVAILABLE, detail)]
    return _decide_claim(state, conversation, command, invocation, members)


def _decide_claim(
    state: Partition, conversation: Conversation, command: CommitTurn, invocation: Invocation, members: list[Member]
) -> list[Event]:
    group = invocation.group
    before = [run for run in conversation.runs.values() if run.group == group or run.invocation is not None]
    policy = invocation.policy or state.config.group(group).policy
    draft = Draft()
    queued = bool(before) and policy == ENQUEUE
    if before and policy in {REJECT, DELIVER}:
        detail = f"thread: {before[0].invocation or before[0].id} is open in it"
        return [refused(command, RefusedReason.CONVERSATION_BUSY, detail)]
    if queued and is_full(state, group, before):
        detail = f"thread: as many as may wait in line for {group} already"
        return [refused(command, RefusedReason.CONVERSATION_BUSY, detail)]
    if policy == INTERRUPT:
        for run in before:
            end(draft, conversation, run, RunStatus.CANCELLED, INTERRUPTED)
    seq = draft.next_seq(conversation)
    assigned: tuple[Assignment, ...] = ()
    if not queued:
        owner = choose(members, conversation.id, command.at, pinned=conversation.pinned(group))
        change_owner(draft, conversation, group, owner, state.groups[group].members)
        assigned = (Assignment(group, owner, run_id(conversation.id, seq, group)),)
    draft.add(
        TurnCommitted(
            conversation_id=conversation.id,
            seq=seq,
            turn=command.turn,
            assigned=assigned,
            queued=(group,) if queued else (),
            ref=command.ref,
        )
    )
    return draft.events


def _ready(state: Partition, group: str) -> list[Member]:
    """Members that take calls: those that do not drain."""
    known = state.groups.get(group)
    return [] if known is None else [member for member in known.members.values() if not member.draining]


def _is_agents(state: Partition, channel: str) -> bool:
    known = state.config.channels.get(channel)
    return known is not None and known.active and known.kind == AGENT_KIND


def _problem_of(conversation: Conversation, turn_id: str, invocation: Invocation) -> tuple[RefusedReason, str] | None:
    ids = (("id", invocation.id), ("agent", invocation.group), ("input_hash", invocation.input_hash))
    if (problem := problem_of_ids(ids)) is not None:
        return problem
    if not 0 <= invocation.deadline_ms <= DEADLINE_MAX_MS:
        return RefusedReason.INVALID_TEXT, f"deadlineMs: 0 to {DEADLINE_MAX_MS}"
    if invocation.policy is not None and invocation.policy not in POLICIES:
        return RefusedReason.INVALID_TEXT, f"policy: one of {', '.join(POLICIES)}"
    if turn_id != invocation_message_id(conversation.id, invocation.id, invocation.input_hash):
        return RefusedReason.INVALID_TEXT, "turn.id: it must follow from the invocation's id and input"
    return None


def decide_cancel(state: Partition, command: CancelRun) -> list[Event]:
    """A run that has not begun, or waits for a person, ends at once; one at work is asked to stop. Of one that is over,
    or asked already, this is a repeat."""
    conversation, refusal = _conversation(state, command)
    if conversation is None:
        return refusal
    run = conversation.runs.get(command.run_id)
    if run is None or run.cancelling:
        if run is None and command.run_id not in conversation.ended:
            return [refused(command, RefusedReason.RUN_NOT_FOUND, "run: no such run")]
        return [_repeat(command)]
    if run.progress is None or run.member is None or run.progress.asks:
        return _ended(conversation, run, command)
    return [
        RunCancelling(
            conversation_id=conversation.id,
            run_id=run.id,
            turn_seq=run.turn_seq,
            run_epoch=run.epoch,
            group=run.group,
            member=run.member,
            by=command.by,
            reason=command.reason,
            ref=command.ref,
        )
    ]


def decide_release(state: Partition, command: ReleaseRun) -> list[Event]:
    """An operator says how it is known that the run's old worker has stopped; refused while its member is here."""
    conversation, refusal = _conversation(state, command)
    if conversation is None:
        return refusal
    if not command.proof.strip():
        detail = "proof: say how it is known that the run's old worker has stopped"
        return [refused(command, RefusedReason.INVALID_TEXT, detail)]
    run = conversation.runs.get(command.run_id)
    if run is None:
        if command.run_id not in conversation.ended:
            return [refused(command, RefusedReason.RUN_NOT_FOUND, "run: no such run")]
        return [_repeat(command)]
    if run.member in state.members:
        detail = f"run: its member {run.member} is here; drain or stop it, or cancel the run"
        return [refused(command, RefusedReason.MEMBER_LIVE, detail)]
    return _ended(conversation, run, command)


def _conversation(state: Partition, command: CancelRun | ReleaseRun) -> tuple[Conversation | None, list[Event]]:
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return None, [refused(command, *NO_CONVERSATION)]
    problem = problem_of_ids((("run_id", command.run_id), ("by", command.by))) or problem_of_text(
        "reason", command.reason
    )
    if problem is None and isinstance(command, ReleaseRun):
        problem = problem_of_text("proof", command.proof)
    if problem is not None:
        return None, [refused(command, *problem)]
    return conversation, []


def _ended(conversation: Conversation, run: Run, command: CancelRun | ReleaseRun) -> list[Event]:
    released = isinstance(command, ReleaseRun)
    draft = Draft()
    close_open_work(draft, conversation, run)
    draft.add(
        RunEnded(
            conversation_id=conversation.id,
            run_id=run.id,
            turn_seq=run.turn_seq,
            group=run.group,
            member=run.member,
            run_epoch=run.epoch,
            status=RunStatus.OWNER_GONE if released else RunStatus.CANCELLED,
            reason=RELEASED if released else CANCELLED,
            by=command.by,
            detail=f"{command.reason}: {command.proof}" if isinstance(command, ReleaseRun) else command.reason,
            ref=command.ref,
        )
    )
    return draft.events


def _repeat(command: CancelRun | ReleaseRun) -> Duplicate:
    return repeat_of(command, Update(0, command.run_id, 0), f"{type(command).__name__}:{command.run_id}")
