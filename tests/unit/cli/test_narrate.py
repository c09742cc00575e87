"""Journal entries as a person reads them."""

from __future__ import annotations

import json

import pytest

from ops.cli.narrate import document, line, sentence
from streams.core.events import Frame, RunMoved, TurnCommitted
from tests.support.journals import CONVERSATION, answered, continued, ready, taken_over
from tests.support.partition_world import GROUP, World

pytestmark = pytest.mark.unit


def test_a_conversation_reads_as_a_story() -> None:
    journal = taken_over()
    story = [sentence(e.event) for e in journal.entries if e.event.conversation_id == CONVERSATION]
    assert story[0] == "the conversation is opened in channel web by someone"
    assert story[1].startswith("ana says: hello → gw-1.")
    moved = next(e.event for e in journal.entries if isinstance(e.event, RunMoved))
    to_and_from = f"turn 1 moves to {moved.to_member} from {moved.from_member} in agents/bots (epoch 2, member_left)"
    assert f"{to_and_from}; superseded: 2" in story
    assert story[-1] == f"turn 1 is answered in agents/bots by {moved.to_member} (message)"


def test_a_run_that_goes_on_where_it_stopped_is_told_as_such() -> None:
    journal = continued()
    told = [sentence(e.event) for e in journal.entries if isinstance(e.event, RunMoved)]
    assert len(told) == 1
    assert told[0].startswith("turn 1 continued by gw-1.")


def test_a_stream_that_the_dead_left_open_is_not_told_as_if_they_closed_it() -> None:
    journal = ready()
    journal.say()
    first = journal.owner
    journal.frame(first, "run", status="started")
    data = '{"type":"text","content":"half","id":1}'
    journal.frame(first, frame=Frame(id="f", type="genui", stream_id="s", data=data, client_id="f"))
    before = len(journal.entries)
    journal.leave(first)
    told = [sentence(entry.event) for entry in journal.entries[before:]]
    assert f"a stream that {first} left open is closed (run of turn 1)" in told
    assert not [each for each in told if each.startswith(f"{first} sends")]


def test_a_turn_that_nobody_can_take_says_whom_it_waits_for() -> None:
    journal = ready()
    journal.leave("gw-1.1")
    journal.leave("gw-1.2")
    journal.say("anyone?")
    assert sentence(journal.entries[-1].event) == "ana says: anyone?; waits for an agent of agents"


def test_long_and_broken_text_stays_on_one_line() -> None:
    journal = ready()
    journal.say("a\nb " + "x" * 500)
    told = line(journal.entries[-1])
    assert "\n" not in told
    assert "a b x" in told
    assert len(told) < 320


def test_an_entry_is_json_with_its_envelope_and_its_event() -> None:
    entry = answered().entries[-1]
    shown = json.loads(json.dumps(document(entry)))
    assert (shown["event"], shown["lsn"], shown["status"]) == ("RunEnded", entry.lsn, "answered")


def test_what_people_do_beside_their_turns_is_told() -> None:
    world = World()
    world.join("a", settle=True)
    world.open()
    world.say("where is it?")
    world.read("a", 1)
    world.send("a", "interrupt", id="ask")
    turn = world.of(TurnCommitted)[0].turn.id
    begun = len(world.journal)
    world.resume({"ask": "yes"})
    world.edit(turn, "where is ORD-43?")
    world.regenerate(turn)
    world.hand_over()
    world.hand_back()
    told = [sentence(entry.event) for entry in world.journal[begun:]]
    for expected in (
        f"ann sends resume → a in {GROUP}",
        "ann changes turn 1 to: where is ORD-43?; superseded: 2, 3",
        "ann wants another answer to turn 1",
        "op hands the conversation to desk: no agent is heard (asked)",
        "op gives the conversation back to agents (done)",
    ):
        assert expected in told, told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ('{"type":"text","content":"half ","id":1}', "half"),
        ('{"type":"event","name":"stream_done","id":2}', '{"type":"event","name":"stream_done","id":2}'),
        ('{"type":"text","content":7}', '{"type":"text","content":7}'),
        ("(43 characters)", "(43 characters)"),
    ],
)
def test_a_piece_of_a_stream_is_told_by_its_text(data: str, told: str) -> None:
    journal = ready()
    journal.say()
    frame = Frame(id="f", type="genui", stream_id="s", data=data, client_id="f")
    journal.frame(journal.owner, frame=frame)
    assert sentence(journal.entries[-1].event).endswith(f"sends genui (run of turn 1, epoch 1): {told}")
