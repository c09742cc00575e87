"""Who is connected: gateways and their members (rules 3, 4). What a change does to open runs is `placement`'s.

A gateway numbers its membership changes 1, 2, 3 … for each partition alike. Only n = last + 1 is applied; anything
else (a gap, a repeat, one out of order) changes nothing and asks for the gateway's list, once until it is answered or
2 s have passed. A list as of counter n is applied when n is not below the partition's count: members it lacks left,
unknown ones join, known ones keep their `since`. So every order of arrival ends with the gateway's own truth.

An incarnation that expired or said goodbye has ended: it may never join a member again.

A drain is outside that numbering: a gateway or an operator may say it, any number of times, and nothing undoes it. A
list repeats it for a partition that missed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streams.core import refusals
from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    Drain,
    GatewayBehind,
    GatewayExpired,
    Join,
    Leave,
    ListedMember,
)
from streams.core.draft import Draft
from streams.core.due import watch, watch_orphans
from streams.core.events import (
    ConfigChanged,
    Entry,
    Event,
    GatewayEnded,
    ListApplied,
    ListWanted,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    MoveReason,
    Refused,
    RefusedReason,
)
from streams.core.ids import channel_of_group
from streams.core.limits import problem_of_ids, problem_of_text
from streams.core.placement import Change, Placement
from streams.core.routing import UnreadableConfig, parse_config
from streams.core.run_events import claim_runs
from streams.core.state import (
    ENDED_GATEWAY_KEPT_MS,
    Gateway,
    Group,
    ImpossibleEvent,
    Member,
    Partition,
)
from streams.core.unassigned import watch_waits

LIST_WANTED_AGAIN_MS: Final = 2000
"""An unanswered request for a list or the document is repeated after this long: two heartbeats."""

LISTED: Final = "listed"
"""Reason of a drain that a partition learned of from its gateway's list."""

REPLACED: Final = "replaced"
"""Reason of the drain of a member whose process has come with another connection."""

SENT_AWAY: Final = "sent_away"
"""Reason of the leave of a member that an operator drained."""

NOT_AWAITED: Final = frozenset({"left", "done", SENT_AWAY})
"""Reasons of a leave after which nothing is kept for its process: it closed its connection itself, `done` after it
drained, or an operator wants it stopped."""

MEMBERS: Final = "members"
CONFIG: Final = "config"

_LEAVE_REASONS: Final = dict.fromkeys(("drained", "done", SENT_AWAY), MoveReason.MEMBER_DRAINED)
_END_REASONS: Final = {"expired": MoveReason.MEMBER_EXPIRED}


# ------------------------------------------------------------------------------------------------ decide


def decide_join(state: Partition, command: Join) -> list[Event]:
    """Only n = last + 1 joins."""
    if command.gateway in state.ended_gateways:
        return [*refusals.gateway_ended(state, command.gateway, member=command.member, ref=command.ref)]
    if command.n != _count_of(state, command.gateway) + 1 or command.member in state.members:
        return _want_list(state, command.gateway)
    listed = ListedMember(
        command.member,
        command.channel,
        command.group,
        command.each,
        command.watermarks,
        command.continues,
        instance=command.instance,
    )
    if refused := _refused_ids(command, (listed,)):
        return refused
    joined = [_newcomer(state, command.gateway, listed, command.at)]
    change = Change(joined=joined, replaced=_replaced(state, joined))
    return _decide_change(state, command.gateway, command.n, change, command.at)


def decide_leave(state: Partition, command: Leave) -> list[Event]:
    """Only n = last + 1 leaves; its runs go on elsewhere."""
    if command.gateway in state.ended_gateways:
        return [*refusals.gateway_ended(state, command.gateway, member=command.member, ref=command.ref)]
    member = state.members.get(command.member)
    if command.n != _count_of(state, command.gateway) + 1 or member is None or member.gateway != command.gateway:
        return _want_list(state, command.gateway)
    change = Change(
        left=[member],
        reason=_LEAVE_REASONS.get(command.reason, MoveReason.MEMBER_LEFT),
        may_return=command.reason not in NOT_AWAITED,
    )
    return _decide_change(state, command.gateway, command.n, change, command.at)


