"""The topic of keys, where Kafka goes silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition

from streams.sealing import copies
from streams.sealing.copies import KeyTopic
from streams.sealing.store import CopiesUnavailable, WrappedKey
from streams.settings import load_settings


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


async def test_who_looks_for_a_key_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent()
    monkeypatch.setattr(copies, "consumer", lambda *_: silent)

    async def seen(keys: Sequence[WrappedKey]) -> None:
        raise AssertionError(f"nothing came, and yet {keys}")

    topic = KeyTopic(load_settings(kafka="127.0.0.1:1", postgres="postgresql://nowhere/none"))
    with pytest.raises(CopiesUnavailable, match="cannot be read past 0"):
        await topic.all(seen)
    assert silent.stopped
