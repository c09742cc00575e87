"""Rule 1: a repeat is told from something new before every other refusal, and stores nothing else."""

from __future__ import annotations

import pytest

from streams.core import keys
from streams.core.commands import CommitTurn
from streams.core.events import Duplicate, FrameCommitted, Refused, RefusedReason, RunEnded, Turn, TurnCommitted
from streams.core.fold import decide
from streams.core.ids import key_digest, message_id
from streams.core.state import ENDED_RUNS_KEPT, KEY_LIFETIME_MS, KEYS_IN_ROW
from streams.core.store import attach, detach, dump_conversation, load_conversation, mark_stored
from tests.support.partition_world import GROUP, World


@pytest.fixture
def world() -> World:
    world = World()
    world.join("a", settle=True)
    world.open()
    return world


def test_a_repeated_key_gets_the_first_turns_ack(world: World) -> None:
    world.say("one", key="k", ref="r1")
    first = world.of(TurnCommitted)[0]
    first_wall = world.journal[-1].timestamp
    world.pass_time(5000)
    assert world.say("something else", key="k", ref="r2", client_id="c-9") == [
        Duplicate(
            conversation_id="c", ref="r2", of_seq=1, id=first.turn.id, of_timestamp=first_wall, key="user:ann:k",
            client_id="c-9",
        )
    ]  # fmt: skip
    assert len(world.of(TurnCommitted)) == 1


def test_the_same_key_of_another_sender_is_another_turn(world: World) -> None:
    world.say(key="k", sender="ann")
    world.say(key="k", sender="bob")
    assert [turn.seq for turn in world.of(TurnCommitted)] == [1, 2]


def test_a_repeat_to_a_closed_conversation_is_a_repeat_not_a_refusal(world: World) -> None:
    world.say(key="k")
    world.close()
    [event] = world.say(key="k")
    assert isinstance(event, Duplicate)


def test_a_repeat_that_is_too_large_now_is_a_repeat(world: World) -> None:
    world.say(key="k")
    [event] = world.say("x" * 100_000, key="k")
    assert isinstance(event, Duplicate)


def test_opening_again_with_the_same_key_is_a_repeat_and_without_it_is_refused(world: World) -> None:
    world.open("d", key="k")
    [again] = world.open("d", key="k", ref="r2")
    assert isinstance(again, Duplicate)
    assert (again.ref, again.of_seq, again.id) == ("r2", 0, "d")
    for key in (None, "other"):
        [refused] = world.open("d", key=key)
        assert isinstance(refused, Refused)
        assert refused.reason is RefusedReason.CONVERSATION_EXISTS


def test_a_resent_frame_is_a_repeat_whoever_sends_it(world: World) -> None:
    world.join("b", settle=True)
    world.say()
    holder = world.conversation().runs[f"c/1/{GROUP}"].member
    other = "b" if holder == "a" else "a"
    world.run(holder or "", "started", delivered=1)
    world.send(holder or "", client_id="m1", delivered=1)
    stored = world.of(FrameCommitted)[-1]
    assert stored.frame.id == message_id("c", stored.key or "")
    for sender in (holder, other):
        [event] = world.send(sender or "", client_id="m1", run=f"c/1/{GROUP}")
        assert isinstance(event, Duplicate)
        assert (event.of_seq, event.id, event.client_id) == (2, stored.frame.id, "m1")


def test_a_resent_answer_that_ended_its_run_is_a_repeat_from_the_reconnected_member_too(world: World) -> None:
    world.say()
    world.send("a", client_id="m1", delivered=1)
    assert len(world.of(RunEnded)) == 1
    world.leave("a")
    world.join("a2", settle=True)
    [event] = world.send("a2", client_id="m1")
    assert isinstance(event, Duplicate)


def test_a_resent_answer_that_names_its_turn_finds_it_after_its_run_ended(world: World) -> None:
    world.say()
    client_id = f"p.{world.of(TurnCommitted)[0].turn.id}.m1"
    world.send("a", client_id=client_id, delivered=1)
    world.say()
    [event] = world.send("a", client_id=client_id, delivered=2)
    assert isinstance(event, Duplicate)
    assert event.of_seq == 2


