"""One writer epoch: the claim order, recovery from a crash at every step, checkpoints, eviction."""

import asyncio
from dataclasses import replace
from typing import Literal
from unittest.mock import patch

import pytest
from msgspec.structs import replace as replaced

from streams.core.commands import ApplyConfig, CommitFrame
from streams.core.events import BatchCommitted, Duplicate, Frame, TurnCommitted, WriterOpened
from streams.core.fold import evolve
from streams.core.ids import key_digest
from streams.core.state import Partition
from streams.core.store import dump_conversation, dump_partition
from streams.fence.port import Fenced, Lease
from streams.runtime.kafka import Doubt, KafkaUnavailable, Unrecoverable
from streams.runtime.memory import Snapshot
from streams.runtime.records import MAX_BYTES
from streams.runtime.writer import StaleLeases, Writer
from tests.support.fake_kafka import Fate
from tests.support.sequencing import DOCUMENT, GATEWAY, GROUP, LIMITS, World, settle

When = Literal["before", "after"]
WHENS: tuple[When, ...] = ("before", "after")
OFTEN = replace(LIMITS, checkpoint_every_events=1)


def state_of(writer: Writer) -> tuple[bytes, dict[str, bytes]]:
    state = writer._memory.state
    return dump_partition(state), {name: dump_conversation(c)[0] for name, c in state.conversations.items()}


def texts(world: World) -> list[str | None]:
    return [e.event.turn.text for e in world.journal() if isinstance(e.event, TurnCommitted)]


async def saved(writer: Writer) -> None:
    """What is to be decided is, and no checkpoint is under way."""
    await settle(writer)
    while writer._saving is not None:
        await asyncio.wait({writer._saving.task})
        await settle(writer)


def furnish(world: World) -> None:
    """A channel, an agent, a conversation."""
    world.configure()
    world.join()
    world.converse("c1")


def require_gap_free(world: World) -> None:
    journal = world.journal()
    assert [entry.lsn for entry in journal] == list(range(1, len(journal) + 1))
    epochs = [entry.writer_epoch for entry in journal]
    assert epochs == sorted(epochs)
    state = Partition(0)
    for entry in journal:
        evolve(state, entry)  # refuses what cannot follow


# ------------------------------------------------------------------------------------------------- the claim order
async def test_the_first_event_of_an_epoch_is_writer_opened() -> None:
    world = World()
    writer = await world.writer()
    assert world.kinds() == ["WriterOpened", "BatchCommitted"]
    opened = world.journal()[0]
    assert opened.event == WriterOpened(writer_epoch=1, worker="wk-000000000001")
    assert opened.at > 0, "log time starts with the first tick's broker time"
    await writer.close()


async def test_claiming_goes_in_the_documented_order() -> None:
    world = World()
    await (await world.writer()).close()
    steps: list[str] = []
    ports = world.ports("wk-000000000002")

    def note(step: str) -> None:
        token = world.store.checkpoints[0].token
        steps.append(f"{step} token={token.writer_epoch}")

    world.kafka.before_step = note
    world.store.leases[0].expires_at = 0
    lease = await ports.leases.claim(0)
    assert isinstance(lease, Lease)
    await Writer(lease, ports).open()
    assert steps == [
        "init token=1",  # the predecessor is fenced in Kafka before its checkpoint is taken
        "send membership token=2",
        "begin token=2",
        "append token=2",
        "commit token=2",
    ]


async def test_a_lease_lost_during_the_replay_is_noticed_before_anything_is_written() -> None:
    world = World()
    await world.writer()
    before = world.journal()
    ports = world.ports("wk-000000000002")
    world.store.leases[0].expires_at = 0
    lease = await ports.leases.claim(0)
    assert isinstance(lease, Lease)
    world.store.leases[0].owner = "wk-000000000003"
    with pytest.raises(Fenced):
        await Writer(lease, ports).open()
    assert world.journal() == before


async def test_a_journal_with_a_higher_epoch_than_the_lease_says_so() -> None:
    world = World()
    for _ in range(3):
        await world.writer()
    world.store.leases.clear()  # a restored lease store
    world.store.checkpoints.clear()
    with pytest.raises(StaleLeases) as stale:
        await world.writer()
    assert stale.value.highest == 3


async def test_replay_ends_although_the_last_records_are_markers_and_aborted_ones() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    await settle(writer)
    for _ in range(50):
        world.kafka.append(world.kafka.topics.conversations, 0, None, b"aborted", fate=Fate.ABORTED)
    world.kafka.append(world.kafka.topics.conversations, 0, None, None, marker=True)
    again = await world.writer()
    assert again._memory.state.lsn == world.journal()[-1].lsn
    require_gap_free(world)


