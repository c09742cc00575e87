"""Invariants 1 and 2: numbers without a gap, and writer epochs that never go back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ops.audit.remembered import Remembered
from ops.audit.violations import Kinds
from streams.core.events import Entry, WriterOpened


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
        lsn, heads = self._lsn, self._heads.recent
        for entry in entries:
            if entry.lsn != lsn + 1:
                yield entry, f"lsn {entry.lsn} follows {lsn}"
            self._lsn = lsn = entry.lsn
            event = entry.event
            seq = event.seq
            if seq == 0:
                continue
            conversation = event.conversation_id
            if conversation is None:
                yield entry, f"an event of no conversation has seq {seq}"
                continue
            known = heads.get(conversation) or self._heads.get(conversation)
            head = 0 if known is None else known[0]
            if seq != head + 1:
                yield entry, f"seq {seq} follows {head}"
            heads[conversation] = (seq, 0)
        self._heads.relieve()

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
