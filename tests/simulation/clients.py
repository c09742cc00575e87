"""aiokafka's two clients on a simulated cluster: as much of them as `streams.runtime.kafka*` uses.

What matters is kept from aiokafka: a request is repeated when its connection breaks, so that the first one may arrive
later still; a batch that failed does not fail the transaction that it was in; nothing ends by itself when a broker is
silent. The runtime's own limits, translation of errors and throwing away run on top of it as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaConnectionError, KafkaError, ProducerFenced

from streams.fence.port import Fenced
from streams.runtime.hanging import OpenTransaction, Outcome
from streams.runtime.kafka import Doubt, KafkaUnavailable
from tests.simulation.cluster import Cluster, Fate, LogRecord, Name, NewRecord
from tests.simulation.loop import current
from tests.simulation.network import Network, Reply, Reset

RETRY_BACKOFF_S = 0.05
OVERHEAD = 30


def producer_id(transactional_id: str) -> int:
    """What the coordinator gave it."""
    return int(transactional_id.rpartition("-")[2])


class Builder:
    """A batch that is being filled."""

    def __init__(self, most: int) -> None:
        self.records: list[NewRecord] = []
        self._most = most
        self._size = 0

    def append(self, *, timestamp: int | None, key: bytes | None, value: bytes, headers: Any) -> object | None:
        size = OVERHEAD + len(key or b"") + len(value)
        if self._size + size > self._most:
            return None
        self._size += size
        self.records.append((key, value, list(headers)))
        return self

    def close(self) -> None:
        """Nothing more is added."""

    def record_count(self) -> int:
        return len(self.records)


class SimProducer:
    """`AIOKafkaProducer`."""

    def __init__(self, network: Network, cluster: Cluster, *, transactional_id: str | None = None, **_: Any) -> None:
        self._network = network
        self._cluster = cluster
        self._id = transactional_id
        self._name = transactional_id or f"producer-{next(cluster.numbers)}"
        self._epoch = -1
        self._sequences: dict[Name, int] = {}
        self._turns: dict[Name, asyncio.Lock] = {}
        self._batches: list[asyncio.Task[Any]] = []
        self._added = False
        self._fenced: ProducerFenced | None = None
        self._closed = False
        # What `discard` reaches for.
        self._message_accumulator = SimpleNamespace(fail_all=self._fail_all, _pending_batches=(), _batches={})
        self._committing = False
        self._unfinished: BaseException | None = None
        self._txn_manager: Any = SimpleNamespace(
            wait_for_transaction_end=lambda: None,
            needs_transaction_commit=lambda: True if self._committing else None,
            fatal_error=self._end_with,
        )
        self._sender = SimpleNamespace(_do_txn_commit=self._send_end)
        self.client = SimpleNamespace(close=self._close)

    async def start(self) -> None:
        if self._id is not None:
            name = self._id
            self._network.reached("init")
            self._epoch = await self._asked(lambda reply: self._cluster.init_producer(name, reply))
            self._txn_manager.producer_id, self._txn_manager.producer_epoch = producer_id(name), self._epoch

    def create_batch(self) -> Builder:
        return Builder(self._cluster.batch_bytes)

    async def begin_transaction(self) -> None:
        self._added = False
        self._batches.clear()

    async def send_batch(self, batch: Builder, topic: str, *, partition: int) -> asyncio.Task[Any]:
        if self._fenced is not None:
            raise self._fenced
        task = asyncio.ensure_future(self._deliver((topic, partition), batch.records))
        task.add_done_callback(_looked_at)
        self._batches.append(task)
        return task

    async def send_and_wait(
        self, topic: str, value: bytes, key: bytes | None = None, *, partition: int, headers: Any = None
    ) -> Any:
        return await self._deliver((topic, partition), [(key, value, list(headers or ()))])

    async def commit_transaction(self) -> None:
        """Flush, then EndTxn. A batch that failed says so in its own future, and nowhere else."""
        if on_their_way := [task for task in self._batches if not task.done()]:
            await asyncio.wait(on_their_way)
        if self._fenced is not None:
            raise self._fenced
        if self._added:
            self._network.reached("end")
            self._committing = True
            while self._committing:
                await self._sender._do_txn_commit(True)  # noqa: FBT003
            if self._unfinished is not None:
                raise self._unfinished

    async def _send_end(self, _: object) -> None:
        """One EndTxn; a broken connection is slept over, and the caller's to repeat."""
        sender = current().name
        try:
            await self._network.ask(
                self._cluster.server, lambda reply: self._cluster.commit(self._name, self._epoch, sender, reply)
            )
            self._committing = False
        except Reset:
            await asyncio.sleep(RETRY_BACKOFF_S)

    def _end_with(self, error: BaseException) -> None:
        self._committing, self._unfinished = False, error

    async def stop(self) -> None:
        await self._close()

    async def _close(self) -> None:
        self._closed = True
        for task in self._batches:
            task.cancel()

    def _fail_all(self, _: BaseException) -> None:
        self._closed = True

    async def _deliver(self, where: Name, records: list[NewRecord]) -> Any:
        """One batch at a time to each partition, as a sender does it."""
        async with self._turns.setdefault(where, asyncio.Lock()):
            if self._id is not None and not self._added:
                await self._asked(lambda reply: self._cluster.add_partitions(self._name, self._epoch, where, reply))
                self._added = True
            sequence = self._sequences.get(where, 0)
            self._sequences[where] = sequence + 1  # also when whoever waits for it goes away: it is on its way
            if self._id is not None:
                self._network.reached("produce")
            offset, timestamp = await self._asked(
                lambda reply: self._cluster.produce(self._name, self._epoch, where, sequence, records, reply)
            )
            return SimpleNamespace(offset=offset, timestamp=timestamp)

    async def _asked(self, effect: Callable[[Reply], None]) -> Any:
        """Ask until there is an answer."""
        while True:
            try:
                return await self._network.ask(self._cluster.server, effect)
            except Reset as error:
                if self._closed:
                    raise KafkaConnectionError("closed") from error
                await asyncio.sleep(RETRY_BACKOFF_S)
            except ProducerFenced as error:
                self._fenced = error
                raise


