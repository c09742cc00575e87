"""Runs whose time is up (rule 9): which ones, in which order, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from streams.core.draft import Draft
from streams.core.due import FAIL, due, is_kept, on_owner_loss, waits_for_room
from streams.core.events import MoveReason, RunStatus
from streams.core.ownership import owner_of
from streams.core.runs import end, give, is_answered, lose_owner, move
from streams.core.state import Conversation, Member, Partition, Run

TRIES_PER_TICK: Final = 16
"""Runs of one group that all had refused and that are tried again at once, the longest waiting first: a group without
room must not fill the journal with refusals. An end of a run lets the next one in at once."""


def decide_due(state: Partition, draft: Draft, at: int) -> None:
    """Fire the time-outs that are due, oldest first."""
    fired = []
    for conversation_id, run_id in state.timers.candidates(at):
        conversation = state.conversations[conversation_id]
        run = conversation.runs[run_id]
        when = due(state, run)
        if when is not None and when <= at:
            fired.append((when, conversation_id, run.turn_seq, run_id))
    tried: Counter[str] = Counter()
    for _, conversation_id, _, run_id in sorted(fired):
        conversation = state.conversations[conversation_id]
        run = conversation.runs[run_id]
        if waits_for_room(state, run) and not (run.deadline_at and at >= run.deadline_at):
            tried[run.group] += 1
            if tried[run.group] > TRIES_PER_TICK:
                continue
        _time_out(state, draft, conversation, run, at)


def _time_out(state: Partition, draft: Draft, conversation: Conversation, run: Run, at: int) -> None:
    if run.member is not None and run.progress is not None and run.progress.asks:
        end(draft, conversation, run, RunStatus.TIMED_OUT, "interrupt_expired")
    elif run.deadline_at and at >= run.deadline_at and (run.progress is None or not run.progress.paused_at):
        end(draft, conversation, run, RunStatus.TIMED_OUT, "deadline")
    elif run.member is None and is_kept(state, run):
        _give_up_waiting(state, draft, conversation, run, at)
    elif waits_for_room(state, run):
        owner = owner_of(state, run.group, conversation.id, at)
        give(state, draft, conversation, run, to=state.members[owner or ""], reason=MoveReason.REFUSED)
    elif run.adopted_at and run.member is not None:
        to = heir_of_adopter(state, run, conversation.id, at)
        lose_owner(state, draft, conversation, run, to=to, reason=MoveReason.ADOPT_TIMEOUT)
    elif run.member is None and is_answered(run):
        end(draft, conversation, run, RunStatus.ANSWERED, "owner_gone_after_answer")
    elif run.member is None:
        end(draft, conversation, run, RunStatus.OWNER_GONE, "no_member")
    elif run.progress is None:
        end(draft, conversation, run, RunStatus.TIMED_OUT, "not_begun")
    elif is_answered(run):
        end(draft, conversation, run, RunStatus.ANSWERED, "watchdog_after_answer")
    else:
        end(draft, conversation, run, RunStatus.TIMED_OUT, "watchdog")


def _give_up_waiting(state: Partition, draft: Draft, conversation: Conversation, run: Run, at: int) -> None:
    """The process that the run was kept for did not come back in its grace: it is lost as any other is."""
    owner = owner_of(state, run.group, conversation.id, at)
    if on_owner_loss(state, run) == FAIL:
        end(draft, conversation, run, RunStatus.OWNER_GONE, "owner_gone")
    elif owner is not None:
        give(state, draft, conversation, run, to=state.members[owner], reason=MoveReason.MEMBER_LEFT)
    else:
        move(draft, conversation, run, to=None, reason=MoveReason.MEMBER_LEFT)


def heir_of_adopter(state: Partition, run: Run, conversation_id: str, at: int) -> Member:
    """Who is given an adopted run of which no frame came in time: its member; where that drains, the owner of now."""
    member = state.members[run.member or ""]
    owner = owner_of(state, run.group, conversation_id, at) if member.draining else None
    return member if owner is None else state.members[owner]


def advance_timers(state: Partition, at: int) -> None:
    """After `decide_due` was evolved: what was looked at and was not due moves to where it is. Derived state only."""
    for conversation_id, run_id in state.timers.candidates(at):
        run = state.conversations[conversation_id].runs[run_id]
        when = due(state, run)
        state.timers.drop(run_id)
        if when is not None:
            state.timers.add(run_id, conversation_id, when)