def decide_list(state: Partition, command: ApplyList) -> list[Event]:
    """The gateway's own truth as of its counter n."""
    if command.gateway in state.ended_gateways:
        return [*refusals.gateway_ended(state, command.gateway, ref=command.ref)]
    gateway = state.gateways.get(command.gateway) or Gateway(command.gateway)
    if command.n < gateway.n:
        return []  # overtaken by later changes; if a list is still wanted, it is asked for again
    if refused := _refused_ids(command, command.members):
        return refused
    listed = {member.member: member for member in command.members}
    known = [state.members[member] for member in gateway.members]
    joined = [
        _newcomer(state, command.gateway, member, command.at)
        for member in listed.values()
        if member.member not in state.members
    ]
    change = Change(
        joined=joined,
        replaced=[member for member in _replaced(state, joined) if member.id in listed or member not in known],
        draining=[member for member in known if member.id in listed and listed[member.id].draining > member.draining],
        left=[member for member in known if member.id not in listed],
    )
    changes = change.joined or change.draining or change.left
    if not changes and command.n == gateway.n and gateway.list_wanted_at < 0:
        return []
    events = _decide_change(state, command.gateway, command.n, change, command.at)
    return [*events, ListApplied(gateway=command.gateway, n=command.n)]


def decide_drain(state: Partition, command: Drain) -> list[Event]:
    """Said by anybody, any number of times, in any order: what is not there, or drains already, stays as it is."""
    member = state.members.get(command.member)
    if member is None or member.draining:
        return []
    problem = problem_of_ids((("by", command.by),)) or problem_of_text("reason", command.reason)
    if problem is not None:
        return [Refused(reason=problem[0], ref=command.ref, member=member.id, detail=problem[1])]
    return [MemberDraining(member=member.id, group=member.group, by=command.by, reason=command.reason)]


def decide_gateway_behind(state: Partition, command: GatewayBehind) -> list[Event]:
    """Ask for what the partition lacks."""
    if command.gateway in state.ended_gateways:
        return [*refusals.gateway_ended(state, command.gateway, ref=command.ref)]
    events: list[Event] = []
    if command.n != _count_of(state, command.gateway):
        events += _want_list(state, command.gateway)
    gateway = state.gateways.get(command.gateway)
    if command.config_version > state.config.version and (gateway is None or gateway.config_wanted_at < 0):
        events.append(ListWanted(gateway=command.gateway, of=CONFIG, have=state.config.version))
    return events


def decide_gateway_expired(state: Partition, command: GatewayExpired) -> list[Event]:
    """All its members leave at once, then it ends for ever."""
    if command.gateway in state.ended_gateways:
        return []
    gateway = state.gateways.get(command.gateway) or Gateway(command.gateway)
    change = Change(
        left=[state.members[member] for member in gateway.members],
        reason=_END_REASONS.get(command.reason, MoveReason.MEMBER_LEFT),
    )
    events = _decide_change(state, command.gateway, gateway.n, change, command.at)
    return [*events, GatewayEnded(gateway=command.gateway, reason=command.reason)]


def decide_config(state: Partition, command: ApplyConfig) -> list[Event]:
    """A newer document is taken when it is readable."""
    if command.version <= state.config.version:
        return []
    try:
        parse_config(command.version, command.document)
    except UnreadableConfig as error:
        return [Refused(reason=RefusedReason.INVALID_TEXT, ref=command.ref, detail=f"document: {error}")]
    return [ConfigChanged(version=command.version, document=command.document)]