class SimConsumer:
    """`AIOKafkaConsumer` without a group."""

    def __init__(
        self,
        network: Network,
        cluster: Cluster,
        *,
        isolation_level: str,
        fetch_max_wait_ms: int,
        **_: Any,
    ) -> None:
        self._network = network
        self._cluster = cluster
        self._stable = isolation_level == "read_committed"
        self._wait_s = fetch_max_wait_ms / 1000
        self._positions: dict[Name, int] = {}
        self._buffers: dict[Name, list[LogRecord]] = {}
        self._fetched: dict[Name, int] = {}
        self._fetch: asyncio.Task[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._fetched_at = float("-inf")
        self._closed = False
        self._fetcher = SimpleNamespace(_prefetch_backoff=0.1)

    async def start(self) -> None:
        await self._asked(lambda reply: reply(None))

    async def stop(self) -> None:
        self._closed = True
        if self._fetch is not None:
            self._fetch.cancel()

    def assign(self, partitions: Any) -> None:
        self._positions = {tuple(name): 0 for name in partitions}
        self._buffers = {name: [] for name in self._positions}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        name = tuple(partition)
        self._positions[name] = self._fetched[name] = offset
        self._buffers[name] = []

    async def position(self, partition: TopicPartition) -> int:
        return self._positions[tuple(partition)]

    async def beginning_offsets(self, partitions: Any) -> Mapping[Any, int]:
        await self._asked(lambda reply: reply(None))
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Any) -> Mapping[Any, int]:
        names = [tuple(name) for name in partitions]
        ends = await self._asked(lambda reply: self._cluster.ends(names, self._stable, reply))
        return {name: ends[tuple(name)] for name in partitions}

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[Any, list[LogRecord]]:
        wanted = [tuple(name) for name in partitions] or list(self._positions)
        self._prefetch()
        found = self._taken(wanted, max_records)
        if found or timeout_ms <= 0:
            return found
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        while not found and loop.time() < until:
            self._prefetch()
            self._arrived = loop.create_future()
            timer = loop.call_at(until, _wake, self._arrived)
            await self._arrived
            timer.cancel()
            found = self._taken(wanted, max_records)
        return found

    def _taken(self, wanted: list[Name], most: int | None) -> dict[Any, list[LogRecord]]:
        found: dict[Any, list[LogRecord]] = {}
        left = 1 << 30 if most is None else most
        for name in wanted:
            buffer = self._buffers[name]
            if buffer and left > 0:
                found[TopicPartition(*name)] = taken = buffer[:left]
                del buffer[:left]
                left -= len(taken)
                self._positions[name] = taken[-1].offset + 1
            if not buffer:
                self._positions[name] = self._fetched[name]
        self._prefetch()
        return found

    def _prefetch(self) -> None:
        """All are fetched together once all are taken; what is taken sooner, after a while without the others."""
        if self._fetch is not None or self._closed:
            return
        empty = {name: self._fetched[name] for name, buffer in self._buffers.items() if not buffer}
        late = asyncio.get_running_loop().time() - self._fetched_at >= self._fetcher._prefetch_backoff
        if empty and (late or len(empty) == len(self._buffers)):
            self._fetch = asyncio.ensure_future(self._fetch_more(empty))

    async def _fetch_more(self, wanted: dict[Name, int]) -> None:
        answer = await self._asked(lambda reply: self._cluster.fetch(wanted, self._stable, self._wait_s, reply))
        self._fetch = None
        self._fetched_at = asyncio.get_running_loop().time()
        for name, (records, end) in answer.items():
            if self._fetched[name] == wanted[name]:
                self._buffers[name] += records
                self._fetched[name] = end
                if not records:
                    self._positions[name] = end
        if self._arrived is not None:
            _wake(self._arrived)
        self._prefetch()

    async def _asked(self, effect: Callable[[Reply], None], limit_s: float = 5.0) -> Any:
        """Ask until there is an answer; one that does not come in time is asked for again."""
        while not self._closed:
            try:
                return await self._network.ask(self._cluster.server, effect, limit_s)
            except Reset:
                await asyncio.sleep(RETRY_BACKOFF_S)
            except TimeoutError:
                continue
        raise KafkaError("closed")


