"""The life of a partition at one worker: each way from state to state, and what is left when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec import structs
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from streams.core.commands import Command, CommitTurn
from streams.core.events import Entry, Rejected
from streams.core.fold import step
from streams.core.state import KEYS_IN_ROW, Partition
from streams.core.store import load_conversation
from streams.fence.port import HeldBy, Lease
from streams.runtime import partition as module
from streams.runtime.kafka import Doubt, KafkaUnavailable, Polled, Unrecoverable
from streams.runtime.partition import FINAL, TRANSITIONS, PartitionState, Sequencer
from streams.runtime.ports import Ports
from tests.support.fake_kafka import FakeIntake
from tests.support.sequencing import LIMITS, FakeKeeper, World, settle
from tests.support.waiting import until

S = PartitionState


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST_S", 0.001)


@asynccontextmanager
async def sequencer(world: World, ports: Ports | None = None) -> AsyncIterator[Sequencer]:
    ports = ports or world.ports()
    await ports.leases.open()
    lease = await ports.leases.claim(0)
    assert isinstance(lease, Lease)
    ports.keeper.watch(lease, 0)
    running = Sequencer(lease, ports, drain_s=5)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def in_phase(running: Sequencer, *phases: PartitionState) -> None:
    await until(lambda: running.phase in phases)


def test_every_state_has_its_transitions_and_only_the_final_ones_have_none() -> None:
    assert set(TRANSITIONS) == set(PartitionState)
    assert {state for state, ways in TRANSITIONS.items() if not ways} == FINAL
    reached = {S.OPENING}.union(*TRANSITIONS.values())
    assert reached == set(PartitionState)


def test_the_picture_names_every_state() -> None:
    assert module.__doc__ is not None
    assert all(state.name in module.__doc__ for state in PartitionState)


async def test_a_claimed_partition_runs_and_drains_when_stopped() -> None:
    world = World()
    world.configure()
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        await until(lambda: "ConfigChanged" in world.kinds())
    assert running.phase is S.RELEASED
    assert world.store.checkpoints[0].lsn == world.journal()[-1].lsn, "the last checkpoint covers the journal"
    assert isinstance(await world.ports("wk-000000000002").leases.claim(0), Lease), "free for another at once"


async def test_topics_that_were_made_anew_stop_the_claim_before_anything_is_asked_of_them() -> None:
    world = World()

    async def others() -> None:
        raise Unrecoverable("turns is not the topic that the database belongs to")

    async with sequencer(world, replace(world.ports(), same_topics=others)) as running:
        await in_phase(running, S.STOPPED)
        assert "not the topic" in running.reason
    assert world.kafka.calls == []
    assert 0 not in world.store.checkpoints


async def test_claims_ask_for_the_topics_ids_before_their_turn_to_be_opened() -> None:
    """Together, so that they share one question, however many wait to be opened."""
    world, opening = World(), asyncio.Semaphore(0)
    asked: list[None] = []

    async def same() -> None:
        asked.append(None)

    async with sequencer(world, replace(world.ports(), same_topics=same, opening=opening)) as running:
        await until(lambda: asked)
        assert (running.phase, world.kafka.calls) == (S.OPENING, [])
        opening.release()
        await in_phase(running, S.RUNNING)
    assert len(asked) == 1


async def test_a_claim_that_waited_long_for_its_turn_asks_for_the_topics_ids_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAME_FOR_S", -1)
    world = World()
    asked: list[None] = []

    async def same() -> None:
        asked.append(None)

    async with sequencer(world, replace(world.ports(), same_topics=same)) as running:
        await in_phase(running, S.RUNNING)
    assert len(asked) == 2


async def test_a_doubt_starts_over_with_a_new_epoch_and_a_new_producer() -> None:
    world = World()
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        world.kafka.fail("commit", Doubt("no answer"))
        world.configure()
        await until(lambda: world.kafka.calls.count("init") == 2 and running.phase is S.RUNNING)
        await until(lambda: "ConfigChanged" in world.kinds())
        assert running.lease.token.writer_epoch == 2
    opened = [e.writer_epoch for e in world.journal() if type(e.event).__name__ == "WriterOpened"]
    assert opened == [1, 2]


async def test_each_init_producer_id_has_a_writer_epoch_of_its_own() -> None:
    world = World()
    for _ in range(3):
        world.kafka.fail("init", Doubt("no answer"))
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        assert running.lease.token.writer_epoch == world.kafka.calls.count("init") == 4


async def test_a_partition_that_another_took_is_lost_and_nothing_more_is_written() -> None:
    world = World()
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        world.store.leases[0].expires_at = 0
        other = await world.ports("wk-000000000002").leases.claim(0)
        assert isinstance(other, Lease)
        written = world.kafka.logs["conversations", 0].end
        running.lose(running.lease, "another worker took it")
        await in_phase(running, S.LOST)
        assert "wk-000000000002 has it" in running.reason
        assert world.kafka.logs["conversations", 0].end == written
    still = await world.ports("wk-000000000003").leases.claim(0)
    assert isinstance(still, HeldBy), "a loser hands nothing back"


async def test_a_loss_of_an_earlier_lease_means_nothing_to_the_present_one() -> None:
    world = World()
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        old = running.lease
        world.kafka.fail("commit", Doubt("no answer"))
        world.configure()
        await until(lambda: running.lease != old and running.phase is S.RUNNING)
        running.lose(old, "late news")
        world.converse("c1")
        await until(lambda: "ConversationOpened" in world.kinds())
        assert world.kafka.calls.count("init") == 2


async def test_a_lease_that_could_not_be_renewed_stops_writing_and_starts_again_when_it_can() -> None:
    world = World()
    keeper = FakeKeeper()
    async with sequencer(world, replace(world.ports(), keeper=keeper)) as running:
        await in_phase(running, S.RUNNING)
        keeper.good, world.store.reachable = False, False
        world.configure()
        await in_phase(running, S.BACKING_OFF)
        assert "ConfigChanged" not in world.kinds()
        keeper.good, world.store.reachable = True, True
        await in_phase(running, S.RUNNING)
        await until(lambda: "ConfigChanged" in world.kinds())


async def test_a_log_that_cannot_be_continued_stops_the_partition_loudly_and_keeps_the_lease() -> None:
    world = World()
    world.kafka.logs["conversations", 0].start = 3
    for _ in range(3):
        world.kafka.append("conversations", 0, None, b"")
    async with sequencer(world) as running:
        await in_phase(running, S.STOPPED)
        assert "the topic starts at 3" in running.reason
        assert isinstance(await world.ports("wk-000000000002").leases.claim(0), HeldBy)
    assert running.phase is S.RELEASED


async def test_stopping_while_backing_off_hands_the_lease_back() -> None:
    world = World()

    class Deaf(FakeIntake):
        async def open(self, positions: object) -> None:
            raise KafkaUnavailable("no broker")

    ports = replace(world.ports(), new_intake=lambda partition: Deaf(world.kafka, partition))
    async with sequencer(world, ports) as running:
        await in_phase(running, S.BACKING_OFF)
    assert running.phase is S.RELEASED
    assert isinstance(await world.ports("wk-000000000002").leases.claim(0), Lease)


@pytest.mark.parametrize("step", ["begin", "append", "commit", "send dead-letters"])
async def test_a_cancellation_that_nobody_asked_for_starts_the_partition_over(step: str) -> None:
    world = World()
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        world.kafka.fail(step, asyncio.CancelledError())
        world.kafka.append("turns", 0, b"c1", b"garbage")
        await until(lambda: "Rejected" in world.kinds())
        assert running.lease.token.writer_epoch == 2


async def test_a_closing_that_is_cancelled_by_nobody_stops_nothing() -> None:
    world = World()

    class Brittle(FakeIntake):
        async def close(self) -> None:
            raise asyncio.CancelledError

    ports = replace(world.ports(), new_intake=lambda partition: Brittle(world.kafka, partition))
    async with sequencer(world, ports) as running:
        await in_phase(running, S.RUNNING)
        world.kafka.fail("commit", Doubt("no answer"))
        world.configure()
        await until(lambda: "ConfigChanged" in world.kinds())
    assert running.phase is S.RELEASED


async def test_a_clock_that_was_cancelled_by_nobody_starts_the_partition_over() -> None:
    world = World(limits=replace(LIMITS, tick_ms=1))
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        world.kafka.fail("send membership", asyncio.CancelledError())
        await until(lambda: running.lease.token.writer_epoch == 2 and running.phase is S.RUNNING)


async def test_an_error_that_nobody_foresaw_starts_the_partition_over() -> None:
    world = World()
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        world.kafka.fail("append", RuntimeError("a bug"))
        world.configure()
        await until(lambda: "ConfigChanged" in world.kinds())
        assert running.lease.token.writer_epoch == 2


@pytest.fixture
def brittle_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails on every turn that says "poison"."""

    def failing(state: Partition, command: Command, writer_epoch: int) -> list[Entry]:
        if isinstance(command, CommitTurn) and command.turn.text == "poison":
            raise KeyError("a mistake in the core")
        return step(state, command, writer_epoch)

    monkeypatch.setattr("streams.runtime.writer.step", failing)


