"""What a sequencer asks of Kafka, as Protocols, and what everybody who reads a log needs: careful consumers, ends.

`kafka_producers` and `kafka_readers` have aiokafka's side of the Protocols; no other part of the runtime touches it.
Every consumer is `read_committed` unless it says otherwise, never resets an offset by itself, and every wait for a
broker has a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.fence.port import Positions

log = structlog.get_logger(__name__)

Headers = Sequence[tuple[str, bytes]]
# aiokafka's compiled record builder takes a list and nothing else.
NewHeaders = list[tuple[str, bytes]]

# The broker's default `max.message.bytes` is 1 MiB + 12; a record batch of at most 1 MiB passes it.
BATCH_BYTES = 1 << 20
# A request may carry one batch and its framing; a dead letter carries a whole intake record and what was wrong with it.
REQUEST_BYTES = 2 * BATCH_BYTES
# A fetch of a backlog holds some batches' worth of one topic (about 12,000 turns): 14 % less work a record than 1 MiB,
# measured, for at most 3 * 4 MiB in memory a partition.
FETCH_BYTES = 4 * BATCH_BYTES
RETRY_BACKOFF_MS = 50


class Doubt(Exception):
    """The outcome of a request is not known: throw the producer away and rebuild the state from the journal."""


class KafkaUnavailable(Exception):
    """Kafka cannot be asked now, and nothing was left half done."""


class Unrecoverable(Exception):
    """What is stored does not fit together, so that going on would lose or repeat something: an operator must look."""


class Record(Protocol):
    """An intake or journal record, as the consumer gives it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class Polled(msgspec.Struct, frozen=True, gc=False):
    """What one look at the intake brought. `read`: the next offset to read of each topic, past control records too."""

    turns: Sequence[Record]
    frames: Sequence[Record]
    membership: Sequence[Record]
    read: Positions

    def __len__(self) -> int:
        return len(self.turns) + len(self.frames) + len(self.membership)


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """First offset kept and next offset to be written of a topic's partition."""

    start: int
    end: int


class ProducerIdentity(msgspec.Struct, frozen=True, gc=False):
    """What InitProducerId gave a transactional producer."""

    producer_id: int
    producer_epoch: int


class IntakeSource(Protocol):
    """The three intake topics of one partition."""

    async def open(self, positions: Positions) -> None:
        """Start reading at `positions`; `Unrecoverable` when one of them is outside its topic."""

    async def poll(self, limit: int, wait_ms: int, *, membership: bool) -> Polled:
        """At most `limit` records, waiting up to `wait_ms` for the first. `membership` False: not of that topic.

        Membership goes first: of what it held when this was opened all is given before anything of the other two, so
        that no backlog of turns is decided without the channels and members that were there before it.
        """

    async def ends(self) -> Positions:
        """The end of each topic now, as far as it may be read."""

    async def close(self) -> None: ...


class JournalReader(Protocol):
    """The journal of one partition, read committed."""

    async def open(self, offset: int) -> int:
        """Start reading at `offset`; `Unrecoverable` when it lies outside the journal. Returns the journal's high
        watermark at that time: its end, whatever lies in it."""

    async def read(self) -> tuple[Sequence[Record], int]:
        """Some records, maybe none, and the position after them (which passes control records and aborted ones)."""

    async def stable_end(self) -> int:
        """Where the journal ends for who reads it now: before the first open transaction, if there is one."""

    async def close(self) -> None: ...


class RecordBatch(Protocol):
    """Records on their way into one append."""

    def add(self, key: bytes | None, value: bytes, headers: NewHeaders) -> bool:
        """False: it is full, and the record is not in it."""


