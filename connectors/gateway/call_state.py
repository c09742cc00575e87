"""An invocation as its readers are told: its state, and why it did not succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final

import msgspec

from connectors.gateway.ports import StoredCall
from streams.core.events import RunStatus

# Why a run ended, as callers are told; anything else that is no success is `AGENT_ERROR`.
ERRORS: Final = {
    "deadline": ("DEADLINE_EXCEEDED", "its deadline passed"),
    "watchdog": ("IDLE_TIMEOUT", "nothing came of it for too long"),
    "not_begun": ("IDLE_TIMEOUT", "its agent did not begin in time"),
    "interrupt_expired": ("IDLE_TIMEOUT", "nobody answered its question in time"),
    "agent_busy": ("AGENT_BUSY", "every member of the group has as many runs as it may"),
    "agent_unavailable": ("AGENT_UNAVAILABLE", "its group has no member that takes calls"),
    "no_member": ("AGENT_UNAVAILABLE", "no member of its group came in time"),
    "owner_gone": ("OWNER_GONE", "its agent's process is gone; it is not executed again"),
    "released": ("OWNER_GONE", "its agent's process is gone, and an operator released it"),
    "too_many_events": ("TOO_MANY_EVENTS", "it said more than a run may"),
}


class CallState(StrEnum):
    """What readers of a record are told; see `Call.state` for what each means."""

    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    OWNER_GONE = "OWNER_GONE"


ENDED_STATES = {
    RunStatus.ANSWERED: CallState.SUCCEEDED,
    RunStatus.FAILED: CallState.FAILED,
    RunStatus.CANCELLED: CallState.CANCELLED,
    RunStatus.TIMED_OUT: CallState.TIMED_OUT,
    RunStatus.OWNER_GONE: CallState.OWNER_GONE,
}


class Call(msgspec.Struct, kw_only=True):
    """One invocation. Times: the broker's, ms since the epoch. `agent`: its group."""

    thread: str
    id: str
    run_id: str
    turn_seq: int
    agent: str
    created_at: int
    member: str | None = None
    run_epoch: int = 1
    started_at: int | None = None
    ended_at: int | None = None
    cancelling: bool = False
    status: RunStatus | None = None
    reason: str = ""
    detail: str = ""
    frames: list[int] = msgspec.field(default_factory=list)
    """The seq of its nth frame."""
    output: dict[str, Any] | None = None
    """Once it was made, of a call that has ended; not of one that was erased."""
    erased: bool = False
    waiting: set[asyncio.Event] = msgspec.field(default_factory=set)

    @property
    def state(self) -> CallState:
        """ACCEPTED: its run waits in line, or was given and has not begun. RUNNING: it has. CANCELLING: it was told to
        stop. Then how it ended."""
        if self.status is not None:
            return ENDED_STATES[self.status]
        if self.cancelling:
            return CallState.CANCELLING
        return CallState.ACCEPTED if self.started_at is None else CallState.RUNNING

    @contextmanager
    def news(self) -> Iterator[asyncio.Event]:
        """An event that is set with each change, for as long as this lasts."""
        event = asyncio.Event()
        self.waiting.add(event)
        try:
            yield event
        finally:
            self.waiting.discard(event)


def call_of(thread: str, row: StoredCall) -> Call:
    """The call of a row of the read model."""
    return Call(
        thread=thread,
        id=row.id,
        run_id=row.run_id,
        turn_seq=row.turn_seq,
        agent=row.group,
        created_at=row.opened_at,
        member=row.member,
        run_epoch=row.run_epoch,
        started_at=row.started_at,
        ended_at=row.ended_at,
        cancelling=row.cancelling,
        status=None if row.status in {"open", "queued"} else RunStatus(row.status),
        reason=row.reason or "",
        detail=row.detail or "",
    )


def error_of(call: Call) -> dict[str, str] | None:
    """Code and message of one that has not succeeded; None: it has, or has not ended."""
    if call.status is None or call.status is RunStatus.ANSWERED:
        return None
    if call.state is CallState.CANCELLED:
        return {"code": "CANCELLED", "message": call.detail or call.reason}
    code, message = ERRORS.get(call.reason, ("AGENT_ERROR", "its agent failed"))
    return {"code": code, "message": f"{message}: {call.detail}" if call.detail else message}
