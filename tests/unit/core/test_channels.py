"""Several channels of people on one conversation: who may write, whom agents hear, and where an answer came from."""

from __future__ import annotations

import json

import pytest

from streams.core.events import (
    Event,
    FrameCommitted,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    RunOpened,
    TurnCommitted,
)
from streams.core.routing import is_delivered, parse_config
from tests.support.partition_world import GROUP, World, image, replay

LOBBY = {"channel": "lobby"}


@pytest.fixture
def world() -> World:
    """Conversation c is of channel `web`, which is routed to the agents and to people of `lobby`."""
    world = World(to=("agents", "lobby"), group_settle_ms=0)
    world.join("a", settle=True)
    world.open()
    return world


def refused(events: list[Event]) -> RefusedReason:
    [event] = events
    assert isinstance(event, Refused)
    return event.reason


def test_a_turn_from_a_channel_that_it_is_routed_to_goes_to_the_conversations_own_agents(world: World) -> None:
    world.say()
    [turn] = world.say(sender="ben", **LOBBY)
    assert isinstance(turn, TurnCommitted)
    assert (turn.turn.channel, [given.group for given in turn.assigned]) == ("lobby", [GROUP])
    assert image(replay(world.journal)) == image(world.state)


@pytest.mark.parametrize("channel", ["shut", "agents", "auditors", "nowhere"])
def test_no_other_channel_writes_there(world: World, channel: str) -> None:
    world.say()  # also on the short way
    assert refused(world.say(channel=channel)) is RefusedReason.CHANNEL_NOT_ROUTED
    assert refused(world.person("survey", channel=channel, data="{}")) is RefusedReason.CHANNEL_NOT_ROUTED


def test_once_the_route_is_gone_it_writes_there_no_more_but_its_repeats_are_known(world: World) -> None:
    world.say(key="k", **LOBBY)
    world.configure(2, to=("agents",))
    assert refused(world.say(key="l", **LOBBY)) is RefusedReason.CHANNEL_NOT_ROUTED
    assert type(world.say(key="k", **LOBBY)[0]).__name__ == "Duplicate"


def test_a_question_is_answered_from_any_of_its_channels(world: World) -> None:
    world.say()
    world.read("a", 1)
    world.send("a", "interrupt", id="ask-1")
    [turn] = world.say("yes", sender="ben", **LOBBY)
    assert isinstance(turn, TurnCommitted)
    assert (turn.joins_run, turn.interrupt_id) == (f"c/1/{GROUP}", "ask-1")
    world.send("a", "interrupt", id="ask-2")
    [answer] = world.resume({"ask-2": True}, sender="ben", channel="lobby")
    assert isinstance(answer, PersonFrameCommitted)


def test_an_answer_says_which_channel_it_answers(world: World) -> None:
    def origin_of(events: list[Event]) -> str:
        return next(event.origin for event in events if isinstance(event, FrameCommitted))

    world.say()
    assert origin_of(world.send("a", delivered=1)) == ""
    world.say(**LOBBY)
    assert origin_of(world.send("a", delivered=3)) == "lobby"
    assert origin_of(world.send("a")) == "", "it answers nothing"
    world.regenerate("00000000-0000-4000-8000-000000000003")
    assert isinstance(world.journal[-1].event, RunOpened)
    assert origin_of(world.send("a", run=world.journal[-1].event.run_id, epoch=1)) == "lobby"
    assert image(replay(world.journal)) == image(world.state)


def test_a_turn_that_waited_for_agents_is_of_its_channel_still() -> None:
    world = World(to=("agents", "lobby"), group_settle_ms=0)
    world.open()
    world.say(**LOBBY)
    world.join("a")
    world.run("a", "started", delivered=1)
    world.chunk("a", "s", data="{}")
    world.leave("a")
    world.join("b")
    closing = [event for event in world.of(FrameCommitted) if event.sender == "system"]
    assert [event.origin for event in world.of(FrameCommitted)] == ["lobby"] * (1 + len(closing))


def test_answers_go_everywhere_or_only_where_what_they_answer_came_from() -> None:
    def config(**route: str) -> object:
        document = {"version": 1, "channels": [{"id": "web"}], "routes": [{"from": "web", "to": ["lobby"], **route}]}
        return parse_config(1, json.dumps(document))

    for origin in (None, "", "lobby", "desk"):
        assert is_delivered(config(), "web", "lobby", origin)  # type: ignore[arg-type]
    only = config(replies="origin")
    shown = {origin: is_delivered(only, "web", "lobby", origin) for origin in (None, "", "lobby", "desk")}  # type: ignore[arg-type]
    assert shown == {None: True, "": False, "lobby": True, "desk": False}
    assert is_delivered(only, "web", "web", "lobby"), "its own channel sees all of it"  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ no agent is there
@pytest.mark.parametrize("kind", ["resume", "genui_event", "client_tools", "client_skills", "abort", "regenerate"])
def test_what_is_for_agents_is_refused_where_the_channel_is_routed_to_none(kind: str) -> None:
    world = World(to=("lobby",))
    world.open()
    world.say()
    assert refused(world.person(kind, data='{"answers":{"x":1}}')) is RefusedReason.BOT_UNAVAILABLE
    assert isinstance(world.person("survey", data="{}")[0], PersonFrameCommitted)


def test_what_is_passed_on_is_refused_while_no_agent_is_there(world: World) -> None:
    assert isinstance(world.person("client_tools", data='{"tools":[]}')[0], PersonFrameCommitted)
    world.leave("a")
    assert refused(world.person("client_tools", data='{"tools":[]}')) is RefusedReason.BOT_UNAVAILABLE
    world.hand_over()
    assert isinstance(world.person("client_tools", data='{"tools":[]}')[0], PersonFrameCommitted)
