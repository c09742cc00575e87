"""Three topics to one list of commands: order, what waits, what is thrown out, and the positions that result."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streams.core.clock import LogClock
from streams.core.commands import (
    ApplyList,
    CommitFrame,
    CommitTurn,
    GatewayBehind,
    GatewayExpired,
    Join,
    Leave,
    OpenConversation,
    Reject,
    TimePassed,
)
from streams.core.events import Frame
from streams.fence.port import Positions
from streams.runtime.codec import Codec
from streams.runtime.intake import Batch, Intake
from streams.runtime.liveness import Liveness
from streams.runtime.signals import Goodbye, Heartbeat, Tick
from tests.support.fake_kafka import START_MS, FakeIntake
from tests.support.sequencing import GATEWAY, World

ME = "wk-000000000001"
EPOCH = 3


class Reading:
    """An intake over a world's topics."""

    def __init__(self, world: World, ttl_ms: int = 5_000) -> None:
        self.world = world
        self.source: FakeIntake = world.kafka.intake(0)
        self.clock = LogClock(0)
        self.intake = Intake(
            Codec(),
            self.clock,
            Liveness(ttl_ms),
            partition=0,
            partitions=world.partitions,
            worker=ME,
            writer_epoch=EPOCH,
            positions=Positions(),
        )

    async def take(self, resident: frozenset[str] = frozenset(), limit: int = 100) -> Batch:
        polled = await self.source.poll(limit, 0, membership=self.intake.wants_membership)
        return self.intake.take(polled, resident)


def frame(world: World, conversation_id: str = "c1", client_id: str = "m1") -> int:
    return world.say(
        CommitFrame(
            at=0,
            timestamp=0,
            conversation_id=conversation_id,
            frame=Frame(id=client_id, type="text", text="hi", client_id=client_id),
            sender="bot",
            channel="agents",
            group="agents/bots",
            member=f"{GATEWAY}.1",
            gateway=GATEWAY,
        )
    )


def tick(world: World, *, turns: int = 0, frames: int = 0, epoch: int = EPOCH, worker: str = ME) -> None:
    world.say(Tick(worker=worker, writer_epoch=epoch, turns_end=turns, frames_end=frames))


def kinds(batch: Batch) -> list[type[Any]]:
    return [type(command) for command in batch.commands]


async def test_commands_come_in_the_order_of_the_brokers_append_time() -> None:
    world = World()
    world.converse("c1")
    world.join()
    frame(world)
    world.turn("c1", "hello")
    batch = await Reading(world).take()
    assert kinds(batch) == [OpenConversation, Join, CommitFrame, CommitTurn]
    assert batch.positions == Positions(2, 1, 1)


async def test_within_a_millisecond_membership_comes_first() -> None:
    world = World()
    world.turn("c1", "hello")
    world.join()
    for log in world.kafka.logs.values():
        for record in log.records:
            record.timestamp = START_MS
    assert kinds(await Reading(world).take()) == [Join, CommitTurn]


async def test_a_brokers_clock_that_is_set_back_changes_no_topics_own_order() -> None:
    world = World()
    world.turn("c1", "one")
    frame(world)
    world.kafka.now_ms -= 60_000
    world.turn("c1", "two")
    world.join()
    world.turn("c1", "three")
    batch = await Reading(world).take()
    texts = [command.turn.text for command in batch.commands if isinstance(command, CommitTurn)]
    assert texts == ["one", "two", "three"]


async def test_conversations_that_are_not_in_memory_are_named() -> None:
    world = World()
    world.turn("c1", "hello")
    world.turn("c2", "hello")
    assert (await Reading(world).take(frozenset({"c1"}))).absent == {"c2"}


async def test_a_leave_waits_for_its_members_last_frame() -> None:
    world = World()
    reading = Reading(world)
    world.join()
    world.leave(frames_end=2)
    world.join("gw-000000000001.2")
    frame(world, client_id="m1")
    first = await reading.take()
    assert kinds(first) == [Join, CommitFrame]
    assert first.positions.membership == 1, "the position stays at the record that waits"
    frame(world, client_id="m2")
    second = await reading.take()
    assert kinds(second) == [CommitFrame, Leave, Join]
    assert second.positions == Positions(0, 2, 3)


