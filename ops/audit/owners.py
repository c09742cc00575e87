"""Invariant 3: deciding again from the membership and routing events gives every recorded owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from streams.core.events import Entry, MoveReason, OwnerChanged, RunMoved, RunOpened, TurnCommitted
from streams.core.ownership import owner_of, winner
from streams.core.routing import plan_of
from streams.core.runs import claimants_of
from streams.core.state import Partition


class Owners:
    """3: each turn was given to the rendezvous winner among the members of that moment, in every group that it was
    routed to; and so was each run that moved.

    `state` is the partition folded up to the entry before the one that is looked at, by whoever drives this.
    """

    invariant: ClassVar[int] = 3

    def __init__(self, state: Partition) -> None:
        self._state = state

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        match entry.event:
            case TurnCommitted() as turn:
                return list(self._turn(entry, turn))
            case RunOpened() as opened:
                return list(self._given(entry, opened.group, opened.member, f"run {opened.run_id}"))
            case RunMoved() as moved:
                return list(self._moved(entry, moved))
            case OwnerChanged() as changed:
                return list(self._changed(entry, changed))
            case _:
                return []

    def _given(self, entry: Entry, group: str, member: str | None, what: str) -> Iterator[str]:
        owner = owner_of(self._state, group, str(entry.event.conversation_id), entry.at)
        if member != owner:
            yield f"{what} was given to {member} in {group}; deciding again gives {owner}"

    def _turn(self, entry: Entry, turn: TurnCommitted) -> Iterator[str]:
        conversation = self._state.conversations.get(str(turn.conversation_id))
        plan = None if conversation is None else plan_of(self._state, conversation.channel)
        if conversation is None or plan is None:
            yield "the turn was taken for a conversation, or a channel, that is not there"
            return
        joined = None if turn.joins_run is None else conversation.runs.get(turn.joins_run)
        groups = [group.id for group in plan.groups if joined is None or group.id != joined.group]
        given = [assignment.group for assignment in turn.assigned]
        if given != groups or turn.waiting != plan.waiting:
            again = f"deciding again gives {groups}, {list(plan.waiting)}"
            yield f"given to {given}, waiting for {list(turn.waiting)}; {again}"
        for assignment in turn.assigned:
            yield from self._given(entry, assignment.group, assignment.member, f"turn {turn.seq}")

    def _moved(self, entry: Entry, moved: RunMoved) -> Iterator[str]:
        if moved.reason is MoveReason.ADOPT_TIMEOUT:
            if moved.from_member != moved.to_member:
                yield f"run {moved.run_id} timed out with {moved.from_member} and was given to {moved.to_member}"
        elif moved.adopted:
            yield from self._adopted(moved)
        else:
            yield from self._given(entry, moved.group, moved.to_member, f"run {moved.run_id}")

    def _adopted(self, moved: RunMoved) -> Iterator[str]:
        conversation = self._state.conversations.get(str(moved.conversation_id))
        run = None if conversation is None else conversation.runs.get(moved.run_id)
        group = self._state.groups.get(moved.group)
        claimants = [] if run is None or group is None else claimants_of(run, group.members)
        chosen = winner(claimants, str(moved.conversation_id)) if claimants else None
        if chosen != moved.to_member:
            yield f"run {moved.run_id} was adopted by {moved.to_member}; deciding again gives {chosen}"

    def _changed(self, entry: Entry, changed: OwnerChanged) -> Iterator[str]:
        yield from self._given(entry, changed.group, changed.owner, "the conversation")
        conversation = self._state.conversations.get(str(changed.conversation_id))
        previous = None if conversation is None else conversation.owners.get(changed.group)
        if previous != changed.previous:
            yield f"the owner in {changed.group} was {previous}, the event says {changed.previous}"
