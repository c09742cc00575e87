"""An erased conversation is closed for ever, and nothing of its order changes."""

from __future__ import annotations

import pytest

from streams.core.events import (
    ConversationErased,
    Duplicate,
    Refused,
    RefusedReason,
    RunEnded,
    RunStatus,
    TurnCommitted,
)
from streams.core.limits import ID_MAX_BYTES
from streams.core.store import dump_conversation, load_conversation
from tests.support.partition_world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", settle=True)
    world.open()
    return world


def test_an_erasure_ends_what_is_open_and_is_numbered(world: World) -> None:
    world.say()
    ended, erased = world.erase(ref="r")
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.CANCELLED, "erased")
    assert erased == ConversationErased("op", "asked", "erase", "r", conversation_id="c", seq=2)


def test_nothing_is_said_in_it_any_more(world: World) -> None:
    world.erase()
    for [event] in (world.say(), world.reopen(), world.hand_over()):
        assert isinstance(event, Refused)
        assert event.reason is RefusedReason.CONVERSATION_CLOSED


@pytest.mark.parametrize("closed", [False, True])
def test_no_survey_is_taken_in_it_as_it_is_in_one_that_is_closed(world: World, *, closed: bool) -> None:
    if closed:
        world.close()
    world.erase()
    [event] = world.person("survey", data='{"comment":"my name is Anna"}')
    assert isinstance(event, Refused)
    assert event.reason is RefusedReason.CONVERSATION_CLOSED


def test_a_closed_conversation_can_be_erased(world: World) -> None:
    world.close()
    [erased] = world.erase()
    assert isinstance(erased, ConversationErased)


def test_a_second_erasure_is_a_repeat_of_the_first(world: World) -> None:
    world.erase()
    [again] = world.erase(ref="r2", update="another")
    assert isinstance(again, Duplicate)
    assert (again.of_seq, again.id, again.ref) == (1, "erase", "r2")


def test_what_is_not_there_cannot_be_erased(world: World) -> None:
    [refused] = world.erase("nowhere")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.CONVERSATION_NOT_FOUND


def test_an_impossible_id_of_the_update_is_refused(world: World) -> None:
    [refused] = world.erase(update="x" * (ID_MAX_BYTES + 1))
    assert isinstance(refused, Refused)
    assert refused.detail.startswith("id: ")


def test_a_turn_that_waits_for_a_group_waits_no_more(world: World) -> None:
    world.leave("a")
    [turn] = [event for event in world.say() if isinstance(event, TurnCommitted)]
    assert turn.waiting or turn.assigned[0].member is None
    world.erase()
    assert not [event for event in world.join("b", settle=True) if event.conversation_id == "c"]


def test_it_stays_erased_in_its_row(world: World) -> None:
    world.erase()
    row, _ = dump_conversation(world.state.conversations["c"])
    assert load_conversation("c", row).erased
