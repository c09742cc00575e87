"""Channels and routes: the document that gateways broadcast, and who gets the turns of a channel.

The document is parsed here and validated where it is written (`turnlog channel apply`): the core takes what it can
read and ignores fields that it does not know. A document that is not readable at all is refused and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from streams.core.state import Group, Partition

AGENT_KIND: Final = "websocket"
"""Agents connect to channels of this kind."""


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
    """A run that waits this long for a member of its group ends; 0: it waits for ever."""


class Route(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """Turns of channel `from_` go to the agent channels `to`."""

    from_: str
    to: tuple[str, ...] = ()


class Document(msgspec.Struct, frozen=True):
    """The whole document."""

    version: int
    channels: tuple[Channel, ...] = ()
    routes: tuple[Route, ...] = ()


class Config(msgspec.Struct):
    """The document as the core uses it. `version` 0: none was broadcast yet."""

    version: int = 0
    document: str = ""
    channels: dict[str, Channel] = {}
    routes: dict[str, tuple[str, ...]] = {}
    limits_begin: bool = False
    """Some channel sets `begin_ms`: runs have a timer from the first."""

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
    """The group, when there is just one, and no limit on when a run begins: the common case, worth a short way."""


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
    return Config(version, document, channels, routes, limits_begin)


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
        if target is None or not target.active or target.kind != AGENT_KIND:
            continue
        of_channel = state.channel_groups.get(to)
        if of_channel:
            groups.extend(of_channel[group] for group in sorted(of_channel))
        else:
            waiting.append(to)
    return Plan(
        groups=tuple(groups),
        waiting=tuple(waiting),
        settled_at=max((group.settled_at for group in groups), default=0),
        only=groups[0].id if len(groups) == 1 and not config.limits_begin else None,
    )
