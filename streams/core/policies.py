"""A turn that comes during a run of its group (rule 7), and runs that wait in line.

| policy | what becomes of the turn |
|---|---|
| `deliver` | it gets its run at once; the agent takes one after another |
| `enqueue` | its run waits, without a member, until no earlier one of its group is open: `RunOpened` then |
| `reject` | it is not taken if any group is so busy; an answer to an ask always is, and opens no run there |
| `interrupt` | the earlier runs of the group end (cancelled, `interrupted`), and it gets its run |

A turn that finds as many in line as may wait there (`max_waiting`) is not taken either, as with `reject`.

A group is busy in a conversation while a run of it is open there, in line or not. What an end of runs makes room for is
decided with the command that ends them (`after`): first the runs in line, in the order of their turns, then one run
that every member had refused, for each run that ended. Some of those end by being tried again, and make room in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from streams.core.draft import Draft
from streams.core.due import waits_for_room
from streams.core.events import (
    ConversationMoved,
    Event,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    MoveReason,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
)
from streams.core.ids import channel_of_group
from streams.core.longest import Waiting
from streams.core.ownership import change_owner, choose
from streams.core.routing import ENQUEUE, INTERRUPT, REJECT, Plan
from streams.core.runs import INTERRUPTED, end, give
from streams.core.state import Conversation, Member, Partition, Run

AGENT_UNAVAILABLE = "agent_unavailable"


def open_in(conversation: Conversation, group: str) -> list[Run]:
    """The group's open runs there, in line or not."""
    return [run for run in conversation.runs.values() if run.group == group]


def rejecting(state: Partition, conversation: Conversation, plan: Plan) -> list[str]:
    """The busy groups of the plan, and channels of it for which a turn waits, that take no turn then."""
    rules = state.config.group
    busy = [g.id for g in plan.groups if takes_no_turn(state, g.id, open_in(conversation, g.id))]
    return busy + [c for c in plan.waiting if rules(c).policy == REJECT and conversation.waiting.get(c)]


def takes_no_turn(state: Partition, group: str, busy: Sequence[Run]) -> bool:
    """The group is at work on the runs `busy` of a conversation, and takes no turn beside them or behind them."""
    rules = state.config.group(group)
    return (rules.policy == REJECT and bool(busy)) or (rules.policy == ENQUEUE and is_full(state, group, busy))


def is_full(state: Partition, group: str, runs: Iterable[Run]) -> bool:
    """As many of these runs of the group wait in line as may."""
    return sum(run.queued for run in runs) >= state.config.group(group).max_waiting


def why_not_taken(state: Partition, group: str) -> str:
    """For whoever is refused because of this group: try again."""
    rules = state.config.group(group)
    if rules.policy == ENQUEUE:
        return f"conversation_id: {rules.max_waiting} turns wait in line for {group} already"
    return f"conversation_id: {group} answers the turn before"


def make_room(state: Partition, draft: Draft, conversation: Conversation, groups: Iterable[str]) -> tuple[str, ...]:
    """End the runs that a turn for these groups interrupts; the groups in which it waits in line."""
    queued = []
    for group in groups:
        busy = open_in(conversation, group)
        policy = state.config.group(group).policy
        if busy and policy == ENQUEUE:
            queued.append(group)
        elif policy == INTERRUPT:
            for run in busy:
                end(draft, conversation, run, RunStatus.CANCELLED, INTERRUPTED)
    return tuple(queued)


def after(state: Partition, at: int, events: list[Event]) -> list[Event]:
    """The events of a command, and what the ends of runs among them make room for."""
    ends = [event for event in events if type(event) is RunEnded]
    if not ends:
        return events
    room = _Room(state, at, events)
    while ends:
        ends = room.fill(ends)
    return [*events, *room.draft.events]