@pytest.mark.usefixtures("brittle_core")
async def test_a_record_that_the_core_fails_on_goes_to_dead_letters_and_the_partition_goes_on() -> None:
    world = World()
    world.configure()
    world.converse("c1")
    for text in ("before", "poison", "after"):
        world.turn("c1", text)
    async with sequencer(world) as running:
        await until(lambda: world.kinds().count("TurnCommitted") == 2)
        assert running.lease.token.writer_epoch == 3, "twice, so that a state at fault is not blamed on the record"
    (letter,) = world.kafka.readable("dead-letters", 0)
    assert world.codec.decode_dead_letter(letter.value).origin == "turns/0/2"
    assert [e.event.reason for e in world.journal() if isinstance(e.event, Rejected)] == ["undecidable"]


@pytest.mark.usefixtures("brittle_core")
async def test_log_lines_say_of_which_partition_epoch_and_conversation_they_speak() -> None:
    world = World()
    world.configure()
    world.converse("c1")
    world.turn("c1", "poison")
    with capture_logs(processors=[merge_contextvars]) as logged:
        async with sequencer(world):
            await until(lambda: "Rejected" in world.kinds())
    failed = [line for line in logged if line["event"] == "the core failed"]
    assert [(line["partition"], line["writer_epoch"], line["conversation"]) for line in failed] == [
        (0, 1, "c1"),
        (0, 2, "c1"),
    ]


