"""What an operator does, by the journal: a command to one conversation, followed to its outcome; a note of a deed."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from uuid import uuid4

from aiokafka import AIOKafkaProducer

from ops.conversations import opened
from ops.journal import entries_of, partition_count
from streams.core.commands import NoteAction
from streams.core.events import Event, Refused
from streams.core.moves import decide_note
from streams.core.state import Partition
from streams.runtime.partitioning import partition_of
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

OUTCOME_WITHIN_S: Final = 15.0
"""How long a worker may take to decide it."""


class CannotNote(ValueError):
    """What no worker would put into the journal; the message names the field and the rule."""


async def decided(settings: Settings, command: Any) -> Event:
    """Write a command of the topic `turns`, with a `ref` and a `conversation_id`; the event that answers it.

    The journal is followed from before it is written. Raises `TimeoutError` when no worker decided it in time; it may
    be decided yet.
    """
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
            missing=lambda _: None,  # it is what comes that is waited for
        )
        async for entry in entries:
            if getattr(entry.event, "ref", None) == command.ref:
                await sending
                await entries.aclose()
                return entry.event
    raise AssertionError("a journal that is followed has no end")


async def noted(settings: Settings, *, action: str, subject: str, by: str, reason: str, partition: int) -> None:
    """Write into the journal of this partition, by its own intake, what an operator is about to do.

    Raises `CannotNote`, and what Kafka raises: what nobody would know of is not to happen.
    """
    topics = Topics(settings.namespace)
    note = NoteAction(at=0, timestamp=0, action=action, subject=subject, by=by, reason=reason, id=str(uuid4()))
    (outcome,) = decide_note(Partition(partition), note)
    if isinstance(outcome, Refused):  # as the worker would, when it is done already
        raise CannotNote(f"it cannot be noted in the journal, and is not done: {outcome.detail}")
    value = open_codec(settings.schema_registry, topics).encode_command(note)
    await _write(settings, topics.membership, value, partition)


async def _send(settings: Settings, command: Any, partition: int, reached: asyncio.Event) -> None:
    topics = Topics(settings.namespace)
    value = open_codec(settings.schema_registry, topics).encode_command(command)
    await reached.wait()
    await _write(settings, topics.turns, value, partition, key=command.conversation_id.encode())


async def _write(settings: Settings, topic: str, value: bytes, partition: int, *, key: bytes | None = None) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True, acks="all") as producer:
        await producer.send_and_wait(topic, value, key=key, partition=partition)