class JournalProducer(Protocol):
    """A transactional producer: one writer epoch of one partition. After any error only `discard` may be called."""

    async def start(self) -> None:
        """InitProducerId: the last holder's open transaction is aborted, its next request is refused."""

    @property
    def identity(self) -> ProducerIdentity:
        """What `start` got."""

    def new_batch(self) -> RecordBatch: ...

    async def begin(self) -> None: ...

    async def append(self, batch: RecordBatch) -> int:
        """Write the batch and wait until the broker has it. Returns the offset after its last record."""

    async def commit(self) -> None: ...

    async def discard(self) -> None:
        """Throw it away, whatever it is doing, without waiting for the broker."""


class Outbox(Protocol):
    """Plain writes outside transactions: ticks and dead letters."""

    async def send(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, headers: NewHeaders | None = None
    ) -> int:
        """Returns when the broker has the record: its append time, ms since the epoch."""


def consumer(bootstrap: str, limit_s: float, *, isolation: str = "read_committed", wait_ms: int = 500) -> Any:
    """A consumer without a group that resets no offset by itself."""
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation,
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_wait_ms=wait_ms,
        request_timeout_ms=int(limit_s * 1000),
        retry_backoff_ms=RETRY_BACKOFF_MS,
    )


def is_stray() -> bool:
    """Whether a `CancelledError` just caught came of nothing: nobody asked the running task to stop.

    aiokafka cancels the futures of a connection that it closes; whoever awaits one of them gets that as if it had been
    cancelled itself, and would end in silence (seen when a broker dies).
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


async def asked(request: Any, limit_s: float) -> Any:
    """Await a consumer's request within the limit; its errors become `KafkaUnavailable`."""
    try:
        async with asyncio.timeout(limit_s):
            return await request
    except (KafkaError, TimeoutError, OSError) as error:
        raise KafkaUnavailable(f"Kafka did not answer: {type(error).__name__}: {error}") from error
    except asyncio.CancelledError as error:
        if is_stray():
            raise KafkaUnavailable("the connection to Kafka was closed") from error
        raise


async def bounds(reader: Any, partitions: Iterable[TopicPartition], limit_s: float) -> Mapping[TopicPartition, Bounds]:
    """Start and end of each of `partitions`; the end is the last stable offset for a `read_committed` reader."""
    wanted = list(partitions)
    starts, ends = await asyncio.gather(
        asked(reader.beginning_offsets(wanted), limit_s), asked(reader.end_offsets(wanted), limit_s)
    )
    return {tp: Bounds(starts[tp], ends[tp]) for tp in wanted}


