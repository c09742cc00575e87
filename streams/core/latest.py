"""A conversation's latest turn, and what it was answered by: what an edit needs to know.

The common turn leaves nothing for it, which costs nothing: its run knows the turn. The few words that are kept of it
are made when that run ends, or for whoever needs them, or lets the conversation rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from streams.core.state import Conversation, Latest, Run


def latest_of(conversation: Conversation) -> Latest | None:
    """The latest turn; None: nobody has said anything. Who called an agent can edit nothing: nobody said it."""
    known = conversation.latest
    newest = max(conversation.runs.values(), key=_by_turn, default=None)
    if newest is not None and (known is None or newest.turn_seq > known.seq):
        return Latest(newest.turn_seq, newest.turn_id, newest.speaker, origin=newest.origin)
    return known


def keep_answer(conversation: Conversation, run: Run) -> None:
    """A run ended: remember which frames it answered the latest turn with, if it was of that one."""
    known = conversation.latest
    said = () if run.progress is None else stretches(run.progress.frames)
    if known is None or known.seq < run.turn_seq:
        conversation.latest = Latest(run.turn_seq, run.turn_id, run.speaker, 0, said, run.origin)
    elif said and known.seq == run.turn_seq:
        answered = known.answered + said
        conversation.latest = Latest(known.seq, known.id, known.speaker, known.editions, answered, known.origin)


def stretches(seqs: Sequence[int]) -> tuple[int, ...]:
    """First and last of each stretch of consecutive numbers; `seqs` rise."""
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1:
        return (seqs[0], seqs[-1])
    ends: list[int] = []
    for seq in seqs:
        if ends and seq == ends[-1] + 1:
            ends[-1] = seq
        else:
            ends += (seq, seq)
    return tuple(ends)


def _by_turn(run: Run) -> int:
    return run.turn_seq
