"""Transactions that Kafka left open: whose they are, how they end, and what a claim does about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from streams.core.events import TurnCommitted
from streams.fence.port import Fenced
from streams.runtime import hanging
from streams.runtime import writer as module
from streams.runtime.hanging import OpenTransaction, Outcome, is_own, outcome_of
from streams.runtime.kafka import Doubt, KafkaUnavailable, ProducerIdentity, Unrecoverable
from streams.runtime.writer import Writer
from tests.support.fake_kafka import Fate
from tests.support.sequencing import World, settle


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the fake takes time."""
    monkeypatch.setattr(hanging, "MARKER_LATE_S", 0.02)
    monkeypatch.setattr(hanging, "MARKER_WRITTEN_S", 0.02)
    monkeypatch.setattr(module, "MARKER_LATE_S", 0.02)


def transaction(producer_id: int = 7, producer_epoch: int = 3, start: int = 10) -> OpenTransaction:
    return OpenTransaction(producer_id, producer_epoch, start, last_timestamp=0, coordinator_epoch=-1)


@pytest.mark.parametrize(
    ("mine", "own"),
    [
        (ProducerIdentity(7, 4), True),
        (ProducerIdentity(7, 3), False),
        (ProducerIdentity(7, 2), False),
        (ProducerIdentity(8, 4), False),
    ],
)
def test_only_an_earlier_epoch_of_the_same_producer_is_ones_own(mine: ProducerIdentity, own: bool) -> None:
    assert is_own(transaction(), mine) is own


def test_what_no_checkpoint_knows_is_aborted_and_what_one_covers_is_committed() -> None:
    assert outcome_of(transaction(start=10), known=0, end=14) is Outcome.ABORTED
    assert outcome_of(transaction(start=10), known=10, end=14) is Outcome.ABORTED
    assert outcome_of(transaction(start=10), known=14, end=14) is Outcome.COMMITTED
    for amid in (11, 13):
        with pytest.raises(Unrecoverable, match="amid a transaction that was never ended"):
            outcome_of(transaction(start=10), known=amid, end=14)


# ------------------------------------------------------------------------------------------------------ a claim
async def furnished(world: World) -> Writer:
    writer = await world.writer()
    world.configure()
    world.join()
    world.converse("c1")
    world.turn("c1", "before")
    await settle(writer)
    return writer


async def forsaken(world: World) -> Writer:
    """A writer whose last transaction, with the turn `forsaken`, was forgotten by its coordinator before the marker."""
    writer = await furnished(world)

    def lose(step: str) -> None:
        if step == "commit":
            world.kafka.lose_marker(0)
            world.kafka.before_step = lambda _: None

    world.kafka.before_step = lose
    world.turn("c1", "forsaken")
    await settle(writer)
    return writer


async def robbed(world: World) -> Writer:
    """A writer whose checkpoint holds its last transaction, with the turn `forsaken`; then the broker loses the marker
    that it had."""
    writer = await furnished(world)
    world.turn("c1", "forsaken")
    await settle(writer)
    await writer.drain()
    world.kafka.lose_last_marker(0)
    return writer


def texts(world: World) -> list[str | None]:
    return [e.event.turn.text for e in world.journal() if isinstance(e.event, TurnCommitted)]


async def reopened(world: World) -> Writer:
    writer = await world.writer("wk-000000000002")
    await settle(writer)
    return writer


@pytest.mark.parametrize(("left", "outcome"), [(forsaken, "aborted"), (robbed, "committed")])
async def test_a_claim_ends_what_its_predecessor_left_open_and_no_turn_is_lost_or_doubled(
    left: Callable[[World], Awaitable[Writer]], outcome: str
) -> None:
    world = World()
    await (await left(world)).close()
    assert texts(world) == ["before"], "the marker is missing, so that nobody can read it"
    heir = await reopened(world)
    assert texts(world) == ["before", "forsaken"]
    assert [entry.lsn for entry in world.journal()] == list(range(1, len(world.journal()) + 1))
    ended = heir._ports.metrics.registry.get_sample_value(
        "turnlog_hanging_transactions_ended_total", {"outcome": outcome}
    )
    assert ended == 1
    await heir.close()


async def test_a_claim_leaves_a_strange_producers_transaction_alone_and_names_it() -> None:
    world = World()
    await (await world.writer()).close()
    strange = world.kafka.producer(0)
    await strange.start()
    batch = strange.new_batch()
    batch.add(None, b"foreign", [])
    await strange.append(batch)
    world.kafka.lose_marker(0, producer_id=99)
    with pytest.raises(KafkaUnavailable, match=r"open there: producer 99 .* since offset 3.*turnlog transaction list"):
        await world.writer("wk-000000000002")
    assert world.kafka.hanging[0].records[0].fate is Fate.OPEN


async def test_nothing_is_written_behind_a_transaction_that_hangs() -> None:
    """The next commit of the same producer would commit the forgotten records with its own."""
    world = World()
    await (await robbed(world)).close()
    end = world.kafka.logs[world.kafka.topics.conversations, 0].end
    world.kafka.fail("marker", KafkaUnavailable("scripted"))
    with pytest.raises(KafkaUnavailable, match="scripted"):
        await world.writer("wk-000000000002")
    assert world.kafka.logs[world.kafka.topics.conversations, 0].end == end
    await (await reopened(world)).close()
    assert texts(world) == ["before", "forsaken"]


async def test_a_zombies_marker_is_refused() -> None:
    world = World()
    await (await forsaken(world)).close()
    zombie = world.kafka.producer(0)
    await zombie.start()
    await world.kafka.producer(0).start()
    found = (await world.kafka.transactions().unfinished(0))[0]
    with pytest.raises(Fenced):
        await world.kafka.transactions().end(0, found, zombie.identity.producer_epoch, Outcome.ABORTED)


async def test_no_checkpoint_is_made_of_a_commit_that_kafka_forgot_since_the_next_abort_takes_it_along() -> None:
    world = World()
    writer = await forsaken(world)
    with pytest.raises(KafkaUnavailable, match="no checkpoint of it yet"):
        await writer.drain()
    world.kafka.fail("commit", Doubt("scripted"))
    world.turn("c1", "after")
    with pytest.raises(Doubt):
        await settle(writer)
    await writer.close()
    heir = await reopened(world)
    assert not world.kafka.hanging, "one marker ended both"
    assert texts(world) == ["before", "forsaken", "after"]
    assert [entry.lsn for entry in world.journal()] == list(range(1, len(world.journal()) + 1))
    await heir.close()
