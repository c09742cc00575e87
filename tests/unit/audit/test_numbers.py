"""The numbers of stored frames that an audit remembers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ops.audit.numbers import FrameNumbers

NOTED = st.lists(st.tuples(st.sampled_from(("m1", "m2")), st.integers(1, 30)), max_size=60)


@given(NOTED)
def test_a_number_that_was_stored_before_is_found_where_it_was_stored_first(noted: list[tuple[str, int]]) -> None:
    numbers, stored = FrameNumbers(most=1_000), dict[tuple[str, int], int]()
    for lsn, (member, n) in enumerate(noted, start=1):
        assert numbers.note(member, n, lsn) == stored.get((member, n))
        stored.setdefault((member, n), lsn)


def test_the_last_ones_are_remembered_and_old_ones_forgotten() -> None:
    numbers = FrameNumbers(most=10)
    for n in range(1, 30):
        assert numbers.note("m1", n, 100 + n) is None
    assert numbers.note("m1", 20, 999) == 120
    assert numbers.note("m1", 5, 999) is None


def test_a_number_that_came_late_is_remembered_too() -> None:
    numbers = FrameNumbers(most=4)
    assert [numbers.note("m1", n, n) for n in (1, 3, 2, 4, 5)] == [None] * 5
    assert (numbers.note("m1", 2, 9), numbers.note("m1", 3, 9)) == (2, 3)
