"""The commit order, step by step, and what an error in each of them leaves behind."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from streams.fence.port import Fenced
from streams.runtime.codec import Codec, DeadLetter
from streams.runtime.commit import Committer, DeadLetters
from streams.runtime.kafka import Doubt, KafkaUnavailable, NewHeaders, Unrecoverable
from tests.support.fake_kafka import FakeKafka, FakeOutbox

LETTER = DeadLetter(
    error="truncated",
    reason="the record ends early",
    origin="turns/0/7",
    topic="turns",
    partition=0,
    offset=7,
    key=b"c1",
    value=b"\x00",
    at=1,
)


class Lease:
    """The lease's word, asked before each write: `answers`, then yes."""

    def __init__(self, answers: Sequence[bool] = ()) -> None:
        self.answers = list(answers)

    def __call__(self) -> bool:
        return self.answers.pop(0) if self.answers else True


async def opened(kafka: FakeKafka, lease: Lease | None = None) -> Committer:
    letters = DeadLetters(FakeOutbox(kafka), Codec(), kafka.topics.dead_letters)
    committer = Committer(kafka.producer(0), letters, lease or Lease())
    await committer.open()
    return committer


async def commit(committer: Committer, *values: bytes, letters: Sequence[DeadLetter] = ()) -> int:
    pack = committer.new_pack()
    for value in values:
        if not pack.batch.add(b"c1", value, []):
            pack.overflow(b"c1", value, [])
    return await committer.commit(pack, letters)


def visible(kafka: FakeKafka) -> list[bytes | None]:
    return [record.value for record in kafka.readable(kafka.topics.conversations, 0)]


async def test_the_steps_come_in_the_documented_order() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    await commit(committer, b"one", letters=[LETTER])
    assert kafka.calls == ["init", "send dead-letters", "begin", "append", "commit"]
    assert visible(kafka) == [b"one"]


async def test_the_offset_after_the_last_record_comes_back() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    assert await commit(committer, b"one", b"two") == 2
    assert await commit(committer, b"three") == 4  # the commit marker took offset 2


@pytest.mark.parametrize(("key", "value"), [(b"c1", b"x" * (5 << 20)), (b"k" * (3 << 20), None)])
async def test_a_record_too_large_for_a_dead_letter_leaves_its_beginning(key: bytes, value: bytes | None) -> None:
    """A compressed batch may hold it; were its letter refused, the partition would never come past it."""
    kafka = FakeKafka()
    committer = await opened(kafka)
    await commit(committer, b"one", letters=[replace(LETTER, key=key, value=value)])
    (record,) = kafka.readable(kafka.topics.dead_letters, 0)
    letter = Codec().decode_dead_letter(record.value)
    assert letter.origin == LETTER.origin
    assert key.startswith(letter.key or b"-")
    assert value is None or value.startswith(letter.value or b"-")
    assert letter.reason.startswith(LETTER.reason + "; too large")


class TogetherOnly(FakeOutbox):
    """Answers nobody before `parties` have asked."""

    def __init__(self, kafka: FakeKafka, parties: int) -> None:
        super().__init__(kafka)
        self._barrier = asyncio.Barrier(parties)

    async def send(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, headers: NewHeaders | None = None
    ) -> int:
        await self._barrier.wait()
        return await super().send(topic, partition, value, key=key, headers=headers)


async def test_the_dead_letters_of_a_batch_are_written_together() -> None:
    kafka = FakeKafka()
    letters = DeadLetters(TogetherOnly(kafka, 3), Codec(), kafka.topics.dead_letters)
    async with asyncio.timeout(5):
        await letters.write([replace(LETTER, origin=f"turns/0/{number}") for number in range(3)])
    assert len(kafka.readable(kafka.topics.dead_letters, 0)) == 3


async def test_a_dead_letter_is_there_before_the_transaction_begins() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    kafka.fail("begin", Doubt("lost"))
    with pytest.raises(Doubt):
        await commit(committer, b"one", letters=[LETTER])
    (letter,) = kafka.readable(kafka.topics.dead_letters, 0)
    assert Codec().decode_dead_letter(letter.value) == LETTER
    assert letter.headers == (("error", b"truncated"),)


@pytest.mark.parametrize("step", ["send dead-letters", "begin", "append"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failure_before_the_commit_makes_nothing_visible(step: str, when: str) -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    error = KafkaUnavailable("no") if step.startswith("send") else Doubt("lost")
    kafka.fail(step, error, when)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        await commit(committer, b"one", letters=[LETTER])
    await opened(kafka)  # the next writer's InitProducerId decides
    assert visible(kafka) == []


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", [b"one"])])
async def test_the_next_producer_settles_a_commit_whose_outcome_is_open(when: str, expected: list[bytes]) -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    kafka.fail("commit", Doubt("no answer"), when)  # type: ignore[arg-type]
    with pytest.raises(Doubt):
        await commit(committer, b"one")
    await opened(kafka)
    assert visible(kafka) == expected


async def test_after_an_error_a_committer_refuses_to_go_on() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    kafka.fail("append", Doubt("lost"))
    with pytest.raises(Doubt):
        await commit(committer, b"one")
    with pytest.raises(AssertionError, match="must not be used again"):
        await commit(committer, b"two")


async def test_a_zombie_is_fenced_by_its_successors_start() -> None:
    kafka = FakeKafka()
    zombie, successor = await opened(kafka), await opened(kafka)
    with pytest.raises(Fenced):
        await commit(zombie, b"late")
    await commit(successor, b"new")
    assert visible(kafka) == [b"new"]


async def test_without_a_good_lease_no_transaction_begins() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka, Lease([False]))
    with pytest.raises(Fenced, match="renewed in time"):
        await commit(committer, b"one")
    assert "begin" not in kafka.calls


async def test_a_lease_that_ends_during_the_append_stops_the_commit() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka, Lease([True, False]))
    with pytest.raises(Fenced, match="renewed in time"):
        await commit(committer, b"one")
    assert kafka.calls[-1] == "append"
    assert visible(kafka) == []


async def test_records_beyond_one_batch_go_into_the_same_transaction() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    values = [bytes([n]) * 400_000 for n in range(5)]
    await commit(committer, *values)
    assert kafka.calls[1:] == ["begin", "append", "append", "append", "commit"]
    assert visible(kafka) == values


async def test_a_record_that_no_batch_holds_is_found_before_the_transaction() -> None:
    kafka = FakeKafka()
    committer = await opened(kafka)
    pack = committer.new_pack()
    assert pack.batch.add(b"c1", b"small", [])
    assert not pack.batch.add(b"c1", b"x" * 1_100_000, [])
    with pytest.raises(Unrecoverable, match="does not fit"):
        pack.overflow(b"c1", b"x" * 1_100_000, [])
    assert "begin" not in kafka.calls
