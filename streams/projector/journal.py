"""Reads a stretch of the journal again, committed records only, apart from whoever follows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.projector.order import JournalRecord
from streams.tracing import traceparent_in

CHUNK_RECORDS = 2_000
POLL_MS = 500


class Journal(Protocol):
    """The journal as the projector reads it again. Kafka's own errors pass through."""

    async def bounds(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """First offset there is, and the last stable end, of each of these partitions."""

    def read(self, partition: int, start: int, until: int) -> AsyncIterator[Sequence[JournalRecord]]:
        """Committed records from offset `start` on, below `until`, in chunks."""


class KafkaJournal:
    """`Journal` on Kafka. Each call has a consumer of its own: it is used seldom, and never shares a position.

    traced: whether records are to have the `traceparent` that they carry.
    """

    def __init__(self, bootstrap: str, topic: str, *, request_timeout_ms: int, traced: bool = False) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._request_timeout_ms = request_timeout_ms
        self._traced = traced

    async def bounds(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """See `Journal`."""
        async with self._consumer() as consumer:
            wanted = [TopicPartition(self._topic, partition) for partition in partitions]
            consumer.assign(wanted)
            first, end = await consumer.beginning_offsets(wanted), await consumer.end_offsets(wanted)
            return {tp.partition: (first[tp], end[tp]) for tp in wanted}

    async def read(self, partition: int, start: int, until: int) -> AsyncIterator[Sequence[JournalRecord]]:
        """See `Journal`."""
        async with self._consumer() as consumer:
            tp = TopicPartition(self._topic, partition)
            consumer.assign([tp])
            consumer.seek(tp, start)
            # The position passes markers and aborted records, which no record ever shows.
            while await consumer.position(tp) < until:
                chunk = await consumer.getmany(tp, timeout_ms=POLL_MS, max_records=CHUNK_RECORDS)
                records = [
                    JournalRecord(partition, record.offset, record.value, self._traceparent(record))
                    for record in chunk.get(tp, ())
                    if record.offset < until
                ]
                if records:
                    yield records

    def _traceparent(self, record: Any) -> bytes | None:
        return traceparent_in(record.headers) if self._traced else None

    def _consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=self._request_timeout_ms,
        )
