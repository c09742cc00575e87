"""Invariant 6: what was refused as fenced is nowhere to be seen, and nobody who is gone is heard."""

from __future__ import annotations

from collections import OrderedDict
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
"""Refs of the last stored frames. A ref belongs to one intake record, so that two outcomes of it would be one batch
apart, and a batch has at most this many records (`TURNLOG_BATCH_MAX`)."""


class NothingFenced:
    """6: no frame that was refused as fenced is stored, and every stored frame is from a member that is there.

    Also: a member's id is never used again, and an ended gateway brings no member.
    """

    invariant: ClassVar[int] = 6

    def __init__(self) -> None:
        self._stored: OrderedDict[str, None] = OrderedDict()
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._present: dict[str, str] = {}
        """Member -> group."""
        self._departed: set[str] = set()
        self._ended: set[str] = set()

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        match entry.event:
            case FrameCommitted() as frame:
                return self._frame(frame)
            case Refused(reason=RefusedReason.FENCED, ref=str(ref)):
                _remember(self._refused, ref)
                return [f"the frame of ref {ref} was stored, and then refused as fenced"] if ref in self._stored else []
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

    def _frame(self, frame: FrameCommitted) -> list[str]:
        found = []
        if frame.ref is not None:
            if frame.ref in self._refused:
                found.append(f"the frame of ref {frame.ref} was refused as fenced, and then stored")
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
