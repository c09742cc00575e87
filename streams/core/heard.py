"""Frames that lie in `frames` more than once (rule 1): a gateway numbers those of each member, per partition.

What no key tells from its repeat, a piece of a stream say, its number does. A member's highest number is remembered,
and which of the `WINDOW` up to it were heard: numbers come in order but where a gateway replaces its producer, and
what the earlier one had queued may then come after what the next one writes. The journal's events carry the numbers,
for it is the fold's only input; a frame of which nothing came may be decided again.
"""

from __future__ import annotations

from typing import Final

from streams.core.commands import CommitFrame
from streams.core.state import ImpossibleEvent, Member, Partition

WINDOW: Final = 512
"""Numbers of a member that are told apart, a bit each: 64 bytes."""

_ALL: Final = (1 << WINDOW) - 1


def is_repeat(member: Member, command: CommitFrame) -> bool:
    """Whether the frame was heard already. Below the window only a key can tell, so that what has none counts as
    heard: at most once, rather than twice."""
    behind = member.heard - command.n
    if behind < 0 or command.n <= 0:
        return False
    if behind >= WINDOW:
        return command.frame.client_id is None
    return bool(member.heard_bits >> behind & 1)


def note(state: Partition, member_id: str | None, n: int) -> None:
    """Evolve: the member's frame `n` came to something. `ImpossibleEvent`: it did before, or nobody has that id."""
    member = state.members.get(member_id or "")
    if member is None:
        raise ImpossibleEvent(f"frame {n} is of {member_id}, who is not here")
    if not _is_new(member, n):
        raise ImpossibleEvent(f"frame {n} of {member_id} was heard before")


def note_refused(state: Partition, member_id: str | None, n: int) -> None:
    """Evolve: it was refused, and stays so. Who is gone may be refused too, and what is malformed, many times."""
    member = state.members.get(member_id or "")
    if member is not None:
        _is_new(member, n)


def _is_new(member: Member, n: int) -> bool:
    ahead = n - member.heard
    if ahead > 0:
        member.heard = n
        member.heard_bits = (member.heard_bits << ahead | 1) & _ALL if ahead < WINDOW else 1
        return True
    if -ahead >= WINDOW:
        return True  # its key said so
    bit = 1 << -ahead
    if member.heard_bits & bit:
        return False
    member.heard_bits |= bit
    return True
