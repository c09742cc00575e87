"""Ended runs by column: either they come back as they were, or they are not packed."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.core.ended import packed_runs, unpacked_runs
from streams.core.ids import run_id
from streams.core.state import Conversation, EndedRun

HOME = "c1"
ORDINARY = "5f0f7f2e-6a39-4d19-9d3f-0e5f3e3b8a11"

seqs = st.integers(0, 10**18 - 1)
groups = st.text(max_size=8)
ids = st.uuids().map(str)
runs = st.builds(EndedRun, ids, st.integers(0, 3), st.lists(ids, max_size=2).map(tuple))
texts = st.one_of(st.text(max_size=12), st.sampled_from((f"{HOME}/01/g", f"{HOME}/-1/g", f"{HOME}/٣/g", f"{HOME}/1")))


def conversation(ended: dict[str, EndedRun]) -> Conversation:
    return Conversation(id=HOME, channel="web", ended=ended)


@given(st.dictionaries(st.builds(lambda seq, group: run_id(HOME, seq, group), seqs, groups), runs, min_size=1))
def test_runs_of_our_own_form_come_back_as_they_were(ended: dict[str, EndedRun]) -> None:
    packed = packed_runs(conversation(ended))
    assert packed is not None
    assert list(unpacked_runs(HOME, packed).items()) == list(ended.items())


@given(st.dictionaries(texts, runs, min_size=1))
def test_whatever_is_packed_comes_back_as_it_was(ended: dict[str, EndedRun]) -> None:
    packed = packed_runs(conversation(ended))
    assert packed is None or unpacked_runs(HOME, packed) == ended


@pytest.mark.parametrize(
    "turn_id",
    ["t1", "", UUID(ORDINARY).hex, ORDINARY.upper(), ORDINARY.replace("-", "", 1) + "-", f"{ORDINARY},{ORDINARY}"],
)
def test_a_turn_id_of_another_form_is_not_packed(turn_id: str) -> None:
    assert packed_runs(conversation({run_id(HOME, 1, "g"): EndedRun(turn_id, 0)})) is None


@pytest.mark.parametrize("id_", ["c2/1/g", "c1/1", "c1/01/g", "c1/-1/g", "c1/1~2/g", "c1/٣/g", f"c1/{10**18}/g"])
def test_a_run_id_of_another_form_is_not_packed(id_: str) -> None:
    assert packed_runs(conversation({id_: EndedRun(ORDINARY, 0)})) is None
