"""Sequencers when their servers pause, die and come back, and when they themselves are zombies: real servers only."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

import psutil
import pytest

from ops.embedded import EmbeddedStack
from streams.core.events import Entry, MemberLeft, RunMoved, TurnCommitted
from streams.core.store import dump_conversation, dump_partition
from streams.fence.checkpoint import PostgresCheckpoints
from streams.fence.lease import PostgresLeases
from streams.fence.port import Fenced, Lease
from streams.runtime.commit import DeadLetters
from streams.runtime.kafka import Doubt, KafkaEnds, KafkaUnavailable
from streams.runtime.kafka_producers import KafkaJournalProducer, KafkaOutbox
from streams.runtime.kafka_readers import KafkaIntake, KafkaJournalReader, KafkaReaders
from streams.runtime.kafka_transactions import KafkaTransactions
from streams.runtime.metrics import WorkerMetrics
from streams.runtime.ports import Ports
from streams.runtime.writer import Writer
from streams.settings import Settings, load_settings
from streams.worker import limits_of
from tests.support import postgres
from tests.support.deployment import CODEC, MEMBER, Deployment, Talk, deployment, page
from tests.support.hanging import Forgotten, take_unverified
from tests.support.sequencing import FakeKeeper
from tests.support.waiting import until

LIMIT_S = 5.0
LEASE_TTL_MS = 60_000
REQUEST_TIMEOUT_MS = 2_000


@asynccontextmanager
async def zombie_ports(place: Deployment, worker: str) -> AsyncIterator[Ports]:
    """Real ports, except that the lease's keeper always says yes: what a process believes that was paused."""
    settings, topics = place.settings, place.topics
    outbox, ends = KafkaOutbox(settings.kafka, LIMIT_S), KafkaEnds(settings.kafka, LIMIT_S)
    readers = KafkaReaders(settings.kafka, LIMIT_S)
    transactions = KafkaTransactions(settings.kafka, topics.conversations, LIMIT_S)
    checkpoints = PostgresCheckpoints(settings.postgres)
    leases = PostgresLeases(settings.postgres, worker, ttl_ms=LEASE_TTL_MS)
    await leases.open()
    ports = Ports(
        worker=worker,
        partitions=place.partitions,
        membership_topic=topics.membership,
        limits=limits_of(settings),
        leases=leases,
        checkpoints=checkpoints,
        codec=CODEC,
        outbox=outbox,
        dead_letters=DeadLetters(outbox, CODEC, topics.dead_letters),
        new_producer=lambda partition: KafkaJournalProducer(
            settings.kafka,
            topics.conversations,
            partition,
            transactional_id=topics.transactional_id(partition),
            timeout_ms=settings.transaction_timeout_ms,
            limit_s=LIMIT_S,
        ),
        new_reader=lambda partition: KafkaJournalReader(readers, ends, topics.conversations, partition),
        new_intake=lambda partition: KafkaIntake(settings.kafka, ends, topics, partition, LIMIT_S),
        transactions=transactions,
        keeper=FakeKeeper(),
        metrics=WorkerMetrics(),
    )
    try:
        yield ports
    finally:
        for thing in (outbox, readers, ends, transactions, checkpoints, leases):
            await thing.close()


@asynccontextmanager
async def opened(place: Deployment, worker: str) -> AsyncIterator[Writer]:
    """A writer on real servers."""
    async with zombie_ports(place, worker) as ports, writing(ports) as writer:
        yield writer


@asynccontextmanager
async def writing(ports: Ports) -> AsyncIterator[Writer]:
    """A writer with an epoch of its own; the partition is free."""
    lease = await ports.leases.claim(0)
    assert isinstance(lease, Lease)
    writer = Writer(await ports.leases.next_epoch(lease), ports)
    try:
        await writer.open()
        yield writer
    finally:
        await writer.close()


async def until_turn(place: Deployment, writer: Writer, text: str) -> None:
    async def seen() -> bool:
        await writer.turn()
        events = [entry.event for entry in (await place.journal())[0]]
        return any(isinstance(event, TurnCommitted) and event.turn.text == text for event in events)

    await until(seen)


