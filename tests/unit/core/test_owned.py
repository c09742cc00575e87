"""Conversations whose own channel is one of agents: who opens them, writes in them, and is given their turns."""

from __future__ import annotations

import json

import pytest

from streams.core.commands import ApplyConfig, OpenConversation
from streams.core.events import (
    ConversationOpened,
    Duplicate,
    Event,
    FrameCommitted,
    Refused,
    RefusedReason,
    RunMoved,
    TurnCommitted,
)
from streams.core.routing import owns
from tests.support.partition_world import GROUP, World, image, replay

AUDITORS = "auditors/night"


def owned(*to: str) -> World:
    """Channel `agents` is routed to these; conversation c is its own. Member a is of it, b too, x of `auditors`."""
    world = World(group_settle_ms=0)
    channels = [
        {"id": "web", "kind": "web"},
        *({"id": id_, "kind": "websocket", "group_settle_ms": 0} for id_ in ("agents", "auditors")),
    ]
    routes = [{"from": "agents", "to": list(to)}] if to else []
    text = json.dumps({"version": 2, "channels": channels, "routes": routes})
    world.do(ApplyConfig(at=world.at, timestamp=world.wall, version=2, document=text))
    world.join("a")
    world.join("b")
    world.join("x", group=AUDITORS)
    return world


def opening(world: World) -> Event:
    [event] = world.do(
        OpenConversation(
            at=world.at, timestamp=world.wall, conversation_id="c", channel="agents", participant="ann", key="k"
        )
    )
    return event


@pytest.fixture
def world() -> World:
    world = owned("web", "auditors")
    assert isinstance(opening(world), ConversationOpened)
    return world


def test_a_channel_of_agents_that_is_routed_nowhere_opens_none() -> None:
    world = owned()
    refused = opening(world)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.CHANNEL_NOT_ROUTED
    assert not owns(world.state.config, "agents")


def test_each_of_its_members_writes_there_and_nobody_else_does() -> None:
    world = owned("web")
    opening(world)
    for number, member in enumerate(("a", "b"), start=1):
        [said] = world.send(member, "text", text="hello", client_id=f"{member}-1")
        assert isinstance(said, FrameCommitted)
        assert (said.seq, said.run_id, said.channel) == (number, None, "agents")
    [refused] = world.send("x", "text", group=AUDITORS, text="hello")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.FENCED
    assert image(replay(world.journal)) == image(world.state)


def test_its_turns_are_given_to_the_other_agents_that_it_is_routed_to(world: World) -> None:
    [turn] = world.say(channel="web")
    assert isinstance(turn, TurnCommitted)
    assert [(given.group, given.member) for given in turn.assigned] == [(AUDITORS, "x")]


def test_a_channel_is_given_nothing_of_its_own_whatever_the_document_says() -> None:
    world = owned("agents", "web")
    opening(world)
    [turn] = world.say(channel="web")
    assert isinstance(turn, TurnCommitted)
    assert turn.assigned == ()
    assert turn.waiting == ()


def test_who_follows_answers_a_turn_that_its_client_id_names_and_sends_it_again(world: World) -> None:
    [turn] = world.say(channel="web")
    assert isinstance(turn, TurnCommitted)
    named = f"p.{turn.turn.id}.m1"
    assert world.read("a", turn.seq) == []
    assert world.run("a", "started") == []
    [said] = world.send("a", "text", text="so it is", client_id=named)
    assert isinstance(said, FrameCommitted)
    [again] = world.send("a", "text", text="so it is", client_id=named)
    assert isinstance(again, Duplicate)
    assert again.of_seq == said.seq
    assert world.run("a", "finished") == []


def test_an_error_of_who_follows_is_shown_and_fences_nobody(world: World) -> None:
    world.say(channel="web")
    [error] = world.send("a", "error", data='{"code":"internal"}')
    assert isinstance(error, FrameCommitted)
    assert (error.seq, error.run_id) == (0, None)
    assert image(replay(world.journal)) == image(world.state)


def test_what_names_a_run_is_never_proactive(world: World) -> None:
    [turn] = world.say(channel="web")
    assert isinstance(turn, TurnCommitted)
    [refused] = world.send("a", "text", text="x", run=turn.assigned[0].run_id, epoch=1)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.FENCED


def test_a_watermark_of_who_follows_claims_no_run(world: World) -> None:
    [turn] = world.say(channel="web")
    assert isinstance(turn, TurnCommitted)
    world.join("follower", watermarks={"c": turn.seq})
    world.join("y", group=AUDITORS)
    world.leave("x")
    [moved] = world.of(RunMoved)
    assert (moved.to_member, moved.adopted) == ("y", False)


def test_a_closed_one_takes_nothing(world: World) -> None:
    world.close()
    [refused] = world.send("a", "text", text="late")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.CONVERSATION_CLOSED


def test_the_group_of_the_other_tests_is_of_the_owning_channel() -> None:
    assert GROUP.startswith("agents/")
