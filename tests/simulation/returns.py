"""What must hold of agents' processes that declared themselves (`hello.instanceId`), read off one partition's journal
and, for why a member left, its intake.

A run whose connection is lost is kept for its process: nobody else is given it before the channel's grace is over, by
log time that passes under a writer. The process that comes back, and says that it has the turn, goes on with it as it
is. Who closes its connection itself is not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streams.core.events import (
    Entry,
    MemberLeft,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    TurnCommitted,
    WriterOpened,
)
from streams.core.ids import run_id
from streams.core.membership import NOT_AWAITED
from tests.simulation.promises import Intake
from tests.simulation.roster import Roster

NOBODY = ""


@dataclass(slots=True)
class Held:
    """An open run. `kept_for`: the process, while it waits for it, since `kept_at`."""

    turn_seq: int
    member: str | None
    cancelling: bool = False
    kept_for: str = NOBODY
    kept_at: int = 0


def broken(intake: Intake, rules: Mapping[str, object]) -> Iterator[str]:
    """What the logs show. `rules`: of the agents' channel."""
    returns = Returns(intake, rules)
    for entry in intake.entries:
        for problem in returns.see(entry):
            yield f"lsn {entry.lsn}: {problem}"


class Returns:
    """Sees one entry after the other."""

    def __init__(self, intake: Intake, rules: Mapping[str, object]) -> None:
        self._grace_ms = int(str(rules["grace_ms"]))
        self._closed_itself = {leave.member for leave in intake.leaves.values() if leave.reason in NOT_AWAITED}
        self._roster = Roster()
        self._runs: dict[str, Held] = {}
        self._lost: dict[str, str] = {}
        """Member whose connection was lost -> the process that it was of, where that is waited for."""
        self._writer_at = 0

    def see(self, entry: Entry) -> Iterator[str]:
        event: Any = entry.event
        match event:
            case TurnCommitted():
                for given in event.assigned:
                    self._runs[given.run_id] = Held(event.seq, given.member)
                for group in event.queued:
                    self._runs[run_id(str(event.conversation_id), event.seq, group)] = Held(event.seq, None)
            case RunOpened():
                self._runs[event.run_id] = Held(event.turn_seq, event.member)
            case RunCancelling():
                self._runs[event.run_id].cancelling = True
            case RunMoved():
                yield from self._moved(entry, event)
            case RunEnded():
                yield from self._ended(event)
            case WriterOpened():
                self._writer_at = entry.at
            case MemberLeft():
                self._left(event)
            case _:
                self._roster.see(event)

    def _left(self, left: MemberLeft) -> None:
        process = self._roster.instances.get(left.member, NOBODY)
        self._roster.see(left)
        if process and self._grace_ms and left.member not in self._closed_itself:
            self._lost[left.member] = process

    def _moved(self, entry: Entry, moved: RunMoved) -> Iterator[str]:
        run = self._runs[moved.run_id]
        to = self._roster.instances.get(moved.to_member or "", NOBODY)
        waited_for = self._lost.get(moved.from_member or "", NOBODY)
        if waited_for and moved.to_member is None and moved.kept_for != waited_for:
            yield f"{moved.run_id} was {waited_for}'s, whose connection is lost, and is kept for {moved.kept_for!r}"
        if waited_for and moved.to_member is not None and to != waited_for:
            yield f"{moved.run_id} was {waited_for}'s, whose connection is lost, and is given to {moved.to_member}"
        if run.kept_for and to != run.kept_for and not self._grace_is_over(entry.at, run):
            where = moved.to_member or "nobody"
            yield f"{moved.run_id} is kept for {run.kept_for}, and given to {where} before the grace is over"
        if run.kept_for and to == run.kept_for and not self._grace_is_over(entry.at, run):
            yield from self._came_back(moved, run)
        run.member, run.kept_for, run.kept_at = moved.to_member, moved.kept_for, entry.at

    def _grace_is_over(self, at: int, run: Held) -> bool:
        return at >= max(run.kept_at, self._writer_at) + self._grace_ms

    def _came_back(self, moved: RunMoved, run: Held) -> Iterator[str]:
        """The process itself is there again."""
        back = self._roster.members[moved.to_member or ""]
        knows = back.watermarks.get(str(moved.conversation_id), 0) >= run.turn_seq
        if knows and not moved.proved:
            yield f"{moved.run_id} is kept for {run.kept_for}, which has the turn, and begins anew there"
        if moved.adopted and moved.superseded:
            yield f"{moved.run_id} goes on at {run.kept_for}, and {moved.superseded} of it are superseded"

    def _ended(self, ended: RunEnded) -> Iterator[str]:
        run = self._runs.pop(ended.run_id)
        process = self._lost.get(ended.member or "", NOBODY)
        if process and not run.cancelling and not self._roster.has(process):
            yield f"{ended.run_id} was {process}'s, whose connection is lost, and ends ({ended.reason})"
