"""What `turnlog conversation timeline` and `tail` read of a partition: all from where the conversation begins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from ops.journal import CLOCKS_MS, Opened, entries_of
from streams.core.events import ConversationOpened, Entry, Event, Turn, TurnCommitted
from streams.runtime.codec import Codec, Undecodable
from streams.settings import Settings
from streams.topics import Topics, ensure

CODEC = Codec()
OPENED_AT = 1_700_000_000_000
OF = Opened("c-1", OPENED_AT)


def opened(conversation: str) -> ConversationOpened:
    return ConversationOpened(conversation_id=conversation, seq=0, channel="web", participant="ana")


def said(conversation: str, seq: int) -> TurnCommitted:
    turn = Turn(id=f"m-{seq}", sender="ana", channel="web", type="text", text="good morning")
    return TurnCommitted(conversation_id=conversation, seq=seq, turn=turn)


async def written(settings: Settings, records: Sequence[tuple[int, Event | bytes]]) -> None:
    """A topic of one partition with these, each with its Kafka timestamp."""
    topics = Topics(settings.namespace)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        await ensure(admin, topics, partitions=1)
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka) as producer:
        for lsn, (timestamp, event) in enumerate(records, 1):
            value = event if isinstance(event, bytes) else CODEC.encode_entry(Entry(lsn, 5, timestamp, 1, event))
            await producer.send_and_wait(topics.conversations, value, partition=0, timestamp_ms=timestamp)


async def lsns(settings: Settings, of: Opened | None) -> list[int]:
    return [entry.lsn async for entry in entries_of(settings, 0, follow=False, of=of)]


async def test_what_lies_before_a_conversation_is_not_read(settings: Settings) -> None:
    long_ago, now = OPENED_AT - 10 * CLOCKS_MS, OPENED_AT + 50
    before: list[tuple[int, Event | bytes]] = [(long_ago, b"not read"), (OPENED_AT - 1, opened("c-2"))]
    own: list[tuple[int, Event | bytes]] = [(now, opened("c-1")), (now, said("c-2", 1)), (now, said("c-1", 1))]
    await written(settings, before + own)
    assert await lsns(settings, OF) == [3, 4, 5]
    with pytest.raises(Undecodable):
        await lsns(settings, None)


@pytest.mark.parametrize("behind_ms", [CLOCKS_MS + 1_000, 100 * CLOCKS_MS])
async def test_a_writer_whose_clock_was_far_behind_loses_nothing(settings: Settings, behind_ms: int) -> None:
    early = OPENED_AT - behind_ms
    await written(settings, [(early, opened("c-1")), (OPENED_AT, said("c-1", 1)), (OPENED_AT, said("c-2", 1))])
    assert await lsns(settings, OF) == [1, 2, 3]


async def test_a_conversation_that_is_in_none_of_it_is_looked_for_everywhere(settings: Settings) -> None:
    await written(settings, [(OPENED_AT - 10 * CLOCKS_MS, opened("c-1")), (OPENED_AT, said("c-2", 1))])
    assert await lsns(settings, OF) == [1, 2]
    assert await lsns(settings, Opened("c-1", OPENED_AT + 10 * CLOCKS_MS)) == [1, 2]
