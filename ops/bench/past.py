"""Writes a history to the topics of a deployment, with the intake that it came of and the checkpoints of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiokafka import AIOKafkaProducer

from ops.bench.fill import producer_to
from ops.bench.history import History, MadeBatch
from streams.core.fold import conversation_of
from streams.core.store import dump_conversation, dump_partition, is_hot
from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.port import Checkpoint, ConversationRow, KeyRow, Positions, Token
from streams.runtime.codec import Codec
from streams.runtime.kafka import BATCH_BYTES
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics

EVENTS_A_CONVERSATION: Final = 200
TOKEN: Final = Token(1, "bench")

Notify = Callable[[str], None]


async def fill(settings: Settings, events: int, partitions: int, notify: Notify) -> int:
    """Write a history of about `events` events to the topics of a new deployment, with its intake and its checkpoints;
    how many they are."""
    codec = open_codec(settings.schema_registry, Topics(settings.namespace))
    checkpoints = PostgresCheckpoints(settings.postgres)
    total: int = 0
    try:
        for partition in range(partitions):
            history = History(partition, partitions, max(1, events // partitions // EVENTS_A_CONVERSATION))
            last = await _fill_partition(settings, codec, history, events // partitions)
            await _store(checkpoints, history, last)
            total += history.state.lsn
            notify(f"{total:,} of {events:,} events are written")
    finally:
        await checkpoints.close()
    return total


async def _fill_partition(settings: Settings, codec: Codec, history: History, events: int) -> int:
    """Each batch as a sequencer commits it; the journal's offset after the last."""
    topics, partition = Topics(settings.namespace), history.partition
    journal = AIOKafkaProducer(
        bootstrap_servers=settings.kafka,
        linger_ms=0,
        max_batch_size=BATCH_BYTES,
        max_request_size=2 * BATCH_BYTES,
        transactional_id=f"{topics.conversations}-bench-{partition}",
    )
    intake = producer_to(settings.kafka)
    last = 0
    async with intake, journal:
        for batch in history.batches(events):
            taken = ((topics.turns, batch.turns), (topics.frames, batch.frames), (topics.membership, batch.membership))
            for topic, commands in taken:
                for command in commands:
                    name = conversation_of(command)
                    key = None if name is None else name.encode()
                    await intake.send(topic, codec.encode_command(command), key, partition=partition)
            async with journal.transaction():
                last = await _append(journal, topics.conversations, partition, codec, batch)
        await intake.flush()
    return last


async def _append(producer: AIOKafkaProducer, topic: str, partition: int, codec: Codec, batch: MadeBatch) -> int:
    sent = []
    records = producer.create_batch()
    for entry in batch.entries:
        name = entry.event.conversation_id
        key, value = None if name is None else name.encode(), codec.encode_entry(entry)
        if records.append(key=key, value=value, timestamp=entry.timestamp) is None:
            records.close()
            sent.append(await producer.send_batch(records, topic, partition=partition))
            records = producer.create_batch()
            records.append(key=key, value=value, timestamp=entry.timestamp)
    count: int = records.record_count()
    records.close()
    sent.append(await producer.send_batch(records, topic, partition=partition))
    appended = await asyncio.gather(*sent)
    return int(appended[-1].offset) + count


async def _store(checkpoints: PostgresCheckpoints, history: History, journal_offset: int) -> None:
    state = history.state
    rows, keys = [], []
    for name, conversation in state.conversations.items():
        row, overflow = dump_conversation(conversation)
        rows.append(ConversationRow(name, conversation.lsn, is_hot(conversation), row))
        keys += [KeyRow(name, k.fingerprint.hex(), k.seq, k.id, k.at, k.timestamp) for k in overflow]
    await checkpoints.take(state.partition, TOKEN)
    positions = Positions(state.turns, state.frames, state.membership)
    checkpoint = Checkpoint(TOKEN, state.lsn, journal_offset, positions, dump_partition(state))
    await checkpoints.save(state.partition, checkpoint, rows, keys, 0)
