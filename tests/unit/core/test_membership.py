"""Who is connected: counters, lists, ended gateways; every order of arrival ends with the gateway's own truth."""

from __future__ import annotations

from itertools import permutations

import pytest

from streams.core.commands import ApplyList, GatewayBehind, ListedMember
from streams.core.events import (
    ConfigChanged,
    GatewayEnded,
    ListApplied,
    ListWanted,
    MemberJoined,
    MemberLeft,
    MoveReason,
    Refused,
    RefusedReason,
    RunOpened,
)
from streams.core.limits import ID_MAX_BYTES
from streams.core.membership import LIST_WANTED_AGAIN_MS
from streams.core.state import ENDED_GATEWAY_KEPT_MS
from tests.support.partition_world import GROUP, World, document, image


def behind(world: World, gateway: str = "gw-1", n: int = 0, version: int = 1) -> list[object]:
    return [*world.do(GatewayBehind(at=world.at, timestamp=world.wall, gateway=gateway, n=n, config_version=version))]


def test_a_join_that_follows_is_applied() -> None:
    world = World()
    world.join("a", watermarks={"watch": 3})
    assert world.of(MemberJoined) == [
        MemberJoined(
            member="a", group=GROUP, channel="agents", gateway="gw-1", n=1, since=world.at + 1000,
            watermarks={"watch": 3},
        )
    ]  # fmt: skip


@pytest.mark.parametrize("n", [0, 1, 3, 99])
def test_any_other_number_asks_for_the_list_once_and_changes_nothing(n: int) -> None:
    world = World()
    world.join("a", n=1)
    assert world.join("b", n=n) == [ListWanted(gateway="gw-1", of="members", have=1)]
    assert world.join("b", n=n) == []
    assert world.leave("a", n=n) == []
    assert list(world.state.members) == ["a"]


@pytest.mark.parametrize("bad", ["", "a\0b", "x" * (ID_MAX_BYTES + 1)])
def test_names_that_a_store_could_not_hold_join_nobody(bad: str) -> None:
    """Gateways mint no such name; it would be part of run ids and of keys that no checkpoint could take."""
    world = World()
    for events in (
        world.join(bad, n=1),
        world.join("a", f"agents/{bad}" if bad else "", n=1),
        world.list_members("gw-1", 1, "a", bad),
    ):
        [refused] = events
        assert isinstance(refused, Refused)
        assert refused.reason is RefusedReason.INVALID_TEXT
    assert not world.state.members
    assert world.join("a", n=1), "and the counter stands where it was"


def test_a_leave_of_an_unknown_member_asks_for_the_list() -> None:
    world = World()
    assert world.leave("ghost", n=1) == [ListWanted(gateway="gw-1", of="members", have=0)]


def test_the_list_is_the_truth_as_of_its_counter() -> None:
    world = World()
    world.join("a", n=1)
    world.join("b", n=2, settle=True)
    since = world.state.members["b"].since
    world.join("d", n=9)
    events = world.list_members("gw-1", 9, "b", "d")
    assert [type(event) for event in events] == [MemberJoined, MemberLeft, ListApplied]
    assert sorted(world.state.members) == ["b", "d"]
    assert world.state.members["b"].since == since, "a known member keeps its place"
    assert world.join("e", n=10), "and the counter goes on from the list's"
    assert sorted(world.state.members) == ["b", "d", "e"]


def test_a_list_overtaken_by_later_changes_is_not_taken() -> None:
    world = World()
    world.join("a", n=1)
    world.join("b", n=2)
    assert world.list_members("gw-1", 1, "a") == []
    assert sorted(world.state.members) == ["a", "b"]


def test_a_list_that_says_nothing_new_is_no_event() -> None:
    world = World()
    world.join("a", n=1)
    assert world.list_members("gw-1", 1, "a") == []


def test_an_answer_that_says_nothing_new_is_an_event_for_it_ends_the_asking() -> None:
    world = World()
    world.join("a", n=1)
    world.join("a", n=1)
    assert world.list_members("gw-1", 1, "a") == [ListApplied(gateway="gw-1", n=1)]
    assert world.pass_time(10_000) == []


def test_of_two_groups_in_one_list_the_first_gets_what_waited_for_the_channel() -> None:
    world = World()
    world.open()
    world.say()
    listed = (ListedMember("m1", "agents", "agents/one"), ListedMember("m2", "agents", "agents/two"))
    world.do(ApplyList(at=world.at, timestamp=world.wall, gateway="gw-1", n=2, members=listed))
    assert [opened.group for opened in world.of(RunOpened)] == ["agents/one"]


def test_an_unanswered_request_is_repeated_and_an_answered_one_is_not() -> None:
    world = World()
    world.join("a", n=5)
    assert world.pass_time(LIST_WANTED_AGAIN_MS - 1) == []
    assert world.pass_time(1) == [ListWanted(gateway="gw-1", of="members", have=0)]
    assert world.pass_time(LIST_WANTED_AGAIN_MS - 1) == []
    world.list_members("gw-1", 5, "a")
    assert world.pass_time(60_000) == []


