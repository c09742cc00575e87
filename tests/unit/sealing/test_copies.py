"""The topic of keys, where Kafka goes silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition

from streams.runtime.kafka import KafkaUnavailable
from streams.sealing import copies
from streams.sealing.copies import KeyTopic
from streams.sealing.store import CopiesUnavailable, WrappedKey
from streams.settings import load_settings

SETTINGS = load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none")


class Written:
    """An outbox that keeps what it is given, or cannot be reached."""

    def __init__(self, *, away: bool) -> None:
        self.away = away
        self.records: list[tuple[str, int, bytes | None, bytes | None]] = []

    async def send(self, topic: str, partition: int, value: bytes | None, *, key: bytes | None = None) -> int:
        if self.away:
            raise KafkaUnavailable(f"cannot write to {topic}")
        self.records.append((topic, partition, key, value))
        return 1


class Silent:
    """A consumer of a topic of ten records that gets none of them."""

    def __init__(self) -> None:
        self.stopped = False

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    def assign(self, places: Sequence[TopicPartition]) -> None: ...

    def seek(self, place: TopicPartition, offset: int) -> None: ...

    async def beginning_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    async def end_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(places, 10)

    async def position(self, place: TopicPartition) -> int:
        return 0

    async def getmany(self, place: TopicPartition, *, timeout_ms: int) -> Mapping[TopicPartition, Any]:
        return {}


@pytest.mark.parametrize("away", [False, True])
async def test_a_destroyed_key_is_a_tombstone_and_a_topic_that_cannot_be_written_has_no_copy(
    monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    written = Written(away=away)
    monkeypatch.setattr(copies, "KafkaOutbox", lambda *_: written)
    keys = [WrappedKey("k1", "c", b"\1"), WrappedKey("k2", "", None)]
    if away:
        with pytest.raises(CopiesUnavailable, match="cannot write to"):
            await KeyTopic(SETTINGS).put(keys)
        return
    await KeyTopic(SETTINGS).put(keys)
    sealed = b'{"conversation":"c","wrapped":"AQ=="}'
    assert written.records == [("keys", 0, b"k1", sealed), ("keys", 0, b"k2", None)]


async def test_who_looks_for_a_key_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent()
    monkeypatch.setattr(copies, "consumer", lambda *_: silent)

    async def seen(keys: Sequence[WrappedKey]) -> None:
        raise AssertionError(f"nothing came, and yet {keys}")

    topic = KeyTopic(SETTINGS)
    with pytest.raises(CopiesUnavailable, match="cannot be read past 0"):
        await topic.all(seen)
    assert silent.stopped
