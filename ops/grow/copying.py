"""Writes a new partition's journal: each entry once, wherever a copier dies.

What it writes follows from the old journal alone, so that one that died is followed by another which makes the same
entries again and leaves out as many as are there: the last one's `lsn` says how many. A transaction that was open is
aborted by the next copier's InitProducerId, which also fences a copier that still runs; as it does the copiers of a
partition that has a worker, whose transactional id is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from ops.grow.intake import REQUEST_LIMIT_S
from ops.grow.plan import Old, Plan, last_entry
from ops.grow.split import CannotGrow, Split, concerned
from ops.history import History, Recorded
from ops.history.live import LiveHistory
from streams.core.events import Entry
from streams.fence.port import Fenced
from streams.runtime.journal import headers_of
from streams.runtime.kafka import Doubt, KafkaEnds, KafkaUnavailable
from streams.runtime.kafka_producers import KafkaBatch, KafkaJournalProducer
from streams.topics import Topics

Notify = Callable[[str], None]

AT_ONCE: Final = 8
"""New partitions that are written by one reading of their old one: each holds as many records as a transaction has."""
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


@dataclass(slots=True)
class _New:
    """A new partition while it is written."""

    partition: int
    producer: KafkaJournalProducer
    split: Split
    last: Entry | None
    """What was there already, when this copier came."""
    waiting: list[Made] = field(default_factory=list)
    written: int = 0

    @property
    def there(self) -> int:
        """How many events were there already."""
        return 0 if self.last is None else self.last.lsn


class Copier:
    """Copies into the topics of one plan's new generation."""

    def __init__(self, plan: Plan, old: History, new: LiveHistory, by: str, notify: Notify) -> None:
        self._plan = plan
        self._old = old
        self._new = new
        self._by = by
        self._notify = notify
        self._topics = Topics(plan.target.namespace)

    async def copy(self, old: Old) -> Mapping[int, Copied]:
        """Bring the new partitions that an old one becomes to where it is; what is in each.

        The old one is read once for every `AT_ONCE` of them. Raises `CannotGrow` and `KafkaUnavailable`.
        """
        copied: dict[int, Copied] = {}
        partitions = self._plan.made_of(old)
        for start in range(0, len(partitions), AT_ONCE):
            copied |= await self._copy(old, partitions[start : start + AT_ONCE])
        return copied

    async def _copy(self, old: Old, partitions: Sequence[int]) -> Mapping[int, Copied]:
        producers = {partition: self._producer(partition) for partition in partitions}
        try:
            opened = [self._opened(partition, producer) for partition, producer in producers.items()]
            new = {each.partition: each for each in await asyncio.gather(*opened)}
            await self._write(old, new)
            return {partition: self._checked(old, each) for partition, each in new.items()}
        except Fenced as error:
            raise CannotGrow("another `turnlog topic grow` writes the same topics: let one of them end") from error
        except Doubt as error:
            raise KafkaUnavailable(f"{error}; the same command again goes on") from error
        finally:
            for producer in producers.values():
                await producer.discard()

    def _producer(self, partition: int) -> KafkaJournalProducer:
        return KafkaJournalProducer(
            self._plan.target.kafka,
            self._topics.conversations,
            partition,
            transactional_id=self._topics.transactional_id(partition),
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            limit_s=REQUEST_LIMIT_S,
        )

    async def _opened(self, partition: int, producer: KafkaJournalProducer) -> _New:
        """Whoever wrote there before is fenced, and what it left open is ended, before it is asked what is there."""
        await producer.start()
        await self._stable(partition)
        split = self._plan.split(partition, self._by)
        return _New(partition, producer, split, await last_entry(self._new, partition))

    async def _write(self, old: Old, new: Mapping[int, _New]) -> None:
        told = time.monotonic()
        async for chunk in self._old.read(old.partition, 0, old.end):
            for recorded, entry in zip(chunk, self._old.decode_all(chunk), strict=True):
                for each in concerned(entry, new, self._plan.partitions):
                    self._take(each, recorded, entry)
            await _commit([each for each in new.values() if len(each.waiting) >= TRANSACTION_RECORDS])
            if time.monotonic() - told >= PROGRESS_EVERY_S:
                told = time.monotonic()
                self._notify(f"partition {old.partition}: offset {chunk[-1].offset:,} of {old.end:,}")
        await _commit([each for each in new.values() if each.waiting])

    def _take(self, new: _New, recorded: Recorded, entry: Entry) -> None:
        """What the new journal has for an old record: it waits to be written, or is compared with what is there."""
        for made in new.split.take(entry):
            if made.lsn > new.there:
                new.waiting.append(self._record(recorded, entry, made))
            elif made.lsn == new.there and made.lsn > 1 and new.last != made:
                raise CannotGrow(
                    f"{self._topics.conversations}[{new.partition}] has another event at lsn {made.lsn} than the old "
                    "journal: it was not copied from it. Delete those topics, or choose another namespace with --to"
                )

    def _record(self, recorded: Recorded, entry: Entry, made: Entry) -> Made:
        """Of an old record what a reader filters on, and when it was written, stay."""
        value = self._new.codec.encode_entry(made)
        if made.event.conversation_id is None and type(made.event) is not type(entry.event):
            return Made(recorded.timestamp, None, value, headers_of(made, None))
        return Made(recorded.timestamp, recorded.key, value, list(recorded.headers))

    def _checked(self, old: Old, new: _New) -> Copied:
        if new.there > new.split.lsn and not self._plan.marked:
            raise CannotGrow(
                f"{self._topics.conversations}[{new.partition}] has {new.there} events, of which {new.split.lsn} were "
                "copied: something else wrote there. Delete those topics, or choose another namespace with --to"
            )
        epochs = [each.writer_epoch for each in (old.last, new.last) if each is not None]
        return Copied(new.split.lsn, new.written, max(epochs, default=0))

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


async def _commit(parts: Sequence[_New]) -> None:
    """Write what waits of each of them, a transaction each, at the same time."""
    if parts:
        await asyncio.gather(*map(_commit_one, parts))


async def _commit_one(new: _New) -> None:
    producer = new.producer
    batches: list[KafkaBatch] = [producer.new_batch()]
    for record in new.waiting:
        if not _added(batches[-1], record):
            batches.append(producer.new_batch())
            if not _added(batches[-1], record):
                raise CannotGrow(f"a journal record of {len(record.value)} bytes does not fit into a batch")
    await producer.begin()
    for batch in batches:
        await producer.append(batch)
    await producer.commit()
    new.written += len(new.waiting)
    new.waiting = []


def _added(batch: KafkaBatch, record: Made) -> bool:
    added: Any = batch.builder.append(
        timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers
    )
    return added is not None
