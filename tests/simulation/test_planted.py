"""One planted violation of each invariant that a log shows: the whole audit finds it, and names the invariant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from streams.core.events import (
    BatchCommitted,
    Entry,
    Event,
    FrameCommitted,
    RunEnded,
    RunMoved,
    RunStarted,
    TurnCommitted,
    WriterOpened,
)
from tests.simulation.audited import audit
from tests.simulation.place import Place
from tests.simulation.schedule import Schedule

SEED = 1
"""Its schedule has takeovers, and more keys than a row takes."""

Journal = list[Entry]


@pytest.fixture(scope="module")
def played() -> Place:
    schedule = Schedule(SEED)
    outcome = schedule.run()
    assert not outcome.violations
    return schedule.place


@pytest.fixture
def place(played: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """What a schedule left behind, in which a test may plant something."""
    monkeypatch.setattr(played, "journal", played.journal)
    return played


def planted(place: Place, change: Callable[[Journal], Journal]) -> set[int]:
    """The invariants that the audit says are broken after this change of partition 0's journal."""
    whole = place.journal(0)
    changed = change([entry for _, entry in whole])
    offsets = [offset for offset, _ in whole] + [whole[-1][0] + 1]
    journal = list(zip(offsets, changed, strict=False))
    place.journal = lambda partition: journal if partition == 0 else []  # type: ignore[method-assign]
    return broken(place)


def broken(place: Place) -> set[int]:
    with place.entered():
        _, lines = audit(place)
    return {int(line.removeprefix("invariant ").partition(",")[0]) for line in lines}


def where(journal: Journal, kind: type[Event], wanted: Callable[[Any], bool] = lambda event: True) -> int:
    return next(index for index, entry in enumerate(journal) if isinstance(entry.event, kind) and wanted(entry.event))


def with_event(entry: Entry, **fields: object) -> Entry:
    return msgspec.structs.replace(entry, event=msgspec.structs.replace(entry.event, **fields))


def changed(kind: type[Event], wanted: Callable[[Any], bool] = lambda event: True, **fields: object) -> Any:
    def change(journal: Journal) -> Journal:
        index = where(journal, kind, wanted)
        return [*journal[:index], with_event(journal[index], **fields), *journal[index + 1 :]]

    return change


def missing(journal: Journal) -> Journal:
    index = where(journal, FrameCommitted)
    return [*journal[:index], *journal[index + 1 :]]


def of_an_earlier_epoch(journal: Journal) -> Journal:
    last = max(index for index, entry in enumerate(journal) if isinstance(entry.event, WriterOpened)) + 1
    return [*journal[:last], msgspec.structs.replace(journal[last], writer_epoch=0), *journal[last + 1 :]]


def given_to_another(journal: Journal) -> Journal:
    index = where(journal, TurnCommitted, lambda turn: bool(turn.assigned))
    turn = journal[index].event
    assert isinstance(turn, TurnCommitted)
    given = msgspec.structs.replace(turn.assigned[0], member="gw-g9.1.1")
    return [*journal[:index], with_event(journal[index], assigned=(given,)), *journal[index + 1 :]]


def stored_under_one_key(journal: Journal) -> Journal:
    first = where(journal, TurnCommitted, lambda turn: turn.turn.key is not None)
    key = journal[first].event.turn.key  # type: ignore[attr-defined]
    conversation = journal[first].event.conversation_id
    second = where(
        journal,
        TurnCommitted,
        lambda turn: turn.conversation_id == conversation and turn.turn.key not in {None, key},
    )
    turn = msgspec.structs.replace(journal[second].event.turn, key=key)  # type: ignore[attr-defined]
    return [*journal[:second], with_event(journal[second], turn=turn), *journal[second + 1 :]]


def ended_twice(journal: Journal) -> Journal:
    index = where(journal, RunEnded)
    return [*journal[: index + 1], *[_later(entry) for entry in journal[index:]]]


def _later(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, lsn=entry.lsn + 1)


def at_another_time(journal: Journal) -> Journal:
    batch = max(index for index, entry in enumerate(journal) if isinstance(entry.event, BatchCommitted))
    return [*journal[:batch], msgspec.structs.replace(journal[batch], at=journal[batch].at + 1), *journal[batch + 1 :]]


@pytest.mark.parametrize(
    ("invariant", "change"),
    [
        (1, missing),
        (1, changed(FrameCommitted, lambda frame: frame.seq > 0, seq=4_711)),
        (2, of_an_earlier_epoch),
        (3, given_to_another),
        (3, changed(RunMoved, lambda moved: moved.to_member is not None, to_member="gw-g9.1.1")),
        (4, changed(RunStarted, run_epoch=7)),
        (4, changed(FrameCommitted, lambda frame: frame.run_id is not None, run_epoch=7)),
        (5, changed(RunEnded, reason="")),
        (6, changed(FrameCommitted, lambda frame: frame.sender != "system", member="gw-g9.1.1")),
        (7, stored_under_one_key),
        (9, ended_twice),
        (11, changed(TurnCommitted, ref="nobody's")),
        (11, changed(BatchCommitted, lambda batch: batch.turns > 0, turns=0)),
        (12, at_another_time),
    ],
)
def test_it_is_found_and_named(place: Place, invariant: int, change: Callable[[Journal], Journal]) -> None:
    assert invariant in planted(place, change)


def test_10_a_checkpoint_of_another_state_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = place.database.store.checkpoints
    altered = msgspec.structs.replace(checkpoints[0], state=checkpoints[0].state + b"\0")
    monkeypatch.setitem(checkpoints, 0, altered)
    assert broken(place) == {10}


def test_10_an_older_key_that_is_lost_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = place.database.store.keys
    monkeypatch.delitem(keys, next(name for name, (of, _) in keys.items() if of == 0))
    assert broken(place) == {10}


def test_nothing_is_found_where_nothing_is_planted(place: Place) -> None:
    assert broken(place) == set()
