"""A process that declared itself and comes back (rules 3 and 5): its runs are kept for it, and for nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from streams.core.events import Event, MemberDraining, RunEnded, RunMoved, RunStatus
from streams.core.store import dump_partition, load_partition
from tests.support.partition_world import World, image, replay

P = "process-1"


def lost(reason: str = "closed", *, begun: bool = True, world: World | None = None, **join: Any) -> World:
    """A turn was given to a process that declared itself, and its connection is gone; another member is there."""
    world = world or World(group_settle_ms=0)
    world.join("a", instance=P, **join)
    world.open()
    world.say()
    if begun:
        world.run("a", "started", delivered=1)
        world.chunk("a", "s", data="{}")
    world.join("b", gateway="gw-2", settle=True)
    world.leave("a", reason=reason)
    return world


def last_move(events: list[Event]) -> RunMoved:
    [moved] = [event for event in events if isinstance(event, RunMoved)]
    return moved


def where(moved: RunMoved) -> tuple[str | None, str | None, bool, bool, str]:
    return moved.from_member, moved.to_member, moved.adopted, moved.proved, moved.kept_for


@pytest.mark.parametrize("reason", ["closed", "drained"])
def test_its_run_is_held_though_others_are_there_and_moves_to_its_next_connection(reason: str) -> None:
    world = lost(reason)
    assert where(world.of(RunMoved)[-1]) == ("a", None, False, False, P)
    assert world.of(RunMoved)[-1].superseded == ()
    world.pass_time(29_000)
    assert len(world.of(RunMoved)) == 1
    back = last_move(world.join("a2", gateway="gw-2", instance=P, watermarks={"c": 1}))
    assert where(back) == (None, "a2", True, True, "")
    assert back.superseded == ()
    world.pass_time(299_000)
    assert not world.of(RunEnded), "what it proved to have, it may be silent about for as long as work may be"
    world.run("a2", "finished", run=back.run_id, epoch=back.run_epoch)
    assert world.of(RunEnded)[-1].status is RunStatus.ANSWERED


def test_what_it_has_not_in_hand_any_more_is_given_to_it_again() -> None:
    back = last_move(lost().join("a2", instance=P))
    assert (back.to_member, back.adopted, back.proved) == ("a2", False, False)
    assert back.superseded


def test_a_turn_that_was_lost_on_its_way_to_it_is_given_to_it_again() -> None:
    back = last_move(lost(begun=False).join("a2", instance=P))
    assert (back.to_member, back.adopted, back.proved) == ("a2", False, False)


@pytest.mark.parametrize("instance", ["", "process-2"])
def test_no_other_process_takes_it_over_whatever_it_says_that_it_has(instance: str) -> None:
    world = lost()
    world.join("stranger", gateway="gw-2", instance=instance, watermarks={"c": 9})
    world.pass_time(29_000)
    run = next(iter(world.conversation().runs.values()))
    assert (run.member, run.kept_for) == (None, P)


def test_when_the_grace_is_over_it_goes_on_as_after_any_loss() -> None:
    moved = last_move(lost().pass_time(30_000))
    assert where(moved) == (None, "b", False, False, "")
    assert moved.superseded, "b begins anew"
    late = lost()
    late.pass_time(30_000)
    assert not [event for event in late.join("a2", instance=P, watermarks={"c": 1}) if isinstance(event, RunMoved)]


def test_when_the_grace_is_over_and_nobody_is_there_it_waits_for_whoever_comes_next() -> None:
    world = World(group_settle_ms=0)
    world.join("a", instance=P)
    world.open()
    world.say()
    world.leave("a", reason="closed")
    assert where(last_move(world.pass_time(30_000))) == (None, None, False, False, "")
    assert last_move(world.join("b")).to_member == "b"


def test_on_fail_it_ends_once_the_grace_is_over() -> None:
    world = lost(world=World(group_settle_ms=0, on_owner_loss="fail"))
    assert not world.of(RunEnded)
    world.pass_time(30_000)
    assert world.of(RunEnded)[-1].status is RunStatus.OWNER_GONE


@pytest.mark.parametrize(("reason", "settings"), [("left", {}), ("done", {}), ("closed", {"grace_ms": 0})])
def test_nothing_is_held_for_who_went_by_itself_or_where_the_channel_keeps_nothing(
    reason: str, settings: dict[str, Any]
) -> None:
    moved = lost(reason, world=World(group_settle_ms=0, **settings)).of(RunMoved)[-1]
    assert where(moved) == ("a", "b", False, False, "")


def test_without_a_declared_process_there_is_no_grace() -> None:
    world = World(group_settle_ms=0)
    world.join("a")
    world.open()
    world.say()
    world.join("b", gateway="gw-2", settle=True)
    assert where(last_move(world.leave("a", reason="closed"))) == ("a", "b", False, False, "")


def test_a_gateway_that_is_given_up_costs_its_processes_nothing() -> None:
    world = World(group_settle_ms=0)
    world.join("a", instance=P)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    world.join("b", gateway="gw-2", settle=True)
    world.expire("gw-1")
    assert where(world.of(RunMoved)[-1]) == ("a", None, False, False, P)
    assert last_move(world.join("a2", gateway="gw-2", instance=P)).to_member == "a2"


def test_a_connection_that_is_not_known_to_be_lost_yet_gives_way_to_the_next_one() -> None:
    world = World(group_settle_ms=0)
    world.join("a", instance=P)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    events = world.join("a2", gateway="gw-2", instance=P, watermarks={"c": 1})
    [draining] = [event for event in events if isinstance(event, MemberDraining)]
    assert (draining.member, draining.reason) == ("a", "replaced")
    assert where(last_move(events)) == ("a", "a2", True, True, "")
    world.say("next")
    assert world.conversation().owners == {"agents/support": "a2"}
    assert not [event for event in world.leave("a", reason="closed") if isinstance(event, RunMoved)]


def test_the_claim_of_a_call_is_kept_for_its_process_and_not_for_who_says_that_it_has_it() -> None:
    world = World(group_settle_ms=0)
    world.join("a", instance=P)
    world.open()
    world.call()
    world.run("a", "started", run="c/1/agents/support", epoch=1)
    world.leave("a", reason="closed")
    world.join("thief", gateway="gw-2", watermarks={"c": 1})
    assert world.conversation().runs["c/1/agents/support"].member is None
    assert last_move(world.join("a2", gateway="gw-2", instance=P, watermarks={"c": 1})).to_member == "a2"


def test_a_list_names_the_process_too() -> None:
    world = lost()
    world.list_members("gw-9", 1, "a9", instance=P)
    assert world.conversation().runs["c/1/agents/support"].member == "a9"


def test_what_is_kept_and_for_whom_outlives_a_change_of_writer() -> None:
    world = lost()
    assert image(replay(world.journal)) == image(world.state)
    stored = load_partition(dump_partition(world.state), 0)
    assert dump_partition(stored) == dump_partition(world.state)
    world.join("a2", instance=P, gateway="gw-2")
    assert load_partition(dump_partition(world.state), 0).members["a2"].instance == P
