"""A conversation's latest turn, and what it was answered by: what an edit needs to know.

The common turn leaves nothing for it, which costs nothing: its run knows the turn, and stays known when it ends. The
few words that are kept of it are made for whoever needs them, or lets the conversation rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from streams.core.state import Conversation, Latest, Run


def latest_of(conversation: Conversation) -> Latest | None:
    """The latest turn; None: nobody has said anything. Who called an agent can edit nothing: nobody said it."""
    known = conversation.latest
    newest = max(conversation.runs.values(), key=_turn_seq, default=None)
    if newest is not None and (known is None or newest.turn_seq > _turn_seq(known)):
        return Latest(newest.turn_seq, newest.turn_id, newest.speaker)
    return _answered(known) if isinstance(known, Run) else known


def keep_answer(conversation: Conversation, run: Run) -> None:
    """A run ended: remember which frames it answered the latest turn with, if it was of that one."""
    known = conversation.latest
    if known is None or _turn_seq(known) < run.turn_seq:
        conversation.latest = run
    elif _turn_seq(known) == run.turn_seq and run.progress is not None and run.progress.frames:
        turn = _answered(known) if isinstance(known, Run) else known
        answered = turn.answered + stretches(run.progress.frames)
        conversation.latest = Latest(turn.seq, turn.id, turn.speaker, turn.editions, answered)


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


def _turn_seq(known: Latest | Run) -> int:
    return known.turn_seq if isinstance(known, Run) else known.seq


def _answered(run: Run) -> Latest:
    said = () if run.progress is None else stretches(run.progress.frames)
    return Latest(run.turn_seq, run.turn_id, run.speaker, 0, said)
