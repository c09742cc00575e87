"""Invariants 1 and 2: numbers without a gap, and writer epochs that never go back."""

from __future__ import annotations

from typing import ClassVar

from streams.core.events import Entry, WriterOpened


class GapFree:
    """1: `lsn` along the partition, and `seq` along each conversation, are 1, 2, 3 … without gap or repeat.

    Remembers the last `seq` of every conversation of the partition.
    """

    invariant: ClassVar[int] = 1

    def __init__(self) -> None:
        self._lsn = 0
        self._heads: dict[str, int] = {}

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        found = []
        if entry.lsn != self._lsn + 1:
            found.append(f"lsn {entry.lsn} follows {self._lsn}")
        self._lsn = entry.lsn
        conversation, seq = entry.event.conversation_id, entry.event.seq
        if seq == 0:
            return found
        if conversation is None:
            return [*found, f"an event of no conversation has seq {seq}"]
        head = self._heads.get(conversation, 0)
        if seq != head + 1:
            found.append(f"seq {seq} follows {head}")
        self._heads[conversation] = seq
        return found


class WriterEpochs:
    """2: writer epochs never go back along a partition, and each opens with its `WriterOpened`."""

    invariant: ClassVar[int] = 2

    def __init__(self) -> None:
        self._epoch = 0

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        known, epoch = self._epoch, entry.writer_epoch
        event = entry.event
        if isinstance(event, WriterOpened):
            self._epoch = max(known, epoch)
            found = [f"WriterOpened names epoch {event.writer_epoch}"] if event.writer_epoch != epoch else []
            return found if epoch > known else [*found, f"epoch {epoch} opens after epoch {known}"]
        if epoch == known:
            return []
        self._epoch = max(known, epoch)
        if epoch < known:
            return [f"written in epoch {epoch} after epoch {known}"]
        return [f"epoch {epoch} begins without WriterOpened"]