async def test_a_list_in_the_place_of_a_leave_waits_for_the_last_frame_too() -> None:
    world = World()
    reading = Reading(world)
    world.join()
    world.say(ApplyList(at=0, timestamp=0, gateway=GATEWAY, n=2, members=(), frames_end=2))
    frame(world, client_id="m1")
    assert kinds(await reading.take()) == [Join, CommitFrame]
    frame(world, client_id="m2")
    assert kinds(await reading.take()) == [CommitFrame, ApplyList]


async def test_what_waits_holds_back_no_turn() -> None:
    world = World()
    reading = Reading(world)
    world.leave(frames_end=1)
    await reading.take()
    world.turn("c1", "hello")
    assert kinds(await reading.take()) == [CommitTurn]


async def test_a_leave_for_an_offset_that_frames_will_never_have_is_rejected() -> None:
    world = World()
    reading = Reading(world)
    world.leave(frames_end=9)
    world.join("gw-000000000001.2")
    assert kinds(await reading.take()) == []
    reading.intake.note_ends(Positions(0, 3, 2))
    assert kinds(await reading.take()) == [], "the ends may have been asked for before the Leave was read"
    reading.intake.note_ends(Positions(0, 3, 2))
    batch = await reading.take()
    assert kinds(batch) == [Reject, Join]
    assert "frames_end 9 lies beyond the end of frames, 3" in batch.letters[0].reason


async def test_a_tick_takes_effect_once_both_topics_are_read_to_the_ends_it_names() -> None:
    world = World()
    reading = Reading(world)
    tick(world, turns=2, frames=1)
    assert kinds(await reading.take()) == []
    world.turn("c1", "one")
    frame(world)
    assert kinds(await reading.take()) == [CommitTurn, CommitFrame]
    world.turn("c1", "two")
    assert kinds(await reading.take()) == [CommitTurn, TimePassed]


async def test_ticks_of_other_writers_count_for_nothing_and_never_wait() -> None:
    world = World()
    reading = Reading(world)
    tick(world, turns=99, epoch=EPOCH - 1)
    tick(world, turns=99, worker="wk-000000000002")
    batch = await reading.take()
    assert batch.commands == []
    assert batch.positions.membership == 2
    assert reading.clock.at == 0


async def test_log_time_is_that_of_ticks_and_stamps_what_follows() -> None:
    world = World()
    reading = Reading(world)
    tick(world)
    world.turn("c1", "one")
    await reading.take()
    started = reading.clock.at
    world.kafka.now_ms += 1_000
    tick(world)
    world.turn("c1", "two")
    passed, turn = (await reading.take()).commands
    assert started < passed.at == turn.at <= started + 1_010


async def test_what_was_held_takes_the_log_time_of_its_release() -> None:
    world = World()
    reading = Reading(world)
    tick(world)
    world.leave(frames_end=1)
    await reading.take()
    frame(world)
    (_, leave) = (await reading.take()).commands
    assert isinstance(leave, Leave)
    assert leave.at == reading.clock.at > 0


async def test_a_silent_gateway_expires_by_log_time() -> None:
    world = World()
    reading = Reading(world)
    tick(world)
    world.say(Heartbeat(gateway=GATEWAY, n=0, config_version=1))
    assert kinds(await reading.take()) == [TimePassed, GatewayBehind]
    for _ in range(5):
        world.kafka.now_ms += 990
        tick(world)
    assert GatewayExpired not in kinds(await reading.take())
    world.kafka.now_ms += 990
    tick(world)
    expired, passed = (await reading.take()).commands
    assert isinstance(expired, GatewayExpired)
    assert (expired.gateway, expired.reason, expired.at) == (GATEWAY, "expired", passed.at)


