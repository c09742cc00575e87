"""Invariant 10, of the table of older idempotency keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ops.audit.older_keys import NAMED_MOST, OlderKeys
from ops.audit.replay import Replay
from streams.core.state import KEYS_IN_ROW
from streams.core.store import dump_conversation
from tests.support.partition_world import World

pytestmark = pytest.mark.unit

SAID = KEYS_IN_ROW + 3


def rows_of(replay: Replay) -> list[dict[str, Any]]:
    """What a worker's checkpoint would put into the table."""
    [conversation] = replay.state.conversations.values()
    return [
        {
            "conversation_id": conversation.id,
            "key": key.fingerprint.hex(),
            "seq": key.seq,
            "id": key.id,
            "at": key.at,
            "timestamp": key.timestamp,
        }
        for key in dump_conversation(conversation)[1]
    ]


@pytest.fixture
def replay() -> Iterator[Replay]:
    """Of a conversation with more keys than its row takes."""
    world = World()
    world.join("a", settle=True)
    world.open()
    for number in range(SAID):
        world.say(key=f"k{number}")
    replay = Replay(0)
    for entry in world.journal:
        replay.see(entry)
    yield replay
    replay.close()


def compared(replay: Replay, rows: list[dict[str, Any]], until: int = 0) -> list[str]:
    for name in [*replay.state.conversations]:
        replay.row_of(name)
    older: OlderKeys = replay.older_keys
    return [each for row in rows for each in older.compare(row)] + [problem for _, problem in older.missing(until)]


def test_10_a_table_that_has_what_fell_out_of_the_rows_holds(replay: Replay) -> None:
    rows = rows_of(replay)
    assert len(rows) >= SAID - KEYS_IN_ROW
    assert compared(replay, rows) == []
    assert replay.split() == []
    assert compared(replay, rows) == [], "it was taken apart, and what fell out is known still"


def test_10_a_key_that_is_lost_is_found(replay: Replay) -> None:
    lost, *rows = rows_of(replay)
    [problem] = compared(replay, rows)
    assert lost["key"] in problem


def test_10_a_key_that_is_old_may_be_gone(replay: Replay) -> None:
    _, *rows = rows_of(replay)
    assert compared(replay, rows, until=replay.state.at) == []


@pytest.mark.parametrize("field", ["seq", "id", "at", "timestamp"])
def test_10_a_key_that_stands_for_something_else_is_found(replay: Replay, field: str) -> None:
    changed, *rows = rows_of(replay)
    changed[field] = "other" if field == "id" else changed[field] + 1
    [problem] = compared(replay, [changed, *rows])
    assert changed["key"] in problem


def test_10_a_key_that_nobody_took_is_found(replay: Replay) -> None:
    rows = rows_of(replay)
    [problem] = compared(replay, [*rows, {**rows[0], "key": "0011223344556677"}])
    assert "which a replay does not" in problem


def test_10_of_many_that_are_lost_the_first_are_named() -> None:
    older = OlderKeys()
    for number in range(NAMED_MOST + 5):
        older._rows.execute("INSERT INTO older VALUES ('c', ?, 1, '', 5, 5, 0)", (f"{number:016x}",))
    problems = [problem for _, problem in older.missing(4)]
    assert len(problems) == NAMED_MOST + 1
    assert problems[-1].startswith("5 more")
    older.close()
