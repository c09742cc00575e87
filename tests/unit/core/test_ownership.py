"""Rules 3 and 4: who owns a turn, since when, and what a join or a leave moves."""

from __future__ import annotations

import json
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.commands import ApplyConfig
from streams.core.conversation import OWNERS_MAX
from streams.core.events import MoveReason, OwnerChanged, RunOpened, TurnCommitted
from streams.core.ownership import owner_of, weight, winner
from tests.support.partition_world import GROUP, SETTLE_MS, World, image, replay

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


def last_owner(world: World) -> str | None:
    return world.of(TurnCommitted)[-1].assigned[0].member


def test_the_hash_is_the_documented_one() -> None:
    assert weight("conversation", "gw-1.7") == blake2b(b"conversation\x1fgw-1.7", digest_size=8).digest()
    assert weight("ä", "ö") == blake2b("ä\x1fö".encode(), digest_size=8).digest()
    # Fixed for ever: a changed value would change owners recorded in journals.
    assert weight("conversation", "gw-1.7").hex() == "10ecb6e9a59af58a"


@given(st.sets(ids, min_size=1, max_size=8), ids, ids)
def test_a_join_moves_only_what_the_newcomer_wins_and_a_leave_only_the_departeds(
    members: set[str], newcomer: str, conversation: str
) -> None:
    before = winner(sorted(members), conversation)
    after = winner(sorted(members | {newcomer}), conversation)
    assert after in {before, newcomer}
    for departed in members - {before}:
        assert winner(sorted(members - {departed}), conversation) == before


@given(st.lists(ids, min_size=1, max_size=8, unique=True), ids, st.randoms())
def test_the_order_of_members_does_not_matter(members: list[str], conversation: str, random: object) -> None:
    assert winner(members, conversation) == winner(members[::-1], conversation)


def test_load_spreads_evenly() -> None:
    members = [f"gw-1.{number}" for number in range(5)]
    won = [winner(members, f"conversation-{number}") for number in range(10_000)]
    for member in members:
        assert 1_800 < won.count(member) < 2_200


def test_a_member_is_eligible_once_it_has_settled() -> None:
    world = World()
    world.join("a", settle=True)
    for number in range(40):
        world.open(f"c{number}")
    world.join("b")
    for number in range(40):
        world.say(id_=f"c{number}")
        assert last_owner(world) == "a"
    world.pass_time(SETTLE_MS - 1)
    assert {owner_of(world.state, GROUP, f"c{number}", world.at) for number in range(40)} == {"a"}
    world.pass_time(1)
    for number in range(40):
        world.say(id_=f"c{number}")
        assert (
            last_owner(world)
            == owner_of(world.state, GROUP, f"c{number}", world.at)
            == winner(["a", "b"], f"c{number}")
        )


def test_while_none_has_settled_every_member_counts() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.open()
    world.say()
    assert last_owner(world) == winner(["a", "b"], "c")


def test_a_settling_time_of_zero_is_allowed() -> None:
    world = World(group_settle_ms=0)
    world.join("a")
    world.join("b")
    assert {owner_of(world.state, GROUP, f"c{number}", world.at) for number in range(40)} == {"a", "b"}


def test_two_members_that_join_at_the_same_millisecond_share_by_hash() -> None:
    world = World()
    world.join("a", gateway="gw-1")
    world.join("b", gateway="gw-2", settle=True)
    for number in range(40):
        world.open(f"c{number}")
        world.say(id_=f"c{number}")
        assert last_owner(world) == winner(["a", "b"], f"c{number}")


def test_a_change_of_owner_is_an_event_before_the_turn() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say()
    world.join("b", settle=True)
    world.join("c", settle=True)
    world.leave("a")
    heir = owner_of(world.state, GROUP, "c", world.at)
    changed, turn = world.say()
    assert changed == OwnerChanged(
        conversation_id="c", group=GROUP, previous="a", owner=heir, reason=MoveReason.MEMBER_LEFT
    )
    assert isinstance(turn, TurnCommitted)
    assert len(world.say()) == 1, "no change, no event"


