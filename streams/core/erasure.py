"""Erasing a conversation: from `ConversationErased` on it is closed for ever, and the keys of its words are destroyed.

Somebody asks for it (`EraseConversation`), or its channel's rule does (`retain_days`, `EraseIdle`): who looks for idle
conversations sees them a moment late, so that here, where they are in order with all else, it is decided again.

The event is the order to destroy them, for whoever has keys or plain words; order, numbers and ownership stay as they
are. It closes what is open, as a close does; an erased conversation is not reopened, since what would be said in it
then would be sealed by a key that other processes may still take for the destroyed one. A repeat is a `Duplicate`.
"""

from __future__ import annotations

from typing import Final

from streams.core.commands import EraseConversation, EraseIdle
from streams.core.draft import Draft
from streams.core.events import ConversationErased, Entry, Event, RefusedReason, RunStatus
from streams.core.limits import problem_of_ids, problem_of_text
from streams.core.refusals import NO_CONVERSATION, refused, repeat_of
from streams.core.run_events import forget_waiting
from streams.core.runs import end
from streams.core.state import Conversation, ImpossibleEvent, Partition, Run, Update

ERASED: Final = "erased"
"""Reason of the runs that an erasure ended."""
RETENTION: Final = "retention"
"""Who erases by a channel's rule."""
DAY_MS: Final = 24 * 60 * 60 * 1000


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
    return _erase(conversation, command, by=command.by, reason=command.reason)


def decide_erase_idle(state: Partition, command: EraseIdle) -> list[Event]:
    """As `decide_erase`, if it is still so that the channel keeps it no longer."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [refused(command, *NO_CONVERSATION)]
    if conversation.erased:
        return [repeat_of(command, conversation.update, "erase")]
    problem = problem_of_ids((("id", command.id),))
    if problem is not None:
        return [refused(command, *problem)]
    channel, days = conversation.channel, state.config.channel(conversation.channel).retain_days or 0
    why_not = _why_not(conversation, command, days)
    if why_not is not None:
        return [refused(command, RefusedReason.NOT_DUE, why_not)]
    return _erase(conversation, command, by=RETENTION, reason=f"retain_days {days} of channel {channel}")


def _why_not(conversation: Conversation, command: EraseIdle, days: int) -> str | None:
    """Why the conversation is kept; None: it is due. `days`: as long as its channel keeps one that is idle."""
    if days < 1:
        return f"retain_days: channel {conversation.channel} keeps its conversations"
    if command.head_seq != conversation.head:
        return f"head_seq: {command.head_seq} was the highest seq, {conversation.head} is now"
    if conversation.lsn > command.as_of_lsn:
        return f"as_of_lsn: lsn {conversation.lsn} changed it since {command.as_of_lsn}"
    at_work = next((run.id for run in conversation.runs.values() if _is_at_work(run)), None)
    if at_work is not None:
        return f"a member is at work on run {at_work}"
    idle_ms = command.at - command.idle_since
    if idle_ms < days * DAY_MS:
        return f"idle_since: {idle_ms} ms of log time ago, channel {conversation.channel} keeps it {days} days"
    return None


def _is_at_work(run: Run) -> bool:
    """Its member began it, or asks a person: a time-out ends that where nothing comes of it. One that waits for a
    member, or that its member left alone, may do so for ever."""
    return run.member is not None and run.progress is not None and not run.progress.inherited


def _erase(conversation: Conversation, command: EraseConversation | EraseIdle, *, by: str, reason: str) -> list[Event]:
    draft = Draft()
    for run in conversation.runs.values():
        end(draft, conversation, run, RunStatus.CANCELLED, ERASED)
    draft.add(
        ConversationErased(
            conversation_id=conversation.id,
            seq=draft.next_seq(conversation),
            by=by,
            reason=reason,
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
