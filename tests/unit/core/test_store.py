"""State to bytes and back, and what is refused on the way."""

from __future__ import annotations

import msgspec
import pytest

from streams.core.events import Duplicate
from streams.core.keys import restore_older
from streams.core.state import KEYS_IN_ROW, ImpossibleEvent
from streams.core.store import (
    OverflowKey,
    attach,
    detach,
    dump_conversation,
    dump_partition,
    is_hot,
    load_conversation,
    load_partition,
    mark_stored,
)
from tests.support.partition_world import World, image


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", settle=True)
    world.open()
    return world


def checkpointed(world: World) -> None:
    world.state.dirty.clear()


def test_what_is_hot_stays_loaded(world: World) -> None:
    world.say()
    checkpointed(world)
    assert is_hot(world.conversation())
    with pytest.raises(ValueError, match="hot"):
        detach(world.state, "c")


def test_a_turn_that_waits_for_a_channel_is_hot() -> None:
    world = World()
    world.open()
    world.say()
    assert is_hot(world.conversation())


def test_what_no_checkpoint_holds_stays_loaded(world: World) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        detach(world.state, "c")
    checkpointed(world)
    detach(world.state, "c")
    assert not world.state.conversations


def test_a_conversation_is_attached_once(world: World) -> None:
    with pytest.raises(ImpossibleEvent, match="loaded already"):
        attach(world.state, load_conversation("c", dump_conversation(world.conversation())[0]))


def test_a_partition_comes_back_with_its_roster(world: World) -> None:
    world.join("b", "agents/other")
    world.expire("gw-9")
    world.send("ghost")
    loaded = load_partition(dump_partition(world.state), 0)
    assert dump_partition(loaded) == image(world.state)[""]
    assert sorted(loaded.groups) == ["agents/other", "agents/support"]
    assert loaded.refusals


@pytest.mark.parametrize("row", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode([99] + [0] * 20)])
def test_a_broken_row_is_refused(row: bytes) -> None:
    with pytest.raises(ImpossibleEvent, match="partition row"):
        load_partition(row, 0)
    with pytest.raises(ImpossibleEvent, match="conversation row"):
        load_conversation("c", row)


def test_a_row_of_another_partition_or_format_is_refused(world: World) -> None:
    row = dump_partition(world.state)
    with pytest.raises(ImpossibleEvent, match="partition 0, not 3"):
        load_partition(row, 3)
    later = msgspec.msgpack.encode([99, *msgspec.msgpack.decode(row)[1:]])
    with pytest.raises(ImpossibleEvent, match="format 99"):
        load_partition(later, 0)
    row = dump_conversation(world.conversation())[0]
    with pytest.raises(ImpossibleEvent, match="format 99"):
        load_conversation("c", msgspec.msgpack.encode([99, *msgspec.msgpack.decode(row)[1:]]))


def test_keys_that_fall_out_of_the_row_after_a_reload_go_to_the_table_as_well(world: World) -> None:
    table: dict[bytes, OverflowKey] = {}
    for index in range(3 * KEYS_IN_ROW):
        world.say(key=f"k{index}")
        if index % 50 == 49:
            world.close()
            world.reopen()
            row, overflow = dump_conversation(world.conversation())
            table |= {key.fingerprint: key for key in overflow}
            mark_stored(world.conversation(), overflow)
            checkpointed(world)
            detach(world.state, "c")
            attach(world.state, load_conversation("c", row))
            older = [(key.fingerprint, key.seq, key.id, key.at, key.timestamp) for key in table.values()]
            restore_older(world.conversation(), older)
    for index in range(3 * KEYS_IN_ROW):
        assert isinstance(world.say(key=f"k{index}")[0], Duplicate)
