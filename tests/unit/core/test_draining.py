"""Rule 3, draining: a member that is about to go gets nothing new, and finishes what it has."""

from __future__ import annotations

import pytest

from streams.core.events import (
    FrameCommitted,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    MoveReason,
    OwnerChanged,
    Refused,
    RefusedReason,
    RunEnded,
    RunMoved,
    TurnCommitted,
)
from streams.core.ownership import owner_of
from streams.core.state import ImpossibleEvent
from tests.support.partition_world import GROUP, World, image, replay

ADOPT_MS = 5000


def two_members() -> tuple[World, str, str]:
    """A world with a turn in conversation c; its owner, and the other member."""
    world = World()
    world.join("a", gateway="gw-1")
    world.join("b", gateway="gw-2", settle=True)
    world.open()
    world.say()
    owner = world.of(TurnCommitted)[0].assigned[0].member
    assert owner is not None
    return world, owner, "b" if owner == "a" else "a"


def test_the_next_turn_goes_to_another_and_says_why() -> None:
    world, owner, other = two_members()
    [draining] = world.drain(owner, by="operator", reason="deploy")
    assert draining == MemberDraining(member=owner, group=GROUP, by="operator", reason="deploy")
    changed, turn = world.say()
    assert isinstance(changed, OwnerChanged)
    assert (changed.previous, changed.owner, changed.reason) == (owner, other, MoveReason.MEMBER_DRAINED)
    assert isinstance(turn, TurnCommitted)
    assert turn.assigned[0].member == other


def test_the_runs_that_it_was_given_stay_its_and_it_finishes_them() -> None:
    world, owner, _ = two_members()
    world.drain(owner)
    world.say()
    assert world.of(RunMoved) == []
    world.run(owner, "started", run=f"c/1/{GROUP}")
    world.send(owner, run=f"c/1/{GROUP}")
    [ended] = world.run(owner, "finished")
    assert isinstance(ended, RunEnded)
    assert [type(event) for event in world.leave(owner, world.state.members[owner].gateway)] == [MemberLeft]


def test_said_again_or_of_nobody_it_is_no_event() -> None:
    world, owner, _ = two_members()
    world.drain(owner)
    assert world.drain(owner, by="operator") == []
    assert world.drain("nobody") == []


def test_it_is_not_counted_among_its_gateways_changes() -> None:
    world, owner, _ = two_members()
    gateway = world.state.members[owner].gateway
    world.drain(owner, by=gateway)
    assert isinstance(world.join("d", gateway=gateway)[0], MemberJoined)


def test_who_asks_and_why_must_be_storable() -> None:
    world, owner, _ = two_members()
    for fields in ({"by": ""}, {"by": "x" * 513}, {"reason": "a\0b"}):
        [refused] = world.drain(owner, **fields)
        assert isinstance(refused, Refused)
        assert refused.reason is RefusedReason.INVALID_TEXT
        assert refused.detail.startswith(next(iter(fields)))
    assert not world.state.members[owner].draining


def test_when_all_drain_they_all_count() -> None:
    world, owner, other = two_members()
    world.drain(owner)
    world.drain(other)
    [turn] = world.say()
    assert isinstance(turn, TurnCommitted)
    assert turn.assigned[0].member == owner


def test_who_has_not_settled_comes_before_who_drains() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.drain("a")
    world.join("b", gateway="gw-2")
    [turn] = world.say()
    assert isinstance(turn, TurnCommitted)
    assert turn.assigned[0].member == "b"


def test_the_settled_come_first_when_all_drain() -> None:
    world = World()
    world.join("a", settle=True)
    for number in range(20):
        world.open(f"c{number}")
    world.join("b", gateway="gw-2")
    world.drain("a")
    world.drain("b")
    for number in range(20):
        assert owner_of(world.state, GROUP, f"c{number}", world.at) == "a"


def test_it_takes_over_no_run() -> None:
    world, owner, other = two_members()
    world.join("d", gateway="gw-3", settle=True)
    world.drain(other)
    moved = world.leave(owner, world.state.members[owner].gateway)[-1]
    assert isinstance(moved, RunMoved)
    assert moved.to_member == "d"


def test_a_run_that_waits_is_taken_up_by_who_comes_and_does_not_drain() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.leave("a")
    events = world.list_members("gw-2", 1, "b", "d", draining=["b"])
    assert [type(event) for event in events[:3]] == [MemberJoined, MemberJoined, MemberDraining]
    [moved] = [event for event in events if isinstance(event, RunMoved)]
    assert moved.to_member == "d"


