"""A member that does not take a run it was given (rule 9): the next in rank gets it, and nobody twice.

A run that has begun with its member is not refused any more, and a refusal of a run that its sender does not hold says
nothing new: both change nothing. A run that is to stop ends with its refusal. When every member of the group refused,
an invocation ends (`agent_busy`), and so does a turn where the group says `busy: refuse`; else the run waits, without a
member, and is tried again when a run of the group ends in this partition, when a member joins, or after `TRY_AGAIN_MS`.
"""

from __future__ import annotations

from collections.abc import Collection

from streams.core.commands import RefuseRun
from streams.core.draft import Draft
from streams.core.events import Event, MoveReason, RunStatus
from streams.core.limits import problem_of_text
from streams.core.ownership import choose
from streams.core.refusals import refused
from streams.core.routing import REFUSE
from streams.core.runs import CANCELLED, end, give, move
from streams.core.state import Member, Partition, Run

AGENT_BUSY = "agent_busy"


def decide_refuse_run(state: Partition, command: RefuseRun) -> list[Event]:
    """See above."""
    id_ = command.conversation_id
    conversation = state.conversations.get(id_)
    run = None if conversation is None else conversation.runs.get(command.run_id)
    if conversation is None or run is None or not _may_refuse(command, run):
        return []
    problem = problem_of_text("reason", command.reason)
    if problem is not None:
        return [refused(command, *problem)]
    to = next_in_rank(state, run, {*run.refusers, command.member}, id_, command.at)
    draft = Draft()
    if run.cancelling:
        end(draft, conversation, run, RunStatus.CANCELLED, CANCELLED)
    elif to is not None:
        give(state, draft, conversation, run, to=to, reason=MoveReason.REFUSED)
    elif run.invocation is not None or state.config.group(run.group).busy == REFUSE:
        end(draft, conversation, run, RunStatus.FAILED, AGENT_BUSY)
    else:
        move(draft, conversation, run, to=None, reason=MoveReason.REFUSED)
    return draft.events


def next_in_rank(state: Partition, run: Run, refusers: Collection[str], conversation_id: str, at: int) -> Member | None:
    """Who is asked next. That others refused is no reason to give anything to one that drains."""
    members = state.groups[run.group].members
    left = [member for member in members.values() if member.id not in refusers]
    owner = choose(left, conversation_id, at)
    if owner is None or (members[owner].draining and not all(member.draining for member in members.values())):
        return None
    return members[owner]


def _may_refuse(command: RefuseRun, run: Run) -> bool:
    """Its sender holds it, at this epoch, and has not begun."""
    begun = run.progress is not None and not run.progress.inherited
    return run.member == command.member and run.epoch == command.run_epoch and not begun
