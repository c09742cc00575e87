"""Erasing a conversation: from `ConversationErased` on it is closed for ever, and the keys of its words are destroyed.

The event is the order to destroy them, for whoever has keys or plain words; order, numbers and ownership stay as they
are. It closes what is open, as a close does; an erased conversation is not reopened, since what would be said in it
then would be sealed by a key that other processes may still take for the destroyed one. A repeat is a `Duplicate`.
"""

from __future__ import annotations

from streams.core.commands import EraseConversation
from streams.core.draft import Draft
from streams.core.events import ConversationErased, Entry, Event, RunStatus
from streams.core.limits import problem_of_ids, problem_of_text
from streams.core.refusals import NO_CONVERSATION, refused, repeat_of
from streams.core.run_events import forget_waiting
from streams.core.runs import end
from streams.core.state import Conversation, ImpossibleEvent, Partition, Update

ERASED = "erased"
"""Reason of the runs that an erasure ended."""


# ------------------------------------------------------------------------------------------------ decide


def decide_erase(state: Partition, command: EraseConversation) -> list[Event]:
    """End what is open, then erase."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    if conversation.erased:
        return [repeat_of(command, conversation.update, "erase")]
    problem = problem_of_ids((("id", command.id), ("by", command.by))) or problem_of_text("reason", command.reason)
    if problem is not None:
        return [refused(command, *problem)]
    draft = Draft()
    for run in conversation.runs.values():
        end(draft, conversation, run, RunStatus.CANCELLED, ERASED)
    draft.add(
        ConversationErased(
            conversation_id=conversation.id,
            seq=draft.next_seq(conversation),
            by=command.by,
            reason=command.reason,
            id=command.id,
            ref=command.ref,
        )
    )
    return draft.events


# ------------------------------------------------------------------------------------------------ evolve


def evolve_erased(state: Partition, conversation: Conversation, entry: Entry, event: ConversationErased) -> None:
    """It is closed, and stays so."""
    if conversation.erased or conversation.runs:
        raise ImpossibleEvent(f"conversation {conversation.id} cannot be erased: it is, or has open runs")
    conversation.open = False
    conversation.erased = True
    conversation.update = Update(event.seq, event.id, entry.timestamp)
    forget_waiting(state, conversation)
