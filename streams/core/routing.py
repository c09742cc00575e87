"""Channels and routes: the document that gateways broadcast, and who gets the turns of a channel.

The document is parsed here and validated where it is written (`turnlog channel apply`): the core takes what it can
read and ignores fields that it does not know. A document that is not readable at all is refused and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from streams.core.ids import channel_of_group, is_of_one

if TYPE_CHECKING:
    from streams.core.state import Group, Partition

AGENT_KIND: Final = "websocket"
"""Agents connect to channels of this kind."""

DELIVER: Final = "deliver"
"""A turn during a run of its group is given at once; the agent takes one after another."""
ENQUEUE: Final = "enqueue"
"""It gets its run when the earlier run ended."""
REJECT: Final = "reject"
"""It is not taken."""
INTERRUPT: Final = "interrupt"
"""The earlier run ends, and its own begins."""
ORIGIN: Final = "origin"
"""The value of `replies` by which an answer goes only where what it answers came from."""

POLICIES: Final = (DELIVER, ENQUEUE, REJECT, INTERRUPT)

REFUSE: Final = "refuse"
"""The value of `busy` by which a turn ends that every member of its group refused, and of `unassigned` by which one
ends that finds no member."""


class GroupSettings(msgspec.Struct, frozen=True):
    """What a channel sets for one of its groups; None: as the channel has it. Durations in ms."""

    policy: str | None = None
    busy: str | None = None
    on_owner_loss: str | None = None
    watchdog_ms: int | None = None
    deadline_ms: int | None = None


class Channel(msgspec.Struct, frozen=True):
    """One channel as the document has it. Durations in ms."""

    id: str
    kind: str = "web"
    active: bool = True
    group_settle_ms: int = 1000
    """A member is eligible this long after it joined."""
    ungrouped: str = "shared"
    """`shared`: connections without a group share the implicit one; `each`: each gets every turn."""
    on_owner_loss: str | None = None
    """`restart` or `fail`; anything else is taken as `continue`: a run goes on where it stopped if its new owner can,
    and is restarted if not."""
    adopt_ms: int = 5000
    """An adopted run is given again when no frame of it comes for this long."""
    watchdog_ms: int = 300_000
    """A run that was started and is idle for this long ends: 5 min."""
    begin_ms: int = 0
    """A run that its member does not begin within this ends; 0: it may take its time."""
    wait_ms: int = 0
    """A run that waits this long for a member of its group ends, and a turn that waits for the channel's first one; 0:
    they wait for ever."""
    unassigned: str = "wait"
    """What becomes of a turn while the channel has no member: `wait`, for `wait_ms` or for ever, or `refuse`."""
    interrupt_ttl_ms: int = 24 * 60 * 60 * 1000
    """A run whose member asks a person ends when no answer came for this long: 24 h."""
    deadline_ms: int = 0
    """A run ends this long after its turn, what it waits for a person not counted; 0: never, for that."""
    policy: str = "deliver"
    """What becomes of a turn during a run of the same (conversation, group): `deliver`, `enqueue`, `reject` or
    `interrupt`."""
    max_waiting: int = 100
    """With `enqueue`, so many turns of a conversation wait in line for a group at most; one more is not taken."""
    busy: str = "wait"
    """What becomes of a turn that every member of its group refused: `wait` or `refuse`."""
    grace_ms: int = 30_000
    """An invocation whose member's connection was lost is kept this long for its process to come back: 30 s."""
    sees: str = "participant"
    """Of conversations that are routed to it, being a channel of people: `participant`: whose participant is the same
    person, by the word of both channels' backends; `all`: every one, whoever of its people asks."""
    groups: dict[str, GroupSettings] = {}
    """Per named group, by its name without the channel, what differs there."""
    retain_days: int | None = None
    """Its conversations are erased once they have been idle for so long; None: never."""


