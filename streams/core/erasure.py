"""Erasing a conversation: from `ConversationErased` on it is closed for ever, and the keys of its words are destroyed.

The event is the order to destroy them, for whoever has keys or plain words; order, numbers and ownership stay as they
are. It closes what is open, as a close does; an erased conversation is not reopened, since what would be said in it
then would be sealed by a key that other processes may still take for the destroyed one. A repeat is a `Duplicate`.
"""

from __future__ import annotations

from streams.core.commands import EraseConversation
from streams.core.draft import Draft
from streams.core.events import ConversationErased, Duplicate, Entry, Event, Refused, RefusedReason, RunStatus
from streams.core.limits import problem_of_ids, problem_of_text
from streams.core.run_events import forget_waiting
from streams.core.runs import end
from streams.core.state import Conversation, ImpossibleEvent, Partition, Update

ERASED = "erased"
"""Reason of the runs that an erasure ended."""


# ------------------------------------------------------------------------------------------------ decide


def decide_erase(state: Partition, command: EraseConversation) -> list[Event]:
    """End what is open, then erase."""
    id_ = command.conversation_id
    conversation = state.conversations.get(id_)
    if conversation is None:
        detail = "conversation_id: no such conversation"
        return [_refused(command, RefusedReason.CONVERSATION_NOT_FOUND, detail)]
    if conversation.erased:
        update = conversation.update or Update(0, id_, 0)
        return [
            Duplicate(
                conversation_id=id_,
                ref=command.ref,
                of_seq=update.seq,
                id=update.id,
                of_timestamp=update.timestamp,
                key="erase",
            )
        ]
    problem = problem_of_ids((("id", command.id), ("by", command.by))) or problem_of_text("reason", command.reason)
    if problem is not None:
        return [_refused(command, *problem)]
    draft = Draft()
    for run in conversation.runs.values():
        end(draft, conversation, run, RunStatus.CANCELLED, ERASED)
    draft.add(
        ConversationErased(
            conversation_id=id_,
            seq=draft.next_seq(conversation),
            by=command.by,
            reason=command.reason,
            id=command.id,
            ref=command.ref,
        )
    )
    return draft.events


def _refused(command: EraseConversation, reason: RefusedReason, detail: str) -> Refused:
    return Refused(conversation_id=command.conversation_id, reason=reason, ref=command.ref, detail=detail)


# ------------------------------------------------------------------------------------------------ evolve


def evolve_erased(state: Partition, conversation: Conversation, entry: Entry, event: ConversationErased) -> None:
    """It is closed, and stays so."""
    if conversation.erased or conversation.runs:
        raise ImpossibleEvent(f"conversation {conversation.id} cannot be erased: it is, or has open runs")
    conversation.open = False
    conversation.erased = True
    conversation.update = Update(event.seq, event.id, entry.timestamp)
    forget_waiting(state, conversation)