class _Room:
    """The partition as it is after some events, as far as runs that wait must know."""

    def __init__(self, state: Partition, at: int, events: Sequence[Event]) -> None:
        self.draft = Draft(behind=events)
        self._state = state
        self._at = at
        self._events = events
        self._gone: set[str] = set()
        self._placed = {event.run_id for event in events if type(event) is RunMoved}
        self._moves = [event for event in events if type(event) is ConversationMoved]
        self._opened: set[str] = set()
        self._rosters: dict[str, dict[str, Member]] = {}

    def fill(self, ends: Sequence[RunEnded]) -> list[RunEnded]:
        """Give away what these ends make room for; the ends that came of it."""
        before = len(self.draft.events)
        self._gone.update(ended.run_id for ended in ends)
        for conversation_id in dict.fromkeys(ended.conversation_id or "" for ended in ends):
            if conversation_id in self._state.queued:
                self._open_next(self._state.conversations[conversation_id])
        for ended in ends:
            self._retry_one(ended)
        return [event for event in self.draft.events[before:] if type(event) is RunEnded]

    def _open_next(self, conversation: Conversation) -> None:
        """Open the runs in line that no earlier one is before."""
        groups, called = self._busy(conversation)
        for run in list(conversation.runs.values()):
            if not self._in_line(run) or run.id in self._gone:
                continue
            is_call = run.invocation is not None
            if not (run.group in groups or (is_call and called)) and not self._open(conversation, run):
                continue
            groups.add(run.group)
            called |= is_call

    def _in_line(self, run: Run) -> bool:
        return run.queued and run.id not in self._opened

    def _busy(self, conversation: Conversation) -> tuple[set[str], bool]:
        """Groups with a run that has begun to be somebody's, and whether one of these is an invocation's."""
        groups, called = set(), False
        for run in conversation.runs.values():
            if not self._in_line(run) and run.id not in self._gone:
                groups.add(run.group)
                called |= run.invocation is not None
        for event in self._events:
            if event.conversation_id != conversation.id:
                continue
            if isinstance(event, TurnCommitted):
                groups.update(assigned.group for assigned in event.assigned)
                called |= event.turn.invocation is not None and bool(event.assigned)
            elif isinstance(event, RunOpened) and not event.queued:
                groups.add(event.group)
        return groups, called

    def _open(self, conversation: Conversation, run: Run) -> bool:
        """Whether it is open now: an invocation that nobody is there for ends."""
        roster = self._roster(run.group)
        move = next((each for each in self._moves if each.group in {run.group, ""}), None)  # of this conversation
        pinned = conversation.pinned(run.group) if move is None else move.to
        owner = choose(roster.values(), conversation.id, self._at, pinned=pinned)
        if run.invocation is not None and (owner is None or roster[owner].draining):
            end(self.draft, conversation, run, RunStatus.FAILED, AGENT_UNAVAILABLE)
            return False
        if move is None or move.to is None:  # a move to somebody has said so
            change_owner(self.draft, conversation, run.group, owner, roster)
        self._opened.add(run.id)
        self.draft.add(
            RunOpened(
                conversation_id=conversation.id,
                run_id=run.id,
                turn_seq=run.turn_seq,
                group=run.group,
                channel=channel_of_group(run.group),
                member=owner,
            )
        )
        return True

    def _retry_one(self, ended: RunEnded) -> None:
        """Its member has room for one more: give it the run that waits longest for anybody of its group."""
        if ended.group not in self._state.orphans or ended.group not in self._state.groups:
            return
        roster = self._roster(ended.group)
        member = roster.get(ended.member or "")
        if member is None or member.draining:
            return
        waiting = refused_by_all(self._state, ended.group, self._gone | self._placed)
        if waiting is not None:
            conversation, run = waiting
            self._placed.add(run.id)
            give(self._state, self.draft, conversation, run, to=member, reason=MoveReason.REFUSED)

    def _roster(self, group: str) -> dict[str, Member]:
        """The group's members after the events."""
        roster = self._rosters.get(group)
        if roster is None:
            known = self._state.groups.get(group)
            roster = self._rosters[group] = {} if known is None else dict(known.members)
            for event in self._events:
                if isinstance(event, MemberJoined) and event.group == group:
                    roster[event.member] = Member(
                        event.member, group, event.channel, event.gateway, event.since, event.each, event.continues
                    )
                elif isinstance(event, MemberLeft):
                    roster.pop(event.member, None)
                elif isinstance(event, MemberDraining) and (member := roster.get(event.member)) is not None:
                    roster[member.id] = Member(
                        member.id, group, member.channel, member.gateway, member.since, member.each, member.continues,
                        draining=True,
                    )  # fmt: skip
        return roster


def refused_by_all(state: Partition, group: str, but: Collection[str]) -> tuple[Conversation, Run] | None:
    """Of the runs that every member of this group refused, the one that waits longest; None: there is none."""
    longest = state.longest.get(group)
    first = None if longest is None else longest.first(lambda each: each[3] not in but and _has_no_room(state, each))
    return None if first is None else _run_of(state, first)


def _has_no_room(state: Partition, waiting: Waiting) -> bool:
    return waits_for_room(state, _run_of(state, waiting)[1])


def _run_of(state: Partition, waiting: Waiting) -> tuple[Conversation, Run]:
    _, conversation_id, _, run_id = waiting
    conversation = state.conversations[conversation_id]
    return conversation, conversation.runs[run_id]
