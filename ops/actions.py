"""What operators do about conversations and leases: a command, and what the journal says of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from ops.decided import decided, noted
from streams.core.commands import CloseConversation, MoveConversation
from streams.core.events import Event
from streams.fence.lease import LeaseTable
from streams.fence.port import HeldBy
from streams.settings import Settings

LEASE_RELEASED: Final = "lease_released"
"""`action` of the journal's `OperatorActed`."""
CLAIMED_WITHIN_S: Final = 30.0
"""How long the next claim of a released partition may take: a worker looks once a second and replays."""
POLL_S: Final = 0.05


async def move(settings: Settings, conversation: str, *, to: str, by: str, reason: str) -> Event:
    """Give it to a member. Raises `TimeoutError` when no worker decided it in time; it may be decided yet."""
    return await decided(settings, _move(conversation, to, "", by, reason))


async def release(settings: Settings, conversation: str, *, group: str, by: str, reason: str) -> Event:
    """Take it from who has it, in `group` or, empty, in all. Raises as `move`."""
    return await decided(settings, _move(conversation, None, group, by, reason))


async def close(settings: Settings, conversation: str, *, by: str, reason: str) -> Event:
    """Close it. Raises as `move`."""
    command = CloseConversation(
        at=0, timestamp=0, ref=str(uuid4()), conversation_id=conversation, by=by, reason=reason, id=str(uuid4())
    )
    return await decided(settings, command)


def _move(conversation: str, to: str | None, group: str, by: str, reason: str) -> MoveConversation:
    return MoveConversation(
        at=0,
        timestamp=0,
        ref=str(uuid4()),
        conversation_id=conversation,
        to=to,
        group=group,
        by=by,
        reason=reason,
    )


# ------------------------------------------------------------------------------------------------------ leases
@dataclass(frozen=True, slots=True)
class Released:
    """A lease that was taken from its worker. `claimed`: who holds it since; None: nobody yet, or it was not taken."""

    held: HeldBy
    done: bool
    claimed: HeldBy | None


async def lease_of(settings: Settings, partition: int) -> HeldBy | None:
    """Who holds it now, as far as the table says; None: nobody does."""
    table = LeaseTable(settings.postgres)
    try:
        return await _lease_of(table, partition)
    finally:
        await table.close()


async def release_lease(settings: Settings, held: HeldBy, *, by: str, reason: str) -> Released:
    """Take the lease as it was seen from its worker, and wait for the next claim.

    It is written down first, in the partition's own intake: a release that nobody knows of does not happen.
    """
    subject = f"{held.worker} epoch {held.writer_epoch}"
    await noted(settings, action=LEASE_RELEASED, subject=subject, by=by, reason=reason, partition=held.partition)
    table = LeaseTable(settings.postgres)
    try:
        if not await table.release(held):
            return Released(held, done=False, claimed=await _lease_of(table, held.partition))
        return Released(held, done=True, claimed=await _next_claim(table, held))
    finally:
        await table.close()


async def _next_claim(table: LeaseTable, held: HeldBy) -> HeldBy | None:
    try:
        async with asyncio.timeout(CLAIMED_WITHIN_S):
            while True:
                now = await _lease_of(table, held.partition)
                if now is not None and now.writer_epoch > held.writer_epoch:
                    return now
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return None


async def _lease_of(table: LeaseTable, partition: int) -> HeldBy | None:
    return next((row for row in await table.rows() if row.partition == partition and row.live), None)
