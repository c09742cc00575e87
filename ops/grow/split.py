"""What of an old partition's journal is a new partition's: pure.

The new count is a multiple of the old one, so that all conversations of a new partition come of one old partition, and
their order among each other, and with the partition's members and channels, is the one that they had. A new journal is
the old one without the other conversations: every event of the partition itself, and those of its own conversations,
with `lsn` counted anew; `seq`, `at`, `timestamp` and `writer_epoch` stay. What points at an `lsn` is pointed at the new
one. Intake positions are 0: the new intake is empty. It begins with an `OperatorActed`, which says what was done.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from streams.core.events import (
    BatchCommitted,
    Entry,
    Event,
    FrameCommitted,
    OperatorActed,
    PersonFrameCommitted,
    RunMoved,
    Unknown,
)
from streams.core.frame_types import CHECKPOINT
from streams.core.person_frames import RESUME
from streams.runtime.partitioning import partition_of

GROWN: Final = "topic grow"
"""`action` of the first event of a journal that was copied; batches whose positions are all 0 were decided before."""


T = TypeVar("T")


class CannotGrow(Exception):
    """It would do harm now, or cannot be right; the message says what has to be done first."""


def concerned(entry: Entry, new: Mapping[int, T], partitions: int) -> Iterable[T]:
    """Those of an old partition's `new` ones, out of `partitions`, that an entry of it may have something for."""
    conversation_id = entry.event.conversation_id
    if conversation_id is None:
        return new.values()
    found = new.get(partition_of(conversation_id, partitions))
    return () if found is None else (found,)


class Split:
    """The journal of one new partition, made of its old partition's entries, given in order from the first.

    Remembers 16 bytes for each checkpoint frame and each answer to a question, which are all that is pointed at.
    """

    def __init__(self, partition: int, partitions: int, *, begun: OperatorActed) -> None:
        self.partition = partition
        self.lsn = 0
        """Of the last entry made."""
        self._partitions = partitions
        self._begun = begun
        self._old = array("q")
        self._new = array("q")

    def take(self, entry: Entry) -> list[Entry]:
        """What the new journal has for an entry of the old one: nothing, it, or (of the first) the beginning and it.

        Raises `CannotGrow` for an event of a later release.
        """
        event = entry.event
        if isinstance(event, Unknown):
            raise CannotGrow(
                f"lsn {entry.lsn} is a {event.name}, which a later release wrote: use that release's command"
            )
        if (
            event.conversation_id is not None
            and partition_of(event.conversation_id, self._partitions) != self.partition
        ):
            return []
        made = [] if self.lsn else [self._numbered(msgspec.structs.replace(entry, writer_epoch=0), self._begun)]
        made.append(self._numbered(entry, self._pointed(entry.lsn, event)))
        if isinstance(event, FrameCommitted | PersonFrameCommitted) and event.frame.type in {CHECKPOINT, RESUME}:
            self._old.append(entry.lsn)
            self._new.append(self.lsn)
        return made

    def _numbered(self, entry: Entry, event: Event) -> Entry:
        self.lsn += 1
        return Entry(self.lsn, entry.at, entry.timestamp, entry.writer_epoch, event)

    def _pointed(self, lsn: int, event: Event) -> Event:
        if isinstance(event, BatchCommitted):
            return BatchCommitted(turns=0, frames=0, membership=0)
        if isinstance(event, RunMoved) and (event.checkpoint_lsn or event.answers):
            return msgspec.structs.replace(
                event,
                checkpoint_lsn=self._at(event.checkpoint_lsn, lsn) if event.checkpoint_lsn else 0,
                answers=tuple(self._at(each, lsn) for each in event.answers),
            )
        return event

    def _at(self, old: int, by: int) -> int:
        found = bisect_left(self._old, old)
        if found == len(self._old) or self._old[found] != old:
            raise CannotGrow(
                f"lsn {by} points at lsn {old}, no frame that it may point at: `turnlog audit verify` tells more"
            )
        return self._new[found]
