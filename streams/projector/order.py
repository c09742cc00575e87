"""Which journal record may follow which: the read model takes lsn + 1 and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from streams.core.events import Entry
from streams.projector.store import Position
from streams.runtime.records import Undecodable


class JournalRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of the journal as it was read."""

    partition: int
    offset: int
    value: bytes | None
    traceparent: bytes | None = None
    """Where tracing is on: of the trace that it is of."""


class Stop(StrEnum):
    """Why a run of records could not be taken to its end."""

    GAP = "gap"
    """The next one is missing: it was not delivered here, or is not in the journal."""
    FOREIGN = "foreign"
    """The record cannot be of the journal that the read model was built from."""


class Cut(msgspec.Struct, frozen=True):
    """What can be taken of a run of records: these entries, up to this position; and where and why it stopped."""

    entries: Sequence[Entry]
    upto: Position
    garbage: Sequence[tuple[JournalRecord, str]] = ()
    """Records that are no journal entries, and why. They have no lsn: a gap shows whether one was lost in them."""
    stop: Stop | None = None
    at: JournalRecord | None = None
    """The record it stopped at."""
    lsn: int = 0
    """The lsn of that record."""


def cut(position: Position, records: Sequence[JournalRecord], decode: Callable[[bytes | None], Entry]) -> Cut:
    """The entries of `records`, in offset order, that follow `position` without a gap; repeats are passed over."""
    entries: list[Entry] = []
    garbage: list[tuple[JournalRecord, str]] = []
    lsn, next_offset = position.lsn, position.journal_offset
    for record in records:
        try:
            entry = decode(record.value)
        except Undecodable as error:
            if record.offset >= next_offset:
                garbage.append((record, str(error)))
            continue
        stop = _judge(lsn, next_offset, entry.lsn, record.offset)
        if stop is not None:
            return Cut(entries, Position(lsn, next_offset), garbage, stop, record, entry.lsn)
        if entry.lsn > lsn:
            entries.append(entry)
            lsn, next_offset = entry.lsn, record.offset + 1
    return Cut(entries, Position(lsn, next_offset), garbage)


def _judge(lsn: int, next_offset: int, new_lsn: int, offset: int) -> Stop | None:
    """None: a repeat or the next one. Along one journal lsn and offset grow together."""
    if (new_lsn > lsn) != (offset >= next_offset):
        return Stop.FOREIGN
    return Stop.GAP if new_lsn > lsn + 1 else None
