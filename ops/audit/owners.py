"""Invariant 3: deciding again from the membership and routing events gives every recorded owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from streams.core.editions import said
from streams.core.events import (
    Entry,
    MoveReason,
    OwnerChanged,
    RunMoved,
    RunOpened,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ownership import adopter, owner_of
from streams.core.routing import NOBODY, Plan, plan_of
from streams.core.runs import claimants_of, may_continue
from streams.core.state import Conversation, Partition, Run
from streams.core.timeouts import heir_of_adopter


class Owners:
    """3: each turn was given to the rendezvous winner among the members of that moment, in every group that it was
    routed to, of those that do not drain where there are such; and so was each run that moved, which goes on where it
    stopped exactly where its new member can. No turn is given to anybody while a human answers. A turn that is wanted
    anew supersedes all that answered it.

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
            case TurnEdited() | TurnRegenerated() as wanted:
                return list(self._wanted_anew(wanted))
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
        plan = None if conversation is None else self._plan(conversation)
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

    def _plan(self, conversation: Conversation) -> Plan | None:
        return NOBODY if conversation.handed_over else plan_of(self._state, conversation.channel)

    def _wanted_anew(self, wanted: TurnEdited | TurnRegenerated) -> Iterator[str]:
        conversation = self._state.conversations.get(str(wanted.conversation_id))
        plan = None if conversation is None else self._plan(conversation)
        if conversation is None or plan is None:
            yield "an answer is wanted anew in a conversation, or a channel, that is not there"
            return
        answered = sorted(said(conversation))
        if sorted(wanted.superseded) != answered:
            yield f"turn {wanted.turn_seq} was answered by {answered}; superseded are {list(wanted.superseded)}"
        if wanted.waiting != plan.waiting:
            yield f"turn {wanted.turn_seq} waits for {list(wanted.waiting)}; deciding again gives {list(plan.waiting)}"

    def _moved(self, entry: Entry, moved: RunMoved) -> Iterator[str]:
        conversation = self._state.conversations.get(str(moved.conversation_id))
        run = None if conversation is None else conversation.runs.get(moved.run_id)
        if run is None:
            yield f"run {moved.run_id} moves, which is not open"
        elif moved.adopted:
            yield from self._adopted(moved, run)
        else:
            if moved.reason is MoveReason.ADOPT_TIMEOUT:
                yield from self._timed_out(entry, moved, run)
            else:
                yield from self._given(entry, moved.group, moved.to_member, f"run {moved.run_id}")
            yield from self._continued(moved, run)

    def _adopted(self, moved: RunMoved, run: Run) -> Iterator[str]:
        group = self._state.groups.get(moved.group)
        claimants = [] if group is None else [group.members[id_] for id_ in claimants_of(run, group.members)]
        chosen = adopter(claimants, str(moved.conversation_id)) if claimants else None
        if chosen != moved.to_member:
            yield f"run {moved.run_id} was adopted by {moved.to_member}; deciding again gives {chosen}"

    def _timed_out(self, entry: Entry, moved: RunMoved, run: Run) -> Iterator[str]:
        if run.member not in self._state.members:
            yield f"run {moved.run_id} timed out with {run.member}, who is not there"
            return
        heir = heir_of_adopter(self._state, run, str(moved.conversation_id), entry.at)
        if moved.to_member != heir.id:
            yield f"run {moved.run_id} timed out and was given to {moved.to_member}; deciding again gives {heir.id}"

    def _continued(self, moved: RunMoved, run: Run) -> Iterator[str]:
        member = self._state.members.get(moved.to_member or "")
        continued = member is not None and may_continue(self._state, run, member)
        if continued != moved.continued:
            yield f"run {moved.run_id} moves with continued={moved.continued}; deciding again gives {continued}"

    def _changed(self, entry: Entry, changed: OwnerChanged) -> Iterator[str]:
        yield from self._given(entry, changed.group, changed.owner, "the conversation")
        conversation = self._state.conversations.get(str(changed.conversation_id))
        previous = None if conversation is None else conversation.owners.get(changed.group)
        if previous != changed.previous:
            yield f"the owner in {changed.group} was {previous}, the event says {changed.previous}"