def test_a_heartbeat_with_another_count_asks_for_the_list_and_with_a_newer_document_for_that() -> None:
    world = World()
    world.join("a", n=1)
    assert behind(world, n=1) == []
    assert behind(world, n=2) == [ListWanted(gateway="gw-1", of="members", have=1)]
    assert behind(world, n=1, version=4) == [ListWanted(gateway="gw-1", of="config", have=1)]
    assert behind(world, n=1, version=4) == []
    assert world.pass_time(LIST_WANTED_AGAIN_MS)[-1] == ListWanted(gateway="gw-1", of="config", have=1)
    assert isinstance(world.configure(4)[0], ConfigChanged)
    world.list_members("gw-1", 2, "a")
    assert world.pass_time(10_000) == []


def test_a_heartbeat_of_an_unknown_gateway_without_members_asks_nothing() -> None:
    assert behind(World(), gateway="gw-new") == []


def test_an_expired_gateway_ends_with_its_members_and_may_never_join_again() -> None:
    world = World()
    world.join("a")
    world.join("b")
    events = world.expire("gw-1")
    assert [type(event) for event in events] == [MemberLeft, MemberLeft, GatewayEnded]
    assert {event.reason for event in events if isinstance(event, MemberLeft)} == {MoveReason.MEMBER_EXPIRED}
    assert not world.state.members
    [refused] = world.join("c")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.member, refused.detail) == (RefusedReason.GATEWAY_ENDED, "c", "gw-1")
    assert isinstance(world.list_members("gw-1", 9, "a")[0], Refused)
    assert isinstance(behind(world)[0], Refused)
    assert world.expire("gw-1") == []


def test_a_gateway_that_said_goodbye_left_its_members_did_not_expire() -> None:
    world = World()
    world.join("a")
    left, ended = world.expire("gw-1", reason="stopped")
    assert isinstance(left, MemberLeft)
    assert left.reason is MoveReason.MEMBER_LEFT
    assert ended == GatewayEnded(gateway="gw-1", reason="stopped")


def test_an_ended_gateway_cannot_flood_the_journal() -> None:
    world = World()
    world.join("a")
    world.expire("gw-1")
    refusals = [event for number in range(100) for event in world.join(f"m{number}")]
    assert [event.count for event in refusals if isinstance(event, Refused)] == list(range(1, 17))


def test_ended_gateways_are_forgotten_after_a_day() -> None:
    world = World()
    world.expire("gw-1")
    world.at += ENDED_GATEWAY_KEPT_MS + 1
    world.expire("gw-2")
    assert list(world.state.ended_gateways) == ["gw-2"]


def test_changes_of_an_older_incarnation_in_any_order_leave_the_newer_one_alone() -> None:
    """Field report 21: join of the first, leave of the first, join of the second incarnation, in every order."""
    changes = {
        "join1": lambda world: world.join("a1", gateway="gw-old", n=1),
        "leave1": lambda world: world.leave("a1", gateway="gw-old", n=2),
        "join2": lambda world: world.join("a2", gateway="gw-new", n=1),
    }
    for order in permutations(changes):
        world = World()
        for name in order:
            changes[name](world)
        world.list_members("gw-old", 2)
        world.leave("a1", gateway="gw-old", n=2)
        world.expire("gw-old")
        assert list(world.state.members) == ["a2"], order


def test_shuffled_and_repeated_changes_end_with_the_gateways_list() -> None:
    images = set()
    for order in permutations([("join", "a", 1), ("join", "b", 2), ("leave", "a", 3), ("join", "d", 4)]):
        world = World()
        for kind, member, n in [*order, order[0]]:
            world.join(member, n=n) if kind == "join" else world.leave(member, n=n)
        world.list_members("gw-1", 4, "b", "d")
        assert sorted(world.state.members) == ["b", "d"], order
        assert world.state.gateways["gw-1"].n == 4
        images.add(frozenset(world.state.groups[GROUP].members))
    assert images == {frozenset({"b", "d"})}


def test_an_older_or_unreadable_document_changes_nothing() -> None:
    world = World()
    world.configure(3)
    before = image(world.state)
    assert world.configure(2) == []
    assert world.configure(3) == []
    assert image(world.state) == before
    [refused] = world.configure(4, group_settle_ms="soon")
    assert isinstance(refused, Refused)
    assert "group_settle_ms" not in document()
    assert "channels[3].group_settle_ms" in refused.detail
    assert world.state.config.version == 3


def test_unknown_fields_of_the_document_are_ignored() -> None:
    world = World(of_a_later_release={"x": 1})
    assert world.state.config.channel("agents").adopt_ms == 5000
