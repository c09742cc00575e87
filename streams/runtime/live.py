"""The records of the topic `live`: who types, who is there, what was read. They may be lost; they decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class Typing(msgspec.Struct, frozen=True):
    """Someone types, or stopped. `member`: the agent's connection, when it is one."""

    active: bool
    member: str | None = None


class Presence(msgspec.Struct, frozen=True):
    """Someone has so many connections at a gateway. `asks`: the other gateways are to say whom they have."""

    online: bool
    connections: int = 0
    asks: bool = False


class Receipt(msgspec.Struct, frozen=True):
    """Everything up to `up_to_seq` came to the sender (`delivered`) or was read by it (`read`)."""

    status: str
    up_to_seq: int
    message_id: str | None = None


class Shown(msgspec.Struct, frozen=True):
    """A frame (JSON) for whoever watches now."""

    frame: str


Signal = Typing | Presence | Receipt | Shown
SIGNALS: Final[Mapping[str, type[Signal]]] = {
    "Typing": Typing,
    "Presence": Presence,
    "Receipt": Receipt,
    "Shown": Shown,
}


class LiveSignal(msgspec.Struct, frozen=True, kw_only=True):
    """One record; see `schemas/avro/live.avsc`."""

    conversation_id: str
    sender: str
    at: int
    gateway: str = ""
    role: str = "user"
    channel: str = ""
    signal: Signal
