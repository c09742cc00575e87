"""Erasing what was said in conversations: found, ordered by a command, and followed until its keys are destroyed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from ops.database import Database
from ops.decided import decided
from streams.core.commands import EraseConversation, EraseIdle
from streams.core.erasure import DAY_MS
from streams.core.events import ConversationErased, Duplicate, Event
from streams.projector.retention import DueConversation, IdleConversations
from streams.sealing.copies import KeyTopic
from streams.sealing.store import Shredder
from streams.settings import Settings

DESTROYED_WITHIN_S: Final = 15.0
"""How long a projector may take to destroy the keys and write their tombstones."""
POLL_S: Final = 0.1
DUE_MOST: Final = 1_000
"""Conversations that are shown, or erased, at once as their channels keep them no longer."""

EraseCommand = EraseConversation | EraseIdle


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation before it is erased. `plain`: messages that were stored while sealing was off."""

    conversation: str
    status: str
    messages: int
    plain: int
    keys: int

    def command(self, *, by: str, why: str) -> EraseConversation:
        """To erase it, whatever happened since it was found."""
        return EraseConversation(
            at=0, timestamp=0, ref=str(uuid4()), conversation_id=self.conversation, by=by, reason=why, id=str(uuid4())
        )


@dataclass(frozen=True, slots=True)
class Due:
    """A conversation that its channel does not keep for ever. Times: ms since the epoch, by the broker's clock."""

    conversation: str
    channel: str
    retain_days: int
    status: str
    messages: int
    idle_since: int
    due_at: int


@dataclass(frozen=True, slots=True)
class Erased:
    """What came of it. `keys`: all that it had; `destroyed`, `gone_from_topic`: how many of them by now."""

    conversation: str
    seq: int
    repeated: bool
    keys: int
    destroyed: int
    gone_from_topic: int
    plain: int

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be done by anybody."""
        return self.keys == self.destroyed == self.gone_from_topic


class NotErased(Exception):
    """The sequencer refused it; the message says why."""


class Erasure:
    """Erases one conversation after another. Raises what Postgres and Kafka raise, and `TimeoutError` where no worker
    decides a command in time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = Database(settings.postgres)
        self._idle = IdleConversations(settings.postgres)
        self._keys_are_whole = False

    async def close(self) -> None:
        """Close the sessions."""
        await self._database.close()
        await self._idle.close()

    async def due(self, channel: str | None, until_ms: int) -> Sequence[tuple[Due, EraseIdle]]:
        """Conversations that are to be erased until then by their channel's `retain_days`, the longest overdue first,
        at most `DUE_MOST`, and what erases each if it is due still. `channel`: only those of this one."""
        rules = {name: days for name, days in (await self._idle.rules()).items() if channel in {None, name}}
        if not rules:
            return []
        found = await self._idle.due(rules, until_ms, None, each=DUE_MOST, most=DUE_MOST)
        return [(_shown(each, rules[each.channel]), each.command()) for each in found]

    async def of_participant(self, participant: str, channel: str | None) -> Sequence[str]:
        """Conversations that this person opened or spoke in."""
        rows = await self._database.rows("conversations_of", participant=participant, channel=channel)
        return [row["id"] for row in rows]

    async def find(self, conversation: str) -> Found | None:
        """The conversation as the read model has it; None: there is none."""
        row = await self._database.row("erasable", conversation=conversation)
        if row is None:
            return None
        keys = await self._keys(conversation)
        return Found(conversation, row["status"], row["head_seq"], row["plain"], len(keys))

    async def erase(self, command: EraseCommand) -> Erased:
        """Erase it, and wait until its keys are destroyed, here and in the topic; a second time changes nothing.

        Raises `NotErased`.
        """
        found = await self.find(command.conversation_id)
        if not self._keys_are_whole:
            await self._restore_keys()
        event = await self._ordered(command)
        keys = await self._followed(command.conversation_id)
        return Erased(
            conversation=command.conversation_id,
            seq=event.of_seq if isinstance(event, Duplicate) else event.seq,
            repeated=isinstance(event, Duplicate),
            keys=len(keys),
            destroyed=sum(key["destroyed"] for key in keys),
            gone_from_topic=sum(key["gone_from_topic"] for key in keys),
            plain=0 if found is None else found.plain,
        )

    async def _restore_keys(self) -> None:
        """A projector destroys what Postgres has: what Postgres lost, and only the topic has, comes back first."""
        topic, shredder = KeyTopic(self._settings), Shredder(self._settings.postgres)
        try:
            await shredder.restore(topic)
        finally:
            await shredder.close()
            await topic.close()
        self._keys_are_whole = True

    async def _ordered(self, command: EraseCommand) -> Event:
        event = await decided(self._settings, command)
        if not isinstance(event, ConversationErased | Duplicate):
            raise NotErased(getattr(event, "detail", "") or f"the journal answered with {type(event).__name__}")
        return event

    async def _followed(self, conversation: str) -> Sequence[dict[str, Any]]:
        deadline = time.monotonic() + DESTROYED_WITHIN_S
        while True:
            row = await self._database.row("erasable", conversation=conversation)
            keys = await self._keys(conversation)
            done = row is not None and row["status"] == "erased" and all(key["gone_from_topic"] for key in keys)
            if done or time.monotonic() > deadline:
                return keys
            await asyncio.sleep(POLL_S)

    async def _keys(self, conversation: str) -> Sequence[dict[str, Any]]:
        return await self._database.rows("data_keys_of", conversation=conversation)


def _shown(due: DueConversation, days: int) -> Due:
    return Due(
        conversation=due.id,
        channel=due.channel,
        retain_days=days,
        status=due.status,
        messages=due.head_seq,
        idle_since=due.updated_at,
        due_at=due.updated_at + days * DAY_MS,
    )