async def test_a_zombies_write_is_refused_in_kafka_and_its_checkpoint_in_postgres(settings: Settings) -> None:
    async with deployment(settings, 1) as place, opened(place, "wk-zombie") as zombie:
        await place.furnish(MEMBER)
        await place.open("c1")
        await place.turn("c1", "before")
        await until_turn(place, zombie, "before")
        await zombie._ports.leases.hand_back(zombie.lease)  # it ends without its holder's knowing
        async with opened(place, "wk-heir") as heir:
            await place.turn("c1", "contested")
            with pytest.raises(Fenced, match="Kafka refused the producer"):
                await until_turn(place, zombie, "contested")
            with pytest.raises(Fenced, match="snapshot of epoch"):
                await zombie.drain()
            await until_turn(place, heir, "contested")
        assert await place.turns() == {"c1": ["before", "contested"]}
        await place.require_sound()


async def test_a_restart_finds_the_state_of_the_checkpoint_and_the_replay_byte_for_byte(settings: Settings) -> None:
    def bytes_of(writer: Writer) -> tuple[bytes, dict[str, bytes]]:
        state = writer._memory.state
        return dump_partition(state), {c.id: dump_conversation(c)[0] for c in state.conversations.values()}

    async with deployment(settings, 1) as place, opened(place, "wk-first") as writer:
        await place.furnish(MEMBER)
        await place.open("c1")
        await place.turn("c1", "one", key="k1")
        await until_turn(place, writer, "one")
        await writer.drain()
        await place.turn("c1", "two", key="k2")
        await until_turn(place, writer, "two")
        live = bytes_of(writer)
        async with zombie_ports(place, "wk-reader") as ports:
            copy = Writer(writer.lease, ports)
            await copy._replay(await copy._load())
            assert bytes_of(copy) == live
            await copy.close()


# ------------------------------------------------------------------------------------------- servers that misbehave
@pytest.fixture
async def shaky(private_stack: EmbeddedStack) -> AsyncIterator[Deployment]:
    """A deployment on servers that the test may stop; short limits, so that trouble shows soon."""
    with postgres.database(private_stack.postgres) as dsn:
        settings = load_settings(
            kafka=private_stack.kafka,
            postgres=dsn,
            namespace=dsn.rsplit("/", 1)[1].replace("_", "-"),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            transaction_timeout_ms=5_000,
            lease_ttl_ms=3_000,
            lease_heartbeat_ms=500,
            drain_budget_ms=20_000,
        )
        async with deployment(settings, 2) as place:
            yield place


async def through(
    place: Deployment,
    trouble: Callable[[], None],
    relief: Callable[[], None],
    blamed: str,
    *,
    seconds: float,
) -> None:
    """Turns before, during and after a trouble.

    `seconds`: how long it lasts at least. It lasts until the worker's readiness blames the server whose trouble it is,
    and no other: a shorter one may fall between two transactions, and would show nothing.
    """
    async with place.worker() as (running, _):
        ready = await running.until("ready")

        async def is_blamed() -> bool:
            status, text = await asyncio.to_thread(page, ready["metrics"].replace("/metrics", "/readyz"))
            answers = {name: one["ok"] for name, one in json.loads(text)["dependencies"].items()}
            return (status, answers) == (503, {name: name != blamed for name in ("kafka", "postgres")})

        talk = Talk(place, conversations=4)
        await talk.some(5)
        await asyncio.to_thread(trouble)
        await asyncio.sleep(seconds)  # how long the trouble lasts, not a wait for anything
        await until(is_blamed)
        await asyncio.to_thread(relief)
        await talk.some(10)
        said = await talk.end()
        await place.all_taken(said)
        assert await running.stop() == 0
    await place.require_sound()


