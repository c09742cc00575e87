"""Invariant 6: what was refused as fenced is nowhere to be seen, and nobody who is gone is heard."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import ClassVar, Final

from streams.core.events import (
    Entry,
    FrameCommitted,
    GatewayEnded,
    MemberJoined,
    MemberLeft,
    Refused,
    RefusedReason,
)
from streams.core.runs import SYSTEM

REFS_REMEMBERED: Final = 100_000
"""Refs of the last stored, refused and consumed frames. Two outcomes of one record would be one batch apart, and a
batch has at most this many records (`TURNLOG_BATCH_MAX`)."""


class NothingFenced:
    """6: no frame that was refused as fenced is stored, and every stored frame is from a member that is there.

    Also: a member's id is never used again, and an ended gateway brings no member.

    The intake is at least once. A frame without a key may lie in it twice, with one ref; where its run ended in
    between, one of the two is stored and the other is rightly refused. So both outcomes of a ref are held against the
    writer only once `account` has shown that the intake has one record of it. Whoever drives this calls it after each
    batch.
    """

    invariant: ClassVar[int] = 6

    def __init__(self) -> None:
        self._stored: OrderedDict[str, None] = OrderedDict()
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._consumed: OrderedDict[str, int] = OrderedDict()
        """Ref -> records of it that were consumed."""
        self._doubtful: list[tuple[str, str]] = []
        """Refs with both outcomes in this batch or an earlier one, and the problem if there was one record."""
        self._present: dict[str, str] = {}
        """Member -> group."""
        self._departed: set[str] = set()
        self._ended: set[str] = set()

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        match entry.event:
            case FrameCommitted() as frame:
                return self._frame(entry, frame)
            case Refused(reason=RefusedReason.FENCED, ref=str(ref)):
                _remember(self._refused, ref)
                if ref in self._stored:
                    self._doubt(entry, ref, "stored, and then refused as fenced")
            case MemberJoined() as joined:
                return self._joined(joined)
            case MemberLeft(member=member):
                self._departed.add(member)
                return [] if self._present.pop(member, None) else [f"{member} leaves and was not there"]
            case GatewayEnded(gateway=gateway):
                self._ended.add(gateway)
            case _:
                pass
        return []

    def account(self, refs: Iterable[str | None]) -> list[str]:
        """The refs of the frames that the batch which just ended consumed: what had two outcomes and was there once."""
        for ref in refs:
            if ref is not None:
                self._consumed[ref] = self._consumed.get(ref, 0) + 1
                if len(self._consumed) > REFS_REMEMBERED:
                    self._consumed.popitem(last=False)
        doubtful, self._doubtful = self._doubtful, []
        return [problem for ref, problem in doubtful if self._consumed.get(ref, 0) < 2]

    def skip(self) -> None:
        """The intake is kept no longer that far back: whether a frame was in it twice cannot be told."""
        self._doubtful = []

    def _doubt(self, entry: Entry, ref: str, what: str) -> None:
        self._doubtful.append((ref, f"the frame of ref {ref} was {what}, at lsn {entry.lsn}"))

    def _frame(self, entry: Entry, frame: FrameCommitted) -> list[str]:
        found: list[str] = []
        if frame.ref is not None:
            if frame.ref in self._refused:
                self._doubt(entry, frame.ref, "refused as fenced, and then stored")
            _remember(self._stored, frame.ref)
        if frame.sender == SYSTEM:
            return found
        group = self._present.get(frame.member)
        if group is None:
            found.append(f"a frame of {frame.member} is stored, who is not there")
        elif group != frame.group:
            found.append(f"a frame of {frame.member} is stored for group {frame.group}; it is in {group}")
        return found

    def _joined(self, joined: MemberJoined) -> list[str]:
        found = []
        if joined.member in self._departed:
            found.append(f"the member id {joined.member} is used again")
        if joined.member in self._present:
            found.append(f"{joined.member} joins and is there already")
        if joined.gateway in self._ended:
            found.append(f"{joined.member} joins through gateway {joined.gateway}, which has ended")
        self._present[joined.member] = joined.group
        return found


def _remember(refs: OrderedDict[str, None], ref: str) -> None:
    refs[ref] = None
    if len(refs) > REFS_REMEMBERED:
        refs.popitem(last=False)