def decide_wanted_again(state: Partition, at: int) -> list[Event]:
    """Ask again for lists and documents that were asked for 2 s ago and have not come."""
    events: list[Event] = []
    for gateway in state.gateways.values():
        if 0 <= gateway.list_wanted_at <= at - LIST_WANTED_AGAIN_MS:
            events.append(ListWanted(gateway=gateway.id, of=MEMBERS, have=gateway.n))
        if 0 <= gateway.config_wanted_at <= at - LIST_WANTED_AGAIN_MS:
            events.append(ListWanted(gateway=gateway.id, of=CONFIG, have=state.config.version))
    return events


def _refused_ids(command: Join | ApplyList, members: Iterable[ListedMember]) -> list[Event]:
    """What members are called goes into run ids and idempotency keys, which every store behind must hold."""
    for member in members:
        names = (("gateway", command.gateway), ("member", member.member), ("channel", member.channel))
        problem = problem_of_ids((*names, ("group", member.group), ("instance", member.instance or None)))
        if problem is not None:
            return [Refused(reason=problem[0], ref=command.ref, detail=problem[1])]
    return []


def _count_of(state: Partition, gateway: str) -> int:
    known = state.gateways.get(gateway)
    return 0 if known is None else known.n


def _want_list(state: Partition, gateway: str) -> list[Event]:
    known = state.gateways.get(gateway)
    if known is not None and known.list_wanted_at >= 0:
        return []
    return [ListWanted(gateway=gateway, of=MEMBERS, have=0 if known is None else known.n)]


def _newcomer(state: Partition, gateway: str, listed: ListedMember, at: int) -> tuple[Member, dict[str, int]]:
    since = at + state.config.channel(listed.channel).group_settle_ms
    member = Member(
        listed.member, listed.group, listed.channel, gateway, since, listed.each, listed.continues, listed.draining
    )
    member.instance = listed.instance
    return member, listed.watermarks


def _replaced(state: Partition, joined: Iterable[tuple[Member, dict[str, int]]]) -> list[Member]:
    """Members whose process has come with another connection: it has one, and this one is what is left of the last."""
    replaced: dict[str, Member] = {}
    for newcomer, _ in joined:
        group = state.groups.get(newcomer.group)
        if newcomer.instance and group is not None:
            replaced |= {id_: member for id_, member in group.members.items() if member.instance == newcomer.instance}
    return list(replaced.values())


def _decide_change(state: Partition, gateway: str, n: int, change: Change, at: int) -> list[Event]:
    draft = Draft()
    for member, watermarks in change.joined:
        draft.add(
            MemberJoined(
                member=member.id,
                group=member.group,
                channel=member.channel,
                gateway=gateway,
                n=n,
                since=member.since,
                each=member.each,
                watermarks=watermarks,
                continues=member.continues,
                instance=member.instance,
            )
        )
    for member in change.replaced:
        if not member.draining and member not in change.draining:
            draft.add(MemberDraining(member=member.id, group=member.group, by=gateway, reason=REPLACED))
    for member in [*(joined for joined, _ in change.joined if joined.draining), *change.draining]:
        draft.add(MemberDraining(member=member.id, group=member.group, by=gateway, reason=LISTED))
    for member in change.left:
        draft.add(MemberLeft(member=member.id, group=member.group, gateway=gateway, n=n, reason=change.reason))
    Placement(state, draft, change, at).place()
    return draft.events


# ------------------------------------------------------------------------------------------------ evolve


def evolve_joined(state: Partition, entry: Entry, event: MemberJoined) -> None:
    """Roster, counter, and which open runs it claims to have."""
    gateway = _alive(state, event.gateway)
    if event.member in state.members or event.n < gateway.n:
        raise ImpossibleEvent(f"member {event.member} is known, or its change {event.n} is below {gateway.n}")
    gateway.n = event.n
    gateway.members[event.member] = None
    member = Member(event.member, event.group, event.channel, event.gateway, event.since, event.each, event.continues)
    member.instance = event.instance
    state.members[event.member] = member
    enrol(state, member)
    for conversation_id, watermark in event.watermarks.items():
        conversation = state.conversations.get(conversation_id)
        if conversation is not None and claim_runs(state, conversation, event.group, event.member, watermark):
            conversation.lsn = entry.lsn
            state.dirty.add(conversation_id)


