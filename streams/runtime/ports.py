"""All that a sequencer works with, wired once per process and handed down; tests hand down fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from streams.fence.port import Checkpoints, Lease, Leases
from streams.runtime.codec import Codec
from streams.runtime.commit import DeadLetters
from streams.runtime.hanging import Transactions
from streams.runtime.kafka import IntakeSource, JournalProducer, JournalReader, Outbox
from streams.runtime.memory import Room
from streams.runtime.metrics import WorkerMetrics
from streams.tracing import OFF, Tracer

OPENED_AT_ONCE: Final = 8
"""Partitions of a worker that go through the claim order at the same time. All at once would share the CPU, and be
ready all at the end; in turn, half of them are ready after half of the time. Most of an opening is waiting: fewer than
this would leave the CPU idle."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that sequencers follow; names and units as in `streams.settings`."""

    batch_max: int
    tick_ms: int
    member_ttl_ms: int
    checkpoint_every_ms: int
    checkpoint_every_events: int
    idle_conversations_max: int


class LeaseKeeper(Protocol):
    """Renews leases in the background and knows how long each is good; `streams.fence.heartbeat` is one."""

    def watch(self, lease: Lease, asked_at: float) -> None:
        """Renew it from now on. `asked_at`: `monotonic_s()` from before it was claimed or confirmed."""

    def forget(self, partition: int) -> None:
        """Renew it no more: called before it is handed back, and once it is lost."""

    def may_write(self, lease: Lease) -> bool:
        """Whether a write under this very lease is still allowed, by a clock that began before it was asked for."""


async def _taken_for_granted() -> None:
    """Topics that nobody can make anew."""


@dataclass(frozen=True, slots=True)
class Ports:
    """One worker's access to the outside. The callables make a new thing for each writer epoch of a partition."""

    worker: str
    partitions: int
    membership_topic: str
    limits: Limits
    leases: Leases
    checkpoints: Checkpoints
    codec: Codec
    outbox: Outbox
    dead_letters: DeadLetters
    new_producer: Callable[[int], JournalProducer]
    new_reader: Callable[[int], JournalReader]
    new_intake: Callable[[int], IntakeSource]
    transactions: Transactions
    keeper: LeaseKeeper
    metrics: WorkerMetrics
    same_topics: Callable[[], Awaitable[None]] = _taken_for_granted
    """Raises `Unrecoverable` where the topics are not those that the stored positions are of."""
    tracer: Tracer = OFF
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENED_AT_ONCE))
    room: Room = field(default_factory=Room)