class TestLists:
    """A gateway's list repeats a drain that the partition missed."""

    def test_a_known_member_drains_from_the_list_on(self) -> None:
        world, owner, _ = two_members()
        gateway = world.state.members[owner].gateway
        events = world.list_members(gateway, 1, owner, draining=[owner])
        assert events[0] == MemberDraining(member=owner, group=GROUP, by=gateway, reason="listed")
        assert world.list_members(gateway, 1, owner, draining=[owner]) == []

    def test_a_list_without_it_does_not_undo_a_drain(self) -> None:
        world, owner, _ = two_members()
        world.drain(owner, by="operator")
        world.list_members(world.state.members[owner].gateway, 1, owner)
        assert world.state.members[owner].draining

    def test_what_moves_by_the_same_list_goes_to_those_that_do_not_drain(self) -> None:
        world = World()
        for member in ("a", "b", "d"):
            world.join(member)
        world.at += 1000
        for number in range(20):
            world.open(f"c{number}")
            world.say(id_=f"c{number}")
        events = world.list_members("gw-1", 3, "b", "d", draining=["b"])
        moved = [event for event in events if isinstance(event, RunMoved)]
        assert moved
        assert {event.to_member for event in moved} == {"d"}


class TestAdoption:
    """Who has a turn already may keep it, though it drains."""

    def reconnected(self) -> World:
        world = World()
        world.join("a", settle=True)
        world.open()
        world.say()
        world.join("a2", gateway="gw-2", watermarks={"c": 1})
        world.join("d", gateway="gw-3", settle=True)
        world.drain("a2")
        return world

    def test_it_goes_on_with_what_it_has(self) -> None:
        world = self.reconnected()
        moved = world.leave("a")[-1]
        assert isinstance(moved, RunMoved)
        assert (moved.to_member, moved.adopted) == ("a2", True)

    def test_one_that_does_not_drain_comes_first(self) -> None:
        world = World()
        world.join("a", settle=True)
        names = [f"c{number}" for number in range(20)]
        for name in names:
            world.open(name)
            world.say(id_=name)
        for number, member in enumerate(("a2", "a3"), 2):
            world.join(member, gateway=f"gw-{number}", watermarks=dict.fromkeys(names, 1))
        world.drain("a2")
        moved = [event for event in world.leave("a") if isinstance(event, RunMoved)]
        assert len(moved) == 20
        assert {(event.to_member, event.adopted) for event in moved} == {("a3", True)}

    def test_what_it_does_nothing_about_is_given_to_another(self) -> None:
        world = self.reconnected()
        world.leave("a")
        [moved] = world.pass_time(ADOPT_MS)
        assert isinstance(moved, RunMoved)
        assert (moved.to_member, moved.reason) == ("d", MoveReason.ADOPT_TIMEOUT)


def test_who_answered_the_last_turn_may_go_on_speaking_until_another_got_one() -> None:
    """An agent that announces no runs may answer in several messages: only the first one ends its run."""
    world, owner, _ = two_members()
    world.drain(owner)
    assert isinstance(world.send(owner, delivered=1)[-1], RunEnded)
    [more] = world.send(owner)
    assert isinstance(more, FrameCommitted)
    world.say()
    [refused] = world.send(owner)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.FENCED


def test_who_lost_it_to_a_newcomer_may_not_go_on_speaking() -> None:
    world = World()
    world.join("a", settle=True)
    names = [f"c{number}" for number in range(20)]
    for name in names:
        world.open(name)
        world.say(id_=name)
        world.send("a", id_=name, delivered=1)
    world.join("b", gateway="gw-2", settle=True)
    won = [name for name in names if owner_of(world.state, GROUP, name, world.at) == "b"]
    assert won
    for name in won:
        [refused] = world.send("a", id_=name)
        assert isinstance(refused, Refused)


def test_it_survives_a_restart_and_a_replay() -> None:
    world, owner, _ = two_members()
    world.drain(owner)
    assert image(replay(world.journal)) == image(world.state)
    assert replay(world.journal).members[owner].draining


@pytest.mark.parametrize("twice", [True, False])
def test_the_event_of_nobody_or_a_second_one_is_impossible(twice: bool) -> None:
    world, owner, other = two_members()
    world.drain(owner)
    world.drain(other)
    journal = world.journal[:-1]
    wrong = MemberDraining(member=owner if twice else "nobody", group=GROUP, by="x", reason="")
    last = world.journal[-1]
    with pytest.raises(ImpossibleEvent, match="is not known, or drains already"):
        replay([*journal, type(last)(last.lsn, last.at, last.timestamp, last.writer_epoch, wrong)])