def evolve_left(state: Partition, _: Entry, event: MemberLeft) -> None:
    """Out of the roster; the events just after place its runs."""
    gateway = _alive(state, event.gateway)
    member = state.members.pop(event.member, None)
    if member is None or event.n < gateway.n:
        raise ImpossibleEvent(f"member {event.member} is not known, or its change {event.n} is below {gateway.n}")
    gateway.n = event.n
    gateway.members.pop(event.member, None)
    group = state.groups[member.group]
    del group.members[member.id]
    if group.members:
        group.settled_at = max(other.since for other in group.members.values())
    else:
        del state.groups[group.id]
        of_channel = state.channel_groups[group.channel]
        del of_channel[group.id]
        if not of_channel:
            del state.channel_groups[group.channel]
        watch_orphans(state, group.id)
    state.plans.clear()


def evolve_draining(state: Partition, _: Entry, event: MemberDraining) -> None:
    """From the next choice on."""
    member = state.members.get(event.member)
    if member is None or member.draining:
        raise ImpossibleEvent(f"member {event.member} is not known, or drains already")
    member.draining = True
    state.plans.clear()


def enrol(state: Partition, member: Member) -> None:
    """Put a member into its group's roster."""
    group = state.groups.get(member.group)
    if group is None:
        group = state.groups[member.group] = Group(member.group, channel_of_group(member.group))
        state.channel_groups.setdefault(group.channel, {})[group.id] = group
    group.members[member.id] = member
    group.settled_at = max(group.settled_at, member.since)
    state.plans.clear()


def evolve_gateway_ended(state: Partition, entry: Entry, event: GatewayEnded) -> None:
    """Remember the incarnation, to refuse it."""
    gateway = state.gateways.pop(event.gateway, None)
    if gateway is not None and gateway.members:
        raise ImpossibleEvent(f"gateway {event.gateway} has members: they leave before it ends")
    state.ended_gateways[event.gateway] = entry.at
    _forget_old(state.ended_gateways, entry.at - ENDED_GATEWAY_KEPT_MS)


def _forget_old(ended: dict[str, int], before: int) -> None:
    while (oldest := next(iter(ended))) and ended[oldest] < before:
        del ended[oldest]


def evolve_list_wanted(state: Partition, entry: Entry, event: ListWanted) -> None:
    """When it was asked for."""
    gateway = _alive(state, event.gateway)
    if event.of == CONFIG:
        gateway.config_wanted_at = entry.at
    else:
        gateway.list_wanted_at = entry.at


def evolve_list_applied(state: Partition, _: Entry, event: ListApplied) -> None:
    """The counter is the list's; the request is answered."""
    gateway = _alive(state, event.gateway)
    if event.n < gateway.n:
        raise ImpossibleEvent(f"the list of {event.gateway} is of {event.n}, below {gateway.n}")
    gateway.n = event.n
    gateway.list_wanted_at = -1


def evolve_config(state: Partition, _: Entry, event: ConfigChanged) -> None:
    """Settings, routes, and the time-outs that depend on them."""
    if event.version <= state.config.version:
        raise ImpossibleEvent(f"document version {event.version} does not follow {state.config.version}")
    try:
        state.config = parse_config(event.version, event.document)
    except UnreadableConfig as error:
        raise ImpossibleEvent(f"document version {event.version}: {error}") from error
    state.plans.clear()
    for gateway in state.gateways.values():
        gateway.config_wanted_at = -1
    for conversation in state.conversations.values():  # a new or shorter time-out may be due before a run's bucket
        for run in conversation.runs.values():
            watch(state, conversation, run)
        watch_waits(state, conversation)


def _alive(state: Partition, gateway: str) -> Gateway:
    if gateway in state.ended_gateways:
        raise ImpossibleEvent(f"gateway {gateway} has ended")
    known = state.gateways.get(gateway)
    if known is None:
        known = state.gateways[gateway] = Gateway(gateway)
    return known