def test_ended_runs_are_remembered_for_a_while_only(world: World) -> None:
    for number in range(2 * ENDED_RUNS_KEPT):
        world.say()
        world.send("a", client_id="m1", delivered=99 + number)
    assert len(world.conversation().ended) == ENDED_RUNS_KEPT


def test_another_runs_frame_of_the_same_client_id_is_no_repeat(world: World) -> None:
    for seq in (1, 3):
        world.say()
        world.send("a", client_id="msg-1", delivered=seq)
    assert [frame.seq for frame in world.of(FrameCommitted)] == [2, 4]
    assert len({frame.frame.id for frame in world.of(FrameCommitted)}) == 2


def test_a_resent_answer_is_a_repeat_though_its_sender_has_a_later_turn_already(world: World) -> None:
    """An agent that names neither run nor turn reconnects: its answer to turn 1 must not answer turn 2 as well."""
    world.say()
    [stored, ended] = world.send("a", client_id="m1", delivered=1)
    assert isinstance(stored, FrameCommitted)
    assert isinstance(ended, RunEnded)
    world.say()
    world.leave("a")
    world.join("a2", watermarks={"c": 3})
    [again] = world.send("a2", client_id="m1", delivered=3)
    assert isinstance(again, Duplicate)
    assert again.of_seq == stored.seq
    assert isinstance(world.send("a2", client_id="m2", delivered=3)[-1], RunEnded)


def test_a_resent_answer_is_a_repeat_though_a_later_run_of_its_sender_was_begun_before(world: World) -> None:
    for _ in range(3):
        world.say()
    for seq in (2, 3):
        world.run("a", "started", run=f"c/{seq}/{GROUP}")
    world.run("a", "finished", run=f"c/3/{GROUP}")
    [stored, _] = world.send("a", client_id="m1", delivered=1)
    [again] = world.send("a", client_id="m1", delivered=1)
    assert isinstance(again, Duplicate)
    assert again.of_seq == stored.seq


def test_a_resent_frame_that_names_the_turn_which_answered_an_ask_is_a_repeat_after_its_run_too(world: World) -> None:
    world.say()
    world.run("a", "started", delivered=1)
    world.send("a", "interrupt", id="ask-1")
    answer = world.say()[-1]
    assert isinstance(answer, TurnCommitted)
    assert answer.joins_run is not None
    client_id = f"agent.{answer.turn.id}.m1"
    [stored] = world.send("a", client_id=client_id, delivered=3)
    world.run("a", "finished")
    [again] = world.send("a", client_id=client_id, delivered=3)
    assert isinstance(again, Duplicate)
    assert again.of_seq == stored.seq


def test_a_resent_answer_to_many_turns_at_once_is_a_repeat(world: World) -> None:
    for _ in range(ENDED_RUNS_KEPT + 2):
        world.say()
    [stored, *_] = world.send("a", client_id="m1", delivered=ENDED_RUNS_KEPT + 2)
    [again] = world.send("a", client_id="m1", delivered=ENDED_RUNS_KEPT + 2)
    assert isinstance(again, Duplicate)
    assert again.of_seq == stored.seq


def test_superseded_frames_free_their_keys_and_ids(world: World) -> None:
    world.say()
    world.chunk("a", "s", client_id="m1", delivered=1)
    world.join("b", settle=True)
    world.leave("a")
    world.chunk("b", "s", client_id="m1", delivered=1)
    first, _, second = world.of(FrameCommitted)
    assert first.frame.id != second.frame.id
    assert first.key != second.key
    assert second.frame.stream_id == "s#1", "a reused stream is a new one to viewers"


def test_keys_younger_than_a_day_are_kept_whatever_their_number(world: World) -> None:
    for index in range(KEYS_IN_ROW + 40):
        world.say(key=f"k{index}")
    assert isinstance(world.say(key="k0")[-1], Duplicate)