class SimTransactions:
    """`Transactions` of `streams.runtime.hanging`."""

    def __init__(self, network: Network, cluster: Cluster, limit_s: float) -> None:
        self._network = network
        self._cluster = cluster
        self._limit_s = limit_s

    async def unfinished(self, partition: int) -> Sequence[OpenTransaction]:
        where = (self._cluster.topics.conversations, partition)
        try:
            found = await self._asked(lambda reply: self._cluster.unfinished(where, reply))
        except (Reset, TimeoutError) as error:
            raise KafkaUnavailable("no answer") from error
        return [OpenTransaction(producer_id(name), epoch, start, 0, 0) for name, epoch, start in found]

    async def end(self, partition: int, of: OpenTransaction, producer_epoch: int, outcome: Outcome) -> None:
        where = (self._cluster.topics.conversations, partition)
        name = self._cluster.topics.transactional_id(of.producer_id)
        fate = Fate.COMMITTED if outcome is Outcome.COMMITTED else Fate.ABORTED
        try:
            await self._asked(lambda reply: self._cluster.end_hanging(name, where, producer_epoch, fate, reply))
        except InvalidProducerEpoch as error:
            raise Fenced("a later epoch has written since") from error
        except (Reset, TimeoutError) as error:
            raise Doubt("no answer to the marker") from error

    async def _asked(self, effect: Callable[[Reply], None]) -> Any:
        return await self._network.ask(self._cluster.server, effect, self._limit_s)


def _looked_at(task: asyncio.Task[Any]) -> None:
    """A batch that failed when its producer had been thrown away concerns nobody."""
    if not task.cancelled():
        task.exception()


def _wake(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
