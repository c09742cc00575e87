"""Invariant 4: one holder of a run at a time, and one answer that counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from ops.audit.violations import NOTHING, Kinds, Problems, Seeing
from streams.core.events import Entry, FrameCommitted, RunEnded, RunMoved, RunOpened, RunStarted, TurnCommitted
from streams.core.frame_types import CHECKPOINT
from streams.core.ids import run_id as run_id_of
from streams.core.runs import SYSTEM


@dataclass(slots=True)
class _OpenRun:
    member: str | None
    epoch: int
    queued: bool = False
    """It waits in line; it is opened once more when its time has come."""
    hand: int = 0
    """Grows when the run begins anew with another process; not when the same one goes on under a new member id
    (adopted), or another goes on where it stopped (continued): there the frames of all epochs are one answer."""
    stored: dict[int, int] = field(default_factory=dict)
    """Seqs of its numbered frames that are not superseded, and in whose hand the run was."""
    checkpoint: int = 0
    """lsn of its last checkpoint frame in this hand; 0: none."""

    def supersede(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.stored.pop(seq, None)


class RunEpochs(Seeing):
    """4: within a turn and group, frames of run epoch e precede `RunMoved(e + 1)` and none of e follow; at most one
    answer is not superseded, and a continued run is given with all that was committed of it.

    Remembers the open runs only: what names a run that is not open is a violation by itself.
    """

    invariant: ClassVar[int] = 4
    kinds: ClassVar[Kinds] = (FrameCommitted, TurnCommitted, RunOpened, RunStarted, RunMoved, RunEnded)

    def __init__(self) -> None:
        self._open: dict[str, _OpenRun] = {}

    def _turn(self, _: Entry, turn: TurnCommitted) -> list[str]:
        found = [p for each in turn.assigned for p in self._opened(each.run_id, each.member, each.run_epoch)]
        for group in turn.queued:
            found += self._opened(run_id_of(str(turn.conversation_id), turn.seq, group), None, 1, queued=True)
        return found

    def _opened(self, run_id: str, member: str | None, epoch: int, *, queued: bool = False) -> list[str]:
        known = self._open.get(run_id)
        found = [f"run {run_id} is opened twice"] if known is not None and (queued or not known.queued) else []
        if epoch != 1:
            found.append(f"run {run_id} opens at run epoch {epoch}")
        self._open[run_id] = _OpenRun(member, epoch, queued=queued)
        return found

    def _held(self, run_id: str, member: str | None, epoch: int, what: str) -> list[str]:
        run = self._open.get(run_id)
        if run is None:
            return [f"{what} of run {run_id}, which is not open"]
        found = []
        if epoch != run.epoch:
            found.append(f"{what} of run {run_id} at run epoch {epoch}; it is at {run.epoch}")
        if member != run.member:
            found.append(f"{what} of run {run_id} by {member}; {run.member} holds it")
        return found

    def _frame(self, entry: Entry, frame: FrameCommitted) -> Problems:
        run_id = frame.run_id
        if run_id is None:
            return NOTHING
        run = self._open.get(run_id)
        if (
            run is None
            or frame.sender == SYSTEM
            or frame.run_epoch != run.epoch
            or frame.member != run.member
            or frame.frame.type == CHECKPOINT
        ):
            return self._other_frame(entry, run_id, run, frame)
        return self._stored(run_id, run, frame.seq) if frame.seq else NOTHING

    def _other_frame(self, entry: Entry, run_id: str, run: _OpenRun | None, frame: FrameCommitted) -> list[str]:
        """Not what the holder of the run says to the person at its epoch."""
        holder = frame.member if frame.sender != SYSTEM or run is None else run.member
        found = self._held(run_id, holder, frame.run_epoch, "a frame")
        if run is not None and frame.frame.type == CHECKPOINT:
            run.checkpoint = entry.lsn
        if run is not None and frame.seq and frame.sender != SYSTEM:
            found += self._stored(run_id, run, frame.seq)
        return found

    def _stored(self, run_id: str, run: _OpenRun, seq: int) -> Problems:
        run.stored[seq] = run.hand
        if not run.hand:
            return NOTHING
        others = [before for before, hand in run.stored.items() if hand != run.hand]
        if not others:
            return NOTHING
        return [f"run {run_id} is answered by seq {seq} beside {others}, which are not superseded"]

    def _run_opened(self, _: Entry, opened: RunOpened) -> list[str]:
        return self._opened(opened.run_id, opened.member, opened.run_epoch, queued=opened.queued)

    def _started(self, _: Entry, started: RunStarted) -> list[str]:
        return self._held(started.run_id, started.member, started.run_epoch, "RunStarted")

    def _moved(self, _: Entry, moved: RunMoved) -> list[str]:
        found = self._held(moved.run_id, moved.from_member, moved.run_epoch - 1, "RunMoved")
        run = self._open.get(moved.run_id)
        if run is None:
            return found
        known = run.checkpoint if moved.continued else 0
        if moved.checkpoint_lsn != known:
            found.append(f"run {moved.run_id} moves with the checkpoint of lsn {moved.checkpoint_lsn}, not of {known}")
        if moved.continued and (moved.superseded or moved.adopted or moved.to_member is None):
            found.append(f"run {moved.run_id} is continued, and superseded, adopted or given to nobody at once")
        run.supersede(moved.superseded)
        run.member, run.epoch = moved.to_member, moved.run_epoch
        if moved.to_member is not None and not moved.adopted and not moved.continued:
            run.hand += 1
            run.checkpoint = 0
        return found

    def _ended(self, _: Entry, ended: RunEnded) -> list[str]:
        found = self._held(ended.run_id, ended.member, ended.run_epoch, "RunEnded")
        self._open.pop(ended.run_id, None)
        return found


RunEpochs.handlers = {
    FrameCommitted: RunEpochs._frame,
    TurnCommitted: RunEpochs._turn,
    RunOpened: RunEpochs._run_opened,
    RunStarted: RunEpochs._started,
    RunMoved: RunEpochs._moved,
    RunEnded: RunEpochs._ended,
}
