"""What becomes of runs and turns when members join and leave (rules 3, 4, 5).

One change is decided as a whole: first the members that joined and left, then the runs, in the order of
(conversation, turn), each by the roster as it is after the change:

- a run of a departed member goes to a member that claims to have the turn already (by its watermark; *adopted*, unless
  another process may have spoken in it since), else to the group's owner of now, which continues it or begins anew,
  by `on_owner_loss`; the last member gone, it waits for the group's next member;
- where the departed member's process has declared itself and may come back, the run is kept for it alone: it goes to
  that process's next connection, if that is here already, or comes within the channel's grace;
- a run that waits for a group is taken up by its next member in the same way;
- a turn that waits for a channel opens a run in the first group that has a member there.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from streams.core.draft import Draft
from streams.core.due import is_executed_once, is_kept
from streams.core.events import MoveReason, RunEnded, RunOpened, RunStatus
from streams.core.ids import channel_of_group, run_id
from streams.core.ownership import adopter, change_owner, choose
from streams.core.routing import DELIVER, INTERRUPT
from streams.core.run_events import claimants_of
from streams.core.runs import INTERRUPTED, adopt, connection_of, keeper, lose_owner, may_be_adopted
from streams.core.state import Conversation, Member, Partition, Run


class _Place(Enum):
    """What becomes of a turn that waited for a channel when the channel gets a member."""

    GIVEN = auto()
    QUEUED = auto()
    OVERTAKEN = auto()
    """By a later one, which interrupts it."""


class Change(msgspec.Struct):
    """Members that join and leave by one command, and why the latter do."""

    joined: list[tuple[Member, dict[str, int]]] = []
    """With the watermarks that each brought."""
    draining: list[Member] = []
    """Known ones that their gateway's list says drain; a newcomer that does says so itself."""
    left: list[Member] = []
    replaced: list[Member] = []
    """Known ones whose process has joined with another connection: what they hold is that one's."""
    reason: MoveReason = MoveReason.MEMBER_LEFT
    may_return: bool = True
    """Their processes did not say that they are done: a connection was lost, or ended by its gateway."""


