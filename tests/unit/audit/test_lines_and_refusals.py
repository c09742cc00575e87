"""Invariants 3 to 5 where runs wait in line, are refused, or call an agent: broken journals are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pytest

from ops.audit.owners import Owners
from ops.audit.replay import Replay
from ops.audit.runs import RunEpochs
from ops.audit.turns import NothingLost
from ops.audit.violations import Checker
from streams.core.events import Assignment, ConfigChanged, Entry, Event, RunMoved, RunOpened, TurnCommitted
from tests.support.partition_world import GROUP, World

pytestmark = pytest.mark.unit


def found(checker: Checker, entries: Iterable[Entry]) -> list[str]:
    return [problem for entry in entries for problem in checker.see(entry)]


def refolded(entries: Iterable[Entry]) -> list[str]:
    """Problems of invariant 3 up to the first entry that cannot follow."""
    replay = Replay(0)
    problems: list[str] = []
    for entry in entries:
        problems += Owners(replay.state).see(entry)
        if replay.see(entry):
            break
    replay.close()
    return problems


def in_line() -> World:
    """Two turns, one after another; the second waited in line."""
    world = World(policy="enqueue")
    world.join("a", settle=True)
    world.open()
    world.say()
    world.say("second")
    world.run("a", "started", delivered=1)
    world.run("a", "finished", delivered=1)
    world.send("a", run=f"c/2/{GROUP}", epoch=1)
    return world


def refused() -> World:
    """A run that every member refused, and that one of them took later; and a call that all refused."""
    world = World()
    world.join("a", settle=True)
    world.join("b", settle=True)
    world.open()
    world.say()
    for epoch in (1, 2):
        world.refuse(world.conversation().runs[f"c/1/{GROUP}"].member or "", f"c/1/{GROUP}", epoch=epoch)
    world.pass_time(1_000)
    world.open("d")
    world.call(id_="d")
    for epoch in (1, 2):
        run = world.conversation("d").runs[f"d/1/{GROUP}"]
        world.refuse(run.member or "", run.id, "d", epoch=epoch)
    return world


def called() -> World:
    """Calls of a thread, one after another."""
    world = World()
    world.join("a", settle=True)
    world.open()
    world.call("i")
    world.call("j", policy="enqueue")
    world.run("a", "finished", run=f"c/1/{GROUP}", epoch=1)
    world.call("k", policy="interrupt")
    return world


def changed(world: World, kind: type[Event], nth: int, **fields: object) -> list[Entry]:
    """Its journal, with the nth event of this kind changed."""
    [index] = [i for i, entry in enumerate(world.journal) if isinstance(entry.event, kind)][nth : nth + 1]
    entries = list(world.journal)
    event = msgspec.structs.replace(entries[index].event, **fields)
    entries[index] = msgspec.structs.replace(entries[index], event=event)
    return entries


@pytest.mark.parametrize("journal", [in_line, refused, called])
def test_what_the_core_made_breaks_nothing(journal: Callable[[], World]) -> None:
    entries = journal().journal
    assert refolded(entries) == []
    for checker in (RunEpochs(), NothingLost()):
        assert found(checker, entries) == []


def test_what_became_of_turns_in_line_is_counted_and_a_refusal_is_no_takeover() -> None:
    lost = NothingLost()
    found(lost, in_line().journal)
    tally = lost.settle()
    assert (tally.turns, tally.answered, tally.open) == (2, 2, 0)
    lost = NothingLost()
    found(lost, refused().journal)
    tally = lost.settle()
    assert (tally.turns, tally.ended, tally.open, tally.takeovers) == (2, 1, 1, 0)


def test_3_a_turn_that_overtakes_the_line_is_found() -> None:
    given = Assignment(GROUP, "a", f"c/2/{GROUP}")
    [problem] = refolded(changed(in_line(), TurnCommitted, 1, queued=(), assigned=(given,)))[:1]
    assert "deciding again gives [], ['agents/support']" in problem


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("reject", f"turn 2 was taken, for which {GROUP} has no place now"),
        ("interrupt", f"turn 2 was given to {GROUP} beside what it interrupts"),
    ],
)
def test_3_a_turn_that_is_taken_against_its_groups_policy_is_found(policy: str, problem: str) -> None:
    world = World(policy="deliver")
    world.join("a", settle=True)
    world.open()
    world.say()
    world.say("second")
    document = world.of(ConfigChanged)[0].document.replace('"deliver"', f'"{policy}"')
    assert problem in refolded(changed(world, ConfigChanged, 0, document=document))


def test_3_a_turn_beyond_what_may_wait_in_line_is_found() -> None:
    world = World(policy="enqueue", max_waiting=2)
    world.join("a", settle=True)
    world.open()
    for text in ("first", "second", "third"):
        world.say(text)
    document = world.of(ConfigChanged)[0].document.replace('"max_waiting": 2', '"max_waiting": 1')
    assert f"turn 3 was taken, for which {GROUP} has no place now" in refolded(
        changed(world, ConfigChanged, 0, document=document)
    )


def test_3_a_run_that_leaves_the_line_too_early_is_found() -> None:
    world = in_line()
    index = next(i for i, entry in enumerate(world.journal) if isinstance(entry.event, RunOpened))
    replay = Replay(0)
    for entry in world.journal[: index - 1]:  # before the first one's end
        replay.see(entry)
    [problem] = Owners(replay.state).see(world.journal[index])
    replay.close()
    assert "leaves the line while c/1/agents/support" in problem


def test_3_a_refused_run_that_goes_to_a_refuser_is_found() -> None:
    world = refused()
    first = world.of(RunMoved)[0]
    wrong = "a" if first.to_member == "b" else "b"
    assert any("was refused" in problem for problem in refolded(changed(world, RunMoved, 0, to_member=wrong)))


def test_3_a_call_that_runs_beside_another_is_found() -> None:
    given = Assignment(GROUP, "a", f"c/2/{GROUP}")
    assert refolded(changed(called(), TurnCommitted, 1, queued=(), assigned=(given,)))


def test_4_a_run_that_is_opened_twice_is_found() -> None:
    world = in_line()
    again = next(entry for entry in world.journal if isinstance(entry.event, RunOpened))
    assert found(RunEpochs(), [*world.journal[: world.journal.index(again) + 1], again]) == [
        f"run c/2/{GROUP} is opened twice"
    ]


def test_5_a_turn_in_line_that_is_never_heard_of_again_is_open() -> None:
    lost = NothingLost()
    found(lost, [entry for entry in in_line().journal if getattr(entry.event, "turn_seq", 1) != 2])
    assert lost.settle().open == 1