async def test_replay_that_cannot_reach_the_high_watermark_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MARKER_LATE_S", "MARKER_WRITTEN_S"):
        monkeypatch.setattr(f"streams.runtime.hanging.{limit}", 0.02)
    world = World()
    await world.writer()
    world.kafka.append(world.kafka.topics.conversations, 0, None, b"foreign", fate=Fate.OPEN)
    with pytest.raises(KafkaUnavailable, match="can be read up to 3 only, it ends at 4"):
        await world.writer()


async def test_a_journal_that_starts_after_the_checkpoint_stops_the_claim() -> None:
    world = World()
    furnish(world)
    await settle(await world.writer())
    log = world.kafka.logs[world.kafka.topics.conversations, 0]
    log.start = 2
    with pytest.raises(Unrecoverable, match=r"the next offset to read is 0, but the topic starts at 2: 2 records"):
        await world.writer()


async def test_a_checkpoint_ahead_of_the_journal_stops_the_claim() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    await settle(writer)
    await writer.drain()
    world.kafka.logs[world.kafka.topics.conversations, 0].records.clear()
    with pytest.raises(Unrecoverable, match="but the topic ends at 0"):
        await world.writer()


async def test_a_journal_that_does_not_continue_the_checkpoint_stops_the_claim() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    await settle(writer)
    await writer.drain()
    await settle(await world.writer())
    log = world.kafka.logs[world.kafka.topics.conversations, 0]
    victim = next(r for r in log.records if r.offset >= world.store.checkpoints[0].journal_offset and not r.marker)
    victim.fate = Fate.ABORTED
    with pytest.raises(Unrecoverable, match="does not continue the checkpoint"):
        await world.writer()


@pytest.mark.parametrize("topic", ["turns", "frames", "membership"])
async def test_a_position_outside_the_intake_stops_the_claim(topic: str) -> None:
    world = World()
    writer = await world.writer()
    read = world.kafka.logs[topic, 0].end  # with the tick of the claim, where there is one
    world.kafka.logs[topic, 0].start = 5
    for _ in range(5):
        world.kafka.append(topic, 0, None, b"")
    sentence = rf"{topic}\[0\]: the next offset to read is {read}, but the topic starts at 5"
    with pytest.raises(Unrecoverable, match=sentence):
        await world.writer()
    await writer.close()


# ----------------------------------------------------------------------------------------------- the commit order
async def test_a_batch_that_decides_nothing_writes_nothing_and_its_positions_go_with_the_next() -> None:
    world = World()
    writer = await world.writer()
    before = len(world.journal())
    await settle(writer)  # its own first tick
    assert len(world.journal()) == before
    world.converse("c1")
    await settle(writer)
    last = world.journal()[-1].event
    assert last == BatchCommitted(turns=1, frames=0, membership=1)


async def test_a_turn_reaches_the_journal_with_its_owner_and_headers() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    world.turn("c1", "hello", ref="r-1")
    world.kafka.logs["turns", 0].records[-1].headers = (("traceparent", b"00-1-2-01"),)
    await settle(writer)
    (record,) = [r for r in world.kafka.readable("conversations", 0) if ("type", b"TurnCommitted") in r.headers]
    assert record.key == b"c1"
    assert dict(record.headers) == {
        "type": b"TurnCommitted",
        "channel": b"web",
        "owner": b"gw-000000000001.1",
        "ref": b"r-1",
        "traceparent": b"00-1-2-01",
    }


async def test_what_waits_at_the_claim_is_committed_with_the_opening_each_trace_at_its_own_turn() -> None:
    """One transaction less between the lease and the answer to whoever waits for it."""
    world = World()
    furnish(world)
    await settle(await world.writer())
    before = world.kafka.logs["conversations", 0].end
    world.turn("c1", "hello")
    world.kafka.logs["turns", 0].records[-1].headers = (("traceparent", b"00-1-2-01"),)
    await world.writer()
    written = [record for record in world.kafka.logs["conversations", 0].records if record.offset >= before]
    assert [record.marker for record in written].count(True) == 1, "the claim made one transaction"
    records = [record for record in written if not record.marker]
    events = [world.codec.decode_entry(record.value).event for record in records]
    assert type(events[0]) is WriterOpened, "nothing of an epoch precedes it"
    traced = [
        type(event) for event, record in zip(events, records, strict=True) if "traceparent" in dict(record.headers)
    ]
    assert traced == [TurnCommitted]


async def test_a_trace_of_a_command_that_decided_nothing_goes_to_no_other() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    await settle(writer)
    typing = Frame(id="f1", type="typing")
    world.say(
        CommitFrame(
            at=0, timestamp=0, conversation_id="c1", frame=typing, sender="bot", channel="agents", group=GROUP,
            member=f"{GATEWAY}.1", gateway=GATEWAY,
        )
    )  # fmt: skip
    world.kafka.logs["frames", 0].records[-1].headers = (("traceparent", b"00-1-2-01"),)
    world.turn("c1", "hello")
    await settle(writer)
    assert texts(world) == ["hello"]
    assert not [r for r in world.kafka.readable("conversations", 0) if "traceparent" in dict(r.headers)]


