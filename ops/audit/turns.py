"""Invariant 5: no turn is lost; and the count of what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ops.audit.violations import SKEW_MS, Kinds, Tally
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedOver,
    Entry,
    Event,
    MoveReason,
    Refused,
    RefusedReason,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStatus,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    TurnUnassigned,
)
from streams.core.ids import channel_of_group, run_id


@dataclass(slots=True)
class _Account:
    """A turn whose outcome is not known in every group."""

    runs: set[str]
    waiting: set[str]
    answered: bool = True
    """In every group so far."""


@dataclass(slots=True)
class NothingLost:
    """5: each accepted turn is answered, open (being answered, or waiting for a member), or ended with a reason.

    Remembers the open turns only, and counts into `tally`; `settle` counts what is open at the end. A turn whose answer
    is wanted anew counts as one more.
    """

    invariant: ClassVar[int] = 5
    kinds: ClassVar[Kinds] = (
        TurnCommitted,
        RunOpened,
        TurnUnassigned,
        RunMoved,
        RunEnded,
        TurnEdited,
        TurnRegenerated,
        ConversationClosed,
        ConversationErased,
        ConversationHandedOver,
        Refused,
    )
    only: str | None = None
    """Count what is of this conversation alone; None: everything."""
    tally: Tally = field(default_factory=Tally)
    _accounts: dict[tuple[str, int], _Account] = field(default_factory=dict)
    _turns_of_run: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    _waiting: dict[str, set[int]] = field(default_factory=dict)
    """Conversation -> seqs of its turns that wait for a member."""
    _orphaned: dict[str, str] = field(default_factory=dict)
    """Runs that lost their member and wait for the next: run id -> that member."""

    def see(self, entry: Entry) -> list[str]:
        """See `Checker`."""
        return self.look(entry, entry.event) if type(entry.event) in _SEE else []

    def look(self, entry: Entry, event: Event) -> list[str]:
        """See `Looking`."""
        if self.only is not None and event.conversation_id != self.only:
            return []
        if isinstance(event, TurnCommitted) and (client_at := event.turn.client_at) is not None:
            self.tally.skewed += abs(client_at - entry.timestamp) > SKEW_MS
        return _SEE[type(event)](self, event)

    def count(self, entries: Sequence[Entry]) -> None:
        """Count them, whatever they are."""
        only = self.only
        self.tally.events += len(entries) if only is None else sum(e.event.conversation_id == only for e in entries)

    def settle(self) -> Tally:
        """The count, with the turns that are open after the last entry."""
        self.tally.open = len(self._accounts)
        return self.tally

    def _committed(self, turn: TurnCommitted) -> list[str]:
        self.tally.turns += 1
        name = (str(turn.conversation_id), turn.seq)
        runs = {assignment.run_id for assignment in turn.assigned}
        runs |= {run_id(*name, group) for group in turn.queued}
        found = []
        if turn.joins_run is not None:
            if turn.joins_run in self._turns_of_run:
                runs.add(turn.joins_run)
            else:
                found.append(f"the turn joins run {turn.joins_run}, which is not open")
        if not runs and not turn.waiting:
            self.tally.unrouted += 1
            return found
        self._accounts[name] = _Account(runs, set(turn.waiting))
        for run in runs:
            self._turns_of_run.setdefault(run, []).append(name)
        if turn.waiting:
            self._waiting.setdefault(name[0], set()).add(turn.seq)
        return found

    def _opened(self, opened: RunOpened) -> list[str]:
        name = (str(opened.conversation_id), opened.turn_seq)
        account = self._accounts.get(name)
        channel = channel_of_group(opened.group)
        if opened.run_id in self._turns_of_run and not opened.queued:
            return []  # its time in line is over
        if opened.turn_id and (account is None or channel not in account.waiting):  # wanted anew just before
            if account is None:
                self.tally.turns += 1
                account = self._accounts[name] = _Account(set(), set())
            account.runs.add(opened.run_id)
            self._turns_of_run.setdefault(opened.run_id, []).append(name)
            return []
        if account is None or channel not in account.waiting:
            return [f"run {opened.run_id} is opened for turn {opened.turn_seq}, which does not wait for {channel}"]
        account.waiting.discard(channel)
        if not account.waiting:
            self._waiting.get(name[0], set()).discard(opened.turn_seq)
        account.runs.add(opened.run_id)
        self._turns_of_run.setdefault(opened.run_id, []).append(name)
        return []

    def _unassigned(self, event: TurnUnassigned) -> list[str]:
        name = (str(event.conversation_id), event.turn_seq)
        account = self._accounts.get(name)
        if account is None or event.channel not in account.waiting:
            return [f"turn {event.turn_seq} is given up for {event.channel}, for which it does not wait"]
        account.waiting.discard(event.channel)
        if not account.waiting:
            self._waiting.get(name[0], set()).discard(event.turn_seq)
        account.answered = False
        self._close_account(name, account)
        return [] if event.reason else [f"turn {event.turn_seq} ended without a reason"]

    def _moved(self, moved: RunMoved) -> list[str]:
        lost = self._orphaned.pop(moved.run_id, None)
        if moved.to_member is None:
            if moved.from_member is not None and moved.reason is not MoveReason.REFUSED:
                self._orphaned[moved.run_id] = moved.from_member
            return []
        taken_over = moved.from_member if moved.from_member is not None else lost
        refused = moved.reason is MoveReason.REFUSED
        if taken_over not in {None, moved.to_member} and not moved.adopted and not refused:
            self.tally.takeovers += 1
            self.tally.continued += moved.continued
        return []

    def _wanted_anew(self, wanted: TurnEdited | TurnRegenerated) -> list[str]:
        """The turn waits for whom it says now; the runs that answer it anew open next."""
        name = (str(wanted.conversation_id), wanted.turn_seq)
        account = self._accounts.get(name)
        if account is not None:
            account.waiting.clear()
            self._waiting.get(name[0], set()).discard(wanted.turn_seq)
            account.answered = False
            self._close_account(name, account)
        if wanted.waiting:
            self.tally.turns += 1
            self._accounts[name] = _Account(set(), set(wanted.waiting))
            self._waiting.setdefault(name[0], set()).add(wanted.turn_seq)
        return []

    def _refused(self, refused: Refused) -> list[str]:
        self.tally.fenced += refused.reason is RefusedReason.FENCED
        return []

    def _closed(self, closed: ConversationClosed | ConversationErased | ConversationHandedOver) -> list[str]:
        """What waited for a member ends with the conversation, closed or erased, or because a human took it."""
        conversation = str(closed.conversation_id)
        for seq in sorted(self._waiting.pop(conversation, ())):
            account = self._accounts.get((conversation, seq))
            if account is None:
                continue  # as in `_ended`
            account.waiting.clear()
            account.answered = False
            self._close_account((conversation, seq), account)
        return []

    def _ended(self, ended: RunEnded) -> list[str]:
        self._orphaned.pop(ended.run_id, None)
        found = [] if ended.reason else [f"run {ended.run_id} ended as {ended.status} without a reason"]
        for name in self._turns_of_run.pop(ended.run_id, []):
            account = self._accounts.get(name)
            if account is None:
                continue  # two turns have this place, which invariant 1 says; the first one was settled
            account.runs.discard(ended.run_id)
            account.answered &= ended.status is RunStatus.ANSWERED
            self._close_account(name, account)
        return found

    def _close_account(self, name: tuple[str, int], account: _Account) -> None:
        if account.runs or account.waiting:
            return
        del self._accounts[name]
        if account.answered:
            self.tally.answered += 1
        else:
            self.tally.ended += 1


_SEE: Final[dict[type[Event], Callable[[NothingLost, Any], list[str]]]] = {
    TurnCommitted: NothingLost._committed,
    RunOpened: NothingLost._opened,
    TurnUnassigned: NothingLost._unassigned,
    RunMoved: NothingLost._moved,
    RunEnded: NothingLost._ended,
    TurnEdited: NothingLost._wanted_anew,
    TurnRegenerated: NothingLost._wanted_anew,
    ConversationClosed: NothingLost._closed,
    ConversationErased: NothingLost._closed,
    ConversationHandedOver: NothingLost._closed,
    Refused: NothingLost._refused,
}
