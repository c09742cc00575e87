"""Settling dead letters: each once, whatever dies and whoever else settles at the same time.

A replay writes the record back into its intake, with the header `dead-letter` = its origin, and a mark for its letter,
in one Kafka transaction: both are there or neither is. All settling of a deployment has one transactional id. Whoever
begins fences whoever is under way, whose open transaction is aborted, and only then reads which letters are open: what
an earlier one committed is seen, what it had not committed never will be.

A record goes back by the rules that hold for any other: into the partition of its key (a record of `membership` into
the one it lay in), behind what lies there, in the order in which the letters were written, as a new record with a new
append time. One that would only be refused again stays where it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from ops.dlq.letters import REPLAYED_FROM, DeadLetterTopic, Letter, Post, Wanted, by_partition, dead_letter_topic
from streams.core.commands import Command
from streams.runtime.codec import Codec, DeadLetter, Undecodable
from streams.runtime.kafka import REQUEST_BYTES, KafkaUnavailable, asked
from streams.runtime.partitioning import partition_of
from streams.runtime.records import Settled
from streams.runtime.signals import Signal
from streams.settings import Settings

REPLAYED: Final = "replayed"
DROPPED: Final = "dropped"
TRANSACTION_LETTERS: Final = 100
TRANSACTION_BYTES: Final = 4 << 20
TRANSACTION_LIMIT_S: Final = 10
"""While one is open, the worker of a partition that it writes to waits; a settler that dies holds it up for so long."""

Notify = Callable[[int], None]


class Unfinished(Exception):
    """It ended before it was through: somebody else began to settle, or Kafka failed. What was committed is settled,
    the rest is not, and of the last transaction only Kafka knows: running it again goes on from whatever is true."""


@dataclass(slots=True)
class Settlement:
    """What a settling did, or in a dry run would do."""

    before: dict[str, int]
    after: dict[str, int]
    done: list[dict[str, Any]] = field(default_factory=list)
    """Each letter that was settled: origin, action, into."""
    refused: list[dict[str, Any]] = field(default_factory=list)
    """Each that would be refused again: origin, why."""
    already: list[dict[str, Any]] = field(default_factory=list)
    """Each that had been settled: origin, action, by, why, at, into."""


class Back(NamedTuple):
    """Where a letter's record goes."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with letters, who wants it and why."""

    action: str
    by: str
    why: str


async def settle(
    settings: Settings, wanted: Wanted, decision: Decision, *, dry_run: bool = False, notify: Notify = lambda _: None
) -> Settlement:
    """Replay or drop what is wanted and open. `notify` gets the count of those that are done, as it grows.

    Raises `Unfinished`, and before anything is changed `KafkaUnavailable` and `TopicsError`.
    """
    async with dead_letter_topic(settings) as topic:
        if dry_run:
            return await _Settling(topic, None, decision, notify).run(wanted)
        async with _producer(settings, topic) as producer:
            try:
                return await _Settling(topic, producer, decision, notify).run(wanted)
            except (KafkaError, KafkaUnavailable) as error:
                raise Unfinished(_reason(error)) from error


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    if isinstance(error, ProducerFenced | InvalidProducerEpoch) or isinstance(cause, ProducerFenced):
        said = "another `dlq replay` or `dlq drop` has begun"
    else:
        said = f"{type(error).__name__}: {error}"
    return f"{said}; this one ended early. Nothing is settled twice: look at `turnlog dlq list`, and run it again"


