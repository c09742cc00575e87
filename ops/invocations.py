"""Invocations as operators see and end them: by the read model, and by commands that the journal answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from connectors.gateway.call_state import call_of, error_of
from connectors.gateway.ports import StoredCall
from ops.conversations import is_current
from ops.decided import decided
from ops.journal import partition_count
from ops.shown import mask
from streams.core.commands import CancelRun, ReleaseRun
from streams.core.events import Event
from streams.core.invocations import RELEASED
from streams.projector.read import CallRow, ReadModel
from streams.runtime.partitioning import partition_of
from streams.settings import Settings

Notify = Callable[[str], None]


async def listed(settings: Settings, *, thread: str | None, orphaned: bool, limit: int) -> Sequence[dict[str, Any]]:
    """Invocations, the newest first: of a thread, else those that have not ended anywhere; `orphaned`: without a
    member that works on them."""
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        calls = await read_model.calls(limit=limit, conversation_id=thread, orphaned=orphaned)
    finally:
        await read_model.close()
    return [_document(its_thread, row) for its_thread, row in calls]


async def shown(settings: Settings, thread: str, invocation: str, notify: Notify) -> dict[str, Any] | None:
    """One invocation as of what was committed when it was asked; None: the thread has none of this id."""
    partition = partition_of(thread, await partition_count(settings))
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        if not await is_current(settings, read_model, partition):
            notify("the read model is behind (does a projector run?): this is what it has")
        row = await read_model.call(thread, invocation)
    finally:
        await read_model.close()
    return None if row is None else _document(thread, row)


async def cancel(settings: Settings, thread: str, run_id: str, *, by: str, reason: str) -> Event:
    """Ask its run to stop; what the journal answers. Raises as `ops.decided.decided`."""
    command = CancelRun(
        at=0, timestamp=0, ref=str(uuid4()), conversation_id=thread, run_id=run_id, by=by, reason=reason
    )
    return await decided(settings, command)


async def release(settings: Settings, thread: str, run_id: str, *, by: str, reason: str, proof: str) -> Event:
    """End its run, whose worker is known to have stopped; what the journal answers. Raises as `ops.decided.decided`."""
    command = ReleaseRun(
        at=0,
        timestamp=0,
        ref=str(uuid4()),
        conversation_id=thread,
        run_id=run_id,
        by=by,
        reason=reason,
        proof=proof,
    )
    return await decided(settings, command)


def _document(thread: str, row: CallRow) -> dict[str, Any]:
    """Of why its caller cancelled it only how long that is; the proof of who released it is an operator's."""
    if row.detail is not None and row.reason != RELEASED:
        row = msgspec.structs.replace(row, detail=mask(row.detail))
    call = call_of(thread, StoredCall(**msgspec.structs.asdict(row)))
    error = error_of(call)
    return {
        "thread": thread,
        "id": call.id,
        "state": call.state.value,
        "agent": call.agent,
        "member": call.member,
        "run_epoch": call.run_epoch,
        "seq": call.turn_seq,
        "run_id": call.run_id,
        "created_at": call.created_at,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
        "error": None if error is None else f"{error['code']}: {error['message']}",
    }
