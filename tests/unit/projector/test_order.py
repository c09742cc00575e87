"""Which records the read model takes: lsn + 1 and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.projector.order import Cut, JournalRecord, Stop, cut
from streams.projector.store import Position
from streams.runtime.codec import Codec
from tests.support.story import long_story

CODEC = Codec()
ENTRIES = long_story().entries


def offset_of(lsn: int) -> int:
    """Every third offset is a transaction's marker."""
    return lsn - 1 + (lsn - 1) // 2


RECORDS = [JournalRecord(0, offset_of(entry.lsn), CODEC.encode_entry(entry)) for entry in ENTRIES]
START = Position(0, 0)


def taken(position: Position, records: Sequence[JournalRecord]) -> Cut:
    return cut(position, records, CODEC.decode_entry)


def after(lsn: int) -> Position:
    return Position(lsn, offset_of(lsn) + 1)


def test_all_that_follows_is_taken_across_markers() -> None:
    whole = taken(START, RECORDS)
    assert list(whole.entries) == ENTRIES
    assert whole.upto == after(len(ENTRIES))
    assert whole.stop is None


def test_repeats_are_passed_over() -> None:
    again = taken(after(5), RECORDS[:8])
    assert [entry.lsn for entry in again.entries] == [6, 7, 8]
    nothing = taken(after(8), RECORDS[:8])
    assert (nothing.entries, nothing.upto, nothing.stop) == ([], after(8), None)


def test_a_gap_stops_before_it() -> None:
    stopped = taken(START, [*RECORDS[:3], *RECORDS[4:]])
    assert [entry.lsn for entry in stopped.entries] == [1, 2, 3]
    assert (stopped.stop, stopped.at, stopped.lsn, stopped.upto) == (Stop.GAP, RECORDS[4], 5, after(3))


def test_a_later_offset_with_an_old_lsn_is_of_another_journal() -> None:
    stopped = taken(after(9), [JournalRecord(0, offset_of(9) + 50, RECORDS[0].value)])
    assert (stopped.stop, stopped.lsn) == (Stop.FOREIGN, 1)


def test_an_earlier_offset_with_a_new_lsn_is_of_another_journal() -> None:
    stopped = taken(after(9), [JournalRecord(0, 2, RECORDS[9].value)])
    assert (stopped.stop, stopped.lsn, stopped.upto) == (Stop.FOREIGN, 10, after(9))


@pytest.mark.parametrize("value", [None, b"", b"garbage", RECORDS[2].value and RECORDS[2].value[:-1]])
def test_garbage_is_named_and_passed_over(value: bytes | None) -> None:
    garbage = JournalRecord(0, 2, value)
    result = taken(START, [*RECORDS[:2], garbage, *RECORDS[2:]])
    assert list(result.entries) == ENTRIES
    assert [(record, bool(reason)) for record, reason in result.garbage] == [(garbage, True)]


@given(st.data())
def test_whatever_is_delivered_the_entries_are_those_that_follow(data: st.DataObject) -> None:
    """Any pieces of the journal, in any order and overlapping: what is taken is always 1, 2, 3 … without a gap."""
    position, seen = START, list[int]()
    for _ in range(data.draw(st.integers(1, 8))):
        first = data.draw(st.integers(0, len(RECORDS) - 1))
        last = data.draw(st.integers(first, len(RECORDS)))
        result = taken(position, RECORDS[first:last])
        assert result.stop is not Stop.FOREIGN
        seen += [entry.lsn for entry in result.entries]
        position = result.upto
    assert seen == list(range(1, len(seen) + 1))
