"""Who owns a conversation's next turn in a group: `rendezvous-1`.

Each member's weight for a conversation is the 8-byte BLAKE2b digest of `conversation_id + "\\x1f" + member` (UTF-8),
read as a big-endian unsigned integer; the highest wins, a tie goes to the greater member id. Highest random weight
hashing: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM Transactions on
Networking 6(1), 1998. A join moves only conversations that the newcomer wins, a leave only those of the departed.

Only members with `since <= at` are eligible; when none is, all count. A draining member counts only while its group
has none that does not drain: then they all count, as if none drained.

Where an operator moved the conversation to a member, that one has it while it is there and does not drain (`moves`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from streams.core.events import MoveReason, OwnerChanged
from streams.core.ids import SEPARATOR

if TYPE_CHECKING:
    from streams.core.draft import Draft
    from streams.core.state import Conversation, Member, Partition


def weight(conversation_id: str, member: str) -> bytes:
    """Eight bytes; they compare as the big-endian integer that they are."""
    return blake2b(f"{conversation_id}{SEPARATOR}{member}".encode(), digest_size=8).digest()


def winner(members: Iterable[str], conversation_id: str) -> str:
    """The rendezvous winner; `members` is not empty."""
    return max((weight(conversation_id, member), member) for member in members)[1]


def choose(members: Collection[Member], conversation_id: str, at: int, *, pinned: str | None = None) -> str | None:
    """The owner among these members of one group at log time `at`; None when there is none. `pinned`: the one that an
    operator moved the conversation to."""
    if pinned is not None and any(member.id == pinned and not member.draining for member in members):
        return pinned
    eligible = [member.id for member in members if member.since <= at and not member.draining]
    if not eligible:
        staying = [member for member in members if not member.draining]  # none of them has settled
        settled = () if staying else [member.id for member in members if member.since <= at]
        eligible = [*settled] or [member.id for member in staying or members]
    if len(eligible) < 2:
        return eligible[0] if eligible else None
    return winner(eligible, conversation_id)


def adopter(claimants: Collection[Member], conversation_id: str) -> str:
    """Who of those that say they have a turn already (at least one) goes on with it; a draining one if it must be."""
    staying = [member.id for member in claimants if not member.draining]
    return winner(staying or [member.id for member in claimants], conversation_id)


def change_owner(
    draft: Draft,
    conversation: Conversation,
    group: str,
    owner: str | None,
    roster: Mapping[str, Member],
    *,
    by_operator: bool = False,
) -> None:
    """Say so where the group's next turn goes to another than its last one did. `roster`: the group's members now."""
    previous = conversation.owners.get(group)
    if previous is not None and previous != owner:
        reason = MoveReason.OPERATOR if by_operator else _why_no_more(roster.get(previous))
        changed = OwnerChanged(
            conversation_id=conversation.id, group=group, previous=previous, owner=owner, reason=reason
        )
        draft.add(changed)


def _why_no_more(previous: Member | None) -> MoveReason:
    if previous is None:
        return MoveReason.MEMBER_LEFT
    return MoveReason.MEMBER_DRAINED if previous.draining else MoveReason.MEMBER_JOINED


def owner_of(state: Partition, group: str, conversation_id: str, at: int) -> str | None:
    """Who gets the conversation's turn of log time `at` in this group; None: the group has no member."""
    roster = state.groups.get(group)
    if roster is None:
        return None
    conversation = state.conversations.get(conversation_id)
    pinned = None if conversation is None else conversation.pinned(group)
    return choose(roster.members.values(), conversation_id, at, pinned=pinned)
