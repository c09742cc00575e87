"""Runs whose time is up (rule 9): which ones, in which order, and what becomes of them."""

from __future__ import annotations

from typing import Final

from streams.core.draft import Draft
from streams.core.due import FAIL, TRY_AGAIN_MS, due, is_kept, on_owner_loss, waits_for_room
from streams.core.events import MoveReason, RunStatus
from streams.core.longest import Waiting
from streams.core.ownership import owner_of
from streams.core.runs import end, give, is_answered, lose_owner, move
from streams.core.state import Conversation, Member, Partition, Run

TRIES_PER_TICK: Final = 16
"""Runs of one group that all had refused and that are tried again at once, the longest waiting first: a group without
room must not fill the journal with refusals. An end of a run lets the next one in at once."""


def decide_due(state: Partition, draft: Draft, at: int) -> None:
    """Fire the time-outs that are due, and try what waits for room again, oldest first."""
    fired = _tried_again(state, at)
    for conversation_id, run_id in state.timers.candidates(at):
        run = state.conversations[conversation_id].runs[run_id]
        when = due(state, run)
        if when is not None and when <= at:
            fired.append((when, conversation_id, run.turn_seq, run_id))
    for _, conversation_id, _, run_id in sorted(fired):
        conversation = state.conversations[conversation_id]
        _time_out(state, draft, conversation, conversation.runs[run_id], at)


def _tried_again(state: Partition, at: int) -> list[Waiting]:
    """Runs that all had refused `TRY_AGAIN_MS` ago, a few of each group; those whose deadline is over end by that."""
    since = at - TRY_AGAIN_MS
    if state.restarted_at > since:
        return []

    def is_tried(waiting: Waiting) -> bool:
        run = state.conversations[waiting[1]].runs[waiting[3]]
        return waits_for_room(state, run) and not _is_past_deadline(run, at)

    return [
        (max(placed_at, state.restarted_at) + TRY_AGAIN_MS, conversation_id, turn_seq, run_id)
        for group, longest in state.longest.items()
        if group in state.groups
        for placed_at, conversation_id, turn_seq, run_id in longest.firsts(TRIES_PER_TICK, is_tried, until=since)
    ]


def _is_past_deadline(run: Run, at: int) -> bool:
    """It has one, which does not stand still, and that is over."""
    return bool(run.deadline_at) and at >= run.deadline_at and (run.progress is None or not run.progress.paused_at)


def _time_out(state: Partition, draft: Draft, conversation: Conversation, run: Run, at: int) -> None:
    if run.member is not None and run.progress is not None and run.progress.asks:
        end(draft, conversation, run, RunStatus.TIMED_OUT, "interrupt_expired")
    elif _is_past_deadline(run, at):
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
