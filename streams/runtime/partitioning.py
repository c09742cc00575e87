"""Where a conversation lies: one function for everybody who writes or checks a key."""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

POSITIVE = 0x7FFF_FFFF


@lru_cache(maxsize=65_536)
def partition_of(conversation_id: str, count: int) -> int:
    """The partition, out of `count`, of every record keyed by `conversation_id`.

    Kafka's default for keyed records: murmur2 of the UTF-8 key, its sign bit dropped, modulo `count`; Java clients and
    aiokafka agree on it, librdkafka's own default does not. Some microseconds a new id: ask once a conversation.
    """
    return int((murmur2(conversation_id.encode()) & POSITIVE) % count)