async def test_a_gap_between_ticks_counts_against_nobody() -> None:
    world = World()
    reading = Reading(world)
    tick(world)
    world.say(Heartbeat(gateway=GATEWAY, n=0, config_version=1))
    world.kafka.now_ms += 4_000
    tick(world)
    for _ in range(4):
        world.kafka.now_ms += 990
        tick(world)
    assert GatewayExpired not in kinds(await reading.take())


HOUR_MS = 3_600_000
broker_moments = st.fixed_dictionaries(
    {
        "moved_ms": st.sampled_from([-HOUR_MS, -7_000, 0, 990, 1_900, 7_000, HOUR_MS]),
        "ticks": st.integers(1, 3),
        "turns": st.integers(0, 8),
    }
)


@given(st.lists(broker_moments, max_size=30), st.integers(1, 40))
async def test_whatever_the_brokers_clock_does_and_however_much_waits_no_gateway_that_beats_expires(
    moments: list[dict[str, int]], limit: int
) -> None:
    """Stalls, jumps, a backlog: a gateway that beat between the ticks was alive."""
    world = World()
    reading = Reading(world)
    turns = 0
    for moment in moments:
        world.kafka.now_ms += moment["moved_ms"]
        for _ in range(moment["turns"]):
            world.turn("c1", "text")
        turns += moment["turns"]
        for _ in range(moment["ticks"]):
            world.kafka.now_ms += 990
            tick(world, turns=turns)
        world.say(Heartbeat(gateway=GATEWAY, n=0, config_version=1))
    seen: list[type[Any]] = []
    for _ in range(sum(moment["ticks"] + moment["turns"] + 1 for moment in moments) + 2):
        seen += kinds(await reading.take(limit=limit))
    assert GatewayExpired not in seen
    assert seen.count(TimePassed) == sum(moment["ticks"] for moment in moments), "all was taken"


async def test_a_goodbye_ends_a_gateway_at_once() -> None:
    world = World()
    world.say(Goodbye(gateway=GATEWAY))
    (command,) = (await Reading(world).take()).commands
    assert isinstance(command, GatewayExpired)
    assert command.reason == "stopped"


async def test_garbage_becomes_a_dead_letter_and_a_reject_in_its_place() -> None:
    world = World()
    topics = world.kafka.topics
    world.converse("c1")
    world.kafka.append(topics.turns, 0, b"c1", b"garbage", headers=(("x", b"y"),))
    world.kafka.append(topics.frames, 0, b"c1", None)
    world.kafka.append(topics.membership, 0, None, b"\xc3\x01")
    world.turn("c1", "after")
    batch = await Reading(world).take()
    assert kinds(batch) == [OpenConversation, Reject, Reject, Reject, CommitTurn]
    assert [letter.origin for letter in batch.letters] == ["turns/0/1", "frames/0/0", "membership/0/0"]
    assert [letter.error for letter in batch.letters] == ["unknown_schema", "null_value", "unknown_schema"]
    assert (batch.letters[0].value, batch.letters[0].headers) == (b"garbage", (("x", b"y"),))
    assert batch.positions == Positions(3, 1, 1)


async def test_a_record_of_another_partitions_conversation_is_rejected() -> None:
    world = World(partitions=4)
    stray, mine = world.ids_in(3, 1)[0], world.ids_in(0, 1)[0]
    world.turn(stray, "lost")
    world.turn(mine, "found")
    batch = await Reading(world).take()
    assert kinds(batch) == [Reject, CommitTurn]
    assert batch.letters[0].error == "wrong_partition"
    assert batch.absent == {mine}


async def test_a_traceparent_stays_with_its_command() -> None:
    world = World()
    world.turn("c1", "plain")
    world.turn("c1", "traced")
    log = world.kafka.logs[world.kafka.topics.turns, 0]
    log.records[1].headers = (("other", b"x"), ("traceparent", b"00-1-2-01"))
    assert (await Reading(world).take()).traces == {1: b"00-1-2-01"}
