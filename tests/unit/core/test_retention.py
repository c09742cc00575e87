"""A conversation that its channel keeps no longer is erased, unless something happened since it was looked at."""

from __future__ import annotations

import pytest

from streams.core.erasure import DAY_MS
from streams.core.events import ConversationErased, Duplicate, Event, Refused, RefusedReason, RunEnded, RunStatus
from streams.core.store import attach, dump_conversation, dump_partition, load_conversation, load_partition
from tests.support.partition_world import World

DAYS = 30


@pytest.fixture
def world() -> World:
    world = World(retain_days=DAYS)
    world.open()
    world.say()
    return world


def why_not(events: list[Event]) -> str:
    [refused] = events
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.NOT_DUE
    return refused.detail


def test_it_is_erased_by_its_channels_rule_once_it_was_idle_for_so_long(world: World) -> None:
    since = world.at
    world.at += DAYS * DAY_MS
    [erased] = world.erase_idle(since=since)
    assert erased == ConversationErased(
        "retention", f"retain_days {DAYS} of channel web", "erase", conversation_id="c", seq=2
    )
    assert world.conversation().erased


def test_a_moment_before_it_is_kept(world: World) -> None:
    since = world.at
    world.at += DAYS * DAY_MS - 1
    assert why_not(world.erase_idle(since=since)).startswith("idle_since: ")
    assert not world.conversation().erased


def test_who_came_back_just_before_is_not_forgotten(world: World) -> None:
    since, seen, as_of = world.at, world.conversation().head, world.state.lsn
    world.at += DAYS * DAY_MS
    world.say("here I am again")
    assert why_not(world.erase_idle(since=since, head=seen, as_of=as_of)) == "head_seq: 1 was the highest seq, 2 is now"


def test_neither_is_who_edited_what_was_said_which_has_no_number() -> None:
    world = World(retain_days=DAYS)
    world.open()
    world.hand_over()
    world.say(id="m-1")
    since, as_of = world.at, world.state.lsn
    world.at += DAYS * DAY_MS
    world.edit("m-1")
    assert why_not(world.erase_idle(since=since, as_of=as_of)).startswith("as_of_lsn: ")


def test_what_changed_in_other_conversations_since_matters_not(world: World) -> None:
    since, as_of = world.at, world.state.lsn
    world.at += DAYS * DAY_MS
    world.open("other")
    world.say(id_="other")
    [erased] = world.erase_idle(since=since, as_of=as_of)
    assert isinstance(erased, ConversationErased)


@pytest.mark.parametrize("channel", ["lobby", "web"], ids=["no rule", "rule taken away"])
def test_it_is_kept_where_its_own_channel_has_no_rule_now(world: World, channel: str) -> None:
    world.open("d", channel=channel)
    since = world.at
    world.at += DAYS * DAY_MS
    if channel == "web":
        world.configure(2)
    assert why_not(world.erase_idle("d", since=since)) == f"retain_days: channel {channel} keeps its conversations"


def test_a_longer_rule_that_came_meanwhile_holds(world: World) -> None:
    since = world.at
    world.at += DAYS * DAY_MS
    world.configure(2, retain_days=DAYS + 1)
    assert why_not(world.erase_idle(since=since)).startswith("idle_since: ")


def test_a_run_that_a_member_is_at_work_on_keeps_it_and_its_time_out_ends_that() -> None:
    world = World(retain_days=DAYS, watchdog_ms=60_000)
    world.join("a", settle=True)
    world.open()
    world.say()
    world.run("a", "started", delivered=1)
    since = world.at
    world.at += DAYS * DAY_MS
    assert why_not(world.erase_idle(since=since)).startswith("a member is at work on run c/1/")
    world.pass_time(1_000)
    [erased] = world.erase_idle(since=since)
    assert isinstance(erased, ConversationErased)


def test_a_question_that_nobody_answers_keeps_it_as_long_as_it_is_open() -> None:
    world = World(retain_days=1, interrupt_ttl_ms=2 * DAY_MS)
    world.join("a", settle=True)
    world.open()
    world.say()
    world.send("a", "interrupt", delivered=1)
    since = world.at
    world.at += DAY_MS
    assert why_not(world.erase_idle(since=since)).startswith("a member is at work")


def test_a_run_that_its_member_leaves_alone_does_not_keep_it_and_ends_with_it() -> None:
    world = World(retain_days=DAYS)
    world.join("a", settle=True)
    world.open()
    world.say()
    since = world.at
    world.at += DAYS * DAY_MS
    ended, erased = world.erase_idle(since=since)
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.reason) == (RunStatus.CANCELLED, "erased")
    assert isinstance(erased, ConversationErased)


def test_a_turn_that_waits_for_an_agent_for_ever_does_not_keep_it(world: World) -> None:
    assert world.conversation().waiting
    since = world.at
    world.at += DAYS * DAY_MS
    [erased] = world.erase_idle(since=since)
    assert isinstance(erased, ConversationErased)
    assert not world.state.waiting


def test_a_second_one_is_a_repeat_of_the_first(world: World) -> None:
    since = world.at
    world.at += DAYS * DAY_MS
    world.erase_idle(since=since)
    [again] = world.erase_idle(since=since, head=1, update="another")
    assert isinstance(again, Duplicate)
    assert (again.of_seq, again.id) == (2, "erase")


def test_it_is_decided_alike_of_a_conversation_that_was_loaded_again(world: World) -> None:
    since, as_of = world.at, world.state.lsn
    row, _ = dump_conversation(world.conversation())
    world.state = load_partition(dump_partition(world.state), 0)
    attach(world.state, load_conversation("c", row))
    world.at += DAYS * DAY_MS
    assert why_not(world.erase_idle(since=since, as_of=as_of - 2)).startswith("as_of_lsn: ")
    [erased] = world.erase_idle(since=since, as_of=as_of)
    assert isinstance(erased, ConversationErased)


def test_what_is_not_there_is_refused(world: World) -> None:
    [refused] = world.erase_idle("nowhere", since=0)
    assert isinstance(refused, Refused)
    assert refused.reason is RefusedReason.CONVERSATION_NOT_FOUND