def test_a_newcomer_that_wins_the_conversation_owns_it_from_the_next_turn_on() -> None:
    world = World()
    world.join("a", settle=True)
    conversation = next(f"c{number}" for number in range(100) if winner(["a", "b"], f"c{number}") == "b")
    world.open(conversation)
    world.say(id_=conversation)
    world.join("b", settle=True)
    [changed, _] = world.say(id_=conversation)
    assert isinstance(changed, OwnerChanged)
    assert changed.reason is MoveReason.MEMBER_JOINED
    assert last_owner(world) == "b"
    assert [run.member for run in world.conversation(conversation).runs.values()] == ["a", "b"]


def test_each_group_of_each_routed_channel_gets_the_turn() -> None:
    world = World(to=("auditors", "agents"))
    world.join("a", "agents/one")
    world.join("b", "agents")
    world.join("d", "auditors/x", settle=True)
    world.open()
    world.say()
    assigned = world.of(TurnCommitted)[0].assigned
    assert [(a.group, a.member) for a in assigned] == [("auditors/x", "d"), ("agents", "b"), ("agents/one", "a")]


def test_connections_without_a_group_share_the_implicit_one() -> None:
    world = World()
    world.join("a", "agents")
    world.join("b", "agents", settle=True)
    world.open()
    world.say()
    assert len(world.of(TurnCommitted)[0].assigned) == 1


def test_connections_that_got_every_turn_for_themselves_are_not_remembered_for_ever() -> None:
    world = World()
    world.open()
    for number in range(100):
        world.join(f"m{number}", f"agents/~m{number}", each=True, settle=True)
        world.say()
        world.leave(f"m{number}")
    world.join("a", settle=True)
    world.say()
    owners = world.conversation().owners
    assert owners[GROUP] == "a"
    assert len(owners) <= OWNERS_MAX
    assert world.state.config.rules.keys() == {"agents", GROUP}
    assert image(replay(world.journal)) == image(world.state)


def test_ungrouped_each_gives_every_connection_every_turn() -> None:
    world = World()
    world.join("a", "agents/~a", each=True)
    world.join("b", "agents/~b", each=True, settle=True)
    world.open()
    world.say()
    assert [a.member for a in world.of(TurnCommitted)[0].assigned] == ["a", "b"]


def test_a_turn_for_a_channel_without_members_waits_for_the_first_group_there() -> None:
    world = World(to=("agents", "auditors"))
    world.join("d", "auditors/x", settle=True)
    world.open()
    world.say()
    world.say()
    turn = world.of(TurnCommitted)[0]
    assert [a.group for a in turn.assigned] == ["auditors/x"]
    assert turn.waiting == ("agents",)
    opened = world.join("a", "agents/new")[1:]
    assert [(e.turn_seq, e.group, e.member) for e in opened if isinstance(e, RunOpened)] == [
        (1, "agents/new", "a"),
        (2, "agents/new", "a"),
    ]
    assert not world.join("b", "agents/later")[1:], "only the first group that joins gets what waited"


@pytest.mark.parametrize("target", [{"id": "t", "kind": "websocket", "active": False}, {"id": "t", "kind": "web"}])
def test_a_route_to_what_is_no_active_agent_channel_is_no_route(target: dict[str, object]) -> None:
    world = World()
    channels = [{"id": "web"}, target]
    text = json.dumps({"version": 2, "channels": channels, "routes": [{"from": "web", "to": ["t", "nowhere"]}]})
    world.do(ApplyConfig(at=world.at, timestamp=world.wall, version=2, document=text))
    world.join("a", "t", settle=True)
    world.open()
    [turn] = world.say()
    assert isinstance(turn, TurnCommitted)
    assert (turn.assigned, turn.waiting) == ((), ())


def test_a_channel_routed_nowhere_opens_no_run() -> None:
    world = World()
    world.open(channel="lobby")
    world.say(channel="lobby")
    turn = world.of(TurnCommitted)[0]
    assert (turn.assigned, turn.waiting) == ((), ())
    world.join("a")
    assert not world.of(RunOpened)


@pytest.mark.parametrize("member", ["g10", "g9", "G1", "ä"])
def test_member_ids_that_sort_differently_by_locale_have_one_owner(member: str) -> None:
    members = ["g10", "g9", "G1", "ä"]
    rotated = members[members.index(member) :] + members[: members.index(member)]
    for number in range(50):
        assert winner(rotated, f"c{number}") == winner(members, f"c{number}")
