"""What a worker watches from aside: transactions that hold readers back, and whether Kafka answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import pytest
import structlog
from aiokafka import TopicPartition

from streams.runtime import watch as module
from streams.runtime.hanging import OpenTransaction, Outcome
from streams.runtime.kafka import KafkaEnds, KafkaUnavailable, Stability, Unrecoverable
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.watch import Identity, Reach, TopicIds, Watch
from streams.topics import Topics, TopicsError
from tests.support.waiting import until

JOURNAL = "conversations"


class Behind(Stability):
    """Says what the test says."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def behind(self, partitions: Iterable[int]) -> Mapping[tuple[str, int], float]:
        return {(JOURNAL, partition): self.seconds for partition in partitions}


class Stranger:
    """`Transactions`: one of somebody else's."""

    async def unfinished(self, partition: int) -> Sequence[OpenTransaction]:
        return [OpenTransaction(99, 2, 17, last_timestamp=0, coordinator_epoch=0)]

    async def end(self, partition: int, of: OpenTransaction, producer_epoch: int, outcome: Outcome) -> None:
        raise AssertionError("watching changes nothing")


@pytest.mark.parametrize(("seconds", "alarms"), [(module.UNSTABLE_MAX_S, False), (module.UNSTABLE_MAX_S + 1, True)])
async def test_a_transaction_that_holds_readers_back_for_long_is_an_alarm_that_names_its_producer(
    monkeypatch: pytest.MonkeyPatch, seconds: float, alarms: bool
) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY_S", 0.001)
    metrics = WorkerMetrics()

    def shown() -> float | None:
        labels = {"topic": JOURNAL, "partition": "3"}
        return metrics.registry.get_sample_value("turnlog_lso_behind_seconds", labels)

    with structlog.testing.capture_logs() as logs:
        async with Watch(Behind(seconds), {JOURNAL: Stranger()}, metrics, lambda: [3], lambda topic, partition: None):
            await until(lambda: shown() is not None and (bool(logs) or not alarms))
    assert shown() == seconds
    assert bool(logs) is alarms
    if alarms:
        assert logs[0]["log_level"] == "error"
        assert logs[0]["open"] == ["producer 99 (epoch 2) since offset 17"]


async def test_an_alarm_that_goes_on_is_repeated_as_often_as_it_took_to_raise_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY_S", 0.0001)
    behind = Behind(0.0)

    def held() -> list[int]:
        behind.seconds += 1.0
        return [3]

    with structlog.testing.capture_logs() as logs:
        async with Watch(behind, {JOURNAL: Stranger()}, WorkerMetrics(), held, lambda topic, partition: None):
            await until(lambda: behind.seconds >= 100)
    raised = [log["for_s"] for log in logs if log["for_s"] <= 100]
    assert raised == [31, 62, 93]


@pytest.mark.parametrize(("seconds", "told"), [(0.0, False), (module.STILL_S, True)])
async def test_a_journal_that_stands_still_is_told_to_its_sequencer(
    monkeypatch: pytest.MonkeyPatch, seconds: float, told: bool
) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY_S", 0.001)
    looks, seen = 0, list[tuple[str, int]]()

    def held() -> list[int]:
        nonlocal looks
        looks += 1
        return [3]

    transactions = {JOURNAL: Stranger()}
    async with Watch(Behind(seconds), transactions, WorkerMetrics(), held, lambda *where: seen.append(where)):
        await until(lambda: looks > 2)
    assert set(seen) == ({(JOURNAL, 3)} if told else set())


async def test_what_is_no_more_this_workers_is_not_shown_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY_S", 0.001)
    metrics, partitions = WorkerMetrics(), [3]

    def shown() -> float | None:
        labels = {"topic": JOURNAL, "partition": "3"}
        return metrics.registry.get_sample_value("turnlog_lso_behind_seconds", labels)

    async with Watch(Behind(7.0), {JOURNAL: Stranger()}, metrics, lambda: partitions, lambda topic, partition: None):
        await until(lambda: shown() == 7.0)
        partitions.clear()
        await until(lambda: shown() is None)


class Ends(KafkaEnds):
    """Answers as long as it is told to."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0
        self.closed = 0

    async def stable(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.asked += 1
        if not self.answers:
            raise KafkaUnavailable("no answer")
        return dict.fromkeys(names, 0)

    async def close(self) -> None:
        self.closed += 1


async def test_a_worker_knows_that_kafka_is_away_once_it_was_silent_for_long_and_asks_with_new_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REACH_EVERY_S", 0.001)
    ends = Ends()
    reach = Reach(ends, [TopicPartition(JOURNAL, 0)], limit_s=0.2)
    async with reach:
        await until(lambda: ends.asked > 2)
        assert (reach.cut_off_s, reach.error, ends.closed) == (0.0, "", 0)
        ends.answers = False
        await until(lambda: bool(reach.error))
        assert reach.error == "no answer"
        await until(lambda: reach.cut_off_s > 0)
        assert ends.closed > 0
        ends.answers = True
        await until(lambda: reach.cut_off_s == 0 and not reach.error)


class Ids(TopicIds):
    """Answers as the test says; an error is raised."""

    def __init__(self, *answers: Mapping[str, str] | Exception) -> None:
        self._answers = list(answers)

    async def ask(self) -> Mapping[str, str]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """There is nothing to close."""


async def test_a_topic_that_is_made_anew_under_a_worker_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDENTITY_EVERY_S", 0.001)
    kept = {"turns": "1", "frames": "2"}
    away = KafkaUnavailable("away"), TopicsError("Kafka does not tell the id of turns: UnknownTopicOrPartitionError")
    identity = Identity(Ids(kept, *away, kept, {"turns": "7", "frames": "2"}), kept)
    async with identity:
        await until(lambda: identity.crashed)
        assert isinstance(identity.crash_reason, TopicsError)
        assert "turns is not the topic that the database belongs to" in str(identity.crash_reason)


async def test_a_claim_does_not_go_on_where_a_topic_was_made_anew() -> None:
    kept = {"turns": "1", "frames": "2"}
    unknown = TopicsError("Kafka does not tell the id of turns: UnknownTopicOrPartitionError")
    identity = Identity(Ids(kept, unknown, {"turns": "7", "frames": "2"}), kept)
    await identity.require()
    with pytest.raises(KafkaUnavailable, match="does not tell"):
        await identity.require()
    with pytest.raises(Unrecoverable, match="turns is not the topic that the database belongs to"):
        await identity.require()


async def test_claims_that_ask_at_the_same_time_share_a_question_that_begins_after_them() -> None:
    asked: list[asyncio.Future[dict[str, str]]] = []

    class Slow(TopicIds):
        async def _ask(self) -> dict[str, str]:
            asked.append(asyncio.get_running_loop().create_future())
            return await asked[-1]

    ids = Slow("nowhere", Topics("test"), 1.0)
    first = asyncio.create_task(ids.ask())
    await until(lambda: len(asked) == 1)
    others = [asyncio.create_task(ids.ask()) for _ in range(5)]
    asked[0].set_result({"turns": "1"})
    await until(lambda: len(asked) == 2)
    asked[1].set_result({"turns": "2"})
    assert await first == {"turns": "1"}
    assert [await each for each in others] == [{"turns": "2"}] * 5
    assert len(asked) == 2