@pytest.mark.usefixtures("brittle_core")
async def test_many_records_that_the_core_fails_on_hold_their_partition_up_no_longer_each_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def paused(_: Sequencer, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(Sequencer, "_pause", paused)
    world = World()
    world.configure()
    world.converse("c1")
    for text in (*["poison"] * 8, "after"):
        world.turn("c1", text)
    async with sequencer(world):
        await until(lambda: "TurnCommitted" in world.kinds())
    assert len(pauses) == 16
    assert max(pauses) <= 2 * module.BACKOFF_FIRST_S


@pytest.mark.parametrize("checkpoint", [True, False], ids=["above the checkpoint", "above the journal"])
async def test_a_restored_lease_store_is_lifted_at_once(checkpoint: bool) -> None:
    world = World()
    for _ in range(5):
        await (await world.writer()).close()
    world.store.leases.clear()
    if not checkpoint:
        world.store.checkpoints.clear()
    ports = world.ports("wk-000000000002")
    async with sequencer(world, ports) as running:
        await in_phase(running, S.RUNNING)
        assert running.lease.token.writer_epoch == 6
    assert ports.metrics.registry.get_sample_value("turnlog_stale_lease_store_total") == 1


async def test_gauges_of_a_partition_go_with_it() -> None:
    world = World()
    ports = world.ports()
    async with sequencer(world, ports) as running:
        await in_phase(running, S.RUNNING)
        value = ports.metrics.registry.get_sample_value
        assert value("turnlog_partition_state", {"partition": "0", "state": "running"}) == 1
        assert value("turnlog_lag_records", {"partition": "0", "topic": "turns"}) == 0
    assert value("turnlog_partition_state", {"partition": "0", "state": "running"}) is None
    assert value("turnlog_partition_state", {"partition": "0", "state": "released"}) is None
    assert value("turnlog_lag_records", {"partition": "0", "topic": "turns"}) is None


async def test_a_partition_that_does_not_drain_in_time_is_cut_off_and_its_lease_handed_back() -> None:
    class Stuck(FakeIntake):
        polled = 0

        async def poll(self, limit: int, wait_ms: int, *, membership: bool) -> Polled:
            self.polled += 1
            if self.polled > 1:  # the first is a part of the claim
                await asyncio.Event().wait()
            return await super().poll(limit, wait_ms, membership=membership)

    world = World()
    ports = replace(world.ports(), new_intake=lambda partition: Stuck(world.kafka, partition))
    await ports.leases.open()
    lease = await ports.leases.claim(0)
    assert isinstance(lease, Lease)
    running = Sequencer(lease, ports, drain_s=0.05)
    await running.start()
    await in_phase(running, S.RUNNING)
    with capture_logs(processors=[merge_contextvars]) as logged:
        await running.stop()
    [late] = [line for line in logged if line["event"] == "partition not drained in time"]
    assert (late["partition"], late["writer_epoch"]) == (0, 1)
    assert [row.live for row in await ports.leases.table()] == [False], "else it is renewed, and nobody runs it"
    assert isinstance(ports.keeper, FakeKeeper)
    assert ports.keeper.forgotten == [0]


OFTEN = replace(LIMITS, checkpoint_every_events=1, idle_conversations_max=0)


async def stored_ones(world: World) -> None:
    """Idle conversations that are in the store alone."""
    world.configure()
    writer = await world.writer()
    for number in range(3):
        world.converse(f"c{number}")
    await settle(writer)
    await writer.drain()
    await writer.close()


def spoil(world: World, conversation: str) -> None:
    partition, row = world.store.conversations[conversation]
    world.store.conversations[conversation] = (partition, structs.replace(row, state=b"of another release"))


@pytest.mark.parametrize("replayed", [False, True], ids=["asked for by a command", "asked for by a replayed event"])
async def test_an_idle_conversation_whose_row_is_not_readable_is_made_anew_from_the_journal(replayed: bool) -> None:
    """It was read again for ever: nothing in the partition was answered any more."""
    world = World(limits=OFTEN)
    await stored_ones(world)
    if replayed:
        world.limits = LIMITS
        late = await world.writer()
        world.converse("c1")
        await settle(late)
        await late.close()
    spoil(world, "c1")
    async with sequencer(world) as running:
        world.converse("c1")
        await until(lambda: world.kinds().count("Refused") == 1 + replayed)
        assert running.phase is S.RUNNING
    assert world.kinds().count("ConversationOpened") == 3, "it is known to exist"
    assert [entry.lsn for entry in world.journal()] == list(range(1, len(world.journal()) + 1))
    load_conversation("c1", world.store.conversations["c1"][1].state)


async def test_where_the_journal_cannot_replace_an_unreadable_row_the_partition_stops_and_keeps_what_it_has() -> None:
    world = World(limits=OFTEN)
    await stored_ones(world)
    spoil(world, "c1")
    world.kafka.logs[world.kafka.topics.conversations, 0].start = 1
    before = world.store.checkpoints[0].lsn
    async with sequencer(world) as running:
        world.converse("c1")
        await in_phase(running, S.STOPPED)
        assert "conversation c1 is not readable" in running.reason
        assert "from one backup" in running.reason
        assert world.store.checkpoints[0].lsn >= before > 0


async def test_an_unreadable_key_stops_the_partition_and_is_named() -> None:
    """The journal cannot replace it: its row would stay."""
    world = World(limits=OFTEN)
    world.configure()
    world.converse("c1")
    writer = await world.writer()
    for number in range(KEYS_IN_ROW + 1):
        world.turn("c1", f"t{number}", key=f"k{number}")
    await settle(writer)
    await writer.drain()
    await writer.close()
    ((name, (partition, row)),) = world.store.keys.items()
    world.store.keys[name] = (partition, structs.replace(row, key="no hex"))
    async with sequencer(world) as running:
        world.turn("c1", "t0", key="k0")
        await in_phase(running, S.STOPPED)
        assert "'no hex' of conversation c1" in running.reason
        assert "Delete this row of idempotency_keys" in running.reason


async def test_a_stopped_partition_is_marked_in_the_lease_table() -> None:
    world = World()
    world.kafka.logs[world.kafka.topics.conversations, 0].start = 1
    async with sequencer(world) as running:
        await in_phase(running, S.STOPPED)
        await until(lambda: world.store.leases[0].stopped is not None)
        assert "journal" in (world.store.leases[0].stopped or "") or "conversations" in (
            world.store.leases[0].stopped or ""
        )


async def test_a_commit_that_kafka_forgot_is_found_while_nothing_else_happens_and_its_turn_becomes_readable() -> None:
    """Without it the turn would be seen only once the partition's next one is committed."""
    world = World(limits=replace(LIMITS, tick_ms=10))
    world.configure()
    world.join()
    world.converse("c1")
    async with sequencer(world) as running:
        await until(lambda: "ConversationOpened" in world.kinds())

        def lose(step: str) -> None:
            if step == "commit":
                world.kafka.before_step = lambda _: None
                world.kafka.lose_marker(0)

        world.kafka.before_step = lose
        world.turn("c1", "forgotten", key="k")
        await until(lambda: 0 in world.kafka.hanging)
        await until(lambda: running.ticked_at > running.since)
        assert "TurnCommitted" not in world.kinds()
        running.held_back()
        await until(lambda: world.kinds().count("TurnCommitted") == 1)
        assert world.kinds().count("WriterOpened") == 2


async def test_a_transaction_that_is_under_way_is_no_reason_to_start_over() -> None:
    world = World(limits=replace(LIMITS, tick_ms=10))
    async with sequencer(world) as running:
        await in_phase(running, S.RUNNING)
        stranger = world.kafka.producer(0)
        stranger._epoch = world.kafka.epochs[world.kafka.topics.transactional_id(0)]
        batch = stranger.new_batch()
        batch.add(None, b"under way", [])
        await stranger.append(batch)
        looked = running.ticked_at
        running.held_back()
        await until(lambda: running.ticked_at > looked and not running._held_back)
        looked = running.ticked_at
        await until(lambda: running.ticked_at > looked)
        assert running.phase is S.RUNNING
        await stranger.commit()
