"""What operators do to who owns a conversation (rule 10): move it to a member, or release it from who has it.

- **Move**: the member gets the conversation's open runs of its group now, and its turns from here on, for as long as it
  is there and does not drain; then the hash decides again. A run goes on where it stopped if the member can continue it
  and begins anew if not; one that has an answer ends as answered.
- **Release**: a move is undone, and each open run is taken from who has it and given to the next in rank, or to the
  same member again where there is no other. Turns from here on go to whoever the hash says: maybe to the same member.

A run that waits in line keeps its place. A call that is executed once at most stays with its member: whether that did
some of it nobody knows. One that is to stop ends. What an operator noted (`OperatorActed`) changes nothing.
"""

from __future__ import annotations

from streams.core.commands import MoveConversation, NoteAction
from streams.core.draft import Draft
from streams.core.due import FAIL, is_kept, on_owner_loss
from streams.core.events import (
    ConversationMoved,
    Entry,
    Event,
    MoveReason,
    OperatorActed,
    Refused,
    RefusedReason,
    RunStatus,
)
from streams.core.limits import problem_of_ids, problem_of_text
from streams.core.ownership import change_owner
from streams.core.refusals import NO_CONVERSATION, refused
from streams.core.refusing import next_in_rank
from streams.core.routing import plan_of
from streams.core.runs import CANCELLED, end, give
from streams.core.state import Conversation, ImpossibleEvent, Member, Partition, Run

# ------------------------------------------------------------------------------------------------ decide


def decide_move(state: Partition, command: MoveConversation) -> list[Event]:
    """See above."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    problem = _problem(state, conversation, command)
    if problem is not None:
        return [refused(command, *problem)]
    to = None if command.to is None else state.members[command.to]
    group = command.group if to is None else to.group
    draft = Draft()
    draft.add(
        ConversationMoved(
            conversation_id=conversation.id,
            group=group,
            to=command.to,
            by=command.by,
            reason=command.reason,
            ref=command.ref,
        )
    )
    if to is not None:
        change_owner(draft, conversation, group, to.id, state.groups[group].members, by_operator=True)
    for run in conversation.runs.values():
        if not group or run.group == group:
            _take(state, draft, conversation, run, to=to, at=command.at)
    return draft.events


def _take(state: Partition, draft: Draft, conversation: Conversation, run: Run, *, to: Member | None, at: int) -> None:
    """Give the run to `to`, or, None, to another than who has it."""
    if run.queued or (to is not None and run.member == to.id) or is_kept(state, run):
        return
    if run.cancelling:
        end(draft, conversation, run, RunStatus.CANCELLED, CANCELLED)
        return
    if run.member is not None and on_owner_loss(state, run) == FAIL:
        return
    heir = to or heir_of(state, run, conversation.id, at)
    if heir is not None:
        give(state, draft, conversation, run, to=heir, reason=MoveReason.OPERATOR)


def heir_of(state: Partition, run: Run, conversation_id: str, at: int) -> Member | None:
    """Who gets a run that is released; None: it stays as it is, for nobody has it, or only one that drains would."""
    if run.member is None:
        return None
    others = next_in_rank(state, run, {*run.refusers, run.member}, conversation_id, at)
    holder = state.members[run.member]
    return others or (None if holder.draining else holder)


def _problem(
    state: Partition, conversation: Conversation, command: MoveConversation
) -> tuple[RefusedReason, str] | None:
    if not conversation.open:
        return RefusedReason.CONVERSATION_CLOSED, "conversation_id: it is closed"
    if conversation.handed_over:
        return RefusedReason.HANDED_OVER, "conversation_id: a human answers in it"
    problem = problem_of_ids((("by", command.by), ("to", command.to))) or problem_of_text("reason", command.reason)
    if problem is not None or command.to is None:
        return problem
    member = state.members.get(command.to)
    if member is None:
        return RefusedReason.AGENT_UNAVAILABLE, f"to: there is no member {command.to}"
    if member.draining:
        return RefusedReason.AGENT_UNAVAILABLE, f"to: {member.id} drains"
    plan = plan_of(state, conversation.channel)
    groups = {run.group for run in conversation.runs.values()} | {each.id for each in (plan.groups if plan else ())}
    if member.group not in groups:
        return RefusedReason.AGENT_UNAVAILABLE, f"to: {member.group} gets no turns of channel {conversation.channel}"
    return None


def decide_note(_: Partition, command: NoteAction) -> list[Event]:
    """It is in the journal."""
    ids = (("action", command.action), ("by", command.by), ("id", command.id))
    problem = (
        problem_of_ids(ids) or problem_of_text("subject", command.subject) or problem_of_text("reason", command.reason)
    )
    if problem is not None:
        return [Refused(reason=problem[0], ref=command.ref, detail=problem[1])]
    return [
        OperatorActed(
            action=command.action,
            subject=command.subject,
            by=command.by,
            reason=command.reason,
            id=command.id,
        )
    ]


# ------------------------------------------------------------------------------------------------ evolve


def evolve_conversation_moved(state: Partition, conversation: Conversation, _: Entry, event: ConversationMoved) -> None:
    """Remember whom it was moved to; forget who is gone."""
    if not conversation.open or conversation.handed_over:
        raise ImpossibleEvent(f"conversation {conversation.id} cannot be moved: it is closed, or with a human")
    pins = {group: member for group, member in (conversation.pins or {}).items() if member in state.members}
    if event.to is not None:
        pins[event.group] = event.to
    elif event.group:
        pins.pop(event.group, None)
    else:
        pins = {}
    conversation.pins = pins or None
    conversation.plan = None
