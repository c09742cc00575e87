"""Invariant 6: what was refused as fenced is nowhere to be seen, and nobody who is gone is heard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from ops.audit.remembered import Recent, Remembered
from ops.audit.violations import NOTHING, Kinds, Problems, Seeing
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
GONE_RESIDENT: Final = 50_000
"""Members, and gateways, that are gone and in memory, some 250 bytes each: 25 MB at most."""


class NothingFenced(Seeing):
    """6: no frame that was refused as fenced is stored, and every stored frame is from a member that is there.

    Also: a member's id is never used again, and an ended gateway brings no member.

    The intake is at least once. A frame without a key may lie in it twice, with one ref; where its run ended in
    between, one of the two is stored and the other is rightly refused. So both outcomes of a ref are held against the
    writer only once `account` has shown that the intake has one record of it. Whoever drives this calls it after each
    batch.
    """

    invariant: ClassVar[int] = 6
    kinds: ClassVar[Kinds] = (FrameCommitted, Refused, MemberJoined, MemberLeft, GatewayEnded)

    def __init__(self) -> None:
        self._stored = Recent(REFS_REMEMBERED)
        self._refused = Recent(REFS_REMEMBERED)
        self._consumed: deque[Sequence[str | None]] = deque()
        """Refs of the frames that the last batches consumed, a sequence each."""
        self._consumed_count = 0
        self._doubtful: list[tuple[str, str]] = []
        """Refs with both outcomes in this batch or an earlier one, and the problem if there was one record."""
        self._present: dict[str, str] = {}
        """Member -> group."""
        self._departed = Remembered(GONE_RESIDENT)
        self._ended = Remembered(GONE_RESIDENT)

    def account(self, refs: Sequence[str | None]) -> list[str]:
        """The refs of the frames that the batch which just ended consumed: what had two outcomes and was there once."""
        if refs:
            self._consumed.append(refs)
            self._consumed_count += len(refs)
            while self._consumed_count - len(self._consumed[0]) > REFS_REMEMBERED:
                self._consumed_count -= len(self._consumed.popleft())
        if not self._doubtful:
            return []
        doubtful, self._doubtful = self._doubtful, []
        return [problem for ref, problem in doubtful if sum(each.count(ref) for each in self._consumed) < 2]

    def skip(self) -> None:
        """The intake is kept no longer that far back: whether a frame was in it twice cannot be told."""
        self._doubtful = []

    def close(self) -> None:
        """Remove what lies on disk."""
        self._departed.close()
        self._ended.close()

    def _doubt(self, entry: Entry, ref: str, what: str) -> None:
        self._doubtful.append((ref, f"the frame of ref {ref} was {what}, at lsn {entry.lsn}"))

    def _frame(self, entry: Entry, frame: FrameCommitted) -> Problems:
        ref = frame.ref
        if ref is not None:
            if ref in self._refused:
                self._doubt(entry, ref, "refused as fenced, and then stored")
            self._stored.add(ref)
        if frame.sender == SYSTEM:
            return NOTHING
        group = self._present.get(frame.member)
        if group == frame.group:
            return NOTHING
        if group is None:
            return [f"a frame of {frame.member} is stored, who is not there"]
        return [f"a frame of {frame.member} is stored for group {frame.group}; it is in {group}"]

    def _refusal(self, entry: Entry, refused: Refused) -> list[str]:
        ref = refused.ref
        if refused.reason is RefusedReason.FENCED and ref is not None:
            self._refused.add(ref)
            if ref in self._stored:
                self._doubt(entry, ref, "stored, and then refused as fenced")
        return []

    def _left(self, entry: Entry, left: MemberLeft) -> list[str]:
        self._departed.put(left.member, entry.lsn)
        return [] if self._present.pop(left.member, None) else [f"{left.member} leaves and was not there"]

    def _gateway_ended(self, entry: Entry, ended: GatewayEnded) -> list[str]:
        self._ended.put(ended.gateway, entry.lsn)
        return []

    def _joined(self, _: Entry, joined: MemberJoined) -> list[str]:
        found = []
        if self._departed.get(joined.member) is not None:
            found.append(f"the member id {joined.member} is used again")
        if joined.member in self._present:
            found.append(f"{joined.member} joins and is there already")
        if self._ended.get(joined.gateway) is not None:
            found.append(f"{joined.member} joins through gateway {joined.gateway}, which has ended")
        self._present[joined.member] = joined.group
        return found


NothingFenced.handlers = {
    FrameCommitted: NothingFenced._frame,
    Refused: NothingFenced._refusal,
    MemberJoined: NothingFenced._joined,
    MemberLeft: NothingFenced._left,
    GatewayEnded: NothingFenced._gateway_ended,
}
