"""Rule 9: a run that its member does not take goes to the next in rank, and waits or ends when there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.due import waits_for_room
from streams.core.events import Event, MoveReason, RunEnded, RunMoved, RunStatus
from streams.core.longest import SLACK, Longest, Waiting
from streams.core.state import Partition, Run
from tests.support.partition_world import GROUP, World, image, replay

RUN = f"c/1/{GROUP}"


def world_with(*members: str, **agents: Any) -> World:
    world = World(**agents)
    for member in members:
        world.join(member, settle=True)
    world.open()
    return world


def moved(events: list[Event]) -> RunMoved:
    [event] = [event for event in events if isinstance(event, RunMoved)]
    return event


def holder(world: World, run: str = RUN) -> str:
    member = world.conversation().runs[run].member
    assert member is not None
    return member


def refused_by_all(world: World) -> list[Event]:
    """Every member refuses, one after another; the last one's events."""
    events: list[Event] = []
    for epoch in range(1, len(world.state.members) + 1):
        events = world.refuse(holder(world), RUN, epoch=epoch)
    return events


def test_the_next_in_rank_gets_it_and_nobody_twice() -> None:
    world = world_with("a", "b", "c")
    world.say()
    seen = []
    for epoch in (1, 2):
        seen.append(holder(world))
        event = moved(world.refuse(seen[-1], RUN, epoch=epoch))
        assert (event.reason, event.run_epoch, event.superseded) == (MoveReason.REFUSED, epoch + 1, ())
    seen.append(holder(world))
    assert sorted(seen) == ["a", "b", "c"]


def test_it_waits_when_all_refused_and_is_tried_again_after_a_second() -> None:
    world = world_with("a", "b")
    world.say()
    event = moved(refused_by_all(world))
    assert event.to_member is None
    again = moved(world.pass_time(1_000))
    assert (again.from_member, again.run_epoch) == (None, 4)
    assert world.conversation().runs[RUN].refusers == (), "all are asked again"
    assert image(replay(world.journal)) == image(world.state)


def test_the_member_whose_run_ended_gets_the_one_that_waits_longest() -> None:
    world = world_with("a")
    world.say()
    world.open("d")
    world.say(id_="d")
    world.refuse("a", f"d/1/{GROUP}", "d")
    world.at += 10
    world.open("b")
    world.say(id_="b")
    world.refuse("a", f"b/1/{GROUP}", "b")
    event = moved(world.send("a", run=RUN, epoch=1))
    assert (event.conversation_id, event.to_member) == ("d", "a")


def test_a_member_that_joins_gets_it() -> None:
    world = world_with("a")
    world.say()
    refused_by_all(world)
    assert moved(world.join("b")).to_member is not None


@pytest.mark.parametrize("policy", [{"on_owner_loss": "fail"}, {"on_owner_loss": "restart"}])
def test_a_run_that_nobody_took_was_not_executed_and_is_given_whatever_happens_to_lost_ones(
    policy: dict[str, str],
) -> None:
    world = world_with("a", **policy)
    world.say()
    refused_by_all(world)
    assert moved(world.join("b")).to_member is not None


def test_who_drains_is_not_asked_while_another_stays_that_refused() -> None:
    world = world_with("a", "b")
    world.drain("b")
    world.say()
    assert holder(world) == "a"
    assert moved(world.refuse("a", RUN)).to_member is None


def world_of_waiting(runs: int) -> World:
    """Runs of conversations w000, w001, … that their only member refused, in this order."""
    world = world_with("a")
    for number in range(runs):
        id_ = f"w{number:03}"
        world.open(id_)
        world.say(id_=id_)
        world.refuse("a", f"{id_}/1/{GROUP}", id_)
    return world


def test_of_many_that_wait_for_room_few_are_tried_again_at_a_time() -> None:
    world = world_of_waiting(40)
    first = [e.conversation_id for e in world.pass_time(1_000) if isinstance(e, RunMoved)]
    assert first == [f"w{number:03}" for number in range(16)]
    for id_ in first:
        world.refuse("a", f"{id_}/1/{GROUP}", id_ or "", epoch=3)
    then = [e.conversation_id for e in world.pass_time(1_000) if isinstance(e, RunMoved)]
    assert then == [f"w{number:03}" for number in range(16, 32)], "who waits longest comes first"


def test_an_end_looks_at_what_it_gives_away_and_not_at_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def looking(state: Partition, run: Run) -> bool:
        looked.append(run.id)
        return waits_for_room(state, run)

    world = world_of_waiting(200)
    monkeypatch.setattr("streams.core.policies.waits_for_room", looking)
    for number in range(1, 4):
        world.say()
        world.send("a", run=f"c/{2 * number - 1}/{GROUP}", epoch=1)
    assert looked == [f"w{number:03}/1/{GROUP}" for number in range(3)]


