"""Membership records that never reach the core: who is alive, and the clock. They are soft state of the runtime."""

from __future__ import annotations

import msgspec


class Signal(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What all signals have."""

    timestamp: int = 0
    """The broker's append time of the record, ms since the epoch; 0 where it has not been written yet."""


class Heartbeat(Signal, frozen=True):
    """A gateway is alive, with `n` membership changes made and the document `config_version` (0: none)."""

    gateway: str
    n: int
    config_version: int


class Goodbye(Signal, frozen=True):
    """A gateway stopped; its members have left."""

    gateway: str


class Tick(Signal, frozen=True):
    """The partition's clock. Takes effect only once both topics were read to the ends (next offsets) that it names."""

    worker: str
    writer_epoch: int
    turns_end: int
    frames_end: int
