"""Handing a conversation to a human and back, as operators do it: a command, and its outcome in the journal."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import uuid4

from aiokafka import AIOKafkaProducer

from ops.conversations import opened
from ops.journal import entries_of, partition_count
from streams.core.commands import HandBack, HandOver
from streams.core.events import ConversationHandedBack, ConversationHandedOver, Duplicate, Event, Refused
from streams.runtime.partitioning import partition_of
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

OUTCOME_WITHIN_S: Final = 15.0
"""How long a worker may take to decide it."""

Outcome = ConversationHandedOver | ConversationHandedBack | Duplicate | Refused


async def hand_over(settings: Settings, conversation: str, *, by: str, to: str, reason: str) -> Outcome:
    """A human answers from here on. Raises `TimeoutError` when no worker decided it in time; it may be decided yet."""
    command = HandOver(
        at=0, timestamp=0, ref=str(uuid4()), conversation_id=conversation, by=by, to=to, reason=reason, id=str(uuid4())
    )
    return await _decided(settings, command)


async def hand_back(settings: Settings, conversation: str, *, by: str, reason: str) -> Outcome:
    """Agents answer again. Raises as `hand_over`."""
    command = HandBack(
        at=0, timestamp=0, ref=str(uuid4()), conversation_id=conversation, by=by, reason=reason, id=str(uuid4())
    )
    return await _decided(settings, command)


async def _decided(settings: Settings, command: HandOver | HandBack) -> Outcome:
    """Follow the journal from before the command is written: what bears its ref is its outcome."""
    partition = partition_of(command.conversation_id, await partition_count(settings))
    reached = asyncio.Event()
    async with asyncio.timeout(OUTCOME_WITHIN_S), asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(_send(settings, command, partition, reached))
        entries = entries_of(
            settings,
            partition,
            follow=True,
            caught_up=reached.set,
            of=await opened(settings, command.conversation_id),
        )
        async for entry in entries:
            if (outcome := _outcome(entry.event, command.ref)) is not None:
                await sending
                await entries.aclose()  # type: ignore[attr-defined]  # a generator
                return outcome
    raise AssertionError("a journal that is followed has no end")


async def _send(settings: Settings, command: HandOver | HandBack, partition: int, reached: asyncio.Event) -> None:
    topics = Topics(settings.namespace)
    value = open_codec(settings.schema_registry, topics).encode_command(command)
    await reached.wait()
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True, acks="all") as producer:
        key = command.conversation_id.encode()
        await producer.send_and_wait(topics.turns, value, key=key, partition=partition)


def _outcome(event: Event, ref: str | None) -> Outcome | None:
    if isinstance(event, ConversationHandedOver | ConversationHandedBack | Duplicate | Refused) and event.ref == ref:
        return event
    return None
