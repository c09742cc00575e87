"""Members as operators see and drain them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer

from ops.journal import partition_count
from streams.core.commands import Drain
from streams.projector.read import MemberRow, ReadModel
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

SHOWN_WITHIN_S: Final = 10.0
"""How long the read model may take to show a drain that every partition was told of."""
POLL_S: Final = 0.05


async def listed(settings: Settings) -> Sequence[dict[str, Any]]:
    """Members that are there, by the read model."""
    return [msgspec.to_builtins(row) for row in await _rows(settings)]


async def found(settings: Settings, member: str) -> MemberRow | None:
    """The member, if the read model shows it as being there."""
    return next((row for row in await _rows(settings) if row.member == member), None)


async def others(settings: Settings, member: MemberRow) -> int:
    """How many other members of its group take turns."""
    rows = [row for row in await _rows(settings) if row.group == member.group and row.member != member.member]
    return sum(not row.draining for row in rows)


async def drain(settings: Settings, member: str, *, by: str, reason: str) -> MemberRow | None:
    """Tell every partition that `member` gets nothing new; how the read model shows it then. None: it has left.

    Returns once all partitions that know the member took it, or the read model did not show it in time.
    """
    topics = Topics(settings.namespace)
    value = open_codec(settings.schema_registry, topics).encode_command(
        Drain(at=0, timestamp=0, member=member, by=by, reason=reason)
    )
    partitions = await partition_count(settings)
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True, acks="all") as producer:
        sent = [await producer.send(topics.membership, value, partition=partition) for partition in range(partitions)]
        await asyncio.gather(*sent)
    deadline = time.monotonic() + SHOWN_WITHIN_S
    while True:
        row = await found(settings, member)
        if row is None or row.draining == row.partitions or time.monotonic() >= deadline:
            return row
        await asyncio.sleep(POLL_S)


async def _rows(settings: Settings) -> Sequence[MemberRow]:
    read_model = ReadModel(settings.postgres, sessions=1)
    try:
        return await read_model.members()
    finally:
        await read_model.close()
