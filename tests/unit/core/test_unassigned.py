"""Rule 3: what becomes of a turn for an agent channel that has no member."""

from __future__ import annotations

import pytest

from streams.core.commands import OpenWriter, TimePassed
from streams.core.events import Event, MemberJoined, RunOpened, TurnCommitted, TurnUnassigned
from streams.core.fold import step
from streams.core.store import attach, dump_conversation, dump_partition, load_conversation, load_partition
from tests.support.partition_world import World

WAIT_MS = 60_000


def ends(events: list[Event]) -> list[tuple[int, str, str, bool]]:
    return [(e.turn_seq, e.channel, e.reason, e.nobody) for e in events if isinstance(e, TurnUnassigned)]


def test_it_waits_for_ever_unless_the_channel_says_otherwise() -> None:
    world = World()
    world.open()
    world.say()
    assert world.pass_time(1000 * WAIT_MS) == []
    assert isinstance(world.join("a")[-1], RunOpened)


def test_a_channel_that_refuses_ends_it_at_once_and_gives_it_to_nobody_later() -> None:
    world = World(unassigned="refuse")
    world.open()
    committed, unassigned = world.say()
    assert isinstance(committed, TurnCommitted)
    assert ends([unassigned]) == [(1, "agents", "refused", True)]
    assert world.conversation().waiting == {}
    assert world.state.waiting == {}
    assert [type(event) for event in world.join("a")] == [MemberJoined]


def test_one_that_waited_as_long_as_its_channel_lets_it_ends() -> None:
    world = World(wait_ms=WAIT_MS)
    world.open()
    world.say()
    world.pass_time(WAIT_MS // 2)
    world.say()
    assert ends(world.pass_time(WAIT_MS // 2)) == [(1, "agents", "no_member", True)]
    assert ends(world.pass_time(WAIT_MS // 2 - 1)) == []
    assert ends(world.pass_time(1)) == [(2, "agents", "no_member", True)]
    assert world.pass_time(WAIT_MS) == []
    assert [type(event) for event in world.join("a")] == [MemberJoined]


def test_one_that_found_its_member_in_time_is_no_longer_counted() -> None:
    world = World(wait_ms=WAIT_MS)
    world.open()
    world.say()
    world.join("a")
    world.read("a", 1)
    assert world.pass_time(WAIT_MS) == []


@pytest.mark.parametrize("settings", [{"unassigned": "refuse"}, {"wait_ms": WAIT_MS}])
def test_the_person_is_told_once_and_only_when_nobody_else_has_it(settings: dict[str, object]) -> None:
    world = World(to=("agents", "auditors"), **settings)
    world.open()
    events = [*world.say(), *world.pass_time(WAIT_MS)]
    assert [nobody for *_, nobody in ends(events)] == [False, True]
    world.join("a", settle=True)
    events = [*world.say(), *world.pass_time(WAIT_MS)]
    assert [(channel, nobody) for _, channel, _, nobody in ends(events)] == [("auditors", False)]
    world.say()
    world.send("a", delivered=world.conversation().head)
    assert [nobody for *_, nobody in ends(world.pass_time(WAIT_MS))] == ([False] if "wait_ms" in settings else [])


def test_a_document_that_sets_a_limit_counts_from_when_the_turn_was_said() -> None:
    world = World()
    world.open()
    world.say()
    world.pass_time(WAIT_MS)
    world.configure(2, wait_ms=WAIT_MS)
    assert ends(world.pass_time(1)) == [(1, "agents", "no_member", True)]


def test_time_without_a_writer_counts_against_nobody() -> None:
    world = World(wait_ms=WAIT_MS)
    world.open()
    world.say()
    world.at += WAIT_MS - 1
    step(world.state, OpenWriter(at=world.at, timestamp=0, writer_epoch=2, worker="wk-2"), 2)
    world.at += WAIT_MS - 1
    assert step(world.state, TimePassed(at=world.at, timestamp=0), 2) == []
    assert step(world.state, TimePassed(at=world.at + 1, timestamp=0), 2)


def test_what_a_checkpoint_holds_of_it_ends_in_time_as_well() -> None:
    world = World(wait_ms=WAIT_MS)
    world.open()
    world.say()
    state = load_partition(dump_partition(world.state), 0)
    attach(state, load_conversation("c", dump_conversation(world.conversation())[0]))
    late = TimePassed(at=world.at + WAIT_MS, timestamp=0)
    assert ends([entry.event for entry in step(state, late, 1)]) == [(1, "agents", "no_member", True)]


def test_a_close_ends_what_waits_and_its_time() -> None:
    world = World(wait_ms=WAIT_MS)
    world.open()
    world.say()
    world.close()
    assert world.pass_time(WAIT_MS) == []
    assert world.state.waits.where == {}


def test_a_turn_that_is_wanted_anew_is_held_to_the_same() -> None:
    world = World(unassigned="refuse")
    world.open()
    committed, _ = world.say()
    assert isinstance(committed, TurnCommitted)
    assert ends(world.edit(committed.turn.id)) == [(1, "agents", "refused", True)]
    assert world.conversation().waiting == {}
