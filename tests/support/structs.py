"""Hypothesis strategies for the structs that travel in records, made from their types."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from streams.core.events import Entry
from streams.runtime.records import EVENTS

int64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
# Short numbers as often as long ones: most of a varint's edges lie among the short ones.
numbers = st.one_of(st.integers(min_value=-300, max_value=20_000), int64)
# All that UTF-8 can hold, NUL included; lone surrogates it cannot.
texts = st.one_of(
    st.text(st.characters(codec="ascii"), max_size=80), st.text(st.characters(codec="utf-8"), max_size=12)
)


def struct(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any instance of the struct `cls`, every field drawn from its type."""
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: value_of(hints[f.name]) for f in msgspec.structs.fields(cls)})


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    int: numbers,
    bytes: st.binary(max_size=40),
    type(None): st.none(),
}


def value_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of the type `hint`, for the types that structs in records have."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([value_of(arg) for arg in args])
    if origin is dict:
        return st.dictionaries(value_of(args[0]), value_of(args[1]), max_size=4)
    if origin is tuple and args[-1] is ...:
        return st.lists(value_of(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(value_of(arg) for arg in args))
    return st.sampled_from(hint) if issubclass(hint, Enum) else struct(hint)


events = st.sampled_from(sorted(EVENTS)).flatmap(lambda name: struct(EVENTS[name]))
entries = st.builds(Entry, lsn=numbers, at=numbers, timestamp=numbers, writer_epoch=numbers, event=events)
