"""Who may say something in a conversation that is no part of a run (rule 6)."""

from __future__ import annotations

from streams.core.commands import CommitFrame
from streams.core.ownership import owner_of
from streams.core.routing import plan_of
from streams.core.state import Conversation, Partition


def why_not(state: Partition, conversation: Conversation, command: CommitFrame) -> str | None:
    """Why the frame's sender may not, in a conversation of another channel; None: it may."""
    plan = plan_of(state, conversation.channel)
    if plan is None or all(group.id != command.group for group in plan.groups):
        return "group: this conversation is not routed to it"
    if not _is_owner(state, conversation, command):
        return "member: without a run only the conversation's owner may write"
    return None


def _is_owner(state: Partition, conversation: Conversation, command: CommitFrame) -> bool:
    """It is the owner; or it was until it drains, and may finish what it was saying while nobody got a later turn."""
    if owner_of(state, command.group, conversation.id, command.at) == command.member:
        return True
    return state.members[command.member].draining and conversation.owners.get(command.group) == command.member
