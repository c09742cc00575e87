"""Rule 1, of frames that no key tells from their repeats: a member's gateway numbers them."""

from __future__ import annotations

import msgspec
import pytest

from streams.core import heard
from streams.core.events import Event, FrameCommitted, Refused, RefusedReason, RunEnded, RunStarted
from streams.core.fold import evolve
from streams.core.state import ImpossibleEvent, Partition
from streams.core.store import attach, dump_conversation, dump_partition, load_conversation, load_partition
from tests.support.partition_world import World, image, replay


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    return world


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


def pieces(world: World) -> list[str | None]:
    return [event.frame.data for event in world.of(FrameCommitted)]


def piece(world: World, n: int, *, done: bool = False, member: str = "a", run: str | None = None) -> list[Event]:
    return world.chunk(member, "s1", done=done, data=f"p{n}", n=n, run=run, delivered=1)


def test_a_piece_that_lies_twice_in_the_intake_is_stored_once(world: World) -> None:
    assert kinds(piece(world, 1)) == [FrameCommitted]
    assert kinds(piece(world, 2)) == [FrameCommitted]
    assert piece(world, 1) == []
    assert piece(world, 2) == []
    assert kinds(piece(world, 3)) == [FrameCommitted]
    assert pieces(world) == ["p1", "p2", "p3"]


def test_pieces_that_are_not_numbered_are_each_stored(world: World) -> None:
    """Records of before gateways numbered them."""
    piece(world, 0)
    piece(world, 0)
    assert pieces(world) == ["p0", "p0"]


def test_a_repeated_piece_does_not_become_a_proactive_message_when_its_run_has_ended(world: World) -> None:
    piece(world, 1)
    assert RunEnded in kinds(piece(world, 2, done=True))
    assert piece(world, 1) == []
    assert piece(world, 2, done=True) == []
    assert pieces(world) == ["p1", "p2"]


def test_a_repeated_piece_does_not_go_to_the_next_turns_run(world: World) -> None:
    piece(world, 1, done=True)
    world.say()
    world.run("a", "started", n=2, delivered=2)
    assert piece(world, 1, done=True) == []
    assert pieces(world) == ["p1"]


def test_a_repeated_end_does_not_end_the_next_turns_run(world: World) -> None:
    world.read("a", 1, n=1)
    assert kinds(world.run("a", "finished", n=2)) == [RunEnded]
    world.say()
    world.read("a", 2, n=3)
    assert world.run("a", "finished", n=2) == []
    assert kinds(world.run("a", "finished", n=4)) == [RunEnded]


def test_a_repeated_read_does_not_start_an_earlier_turns_run(world: World) -> None:
    world.say()
    assert kinds(world.read("a", 2, n=1)) == [RunStarted]
    assert world.read("a", 2, n=1) == []


def test_a_repeated_proactive_message_is_stored_once() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.send("a", data="news", n=1)
    assert world.send("a", data="news", n=1) == []
    assert pieces(world) == ["news"]


def test_what_was_refused_stays_refused_though_it_would_be_taken_now(world: World) -> None:
    world.hand_over()
    [refused] = piece(world, 1)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.HANDED_OVER
    world.hand_back()
    assert piece(world, 1) == []
    assert pieces(world) == []


def test_each_member_has_numbers_of_its_own_and_who_is_gone_is_fenced(world: World) -> None:
    piece(world, 1, run="c/1/agents/support")
    world.join("b", gateway="gw-2", settle=True)
    world.leave("a")
    assert kinds(piece(world, 1, member="b")) == [FrameCommitted]
    assert piece(world, 1, member="b") == []
    [refused] = piece(world, 1, run="c/1/agents/support")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.FENCED


def test_the_numbers_outlive_the_writer(world: World) -> None:
    piece(world, 1)
    piece(world, 3)
    state = load_partition(dump_partition(world.state), 0)
    attach(state, load_conversation("c", dump_conversation(world.state.conversations["c"])[0]))
    for next_writer in (state, replay(world.journal)):
        world.state = next_writer
        assert piece(world, 1) == []
        assert piece(world, 3) == []
        assert image(next_writer) == image(replay(world.journal))


def test_a_piece_that_another_producer_wrote_too_late_is_stored(world: World) -> None:
    """What a gateway's producer had queued when it was replaced may come after what the next one wrote."""
    for n in (1, 3, 4, 2):
        assert kinds(piece(world, n)) == [FrameCommitted]
    for n in (1, 2, 3, 4):
        assert piece(world, n) == []


def test_below_the_window_only_a_key_tells_a_repeat(world: World) -> None:
    piece(world, heard.WINDOW + 2)
    assert piece(world, 2) == []
    assert kinds(piece(world, 3)) == [FrameCommitted]
    assert FrameCommitted in kinds(world.send("a", data="late", client_id="m1", n=1, delivered=1))


def test_a_number_far_ahead_costs_no_memory(world: World) -> None:
    piece(world, 1)
    piece(world, 2**63 - 1)
    assert world.state.members["a"].heard_bits == 1
    assert piece(world, 1) == []


def test_a_keyed_frame_gets_its_acknowledgement_again(world: World) -> None:
    world.send("a", client_id="m1", n=1, delivered=1, ref="r1")
    [again] = world.send("a", client_id="m1", n=1, delivered=1, ref="r1")
    assert type(again).__name__ == "Duplicate"


def test_a_journal_that_stores_a_number_twice_is_refused(world: World) -> None:
    piece(world, 1)
    state: Partition = replay(world.journal)
    last = world.journal[-1]
    event = last.event
    assert isinstance(event, FrameCommitted)
    again = msgspec.structs.replace(last, lsn=last.lsn + 1, event=msgspec.structs.replace(event, seq=event.seq + 1))
    with pytest.raises(ImpossibleEvent, match="was heard before"):
        evolve(state, again)