async def test_a_commit_that_is_answered_too_late_leaves_a_doubt_which_the_next_epoch_settles(
    shaky: Deployment, private_stack: EmbeddedStack
) -> None:
    class Slow(KafkaJournalProducer):
        """The broker stops as the commit is sent, and goes on only when the wait for it has been given up."""

        async def commit(self) -> None:
            broker = psutil.Process(private_stack.kafka_pid)
            private_stack.signal_kafka(signal.SIGSTOP)
            # The supervisor passes the signal on: a commit sent before it strikes would be answered in time.
            await until(lambda: broker.status() == psutil.STATUS_STOPPED)
            try:
                await super().commit()
            finally:
                private_stack.signal_kafka(signal.SIGCONT)

    home = next(f"c{n}" for n in range(100) if shaky.home(f"c{n}") == 0)
    async with zombie_ports(shaky, "wk-first") as ports:
        async with writing(ports) as writer:
            await shaky.furnish(MEMBER)
            await shaky.open(home)
            await shaky.turn(home, "in doubt", key="k")
            slow = Slow(
                shaky.settings.kafka,
                shaky.topics.conversations,
                0,
                transactional_id=shaky.topics.transactional_id(0),
                timeout_ms=5_000,
                limit_s=REQUEST_TIMEOUT_MS / 1000,
            )
            await slow.start()
            await writer._committer.close()
            writer._committer._producer = slow
            with pytest.raises(Doubt):
                await until_turn(shaky, writer, "in doubt")
        async with writing(ports) as heir:
            await until_turn(shaky, heir, "in doubt")
    assert await shaky.turns() == {home: ["in doubt"]}
    await shaky.require_sound()


async def test_a_broker_that_dies_and_comes_back_loses_and_doubles_no_turn(
    shaky: Deployment, private_stack: EmbeddedStack
) -> None:
    await through(shaky, private_stack.kill_kafka, private_stack.restart_kafka, "kafka", seconds=0)


@pytest.mark.parametrize(
    ("told", "stored", "outcome"), [(False, False, "aborted"), (True, False, "aborted"), (True, True, "committed")]
)
async def test_a_claim_ends_a_transaction_that_its_coordinator_forgot(
    shaky: Deployment, told: bool, stored: bool, outcome: str
) -> None:
    """`told`: its writer heard that it was committed. `stored`: and made a checkpoint of it, which none does that looks
    whether readers can get it."""
    place = shaky
    await take_unverified(place.settings.kafka)
    home = next(f"c{n}" for n in range(100) if place.home(f"c{n}") == 0)
    async with zombie_ports(place, "wk-first") as ports:
        async with writing(ports) as writer:
            await place.furnish(MEMBER)
            await place.open(home)
            await place.turn(home, "before")
            await until_turn(place, writer, "before")
            forgotten = Forgotten(place.settings, 0, told=told)
            await forgotten.start()
            await writer._committer.close()
            writer._committer._producer = forgotten
            await place.turn(home, "forsaken")
            with nullcontext() if told else pytest.raises(Doubt):
                await until(lambda: has_taken(writer))
            if told:
                with pytest.raises(KafkaUnavailable, match="no checkpoint of it yet"):
                    await writer.drain()
            if stored:
                await writer._save(await writer._snapshot())
        assert len(await ports.transactions.unfinished(0)) == 1
        async with writing(ports) as heir:
            await until_turn(place, heir, "forsaken")
        assert await ports.transactions.unfinished(0) == []
        ended = ports.metrics.registry.get_sample_value(
            "turnlog_hanging_transactions_ended_total", {"outcome": outcome}
        )
        assert ended == 1
    assert await place.turns() == {home: ["before", "forsaken"]}
    await place.require_sound()


async def has_taken(writer: Writer) -> bool:
    return await writer.turn() > 0


async def test_a_broker_that_stalls_for_longer_than_a_members_time_expires_nobody_who_was_alive(
    shaky: Deployment, private_stack: EmbeddedStack
) -> None:
    await through(
        shaky,
        lambda: private_stack.signal_kafka(signal.SIGSTOP),
        lambda: private_stack.signal_kafka(signal.SIGCONT),
        "kafka",
        seconds=shaky.settings.member_ttl_ms / 1000 + 1,
    )
    left = [entry for entries in (await shaky.journal()).values() for entry in entries if is_end(entry)]
    assert left == []


def is_end(entry: Entry) -> bool:
    return isinstance(entry.event, MemberLeft | RunMoved)


async def test_without_a_lease_store_nothing_is_written_and_turns_wait(
    shaky: Deployment, private_stack: EmbeddedStack
) -> None:
    await through(shaky, private_stack.kill_postgres, private_stack.restart_postgres, "postgres", seconds=5)
