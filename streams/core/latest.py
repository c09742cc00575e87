"""A conversation's latest turn, and what it was answered by: what an edit needs to know.

The common turn leaves its event on the conversation, which costs nothing; whoever needs it, or lets the conversation
rest, makes the few words of it that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streams.core.events import TurnCommitted
from streams.core.state import Conversation, Latest, Run


def latest_of(conversation: Conversation) -> Latest | None:
    """The latest turn; None: nobody has said anything. Who called an agent can edit nothing: nobody said it."""
    known = conversation.latest
    if not isinstance(known, TurnCommitted):
        return known
    return Latest(known.seq, known.turn.id, known.turn.sender if known.turn.invocation is None else "")


def keep_answer(conversation: Conversation, run: Run) -> None:
    """A run ended: remember which frames it answered the latest turn with, if it was of that one."""
    latest = conversation.latest = latest_of(conversation)
    if latest is not None and latest.seq == run.turn_seq and run.progress is not None and run.progress.frames:
        answered = latest.answered + stretches(run.progress.frames)
        conversation.latest = msgspec.structs.replace(latest, answered=answered)


def stretches(seqs: Sequence[int]) -> tuple[int, ...]:
    """First and last of each stretch of consecutive numbers."""
    ends: list[int] = []
    for seq in seqs:
        if ends and seq == ends[-1] + 1:
            ends[-1] = seq
        else:
            ends += (seq, seq)
    return tuple(ends)