CRASHES: list[tuple[str, When]] = [(step, when) for step in ("begin", "append", "commit") for when in WHENS]


@pytest.mark.parametrize(("step", "when"), CRASHES)
@pytest.mark.parametrize("limits", [LIMITS, OFTEN], ids=["rare checkpoints", "a checkpoint each batch"])
async def test_a_crash_at_any_step_loses_no_turn_and_doubles_none(step: str, when: When, limits: object) -> None:
    world = World(limits=limits)  # type: ignore[arg-type]
    furnish(world)
    writer = await world.writer()
    await settle(writer)
    world.turn("c1", "one")
    world.turn("c1", "two")
    world.kafka.fail(step, Doubt("crash"), when)
    with pytest.raises(Doubt):
        await settle(writer)
    await writer.close()
    world.turn("c1", "three")
    heir = await world.writer("wk-000000000002")
    await settle(heir)
    assert texts(world) == ["one", "two", "three"]
    require_gap_free(world)
    await heir.close()


async def test_a_crash_while_opening_leaves_a_partition_that_opens() -> None:
    world = World()
    furnish(world)
    for step, when in CRASHES:
        world.kafka.fail(step, Doubt("crash"), when)
        with pytest.raises(Doubt):
            await world.writer()
    await settle(await world.writer())
    require_gap_free(world)


async def test_a_keyed_turn_taken_twice_is_stored_once() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    world.turn("c1", "hello", key="kk1")
    world.turn("c1", "hello", key="kk1", ref="again")
    await settle(writer)
    assert texts(world) == ["hello"]
    assert [e.event.ref for e in world.journal() if isinstance(e.event, Duplicate)] == ["again"]


async def test_a_paused_writer_that_wakes_is_refused_in_kafka_and_in_postgres() -> None:
    world = World(limits=OFTEN)
    furnish(world)
    zombie = await world.writer()
    await settle(zombie)
    await settle(zombie)  # its checkpoint is stored
    heir = await world.writer("wk-000000000002")
    world.turn("c1", "hello")
    with pytest.raises(Fenced, match="Kafka refused"):
        await settle(zombie)
    with pytest.raises(Fenced, match="checkpoint"):
        await zombie.drain()
    await settle(heir)
    assert texts(world) == ["hello"]
    require_gap_free(world)


# ---------------------------------------------------------------------------------------------------- checkpoints
async def test_checkpoint_and_replay_give_the_live_state_byte_for_byte() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    world.turn("c1", "one", key="k1")
    await settle(writer)
    await writer._save(await writer._snapshot())
    world.turn("c1", "two", key="k2")
    world.converse("c2")
    world.turn("c2", "three")
    await settle(writer)
    live = state_of(writer)
    heir = Writer(writer.lease, world.ports())
    await heir._replay(await heir._load())
    assert state_of(heir) == live
    await heir.close()


@pytest.mark.parametrize("broken", ["partition", "conversation"])
async def test_a_checkpoint_that_cannot_be_read_is_made_anew_from_the_journal(broken: str) -> None:
    """Another release may have written it: `store.FORMAT`."""
    world = World()
    furnish(world)
    writer = await world.writer()
    world.turn("c1", "one", key="k1")
    await settle(writer)
    await writer.drain()
    if broken == "partition":
        world.store.checkpoints[0] = replaced(world.store.checkpoints[0], state=b"\x91\x02")
    else:
        of, row = world.store.conversations["c1"]
        world.store.conversations["c1"] = (of, replaced(row, state=b"\x91\x02"))
    heir = await world.writer("wk-000000000002")
    world.turn("c1", "again", key="k1")
    world.turn("c1", "two")
    await settle(heir)
    assert texts(world) == ["one", "two"]
    require_gap_free(world)
    await heir.drain()
    last = await world.writer("wk-000000000003")
    assert last._memory.stored_lsn > 0, "and it can be read again"
    await last.close()


async def test_a_checkpoint_in_the_background_delays_no_batch() -> None:
    world = World(limits=OFTEN)
    furnish(world)
    writer = await world.writer()
    world.store.reachable = True
    await saved(writer)
    assert world.store.checkpoints[0].lsn > 0
    assert set(world.store.conversations) == {"c1"}


async def test_a_checkpoint_that_could_not_be_stored_is_made_up_for_by_the_next() -> None:
    world = World(limits=OFTEN)
    furnish(world)
    writer = await world.writer()
    world.store.reachable = False
    await saved(writer)
    world.store.reachable = True
    world.converse("c2")
    await settle(writer)
    await writer.drain()
    assert set(world.store.conversations) == {"c1", "c2"}
    assert world.store.checkpoints[0].lsn == world.journal()[-1].lsn