class Placement:
    """Gives the runs and turns that a change concerns to the members that there are after it."""

    def __init__(self, state: Partition, draft: Draft, change: Change, at: int) -> None:
        self._state = state
        self._draft = draft
        self._at = at
        self._reason = change.reason
        self._may_return = change.may_return
        self._left = {member.id for member in change.left}
        self._watermarks = {member.id: watermarks for member, watermarks in change.joined}
        self._gained = dict.fromkeys(member.group for member, _ in change.joined)
        self._rosters: dict[str, dict[str, Member]] = {}
        self._each = {member.group for member in change.left if member.each}
        for member, _ in change.joined:
            self._roster(member.group)[member.id] = member
        self._replaced = {member.id for member in change.replaced}
        for member in (*change.draining, *change.replaced):
            self._roster(member.group)[member.id] = msgspec.structs.replace(member, draining=True)
        self._channels = self._channels_won()
        self._concerned = {id_ for member in (*change.left, *change.replaced) for id_ in member.conversations}

    def _roster(self, group: str) -> dict[str, Member]:
        """The group's members after the change."""
        roster = self._rosters.get(group)
        if roster is None:
            known = self._state.groups.get(group)
            members = {} if known is None else known.members
            roster = self._rosters[group] = {id_: member for id_, member in members.items() if id_ not in self._left}
        return roster

    def _channels_won(self) -> dict[str, str]:
        """Channels that had no member before the change -> the first group that has one now."""
        channels: dict[str, str] = {}
        for group in self._gained:
            channel = channel_of_group(group)
            if channel not in self._state.channel_groups and self._roster(group):
                channels.setdefault(channel, group)
        return channels

    def place(self) -> None:
        """Add the events to the draft."""
        state = self._state
        concerned = self._concerned
        for group in self._gained:
            concerned.update(state.orphans.get(group, ()))
        for channel in self._channels:
            concerned |= state.waiting.get(channel, set())
        for id_ in sorted(concerned):
            conversation = state.conversations[id_]
            for run in conversation.runs.values():
                if run.queued:
                    continue
                if run.member is None:
                    if run.group in self._gained:
                        self._place_run(conversation, run, MoveReason.MEMBER_JOINED)
                elif run.member in self._left:
                    self._place_run(conversation, run, self._reason)
                elif run.member in self._replaced:
                    self._place_run(conversation, run, MoveReason.MEMBER_JOINED)
            for channel, group in self._channels.items():
                self._open_waiting(conversation, channel, group)

    def _place_run(self, conversation: Conversation, run: Run, reason: MoveReason) -> None:
        roster = self._roster(run.group)
        claimants = claimants_of(run, roster)
        claimants += [id_ for id_ in roster if self._watermarks.get(id_, {}).get(conversation.id, 0) >= run.turn_seq]
        process = run.kept_for or (keeper(self._state, run) if self._may_return else "")
        back = connection_of(process, run, roster)
        if back is not None and not run.cancelling and back.id in claimants:
            adopt(self._draft, conversation, run, back.id, reason, proved=True)
            return
        if claimants and not process and may_be_adopted(run) and not run.cancelling:
            adopt(self._draft, conversation, run, adopter([roster[id_] for id_ in claimants], conversation.id), reason)
            return
        never_given = back is not None and not back.draining and not is_executed_once(self._state, run)
        if run.member is None and is_kept(self._state, run) and not never_given:
            return  # for the process that had it
        owner = choose(roster.values(), conversation.id, self._at, pinned=conversation.pinned(run.group))
        if back is not None and never_given:
            owner = back.id
        lose_owner(
            self._state,
            self._draft,
            conversation,
            run,
            to=None if owner is None else roster[owner],
            reason=reason,
            can_wait=run.group not in self._each,
            may_return=self._may_return and not never_given,
        )

    def _open_waiting(self, conversation: Conversation, channel: str, group: str) -> None:
        turns = conversation.waiting.get(channel, ())
        if not turns:
            return
        roster = self._roster(group)
        owner = choose(roster.values(), conversation.id, self._at, pinned=conversation.pinned(group))
        change_owner(self._draft, conversation, group, owner, roster)
        for turn, place in zip(turns, self._places(conversation, group, len(turns)), strict=True):
            opened = RunOpened(
                conversation_id=conversation.id,
                run_id=run_id(conversation.id, turn.turn_seq, group, turn.edition),
                turn_seq=turn.turn_seq,
                group=group,
                channel=channel,
                member=owner if place is _Place.GIVEN else None,
                turn_id=turn.turn_id if turn.edition else "",
                queued=place is _Place.QUEUED,
            )
            self._draft.add(opened)
            if place is _Place.OVERTAKEN:
                self._draft.add(
                    RunEnded(
                        conversation_id=conversation.id,
                        run_id=opened.run_id,
                        turn_seq=turn.turn_seq,
                        group=group,
                        member=None,
                        run_epoch=opened.run_epoch,
                        status=RunStatus.CANCELLED,
                        reason=INTERRUPTED,
                    )
                )

    def _places(self, conversation: Conversation, group: str, count: int) -> list[_Place]:
        """What becomes of so many turns that waited, by the group's policy; a turn that was taken is not rejected any
        more, it waits in line."""
        policy = self._state.config.group(group).policy
        if policy == DELIVER:
            return [_Place.GIVEN] * count
        if policy == INTERRUPT:
            return [*[_Place.OVERTAKEN] * (count - 1), _Place.GIVEN]
        ended = {event.run_id for event in self._draft.events if isinstance(event, RunEnded)}
        busy = any(run.group == group and run.id not in ended for run in conversation.runs.values())
        return [_Place.QUEUED if busy else _Place.GIVEN, *[_Place.QUEUED] * (count - 1)]
