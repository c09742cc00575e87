"""Handing a conversation to a human and back (rule 10).

From `ConversationHandedOver` on no agent is heard: open runs end (cancelled, reason `handed_over`), turns that waited
for a group wait no more, what people say is stored and opens no run, and a frame of an agent is refused. From
`ConversationHandedBack` on turns go to agents again; those said meanwhile do not. Close and reopen change nothing of
it. A repeat of either is a `Duplicate` of the last such update, seq 0 when there was none.
"""

from __future__ import annotations

from streams.core.commands import HandBack, HandOver
from streams.core.draft import Draft
from streams.core.events import (
    ConversationHandedBack,
    ConversationHandedOver,
    Entry,
    Event,
    RefusedReason,
    RunStatus,
)
from streams.core.limits import problem_of_ids, problem_of_text
from streams.core.refusals import NO_CONVERSATION, refused, repeat_of
from streams.core.run_events import forget_waiting
from streams.core.runs import end
from streams.core.state import Conversation, ImpossibleEvent, Partition, Update

HANDED_OVER = "handed_over"
"""Reason of the runs that a handover ended."""

# ------------------------------------------------------------------------------------------------ decide


def decide_hand_over(state: Partition, command: HandOver) -> list[Event]:
    """End what is open, then hand over."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    problem = _problem(conversation, command, ("to", command.to))
    if problem is not None:
        return [refused(command, *problem)]
    if conversation.handed_over:
        return [repeat_of(command, conversation.handover, "handover")]
    draft = Draft()
    for run in conversation.runs.values():
        end(draft, conversation, run, RunStatus.CANCELLED, HANDED_OVER)
    draft.add(
        ConversationHandedOver(
            conversation_id=conversation.id,
            seq=draft.next_seq(conversation),
            by=command.by,
            to=command.to,
            reason=command.reason,
            id=command.id,
            ref=command.ref,
        )
    )
    return draft.events


def decide_hand_back(state: Partition, command: HandBack) -> list[Event]:
    """Agents answer what is said from here on."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    problem = _problem(conversation, command)
    if problem is not None:
        return [refused(command, *problem)]
    if not conversation.handed_over:
        return [repeat_of(command, conversation.handover, "handback")]
    return [
        ConversationHandedBack(
            conversation_id=conversation.id,
            seq=conversation.head + 1,
            by=command.by,
            reason=command.reason,
            id=command.id,
            ref=command.ref,
        )
    ]


def _problem(
    conversation: Conversation, command: HandOver | HandBack, *names: tuple[str, str]
) -> tuple[RefusedReason, str] | None:
    if not conversation.open:
        return RefusedReason.CONVERSATION_CLOSED, "conversation_id: it is closed"
    ids = (("id", command.id), ("by", command.by), *names)
    return problem_of_ids(ids) or problem_of_text("reason", command.reason)


# ------------------------------------------------------------------------------------------------ evolve


def evolve_handed_over(
    state: Partition, conversation: Conversation, entry: Entry, event: ConversationHandedOver
) -> None:
    """Nothing of it waits for an agent any more."""
    if conversation.handed_over or conversation.runs:
        raise ImpossibleEvent(f"conversation {conversation.id} cannot be handed over: it is, or has open runs")
    conversation.handed_over = True
    conversation.handover = Update(event.seq, event.id, entry.timestamp)
    conversation.plan = None
    forget_waiting(state, conversation)


def evolve_handed_back(_: Partition, conversation: Conversation, entry: Entry, event: ConversationHandedBack) -> None:
    """The next turn goes to agents again."""
    if not conversation.handed_over:
        raise ImpossibleEvent(f"conversation {conversation.id} is not handed over")
    conversation.handed_over = False
    conversation.handover = Update(event.seq, event.id, entry.timestamp)
