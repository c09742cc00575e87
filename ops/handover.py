"""Handing a conversation to a human and back, as operators do it: a command, and its outcome in the journal."""

from __future__ import annotations

from uuid import uuid4

from ops.decided import decided
from streams.core.commands import HandBack, HandOver
from streams.core.events import Event
from streams.settings import Settings


async def hand_over(settings: Settings, conversation: str, *, by: str, to: str, reason: str) -> Event:
    """A human answers from here on. Raises `TimeoutError` when no worker decided it in time; it may be decided yet."""
    return await decided(
        settings,
        HandOver(
            at=0,
            timestamp=0,
            ref=str(uuid4()),
            conversation_id=conversation,
            by=by,
            to=to,
            reason=reason,
            id=str(uuid4()),
        ),
    )


async def hand_back(settings: Settings, conversation: str, *, by: str, reason: str) -> Event:
    """Agents answer again. Raises as `hand_over`."""
    return await decided(
        settings,
        HandBack(
            at=0, timestamp=0, ref=str(uuid4()), conversation_id=conversation, by=by, reason=reason, id=str(uuid4())
        ),
    )