def test_keys_beyond_the_newest_64_count_for_a_day(world: World) -> None:
    world.say(key="old")
    world.at += KEY_LIFETIME_MS
    for index in range(KEYS_IN_ROW - 1):
        world.say(key=f"k{index}")
    assert isinstance(world.say(key="old")[-1], Duplicate), "still among the newest 64"
    world.say(key="one-more")
    assert isinstance(world.say(key="old")[-1], TurnCommitted)
    for index in range(40):
        world.say(key=f"more{index}")
    assert isinstance(world.say(key="old")[-1], Duplicate), "the second one counts now"


def fingerprint(key: str) -> bytes:
    return key_digest("c", key)[: keys.FINGERPRINT_BYTES]


def test_old_keys_leave_memory(world: World) -> None:
    for index in range(500):
        world.say(key=f"k{index}")
        world.at += KEY_LIFETIME_MS // 100
    conversation = world.conversation()
    assert len(conversation.keys) < 130


def test_evicted_keys_come_back_from_the_table_before_a_keyed_command(world: World) -> None:
    world.state.plans.clear()
    for index in range(KEYS_IN_ROW + 10):
        world.say(key=f"k{index}")
    world.close()
    conversation = world.conversation()
    row, overflow = dump_conversation(conversation)
    assert [key.fingerprint for key in overflow] == [fingerprint(f"user:ann:k{index}") for index in range(10)]
    mark_stored(conversation, overflow)
    assert dump_conversation(conversation) == (row, ())
    world.state.dirty.clear()
    detach(world.state, "c")
    loaded = load_conversation("c", row)
    attach(world.state, loaded)
    assert loaded.older_keys
    keys.restore_older(loaded, [(key.fingerprint, key.seq, key.id, key.at, key.timestamp) for key in overflow])
    assert not world.conversation().older_keys
    assert list(loaded.older) == [fingerprint(f"user:ann:k{index}") for index in range(10)]
    assert dump_conversation(loaded) == (row, ()), "they are in the table already"
    [event] = world.say(key="k3")
    assert isinstance(event, Duplicate)
    assert event.of_seq == 4


def test_a_turn_without_a_key_is_stored_each_time(world: World) -> None:
    turn = Turn(id="same", sender="ann", channel="web", type="text", text="hi")
    command = CommitTurn(at=world.at, timestamp=world.wall, conversation_id="c", turn=turn)
    for _ in range(2):
        assert isinstance(decide(world.state, command)[0], TurnCommitted)
        world.do(command)
    assert world.conversation().head == 2


def test_keys_are_found_however_many_were_taken_while_the_conversation_was_busy(world: World) -> None:
    stored = {f"k{index}": 0 for index in range(10 + 70)}
    for key in list(stored)[:10]:
        stored[key] = said(world, key)
    world.close()
    world.reopen()
    for key in list(stored)[10:]:
        stored[key] = said(world, key)
    world.close()
    for key, seq in stored.items():
        [again] = world.say(key=key)
        assert isinstance(again, Duplicate)
        assert (again.of_seq, again.id) == (seq, message_id("c", f"user:ann:{key}"))


def said(world: World, key: str) -> int:
    return next(event.seq for event in world.say(key=key) if isinstance(event, TurnCommitted))


def test_an_id_of_anothers_making_and_times_that_do_not_fit_are_kept_whole(world: World) -> None:
    turn = Turn(id="not-derived", sender="ann", channel="web", type="text", key="k", text="x")
    world.do(CommitTurn(at=world.at, timestamp=world.at + (1 << 40), conversation_id="c", turn=turn))
    world.close()
    conversation = world.conversation()
    assert (list(conversation.odd_keys), conversation.keys) == ([conversation.keys_issued], {})
    loaded = load_conversation("c", dump_conversation(conversation)[0])
    for each in (conversation, loaded):
        record = keys.find(each, "user:ann:k", world.at)
        assert record is not None
        assert (record.id, record.timestamp) == ("not-derived", world.at + (1 << 40))
