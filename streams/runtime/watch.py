"""What a worker looks at from aside: transactions that hold readers back, and whether Kafka can be reached at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from mode import Service

from streams.runtime.hanging import Transactions
from streams.runtime.kafka import KafkaEnds, KafkaUnavailable, Stability, Unrecoverable, asked, closed
from streams.runtime.metrics import WorkerMetrics
from streams.topics import Topics, TopicsError, identities, require_same

log = structlog.get_logger(__name__)

WATCH_EVERY_S = 2.0
# Transactions of ours take milliseconds: a stable offset that is behind and stands still for so long is worth a look.
STILL_S = 2.0
# A transaction of ours is open for milliseconds, and ended by the broker after `transaction_timeout_ms` at the latest.
UNSTABLE_MAX_S = 30.0
REACH_EVERY_S = 1.0
# A claim takes longer than this where a topic was made anew: whoever holds its partition is in doubt first.
IDENTITY_EVERY_S = 1.0


class Watch(Service):
    """Measures how long each topic's last stable offset has been behind its end: an open transaction stalls readers.

    One that stands in the journal for long is reported by name: nobody but the partition's worker should write there.
    """

    mundane_level = "debug"

    def __init__(
        self,
        stability: Stability,
        transactions: Mapping[str, Transactions],
        metrics: WorkerMetrics,
        held: Callable[[], list[int]],
        on_held_back: Callable[[str, int], None],
        **kwargs: Any,
    ) -> None:
        """`held`: the partitions to look at. `on_held_back`: gets topic and partition of what stands still."""
        super().__init__(**kwargs)
        self._on_held_back = on_held_back
        self._shown: set[tuple[str, int]] = set()
        self._report_at: dict[tuple[str, int], float] = {}
        """When one that was reported is reported again, in seconds of its standing still."""
        self._stability = stability
        self._transactions = transactions
        self._metrics = metrics
        self._held = held

    @Service.task
    async def _look(self) -> None:
        while not self.should_stop:
            await asyncio.sleep(WATCH_EVERY_S)
            held = self._held()
            for topic, partition in [key for key in self._shown if key[1] not in held]:
                # Another worker's to tell from now on.
                self._shown.discard((topic, partition))
                self._metrics.unstable.remove(topic, str(partition))
            for (topic, partition), seconds in (await self._stability.behind(held)).items():
                self._shown.add((topic, partition))
                self._metrics.unstable.labels(topic, str(partition)).set(seconds)
                if seconds >= STILL_S:
                    self._on_held_back(topic, partition)
                if seconds > self._report_at.get((topic, partition), UNSTABLE_MAX_S):
                    self._report_at[topic, partition] = seconds + UNSTABLE_MAX_S
                    await self._report(topic, partition, seconds)
                elif not seconds:
                    self._report_at.pop((topic, partition), None)

    async def _report(self, topic: str, partition: int, seconds: float) -> None:
        try:
            found = await self._transactions[topic].unfinished(partition)
        except KafkaUnavailable as error:
            log.info("cannot look at open transactions", topic=topic, partition=partition, error=str(error))
            return
        log.error(
            "an open transaction holds readers back: see `turnlog transaction list`",
            topic=topic,
            partition=partition,
            for_s=round(seconds),
            open=[str(one) for one in found],
        )


class Reach(Service):
    """Whether this worker reaches Kafka: it asks for the ends of every partition, and with it every leader.

    Once it has had no answer for so long, its partitions are better off elsewhere; `balance` decides that.
    """

    mundane_level = "debug"

    def __init__(self, ends: KafkaEnds, names: Sequence[TopicPartition], *, limit_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.error = ""
        """Why the last question was not answered; empty: it was."""
        self._ends = ends
        self._names = names
        # One question may meet a pause of the broker; the next one, asked at once, would then be answered.
        self._silence_max_s = limit_s * 1.5
        self._answered_at = time.monotonic()

    @property
    def cut_off_s(self) -> float:
        """For how long it has been known that Kafka does not answer; 0: it does."""
        return max(0.0, time.monotonic() - self._answered_at - self._silence_max_s)

    @Service.task
    async def _ask(self) -> None:
        while not self.should_stop:
            try:
                await self._ends.stable(self._names)
            except KafkaUnavailable as error:
                self.error = str(error)
                # A client that failed may go on with what it knew of the cluster; a new one asks anew.
                await closed(self._ends)
            else:
                self._answered_at, self.error = time.monotonic(), ""
            await self.sleep(REACH_EVERY_S)

    async def on_stop(self) -> None:
        await closed(self._ends)


class TopicIds:
    """Kafka's ids of the topics of record, asked on a client of its own."""

    def __init__(self, bootstrap: str, topics: Topics, limit_s: float) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._limit_s = limit_s
        self._admin: AIOKafkaAdminClient | None = None
        self._asking = asyncio.Lock()
        self._last: tuple[float, Mapping[str, str]] = (float("-inf"), {})
        """When it was asked last, and what came of it."""

    async def ask(self) -> Mapping[str, str]:
        """The id of each. Raises `KafkaUnavailable`; `TopicsError` when the broker that is asked does not know one.

        Who asks while a question is on its way shares the next one with all that do.
        """
        called_at = time.monotonic()
        async with self._asking:
            if self._last[0] < called_at:
                asked_at = time.monotonic()
                self._last = asked_at, await self._ask()
            return self._last[1]

    async def _ask(self) -> Mapping[str, str]:
        if self._admin is None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=int(self._limit_s * 1000))
            try:
                await asked(admin.start(), self._limit_s)
            except KafkaUnavailable:
                await admin.close()
                raise
            self._admin = admin
        try:
            ids: Mapping[str, str] = await asked(identities(self._admin, self._topics), self._limit_s)
        except KafkaUnavailable:
            await self.close()  # a client that failed may go on with what it knew of the cluster
            raise
        return ids

    async def close(self) -> None:
        if self._admin is not None:
            admin, self._admin = self._admin, None
            await admin.close()


class Identity(Service):
    """Whether the topics are still those that the database belongs to.

    One that is deleted and made anew under a running worker has another log under the same name: at the next claim its
    offsets would be taken for the old one's. So they are looked at before each claim, and once a second: the worker
    ends, by the `TopicsError` that says what happened.
    """

    mundane_level = "debug"

    def __init__(self, ids: TopicIds, kept: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._ids = ids
        self._kept = kept

    @Service.task
    async def _look(self) -> None:
        while not self.should_stop:
            await self.sleep(IDENTITY_EVERY_S)
            try:
                found = await self._ids.ask()
            except (KafkaUnavailable, TopicsError):
                continue  # `Reach` says that Kafka is away; a topic that is deleted is told of by whoever uses it
            require_same(self._kept, found)

    async def require(self) -> None:
        """Before anything of a partition is read or written. Raises `KafkaUnavailable` when Kafka does not tell, and
        `Unrecoverable` when the topics are others."""
        try:
            found = await self._ids.ask()
        except TopicsError as error:
            raise KafkaUnavailable(str(error)) from error
        try:
            require_same(self._kept, found)
        except TopicsError as error:
            raise Unrecoverable(str(error)) from error

    async def on_stop(self) -> None:
        await self._ids.close()