class Route(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Turns of conversations of channel `from_` go to the agent channels among `to`; people of the others are shown
    these conversations, and write in them."""

    from_: str
    to: tuple[str, ...] = ()
    replies: str = "all"
    """Where an answer is shown, beside the conversation's own channel: `all` of `to`, or only the `origin` of what it
    answers."""


class Document(msgspec.Struct, frozen=True):
    """The whole document."""

    version: int
    channels: tuple[Channel, ...] = ()
    routes: tuple[Route, ...] = ()


class GroupRules(msgspec.Struct, frozen=True):
    """What holds for the runs of one group: its channel's settings, and its own where there are any."""

    policy: str
    max_waiting: int
    busy: str
    on_owner_loss: str | None
    watchdog_ms: int
    deadline_ms: int
    adopt_ms: int
    begin_ms: int
    wait_ms: int
    interrupt_ttl_ms: int
    grace_ms: int

    @property
    def plain(self) -> bool:
        """Its turns are given at once, and their runs have no timer from the first."""
        return self.policy == DELIVER and not (self.deadline_ms or self.begin_ms)


class Config(msgspec.Struct):
    """The document as the core uses it. `version` 0: none was broadcast yet."""

    version: int = 0
    document: str = ""
    channels: dict[str, Channel] = {}
    routes: dict[str, tuple[str, ...]] = {}
    replies_to_origin: frozenset[str] = frozenset()
    """Channels whose conversations' answers are shown only where what they answer came from, and in the channel
    itself."""
    limits_begin: bool = False
    """Some channel sets `begin_ms`: runs have a timer from the first."""
    rules: dict[str, GroupRules] = {}
    """Derived, per group, when it is asked for."""

    def group(self, group: str) -> GroupRules:
        """What holds for the runs of this group (qualified)."""
        known = self.rules.get(group)
        if known is None:
            if is_of_one(group):  # connections come and go: it leaves nothing here
                return self.group(channel_of_group(group))
            known = self.rules[group] = self._rules_of(group)
        return known

    def _rules_of(self, group: str) -> GroupRules:
        id_, _, name = group.partition("/")
        channel = self.channel(id_)
        own = channel.groups.get(name) or GroupSettings()
        return GroupRules(
            policy=own.policy or channel.policy,
            max_waiting=channel.max_waiting,
            busy=own.busy or channel.busy,
            on_owner_loss=own.on_owner_loss or channel.on_owner_loss,
            watchdog_ms=channel.watchdog_ms if own.watchdog_ms is None else own.watchdog_ms,
            deadline_ms=channel.deadline_ms if own.deadline_ms is None else own.deadline_ms,
            adopt_ms=channel.adopt_ms,
            begin_ms=channel.begin_ms,
            wait_ms=channel.wait_ms,
            interrupt_ttl_ms=channel.interrupt_ttl_ms,
            grace_ms=channel.grace_ms,
        )

    def channel(self, channel: str) -> Channel:
        """Its settings; the defaults for a channel that the document does not have (its connections outlive it)."""
        return self.channels.get(channel) or Channel(id=channel)


class Plan(msgspec.Struct, eq=False):
    """Who gets the turns of one people's channel, for one state of roster and config; compared by identity."""

    groups: tuple[Group, ...]
    """Every group with a member of the agent channels that it is routed to, in the order of the route, then of id."""
    waiting: tuple[str, ...]
    """The agent channels without any member."""
    settled_at: int
    """From here on every member of these groups is eligible."""
    only: str | None = None
    """The group, when there is just one, and it is plain: the common case, worth a short way."""
    plain: bool = True
    """Every group is: a turn is given at once, whatever runs."""


NOBODY: Final = Plan(groups=(), waiting=(), settled_at=0)
"""No agent gets the turn, and it waits for none."""


class UnreadableConfig(ValueError):
    """The document cannot be parsed; the message names the field."""


_decoder = msgspec.json.Decoder(Document)


def parse_config(version: int, document: str) -> Config:
    """`UnreadableConfig` when it is not a JSON document of channels and routes."""
    try:
        parsed = _decoder.decode(document)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise UnreadableConfig(str(error)) from error
    channels = {channel.id: channel for channel in parsed.channels}
    routes: dict[str, tuple[str, ...]] = {}
    for route in parsed.routes:
        known = routes.get(route.from_, ())
        routes[route.from_] = known + tuple(to for to in dict.fromkeys(route.to) if to not in known)
    limits_begin = any(channel.begin_ms for channel in parsed.channels)
    to_origin = frozenset(route.from_ for route in parsed.routes if route.replies == ORIGIN)
    return Config(version, document, channels, routes, to_origin, limits_begin)


def may_write(config: Config, own: str, channel: str) -> bool:
    """Whether people of `channel` may write in a conversation of the channel `own`: it is that one, or that one is
    routed to it, and it is an active channel of people."""
    if channel == own:
        return True
    target = config.channels.get(channel)
    return target is not None and target.active and target.kind != AGENT_KIND and channel in config.routes.get(own, ())


def owns(config: Config, channel: str) -> bool:
    """Whether this channel of agents may open conversations of its own: they are routed to somebody."""
    return bool(config.routes.get(channel))


def is_delivered(config: Config, own: str, channel: str, origin: str | None) -> bool:
    """Whether people of `channel` are shown what an agent said in a conversation of the channel `own`. `origin`: the
    channel that the turn which it answers came from; None: it answers none."""
    return channel == own or origin is None or own not in config.replies_to_origin or channel == (origin or own)


def plan_of(state: Partition, channel: str) -> Plan | None:
    """Who gets the turns of `channel` now; None when the config has no such active channel."""
    plans = state.plans
    if channel in plans:
        return plans[channel]
    plan = _make_plan(state, channel)
    plans[channel] = plan
    return plan


def _make_plan(state: Partition, channel: str) -> Plan | None:
    config = state.config
    source = config.channels.get(channel)
    if source is None or not source.active:
        return None
    groups: list[Group] = []
    waiting: list[str] = []
    for to in config.routes.get(channel, ()):
        target = config.channels.get(to)
        if target is None or not target.active or target.kind != AGENT_KIND or to == channel:
            continue  # whose conversation it is follows it, and is given nothing of it
        of_channel = state.channel_groups.get(to)
        if of_channel:
            groups.extend(of_channel[group] for group in sorted(of_channel))
        else:
            waiting.append(to)
    plain = all(config.group(id_).plain for id_ in (*(group.id for group in groups), *waiting))
    return Plan(
        groups=tuple(groups),
        waiting=tuple(waiting),
        settled_at=max((group.settled_at for group in groups), default=0),
        only=groups[0].id if len(groups) == 1 and plain else None,
        plain=plain,
    )
