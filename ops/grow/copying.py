"""Writes a new partition's journal: each entry once, wherever a copier dies.

What it writes follows from the old journal alone, so that one that died is followed by another which makes the same
entries again and leaves out as many as are there: the last one's `lsn` says how many. A transaction that was open is
aborted by the next copier's InitProducerId, which also fences a copier that still runs; as it does the copiers of a
partition that has a worker, whose transactional id is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from ops.grow.intake import REQUEST_LIMIT_S
from ops.grow.plan import Old, Plan, last_entry
from ops.grow.split import CannotGrow, Split
from ops.history import History, Recorded
from ops.history.live import LiveHistory
from streams.core.events import Entry
from streams.fence.port import Fenced
from streams.runtime.journal import headers_of
from streams.runtime.kafka import Doubt, KafkaEnds, KafkaUnavailable
from streams.runtime.kafka_producers import KafkaBatch, KafkaJournalProducer
from streams.topics import Topics

Notify = Callable[[str], None]

TRANSACTION_RECORDS: Final = 4_000
TRANSACTION_TIMEOUT_MS: Final = 60_000
STABLE_WITHIN_S: Final = 30.0
STABLE_POLL_S: Final = 0.02
PROGRESS_EVERY_S: Final = 1.0


class Made(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into the new journal."""

    timestamp: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class Copied(msgspec.Struct, frozen=True, gc=False):
    """What is in a new partition."""

    events: int
    """Of them that came of the old journal, with the one at its beginning."""
    new: int
    """How many of those were written now."""
    writer_epoch: int
    """The highest in it."""


class Copier:
    """Copies into the topics of one plan's new generation."""

    def __init__(self, plan: Plan, old: History, new: LiveHistory, by: str, notify: Notify) -> None:
        self._plan = plan
        self._old = old
        self._new = new
        self._by = by
        self._notify = notify
        self._topics = Topics(plan.target.namespace)

    async def copy(self, partition: int) -> Copied:
        """Bring one new partition to where its old one is. Raises `CannotGrow` and `KafkaUnavailable`."""
        old = self._plan.old[partition % len(self._plan.old)]
        producer = KafkaJournalProducer(
            self._plan.target.kafka,
            self._topics.conversations,
            partition,
            transactional_id=self._topics.transactional_id(partition),
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            limit_s=REQUEST_LIMIT_S,
        )
        try:
            await producer.start()
            await self._stable(partition)
            return await self._copied(producer, partition, old)
        except Fenced as error:
            raise CannotGrow("another `turnlog topic grow` writes the same topics: let one of them end") from error
        except Doubt as error:
            raise KafkaUnavailable(f"{error}; the same command again goes on") from error
        finally:
            await producer.discard()

    async def _copied(self, producer: KafkaJournalProducer, partition: int, old: Old) -> Copied:
        last = await last_entry(self._new, partition)
        there = 0 if last is None else last.lsn
        split = Split(partition, self._plan.partitions, begun=self._plan.begun(old.partition, self._by))
        waiting: list[Made] = []
        written, told = 0, time.monotonic()
        async for chunk in self._old.read(old.partition, 0, old.end):
            for recorded, entry in zip(chunk, self._old.decode_all(chunk), strict=True):
                for made in split.take(entry):
                    if made.lsn > there:
                        waiting.append(self._record(recorded, entry, made))
                    elif last is not None and made.lsn == there:
                        self._require_same(partition, last, made)
            if len(waiting) >= TRANSACTION_RECORDS:
                written += await _commit(producer, waiting)
                waiting = []
            if time.monotonic() - told >= PROGRESS_EVERY_S:
                told = time.monotonic()
                self._notify(f"partition {partition}: offset {chunk[-1].offset:,} of {old.end:,}, {split.lsn:,} events")
        if waiting:
            written += await _commit(producer, waiting)
        if there > split.lsn and not self._plan.marked:
            raise CannotGrow(
                f"{self._topics.conversations}[{partition}] has {there} events, of which {split.lsn} were copied: "
                "something else wrote there. Delete those topics, or choose another namespace with --to"
            )
        epochs = [each.writer_epoch for each in (old.last, last) if each is not None]
        return Copied(split.lsn, written, max(epochs, default=0))

    def _record(self, recorded: Recorded, entry: Entry, made: Entry) -> Made:
        """Of an old record what a reader filters on, and when it was written, stay."""
        value = self._new.codec.encode_entry(made)
        if made.event.conversation_id is None and type(made.event) is not type(entry.event):
            return Made(recorded.timestamp, None, value, headers_of(made, None))
        return Made(recorded.timestamp, recorded.key, value, list(recorded.headers))

    def _require_same(self, partition: int, last: Entry, made: Entry) -> None:
        if made.lsn > 1 and last != made:
            raise CannotGrow(
                f"{self._topics.conversations}[{partition}] has another event at lsn {last.lsn} than the old journal: "
                "it was not copied from it. Delete those topics, or choose another namespace with --to"
            )

    async def _stable(self, partition: int) -> None:
        """Wait for the end of what an earlier copier left open: its abortion is on its way."""
        name, ends = (
            TopicPartition(self._topics.conversations, partition),
            KafkaEnds(self._plan.target.kafka, REQUEST_LIMIT_S),
        )
        try:
            async with asyncio.timeout(STABLE_WITHIN_S):
                while (await ends.stable([name]))[name] < (await ends.high([name]))[name]:  # noqa: ASYNC110
                    await asyncio.sleep(STABLE_POLL_S)
        except TimeoutError:
            raise KafkaUnavailable(f"a transaction stays open in {name.topic}[{partition}]") from None
        finally:
            await ends.close()


async def _commit(producer: KafkaJournalProducer, records: Sequence[Made]) -> int:
    """All of them in one transaction."""
    batches: list[KafkaBatch] = [producer.new_batch()]
    for record in records:
        if not _added(batches[-1], record):
            batches.append(producer.new_batch())
            if not _added(batches[-1], record):
                raise CannotGrow(f"a journal record of {len(record.value)} bytes does not fit into a batch")
    await producer.begin()
    for batch in batches:
        await producer.append(batch)
    await producer.commit()
    return len(records)


def _added(batch: KafkaBatch, record: Made) -> bool:
    added: Any = batch.builder.append(
        timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers
    )
    return added is not None
