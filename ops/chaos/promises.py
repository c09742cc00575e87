"""What the logs of one partition show besides the audit's invariants: the order of the intake, who was let expire.

All of it is a pure function of what the topics hold, so that it can be shown to fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from streams.core.commands import Command, Leave
from streams.core.events import (
    BatchCommitted,
    Entry,
    GatewayEnded,
    MemberJoined,
    MemberLeft,
    Rejected,
    WriterOpened,
)
from streams.runtime.signals import Signal, Tick

EXPIRED: Final = "expired"
MINUTE_MS: Final = 60_000
FENCES_MOST: Final = 30
"""Writer epochs of one partition within a minute. A writer that fails again and again waits twice as long each time, up
to 6.4 s: 0.1 + 0.2 + … + 6.4 s are 7 epochs, and then 9 a minute, of each of two workers; 11 were seen at most. Two
writers that fenced each other without end would have hundreds."""


@dataclass(frozen=True, slots=True)
class Change:
    """A record of `membership` that can be decoded."""

    offset: int
    content: Command | Signal


def log_problems(partition: int, entries: Sequence[Entry], changes: Sequence[Change], ttl_ms: int) -> Iterator[str]:
    """What one partition's journal and `membership` show. `ttl_ms`: of members."""
    for problem in (
        *_order(entries, changes),
        *_expired_early(entries, ttl_ms),
        *_came_back(entries),
        *_fences(entries),
    ):
        yield f"partition {partition}: {problem}"


def _order(entries: Sequence[Entry], changes: Sequence[Change]) -> Iterator[str]:
    """What waits for records of other topics is not taken before they are: a Leave for its member's last frame, a
    writer's tick for what lay in `turns` and `frames` before it."""
    waiting = deque(changes)
    rejected = {entry.event.origin for entry in entries if isinstance(entry.event, Rejected)}
    worker = ""
    for entry in entries:
        match entry.event:
            case WriterOpened() as opened:
                worker = opened.worker
            case BatchCommitted() as batch:
                while waiting and waiting[0].offset < batch.membership:
                    change = waiting.popleft()
                    match change.content:
                        case Tick() as tick if (tick.writer_epoch, tick.worker) == (entry.writer_epoch, worker):
                            if batch.turns < tick.turns_end or batch.frames < tick.frames_end:
                                yield (
                                    f"lsn {entry.lsn}: the tick at {change.offset} was taken with turns read to "
                                    f"{batch.turns} and frames to {batch.frames}; it names {tick.turns_end} and "
                                    f"{tick.frames_end}"
                                )
                        case Leave() as leave if not any(origin.endswith(f"/{change.offset}") for origin in rejected):
                            if batch.frames < leave.frames_end:
                                yield (
                                    f"lsn {entry.lsn}: {leave.member} left with frames read to {batch.frames}; its "
                                    f"last one is before {leave.frames_end}"
                                )
                        case _:
                            pass
            case _:
                pass


def _expired_early(entries: Sequence[Entry], ttl_ms: int) -> Iterator[str]:
    """After a claim every gateway has its full time."""
    opened_at = 0
    for entry in entries:
        match entry.event:
            case WriterOpened():
                opened_at = entry.at
            case GatewayEnded(gateway=gateway, reason=reason) if reason == EXPIRED and entry.at - opened_at <= ttl_ms:
                yield f"lsn {entry.lsn}: {gateway} expired {entry.at - opened_at} ms after a claim, before its full TTL"
            case _:
                pass


def _came_back(entries: Sequence[Entry]) -> Iterator[str]:
    """A member's id is never used again, and a gateway that ended joins nobody any more."""
    left: set[str] = set()
    ended: set[str] = set()
    for entry in entries:
        match entry.event:
            case MemberLeft(member=member):
                left.add(member)
            case GatewayEnded(gateway=gateway):
                ended.add(gateway)
            case MemberJoined(member=member, gateway=gateway):
                if member in left:
                    yield f"lsn {entry.lsn}: {member} joined again after it had left"
                if gateway in ended:
                    yield f"lsn {entry.lsn}: {member} joined through {gateway}, which had ended"
            case _:
                pass


def _fences(entries: Sequence[Entry]) -> Iterator[str]:
    """Fences per minute stay bounded."""
    if (most := fences_a_minute(entries)) > FENCES_MOST:
        yield f"{most} writer epochs within a minute; more than {FENCES_MOST} are no answer to faults"


def fences_a_minute(entries: Sequence[Entry]) -> int:
    """The most writer epochs within any minute of broker time."""
    recent: deque[int] = deque()
    most = 0
    for entry in entries:
        if isinstance(entry.event, WriterOpened):
            recent.append(entry.timestamp)
            while recent[0] <= entry.timestamp - MINUTE_MS:
                recent.popleft()
            most = max(most, len(recent))
    return most
