"""Invariants 1 and 2: numbers without a gap, and writer epochs that never go back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import ClassVar

from ops.audit.remembered import Remembered
from ops.audit.violations import Kinds
from streams.core.events import Entry, WriterOpened

_lsn, _writer_epoch, _event = attrgetter("lsn"), attrgetter("writer_epoch"), attrgetter("event")


class GapFree:
    """1: `lsn` along the partition, and `seq` along each conversation, are 1, 2, 3 … without gap or repeat.

    Remembers the last `seq` of every conversation of the partition.
    """

    invariant: ClassVar[int] = 1
    kinds: ClassVar[Kinds] = ()

    def __init__(self) -> None:
        self._lsn = 0
        self._heads = Remembered()

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        return [problem for _, problem in self.see_all((entry,))]

    def see_all(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
        """What each of them breaks."""
        lsns = [*map(_lsn, entries)]
        if lsns != [*range(self._lsn + 1, self._lsn + 1 + len(lsns))]:
            yield from self._gaps(entries)
        self._lsn = lsns[-1] if lsns else self._lsn
        heads: dict[str, int] = {}
        for entry in entries:
            event = entry.event
            seq = event.seq
            if seq == 0:
                continue
            conversation = event.conversation_id
            if conversation is None:
                yield entry, f"an event of no conversation has seq {seq}"
                continue
            head = heads.get(conversation)
            if head is None:
                known = self._heads.get(conversation)
                head = 0 if known is None else known[0]
            if seq != head + 1:
                yield entry, f"seq {seq} follows {head}"
            heads[conversation] = seq
        self._heads.recent.update({conversation: (seq, 0) for conversation, seq in heads.items()})
        self._heads.relieve()

    def _gaps(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
        for lsn, entry in zip([self._lsn, *(entry.lsn for entry in entries)], entries, strict=False):
            if entry.lsn != lsn + 1:
                yield entry, f"lsn {entry.lsn} follows {lsn}"

    def close(self) -> None:
        """Remove what lies on disk."""
        self._heads.close()


class WriterEpochs:
    """2: writer epochs never go back along a partition, and each opens with its `WriterOpened`."""

    invariant: ClassVar[int] = 2
    kinds: ClassVar[Kinds] = ()

    def __init__(self) -> None:
        self._epoch = 0

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        return [problem for _, problem in self.see_all((entry,))]

    def see_all(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
        """What each of them breaks."""
        if {*map(_writer_epoch, entries)} == {self._epoch} and WriterOpened not in map(type, map(_event, entries)):
            return
        for entry in entries:
            if entry.writer_epoch != self._epoch or type(entry.event) is WriterOpened:
                for problem in self._changed(entry):
                    yield entry, problem

    def _changed(self, entry: Entry) -> list[str]:
        known, epoch = self._epoch, entry.writer_epoch
        self._epoch = max(known, epoch)
        event = entry.event
        if isinstance(event, WriterOpened):
            found = [f"WriterOpened names epoch {event.writer_epoch}"] if event.writer_epoch != epoch else []
            return found if epoch > known else [*found, f"epoch {epoch} opens after epoch {known}"]
        if epoch < known:
            return [f"written in epoch {epoch} after epoch {known}"]
        return [f"epoch {epoch} begins without WriterOpened"]