async def test_while_checkpoints_cannot_be_stored_not_every_batch_makes_one() -> None:
    world = World(limits=OFTEN)
    furnish(world)
    writer = await world.writer()
    await saved(writer)
    saved_at, stored = writer._saved_at, world.store.checkpoints[0].lsn
    snapshots: list[Snapshot] = []

    async def counted() -> Snapshot:
        snapshots.append(await writer._memory.snapshot(writer._journal_offset, writer._positions))
        return snapshots[-1]

    world.store.reachable = False
    with patch.object(writer, "_snapshot", counted):
        for number in range(5):
            world.turn("c1", f"t{number}")
            await saved(writer)
    assert len(snapshots) == 1
    assert writer._saved_at == saved_at, "its age goes on"
    world.store.reachable = True
    await writer.drain()
    assert world.store.checkpoints[0].lsn > stored


async def test_a_key_goes_into_the_table_of_older_ones_once() -> None:
    world = World()
    furnish(world)
    writer = await world.writer()
    for number in range(100):
        world.turn("c1", f"t{number}", key=f"k{number}")
    await settle(writer)
    first = await writer._snapshot()
    assert len(first.keys) == 100 - 64
    writer._memory.stored(first)
    world.turn("c1", "more", key="kmore")
    await settle(writer)
    assert [row.key for row in (await writer._snapshot()).keys] == [key_digest("c1", "user:ann:k36")[:8].hex()]


async def test_an_idle_partitions_positions_reach_the_checkpoint() -> None:
    world = World()
    writer = await world.writer()
    for _ in range(20):
        await writer.tick()
    await settle(writer)
    await writer.drain()
    assert world.store.checkpoints[0].positions.membership == 21
    world.kafka.logs["membership", 0].start = 21  # retention took what was read
    await (await world.writer()).close()


async def test_idle_conversations_leave_memory_and_come_back_with_the_same_answers() -> None:
    world = World(limits=replace(OFTEN, idle_conversations_max=2))
    world.configure()
    writer = await world.writer()
    for number in range(6):
        world.converse(f"c{number}")
    await settle(writer)
    await settle(writer)
    await settle(writer)
    state = writer._memory.state
    assert len(state.conversations) <= 2
    world.converse("c0")
    world.turn("c0", "hello", key="k1")
    await settle(writer)
    assert "Refused" in world.kinds(), "c0 is still known to exist"
    assert texts(world) == ["hello"]
    require_gap_free(world)


async def test_a_conversation_with_an_open_run_never_leaves_memory() -> None:
    world = World(limits=replace(OFTEN, idle_conversations_max=0))
    furnish(world)
    world.turn("c1", "hello")
    writer = await world.writer()
    for _ in range(5):
        await writer.turn()
    assert "c1" in writer._memory.state.conversations


async def test_postgres_that_lost_history_is_noticed_by_the_next_load() -> None:
    world = World(limits=OFTEN)
    furnish(world)
    writer = await world.writer()
    world.turn("c1", "hello")
    await settle(writer)
    await settle(writer)
    stored = world.store.checkpoints[0]
    world.store.checkpoints[0] = type(stored)(stored.token, 1, 0, stored.positions, stored.state)
    world.turn("unseen", "hello")
    with pytest.raises(Fenced):
        await settle(writer)


async def test_more_keys_than_a_row_holds_still_find_their_repeats_after_a_restart() -> None:
    world = World(limits=OFTEN)
    furnish(world)
    writer = await world.writer()
    for number in range(100):
        world.turn("c1", f"t{number}", key=f"k{number}")
    await settle(writer)
    await writer.drain()
    assert world.store.keys, "older keys lie in the table"
    heir = await world.writer()
    world.turn("c1", "t3", key="k3", ref="again")
    await settle(heir)
    assert len(texts(world)) == 100
    assert [e.event.of_seq for e in world.journal() if isinstance(e.event, Duplicate)] == [4]


async def test_the_largest_document_that_is_taken_fits_into_the_journal() -> None:
    """Else its partition would stop for good, and with it every partition, for all of them get it."""
    world = World()
    writer = await world.writer()
    apply = ApplyConfig(at=0, timestamp=0, version=1, document=DOCUMENT)
    room = MAX_BYTES["membership"] - len(world.codec.encode_command(apply)) - 1  # a longer text has a longer length
    apply = replaced(apply, document=DOCUMENT + " " * room)
    assert len(world.codec.encode_command(apply)) == MAX_BYTES["membership"]
    world.say(apply)
    await settle(writer)
    assert world.kinds()[-2:] == ["ConfigChanged", "BatchCommitted"]
    await writer.close()
