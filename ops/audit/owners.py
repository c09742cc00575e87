"""Invariant 3: deciding again from the membership and routing events gives every recorded owner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final

from ops.audit.violations import NOTHING, Handler, Kinds, Problems, Seeing
from streams.core.due import is_kept, waits_for_room
from streams.core.editions import said
from streams.core.events import (
    BatchCommitted,
    ConversationMoved,
    Entry,
    Event,
    Invocation,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    MoveReason,
    OwnerChanged,
    RunMoved,
    RunOpened,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.moves import heir_of
from streams.core.ownership import adopter, owner_of
from streams.core.policies import open_in, rejecting
from streams.core.refusing import next_in_rank
from streams.core.routing import ENQUEUE, INTERRUPT, NOBODY, Plan, plan_of
from streams.core.run_events import claimants_of
from streams.core.runs import may_continue
from streams.core.state import Conversation, Partition, Run
from streams.core.timeouts import heir_of_adopter

CHOSEN_MOST: Final = 50_000
"""Choices remembered: 10 MB."""


class Owners(Seeing):
    """3: each turn was given to the rendezvous winner among the members of that moment, in every group that it was
    routed to, of those that do not drain where there are such; and so was each run that moved, which goes on where it
    stopped exactly where its new member can. No turn is given to anybody while a human answers. A turn that is wanted
    anew supersedes all that answered it. No run waits in line behind nobody.

    `state` is the partition folded up to the entry before the one that is looked at, by whoever drives this.
    """

    invariant: ClassVar[int] = 3
    kinds: ClassVar[Kinds] = (
        TurnCommitted,
        TurnEdited,
        TurnRegenerated,
        RunOpened,
        RunMoved,
        OwnerChanged,
        BatchCommitted,
        MemberJoined,
        MemberLeft,
        MemberDraining,
        ConversationMoved,
    )

    def __init__(self, state: Partition) -> None:
        self._state = state
        self._chosen: dict[tuple[str, str], str | None] = {}
        """(group, conversation) -> the owner by all its members, as long as none comes, goes or drains, and none is
        moved."""

    def _others_count(self, _: Entry, __: Event) -> Problems:
        """From here on others are eligible."""
        self._chosen.clear()
        return NOTHING

    def _turn_is_right(self, entry: Entry, turn: TurnCommitted) -> Problems:
        """The common turn at once: one group, which takes each turn as it comes."""
        conversation = self._state.conversations.get(turn.conversation_id or "")
        plan = None if conversation is None else self._plan(conversation)
        if (
            plan is not None
            and plan.only is not None
            and turn.turn.invocation is None
            and turn.joins_run is None
            and not turn.queued
            and turn.waiting == plan.waiting
            and len(turn.assigned) == 1
        ):
            given = turn.assigned[0]
            if given.group == plan.only and given.member == self._owner(
                given.group, turn.conversation_id or "", entry.at
            ):
                return NOTHING
        return list(self._turn(entry, turn))

    def _given(self, entry: Entry, group: str, member: str | None, what: str) -> Iterator[str]:
        owner = self._owner(group, str(entry.event.conversation_id), entry.at)
        if member != owner:
            yield f"{what} was given to {member} in {group}; deciding again gives {owner}"

    def _owner(self, group: str, conversation_id: str, at: int) -> str | None:
        roster = self._state.groups.get(group)
        if roster is None or at < roster.settled_at:
            return owner_of(self._state, group, conversation_id, at)
        name = (group, conversation_id)
        if name not in self._chosen:
            if len(self._chosen) >= CHOSEN_MOST:
                self._chosen.clear()
            self._chosen[name] = owner_of(self._state, group, conversation_id, at)
        return self._chosen[name]

    def _opened(self, entry: Entry, opened: RunOpened) -> Iterator[str]:
        """What waits in line is nobody's, and so is what a later turn interrupts as soon as it is opened."""
        overtaken = self._state.config.group(opened.group).policy == INTERRUPT
        if opened.member is not None or not (opened.queued or overtaken):
            yield from self._given(entry, opened.group, opened.member, f"run {opened.run_id}")
        conversation = self._state.conversations.get(str(opened.conversation_id))
        run = None if conversation is None else conversation.runs.get(opened.run_id)
        if conversation is not None and run is not None and run.queued:
            before = [other.id for other in open_in(conversation, opened.group) if not other.queued]
            if before:
                yield f"run {opened.run_id} leaves the line while {before[0]} of its group is open"

    def _lines(self, _: Entry, __: BatchCommitted) -> Iterator[str]:
        """A run in line is behind one of its group that is not, or is in line before it; a call behind any call too."""
        for id_ in sorted(self._state.queued):
            runs = self._state.conversations[id_].runs.values()
            groups = {run.group for run in runs if not run.queued}
            called = any(run.invocation is not None for run in runs if not run.queued)
            for run in runs:
                is_call = run.invocation is not None
                if run.queued and run.group not in groups and not (is_call and called):
                    yield f"run {run.id} waits in line behind nobody"
                groups.add(run.group)
                called |= is_call

    def _turn(self, entry: Entry, turn: TurnCommitted) -> Iterator[str]:
        conversation = self._state.conversations.get(str(turn.conversation_id))
        plan = None if conversation is None else self._plan(conversation)
        if conversation is None or plan is None:
            yield "the turn was taken for a conversation, or a channel, that is not there"
            return
        if turn.turn.invocation is not None:
            groups, queued, waiting = self._called(conversation, turn.turn.invocation)
        elif plan.only is not None and turn.joins_run is None:  # one group, which takes each turn at once
            groups, queued, waiting = [plan.only], [], plan.waiting
        else:
            groups, queued = self._routed(conversation, plan, turn)
            waiting = plan.waiting
            yield from self._let_in(conversation, plan, turn)
        given = [assignment.group for assignment in turn.assigned]
        if (given, list(turn.queued), turn.waiting) != (groups, queued, waiting):
            again = f"deciding again gives {groups}, {queued}, {list(waiting)}"
            yield f"given to {given}, in line in {list(turn.queued)}, waiting for {list(turn.waiting)}; {again}"
        for assignment in turn.assigned:
            yield from self._given(entry, assignment.group, assignment.member, f"turn {turn.seq}")

    def _routed(self, conversation: Conversation, plan: Plan, turn: TurnCommitted) -> tuple[list[str], list[str]]:
        """The groups that get the turn at once, and those in which it waits in line. What it interrupts has ended."""
        joined = None if turn.joins_run is None else conversation.runs.get(turn.joins_run)
        left_out = rejecting(self._state, conversation, plan) if joined is not None else []
        groups = [g.id for g in plan.groups if g.id not in left_out and (joined is None or g.id != joined.group)]
        rules = self._state.config.group
        queued = [group for group in groups if rules(group).policy == ENQUEUE and open_in(conversation, group)]
        return [group for group in groups if group not in queued], queued

    def _let_in(self, conversation: Conversation, plan: Plan, turn: TurnCommitted) -> Iterator[str]:
        """No group takes a turn beside runs that it would reject it for, or that it has to interrupt first."""
        if turn.joins_run is None:
            for group in rejecting(self._state, conversation, plan):
                yield f"turn {turn.seq} was taken, for which {group} has no place now"
        for given in turn.assigned:
            if self._state.config.group(given.group).policy == INTERRUPT and open_in(conversation, given.group):
                yield f"turn {turn.seq} was given to {given.group} beside what it interrupts"

    def _called(
        self, conversation: Conversation, invocation: Invocation
    ) -> tuple[list[str], list[str], tuple[str, ...]]:
        """An invocation goes to its group alone, and waits in line behind whatever the thread is busy with."""
        group = invocation.group
        busy = open_in(conversation, group) or any(run.invocation is not None for run in conversation.runs.values())
        return ([], [group], ()) if busy else ([group], [], ())

    def _plan(self, conversation: Conversation) -> Plan | None:
        return NOBODY if conversation.handed_over else plan_of(self._state, conversation.channel)

    def _wanted_anew(self, _: Entry, wanted: TurnEdited | TurnRegenerated) -> Iterator[str]:
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
            elif moved.to_member is None and run.member is not None and (moved.kept_for or is_kept(self._state, run)):
                pass  # for the process that had it
            elif not self._is_back(moved, run):
                yield from self._placed(entry, moved, run, conversation)
            yield from self._continued(moved, run)

    def _placed(self, entry: Entry, moved: RunMoved, run: Run, conversation: Conversation | None) -> Iterator[str]:
        if moved.reason is MoveReason.REFUSED:
            yield from self._refused(entry, moved, run)
        elif moved.reason is MoveReason.OPERATOR:
            yield from self._taken(entry, moved, run, conversation)
        else:
            yield from self._given(entry, moved.group, moved.to_member, f"run {moved.run_id}")

    def _refused(self, entry: Entry, moved: RunMoved, run: Run) -> Iterator[str]:
        """To the next in rank; one that all refused, to any member once there is room."""
        if moved.from_member is None:
            if not waits_for_room(self._state, run) or moved.to_member not in self._state.groups[run.group].members:
                yield f"run {moved.run_id}, which all refused, was given to {moved.to_member}, who is not of its group"
            return
        refusers = {*run.refusers, moved.from_member}
        heir = next_in_rank(self._state, run, refusers, str(moved.conversation_id), entry.at)
        if moved.to_member != (None if heir is None else heir.id):
            yield f"run {moved.run_id} was refused and given to {moved.to_member}; deciding again gives {heir}"

    def _taken(self, entry: Entry, moved: RunMoved, run: Run, conversation: Conversation | None) -> Iterator[str]:
        """By an operator: to whom the conversation was moved, or from who had it to the next in rank."""
        to = None if conversation is None else conversation.pinned(moved.group)
        if to is None:
            heir = heir_of(self._state, run, str(moved.conversation_id), entry.at)
            to = None if heir is None else heir.id
        if moved.to_member != to:
            yield f"run {moved.run_id} was given to {moved.to_member} by an operator; deciding again gives {to}"

    def _is_back(self, moved: RunMoved, run: Run) -> bool:
        """Whether it goes to another connection of the process that had it, as far as the log tells: a holder that has
        left is not known any more."""
        to, holder = self._state.members.get(moved.to_member or ""), self._state.members.get(run.member or "")
        if to is None or not to.instance or moved.reason in {MoveReason.REFUSED, MoveReason.OPERATOR}:
            return False
        if run.kept_for or run.member is None or holder is not None:
            return to.instance == (run.kept_for if holder is None else holder.instance)
        return True

    def _adopted(self, moved: RunMoved, run: Run) -> Iterator[str]:
        if moved.proved:
            if not self._is_back(moved, run):
                yield f"run {moved.run_id} was adopted by {moved.to_member}, whose process did not have it"
            return
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


def _told(check: Callable[[Owners, Entry, Any], Iterable[str]]) -> Handler:
    """What a check says, as a list."""
    return lambda owners, entry, event: list(check(owners, entry, event))


Owners.handlers = {
    **dict.fromkeys((MemberJoined, MemberLeft, MemberDraining, ConversationMoved), Owners._others_count),
    TurnCommitted: Owners._turn_is_right,
    TurnEdited: _told(Owners._wanted_anew),
    TurnRegenerated: _told(Owners._wanted_anew),
    RunOpened: _told(Owners._opened),
    RunMoved: _told(Owners._moved),
    OwnerChanged: _told(Owners._changed),
    BatchCommitted: _told(Owners._lines),
}