class KafkaEnds:
    """Where topics begin and end, asked on two clients that all partitions of a process share."""

    def __init__(self, bootstrap: str, limit_s: float) -> None:
        self._bootstrap = bootstrap
        self._limit_s = limit_s
        self._clients: dict[str, Any] = {}
        self._starting = asyncio.Lock()

    async def bounds(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Start and end of each, whatever lies there. Raises `KafkaUnavailable`."""
        return await bounds(await self._client("read_uncommitted"), names, self._limit_s)

    async def readable(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        """Start and last stable offset of each. Raises `KafkaUnavailable`."""
        return await bounds(await self._client("read_committed"), names, self._limit_s)

    async def high(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The high watermark of each: the end, whatever lies before it. Raises `KafkaUnavailable`."""
        client = await self._client("read_uncommitted")
        offsets: Mapping[TopicPartition, int] = await asked(client.end_offsets(list(names)), self._limit_s)
        return offsets

    async def stable(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The last stable offset of each: where a `read_committed` reader ends. Raises `KafkaUnavailable`."""
        client = await self._client("read_committed")
        offsets: Mapping[TopicPartition, int] = await asked(client.end_offsets(list(names)), self._limit_s)
        return offsets

    async def acquaint(self, client: Any, *topics: str) -> None:
        """Tell `client`, aiokafka's own of a producer or consumer that is about to start, the brokers known here, and
        who leads the partitions of `topics`, if all of them were asked about here.

        It then needs no bootstrap, which is a connection, a question and another connection: a third of what it costs
        to open a partition, and a takeover opens dozens. Nor does it ask who leads each partition of its topics, to
        use one of them. What has changed since it hears from the first broker that is asked in vain, as ever. Raises
        `KafkaUnavailable`.
        """
        known = (await self._client("read_committed"))._client.cluster
        if known.brokers():
            client.bootstrap = partial(_begin, client, known, topics)

    async def close(self) -> None:
        while self._clients:
            _, client = self._clients.popitem()
            await client.stop()

    async def _client(self, isolation: str) -> Any:
        async with self._starting:
            if isolation not in self._clients:
                client = consumer(self._bootstrap, self._limit_s, isolation=isolation)
                try:
                    await asked(client.start(), self._limit_s)
                except KafkaUnavailable:
                    await client.stop()
                    raise
                self._clients[isolation] = client
            return self._clients[isolation]


async def _begin(client: Any, known: Any, topics: Collection[str]) -> None:
    """What aiokafka's `bootstrap` leaves behind: the brokers, and the task that keeps its metadata fresh; and what it
    learns of its topics when it first needs one."""
    client.cluster._brokers = {broker.nodeId: broker for broker in known.brokers()}
    client.cluster.controller = known.controller
    if all(known.partitions_for_topic(topic) for topic in topics):
        # A refresh puts a new one in its place, and changes none.
        client.cluster._partitions = {topic: known._partitions[topic] for topic in topics}
        client._topics = set(topics)
    client._sync_task = asyncio.create_task(client._md_synchronizer())


def require_inside(name: TopicPartition, position: int, kept: Bounds) -> None:
    """Raise `Unrecoverable` unless reading can go on at `position`."""
    if position < kept.start:
        raise Unrecoverable(
            f"{name.topic}[{name.partition}]: the next offset to read is {position}, but the topic starts at "
            f"{kept.start}: {kept.start - position} records are gone"
        )
    if position > kept.end:
        raise Unrecoverable(
            f"{name.topic}[{name.partition}]: the next offset to read is {position}, but the topic ends at {kept.end}: "
            "it was cut off or made anew"
        )


async def closed(*things: Any) -> None:
    """Close what was opened, each whatever the others do; an error of one is reported, not passed on."""
    for thing in things:
        try:
            await thing.close()
        except Exception:
            log.warning("closing failed", of=type(thing).__name__, exc_info=True)
        except asyncio.CancelledError:
            if not is_stray():
                raise
            log.info("closing was cut short by a connection that was closed already", of=type(thing).__name__)


class Stability:
    """How long a last stable offset has been behind the end of its topic: an open transaction that does not end."""

    def __init__(self, ends: KafkaEnds, topics: Sequence[str]) -> None:
        self._ends = ends
        self._topics = topics
        self._seen: dict[TopicPartition, tuple[int, float]] = {}

    async def behind(self, partitions: Iterable[int]) -> Mapping[tuple[str, int], float]:
        """Per (topic, partition), seconds since its stable offset stands still although it is behind; 0: it is not.

        Empty when Kafka cannot be asked now.
        """
        names = [TopicPartition(topic, partition) for topic in self._topics for partition in partitions]
        if not names:
            return {}
        try:
            # The stable offset first: what is written in between can make a topic look unstable, never stable.
            stable, kept = await self._ends.stable(names), await self._ends.bounds(names)
        except KafkaUnavailable as error:
            log.info("cannot look at the topics' ends", error=str(error))
            return {}
        now = time.monotonic()
        return {(name.topic, name.partition): self._seconds(name, stable[name], kept[name].end, now) for name in names}

    def _seconds(self, name: TopicPartition, stable: int, end: int, now: float) -> float:
        if stable >= end:
            self._seen.pop(name, None)
            return 0.0
        before, since = self._seen.get(name, (-1, now))
        if before != stable:
            since = now
        self._seen[name] = (stable, since)
        return now - since