class _Settling:
    """One pass over what is wanted. Without a producer it only looks."""

    def __init__(self, topic: DeadLetterTopic, producer: Any, decision: Decision, notify: Notify) -> None:
        self._topic = topic
        self._producer = producer
        self._decision = decision
        self._notify = notify

    async def run(self, wanted: Wanted) -> Settlement:
        post = await self._topic.post()
        self._result = Settlement(post.counts(), {})
        self._note_settled(wanted, post)
        chosen = [one for one in post.letters.values() if one.settled is None and wanted.takes(one, self._topic.names)]
        for letters in by_partition(chosen):
            batch: list[tuple[Letter, DeadLetter, Back | None]] = []
            size = 0
            async for one, whole in self._topic.whole(letters):
                if (back := self._back(one, whole)) is None and self._decision.action == REPLAYED:
                    continue
                if batch and (len(batch) >= TRANSACTION_LETTERS or size + one.size > TRANSACTION_BYTES):
                    await self._commit(batch)
                    batch, size = [], 0
                batch.append((one, whole, back))
                size += one.size
            if batch:
                await self._commit(batch)
        settled = len(self._result.done)
        before = self._result.before
        self._result.after = before | {
            "open": before["open"] - settled,
            self._decision.action: before[self._decision.action] + settled,
        }
        return self._result

    def _note_settled(self, wanted: Wanted, post: Post) -> None:
        """Those that somebody asks for by name, and that were settled before."""
        for origin in wanted.origins:
            one = post.letters.get(origin)
            if one is not None and one.settled is not None:
                self._result.already.append({"origin": origin, **msgspec.to_builtins(one.settled)})

    def _back(self, one: Letter, whole: DeadLetter) -> Back | None:
        """Where the record goes; None: nowhere, and if it was to be replayed that is noted."""
        if self._decision.action != REPLAYED:
            return None
        try:
            return destination(self._topic, whole)
        except Undecodable as problem:
            self._result.refused.append({"origin": one.letter.origin, "error": problem.reason, "why": str(problem)})
            return None

    async def _commit(self, batch: Sequence[tuple[Letter, DeadLetter, Back | None]]) -> None:
        """Settle these in one transaction. What failed must not be committed without it: each outcome is awaited."""
        if self._producer is None:
            self._result.done += [self._told(one, back, None) for one, _, back in batch]
            return
        await self._producer.begin_transaction()
        sent = await _outcomes(self._write(whole, back) for _, whole, back in batch if back is not None)
        offsets = iter([metadata.offset for metadata in sent])
        told = [self._told(one, back, None if back is None else next(offsets)) for one, _, back in batch]
        marked = zip(batch, told, strict=True)
        await _outcomes(self._mark(one, marks["into"]) for (one, _, _), marks in marked)
        await asked(self._producer.commit_transaction(), TRANSACTION_LIMIT_S)
        self._result.done += told
        self._notify(len(self._result.done))

    async def _write(self, whole: DeadLetter, back: Back) -> Any:
        headers = [(name, value or b"") for name, value in whole.headers if name != REPLAYED_FROM]
        headers.append((REPLAYED_FROM, whole.origin.encode()))
        return await self._producer.send(
            back.topic, whole.value, key=whole.key, partition=back.partition, headers=headers
        )

    async def _mark(self, one: Letter, into: str | None) -> Any:
        settled = Settled(
            action=self._decision.action,
            by=self._decision.by,
            why=self._decision.why,
            at=round(time.time() * 1000),
            into=into,
        )
        mark = msgspec.structs.replace(one.letter, key=None, value=None, headers=(), settled=settled)
        return await self._producer.send(
            self._topic.topics.dead_letters,
            self._topic.codec.encode_dead_letter(mark),
            partition=mark.partition,
            headers=[("settled", self._decision.action.encode())],
        )

    def _told(self, one: Letter, back: Back | None, offset: int | None) -> dict[str, Any]:
        if back is None:
            return {"origin": one.letter.origin, "action": self._decision.action, "into": None}
        place = f"{back.topic}/{back.partition}"
        into = place if offset is None else f"{place}/{offset}"
        return {"origin": one.letter.origin, "action": self._decision.action, "into": into}


async def _outcomes(sends: Iterable[Awaitable[Any]]) -> list[Any]:
    """Send them all, in their order, and wait for each. Raises the first error once none is under way any more."""
    pending: list[Any] = []
    try:
        for send in sends:
            pending.append(await send)  # noqa: PERF401 -- those before one that fails must be known, to be waited for
    finally:
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def destination(topic: DeadLetterTopic, letter: DeadLetter) -> Back:
    """Where its record belongs. Raises `Undecodable`, as the worker would, if it would be refused there again."""
    decoded(topic.codec, letter)
    if letter.topic == topic.topics.membership:
        return Back(letter.topic, letter.partition)
    return Back(letter.topic, partition_of((letter.key or b"").decode(), topic.partitions))


def decoded(codec: Codec, letter: DeadLetter) -> Command | Signal:
    """The command in it. Raises `Undecodable`."""
    record = _AsRecord(letter.key, letter.value, letter.at)
    match letter.topic.rpartition(".")[2]:
        case "turns":
            return codec.decode_turns(record, 0)
        case "frames":
            return codec.decode_frames(record, 0)
        case _:
            return codec.decode_membership(record, 0)


class _AsRecord(NamedTuple):
    """A letter's record, as the codec wants one."""

    key: bytes | None
    value: bytes | None
    timestamp: int


@asynccontextmanager
async def _producer(settings: Settings, topic: DeadLetterTopic) -> AsyncIterator[Any]:
    """The one that may settle. Starting it fences the one before."""
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.kafka,
        transactional_id=f"{topic.topics.transactional_id(0).removesuffix('-0')}-dead-letters",
        transaction_timeout_ms=TRANSACTION_LIMIT_S * 1000,
        max_request_size=REQUEST_BYTES,
    )
    await asked(producer.start(), TRANSACTION_LIMIT_S)
    try:
        yield producer
    finally:
        await producer.stop()
