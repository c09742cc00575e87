"""A transaction's end is sent once: aiokafka's own sender under the runtime's producer, on a connection that breaks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from streams.runtime import kafka_producers
from streams.runtime.kafka import Doubt
from streams.runtime.kafka_producers import KafkaJournalProducer


class Wire:
    """In place of the connections: the first EndTxn breaks one, another would be answered."""

    def __init__(self) -> None:
        self.ends = 0

    async def send(self, node: int, request: Any, **_: Any) -> Any:
        assert type(request).__name__ == "EndTxnRequest"
        self.ends += 1
        if self.ends == 1:
            raise KafkaConnectionError("the connection broke")
        return SimpleNamespace(error_code=0)


async def commit_over(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a transaction that something was written in, over `wire`."""
    journal = KafkaJournalProducer("127.0.0.1:1", "j", 0, transactional_id="t-0", timeout_ms=5_000, limit_s=5.0)
    producer = journal._producer
    sender, manager = producer._sender, producer._txn_manager
    monkeypatch.setattr(producer.client, "send", wire.send)
    monkeypatch.setattr(sender, "_coordinators", {1: 0, 0: 0})
    manager.set_pid_and_epoch(1, 0)
    await journal.begin()
    partition = TopicPartition("j", 0)
    manager.maybe_add_partition_to_txn(partition)
    manager.partition_added(partition)
    sending = asyncio.create_task(sender._sender_routine())
    try:
        await journal.commit()
    finally:
        sending.cancel()
        await asyncio.wait({sending})
        await journal.discard()


async def test_an_end_whose_connection_broke_is_in_doubt_and_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    with pytest.raises(Doubt):
        await commit_over(wire, monkeypatch)
    assert wire.ends == 1


async def test_aiokafka_by_itself_sends_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it does not, `end_once` is needed no more."""
    monkeypatch.setattr(kafka_producers, "end_once", lambda producer: None)
    wire = Wire()
    await commit_over(wire, monkeypatch)
    assert wire.ends == 2
