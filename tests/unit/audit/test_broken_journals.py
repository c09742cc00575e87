"""Whatever a journal holds, even what two writers wrote: the audit says what is wrong, and does not fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.audit.keys import KeysOnce
from ops.audit.order import GapFree, WriterEpochs
from ops.audit.owners import Owners
from ops.audit.refusals import NothingFenced
from ops.audit.replay import Replay
from ops.audit.runs import RunEpochs
from ops.audit.turns import NothingLost
from ops.audit.violations import Checker
from streams.core.events import Entry
from streams.core.fold import step
from streams.core.state import Partition
from tests.support.command_sequences import seeded_commands
from tests.support.journals import answered, continued, taken_over

pytestmark = pytest.mark.unit


def of_seed(seed: int) -> list[Entry]:
    state = Partition(0)
    return [entry for command in seeded_commands(seed, 150) for entry in step(state, command, 1)]


JOURNALS: list[Callable[[], list[Entry]]] = [
    lambda: answered().entries,
    lambda: taken_over().entries,
    lambda: continued().entries,
    lambda: of_seed(1),
    lambda: of_seed(2),
]


def audited(entries: list[Entry]) -> list[str]:
    checkers: list[Checker] = [
        GapFree(), WriterEpochs(), RunEpochs(), NothingLost(), NothingFenced(), KeysOnce(),
    ]  # fmt: skip
    replay = Replay(0)
    problems = []
    for entry in entries:
        problems += [problem for checker in checkers for problem in checker.see(entry)]
        if not replay.broken:
            problems += Owners(replay.state).see(entry)
            problems += replay.see(entry)
    replay.close()
    return problems


@given(st.sampled_from(JOURNALS), st.data())
def test_what_two_writers_wrote_is_found(journal: Callable[[], list[Entry]], data: st.DataObject) -> None:
    entries = journal()
    begin = data.draw(st.integers(0, len(entries) - 1))
    end = data.draw(st.integers(begin + 1, len(entries)))
    assert audited([*entries[:end], *entries[begin:]])


@given(st.sampled_from(JOURNALS), st.data())
def test_what_is_missing_is_found(journal: Callable[[], list[Entry]], data: st.DataObject) -> None:
    entries = journal()
    begin = data.draw(st.integers(0, len(entries) - 2))
    end = data.draw(st.integers(begin + 1, len(entries) - 1))
    assert audited([*entries[:begin], *entries[end:]])


@given(st.sampled_from(JOURNALS), st.data())
def test_what_is_in_another_order_is_found(journal: Callable[[], list[Entry]], data: st.DataObject) -> None:
    entries = journal()
    first = data.draw(st.integers(0, len(entries) - 2))
    entries[first], entries[first + 1] = entries[first + 1], entries[first]
    assert audited(entries)