def test_a_tick_looks_at_what_it_tries_again_and_not_at_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: set[str] = set()

    def looking(state: Partition, run: Run) -> bool:
        looked.add(run.id)
        return waits_for_room(state, run)

    world = world_of_waiting(200)
    for module in ("due", "timeouts"):
        monkeypatch.setattr(f"streams.core.{module}.waits_for_room", looking)
    world.pass_time(1_000)
    assert looked == {f"w{number:03}/1/{GROUP}" for number in range(16)}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99))))
def test_who_waits_longest_comes_first_whoever_left_meanwhile(changes: list[tuple[int, int]]) -> None:
    longest, expected = Longest(), dict[str, Waiting]()
    for name, since in changes * 4:
        run = f"r{name}"
        if expected.pop(run, None) is None:
            expected[run] = (since, f"c{name}", 1, run)
            longest.add(expected[run])
        else:
            longest.drop(run)
        assert longest.first(lambda each: each[3] != "r0") == min(
            (each for each in expected.values() if each[3] != "r0"), default=None
        )
        assert (
            longest.firsts(3, lambda each: each[3] != "r0", until=50)
            == sorted(each for each in expected.values() if each[3] != "r0" and each[0] <= 50)[:3]
        )


def test_who_left_and_came_back_at_once_waits_once() -> None:
    longest, waiting = Longest(), (5, "c", 1, "r")
    for _ in range(3):
        longest.add(waiting)
        longest.drop("r")
    longest.add(waiting)
    assert longest.firsts(3, lambda _: True) == [waiting]
    assert longest.firsts(3, lambda _: True) == [waiting]


def test_who_left_takes_no_room_for_ever() -> None:
    longest = Longest()
    for since in range(10_000):
        longest.add((since, "c", 1, "r"))
        longest.drop("r")
    assert len(longest.heap) <= SLACK + 2


def test_it_ends_where_the_group_refuses_when_busy() -> None:
    world = world_with("a", "b", busy="refuse")
    world.say()
    [ended] = refused_by_all(world)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.FAILED, "agent_busy")


def test_an_invocation_ends_when_all_refused() -> None:
    world = world_with("a", "b")
    world.call()
    [ended] = refused_by_all(world)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.FAILED, "agent_busy")


def test_what_has_begun_or_is_held_by_another_is_not_refused_any_more() -> None:
    world = world_with("a")
    world.say()
    assert world.refuse("ghost", RUN) == []
    assert world.refuse("a", RUN, epoch=2) == []
    assert world.refuse("a", "c/9/agents") == []
    assert world.refuse("a", RUN, "nowhere") == []
    world.read("a", 1)
    assert world.refuse("a", RUN) == []


def test_a_run_that_goes_on_is_refused_with_all_that_was_done_of_it() -> None:
    world = World()
    world.join("a", settle=True, continues=True)
    world.open()
    world.say()
    world.send("a", "checkpoint", run=RUN, epoch=1, data="{}")
    world.join("b", settle=True, continues=True)
    world.join("d", settle=True, continues=True)
    first = moved(world.leave("a"))
    event = moved(world.refuse(first.to_member or "", RUN, epoch=2))
    assert event.continued
    assert event.checkpoint_lsn == first.checkpoint_lsn > 0


def test_a_run_that_is_to_stop_ends_when_its_member_refuses_it_and_goes_to_nobody_else() -> None:
    world = World()
    world.join("a", settle=True, continues=True)
    world.open()
    world.say()
    world.send("a", "checkpoint", run=RUN, epoch=1, data="{}")
    world.join("b", settle=True, continues=True)
    world.join("d", settle=True, continues=True)
    heir = moved(world.leave("a")).to_member or ""
    world.cancel(RUN)
    [ended] = world.refuse(heir, RUN, epoch=2)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.CANCELLED, "cancelled")


def test_who_waits_for_room_waits_for_a_member_when_the_last_one_leaves() -> None:
    world = world_with("a")
    world.say()
    refused_by_all(world)
    world.leave("a")
    assert not [event for event in world.pass_time(5_000) if isinstance(event, RunMoved)]
    assert moved(world.join("b")).to_member == "b"


def test_and_ends_when_none_comes_in_the_time_that_its_channel_gives_it() -> None:
    world = world_with("a", wait_ms=5_000)
    world.say()
    refused_by_all(world)
    world.pass_time(500)
    world.leave("a")
    (ended,) = [event for event in world.pass_time(5_000) if isinstance(event, RunEnded)]
    assert (ended.status, ended.reason) == (RunStatus.OWNER_GONE, "no_member")


def test_who_waits_for_room_ends_at_its_deadline_and_is_tried_again_before() -> None:
    world = world_with("a", deadline_ms=2_500)
    world.say()
    refused_by_all(world)
    assert moved(world.pass_time(1_000)).to_member == "a"
    world.refuse("a", RUN, epoch=3)
    world.pass_time(1_500)
    assert not world.conversation().runs
