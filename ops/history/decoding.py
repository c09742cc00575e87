"""Entries of the journal's records, many at a time; a record that is none is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ops.history.port import Recorded
from streams.core.events import Entry
from streams.runtime.codec import Codec
from streams.runtime.records import Undecodable

AT_ONCE: Final = 250
"""Records that are decoded together by who looks at each entry many times: some 250 KB of entries, which stay in a
core's cache until all have looked. An audit of 4,000 at once took 17 % longer."""


def parts(chunk: Sequence[Recorded]) -> Iterator[Sequence[Recorded]]:
    """The chunk in pieces of `AT_ONCE`."""
    for begin in range(0, len(chunk), AT_ONCE):
        yield chunk[begin : begin + AT_ONCE]


def decode_chunk(codec: Codec, chunk: Sequence[Recorded]) -> list[Entry]:
    """The entries of a chunk, in order. `Undecodable` names the offset of the first record that is none."""
    decode = codec.decode_entry
    try:
        return [decode(recorded.value) for recorded in chunk]
    except Undecodable:
        return [_named(codec, recorded) for recorded in chunk]


def _named(codec: Codec, recorded: Recorded) -> Entry:
    try:
        return codec.decode_entry(recorded.value)
    except Undecodable as problem:
        raise Undecodable(problem.reason, f"the journal's record at offset {recorded.offset}: {problem}") from problem
