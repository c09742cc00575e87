"""What journal entries mean for the read model, as rows. Pure: entries in, rows out.

The rows are in `tables`. A batch is folded: of several changes to one row only the last is left, so that each
table gets one statement a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationOpened,
    ConversationReopened,
    Entry,
    FrameCommitted,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    OwnerChanged,
    PersonFrameCommitted,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ids import run_id as run_id_of
from streams.projector.lines import line_of_frame, line_of_person_frame, line_of_turn, line_of_update, optional, text
from streams.projector.tables import (
    OPEN,
    ChangedConversation,
    ChangedRun,
    Checkpoint,
    DrainingMember,
    Edited,
    EndedRun,
    ErasedConversation,
    JoinedMember,
    LeftMember,
    Line,
    OpenedConversation,
    OpenedRun,
    Owner,
    Superseded,
)

QUEUED = "queued"
"""Status of a run that waits in line."""


class Rows:
    """The rows of a batch of entries of one partition, by statement; built up by `add`, in journal order."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.opened_conversations: list[OpenedConversation] = []
        self.changed_conversations: dict[str, ChangedConversation] = {}
        self.lines: list[Line] = []
        self.superseded: list[Superseded] = []
        self.edited: dict[tuple[str, int], Edited] = {}
        self.opened_runs: list[OpenedRun] = []
        self.changed_runs: dict[str, ChangedRun] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.ended_runs: list[EndedRun] = []
        self.owners: dict[tuple[str, str], Owner] = {}
        self.joined_members: list[JoinedMember] = []
        self.draining_members: list[DrainingMember] = []
        self.left_members: list[LeftMember] = []
        self.erased: list[ErasedConversation] = []
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take the next entry. Events that the read model does not show, and unknown ones, add nothing."""
        add = _ADD.get(type(entry.event))
        if add is not None:
            add(self, entry, entry.event)

    def touch(self, entry: Entry, status: str | None = None) -> None:
        """The entry's conversation has news: its head, its time, its lsn."""
        event = entry.event
        conversation_id = text(event.conversation_id)
        known = self.changed_conversations.get(conversation_id)
        head_seq = event.seq or (known.head_seq if known else 0)
        status = status or (known.status if known else None)
        self.changed_conversations[conversation_id] = ChangedConversation(
            conversation_id, head_seq, status, entry.timestamp, entry.lsn
        )

    def change_run(self, change: ChangedRun) -> None:
        """Of several changes of one run the later fields win; what they leave open stays as the earlier ones had it."""
        known = self.changed_runs.get(change.run_id)
        if known is not None:
            change = msgspec.structs.replace(
                change,
                started=known.started if change.started is None else change.started,
                status=change.status or known.status,
                ended_at=change.ended_at or known.ended_at,
                reason=change.reason or known.reason,
                detail=change.detail or known.detail,
                started_at=known.started_at if change.started_at is None else change.started_at,
                cancelling=known.cancelling if change.cancelling is None else change.cancelling,
            )
        self.changed_runs[change.run_id] = change

    def hide(self, conversation_id: str | None, seqs: tuple[int, ...]) -> None:
        """These lines are superseded."""
        self.superseded += [Superseded(text(conversation_id), seq) for seq in seqs]


def _opened(rows: Rows, entry: Entry, event: ConversationOpened) -> None:
    rows.opened_conversations.append(
        OpenedConversation(
            id=text(event.conversation_id),
            channel=text(event.channel),
            participant=optional(event.participant),
            external_id=optional(event.external_id),
            timestamp=entry.timestamp,
            lsn=entry.lsn,
            metadata=optional(event.metadata),
        )
    )


def _turn(rows: Rows, entry: Entry, event: TurnCommitted) -> None:
    rows.touch(entry)
    rows.lines.append(line_of_turn(entry, event))
    turn, conversation_id = event.turn, text(event.conversation_id)
    called = None if turn.invocation is None else text(turn.invocation.id)
    for queued in event.queued:
        run_id, group = text(run_id_of(conversation_id, event.seq, queued)), text(queued)
        rows.opened_runs.append(
            OpenedRun(run_id, conversation_id, event.seq, group, None, 1, entry.timestamp, QUEUED, called)
        )
    for given in event.assigned:
        group = text(given.group)
        run_id, member = text(given.run_id), optional(given.member)
        rows.opened_runs.append(
            OpenedRun(
                run_id, conversation_id, event.seq, group, member, given.run_epoch, entry.timestamp, invocation=called
            )
        )
        if member is not None:
            rows.owners[conversation_id, group] = Owner(conversation_id, group, member)


def _frame(rows: Rows, entry: Entry, event: FrameCommitted) -> None:
    if event.frame.type == "checkpoint":
        run_id = text(event.run_id)
        rows.checkpoints[run_id] = Checkpoint(run_id, entry.lsn, text(event.frame.data))
    if not event.seq:
        return  # shown live, never stored in the transcript
    rows.touch(entry)
    rows.lines.append(line_of_frame(entry, event))


def _closed(rows: Rows, entry: Entry, event: ConversationClosed) -> None:
    rows.touch(entry, "closed")
    rows.lines.append(line_of_update(entry, event, {"status": "closed", "by": event.by, "reason": event.reason}))


def _erased(rows: Rows, entry: Entry, event: ConversationErased) -> None:
    rows.touch(entry, "erased")
    rows.lines.append(line_of_update(entry, event, {"status": "erased", "by": event.by, "reason": event.reason}))
    rows.erased.append(ErasedConversation(text(event.conversation_id)))


def _reopened(rows: Rows, entry: Entry, event: ConversationReopened) -> None:
    rows.touch(entry, "open")
    rows.lines.append(line_of_update(entry, event, {"status": "open", "by": event.by}))


def _handed_over(rows: Rows, entry: Entry, event: ConversationHandedOver) -> None:
    rows.touch(entry)
    rows.lines.append(
        line_of_update(entry, event, {"status": "handed_over", "by": event.by, "to": event.to, "reason": event.reason})
    )


def _handed_back(rows: Rows, entry: Entry, event: ConversationHandedBack) -> None:
    rows.touch(entry)
    rows.lines.append(line_of_update(entry, event, {"status": "handed_back", "by": event.by, "reason": event.reason}))


def _person_frame(rows: Rows, entry: Entry, event: PersonFrameCommitted) -> None:
    if not event.seq:
        return  # given to agents, never stored in the transcript
    rows.touch(entry)
    rows.lines.append(line_of_person_frame(entry, event))


def _edited(rows: Rows, entry: Entry, event: TurnEdited) -> None:
    conversation_id = text(event.conversation_id)
    rows.edited[conversation_id, event.turn_seq] = Edited(
        conversation_id, event.turn_seq, optional(event.text), optional(event.data), entry.timestamp
    )
    rows.hide(event.conversation_id, event.superseded)


def _regenerated(rows: Rows, _: Entry, event: TurnRegenerated) -> None:
    rows.hide(event.conversation_id, event.superseded)


def _owner_changed(rows: Rows, _: Entry, event: OwnerChanged) -> None:
    conversation_id, group = text(event.conversation_id), text(event.group)
    rows.owners[conversation_id, group] = Owner(conversation_id, group, optional(event.owner))


def _run_opened(rows: Rows, entry: Entry, event: RunOpened) -> None:
    conversation_id, group, member = text(event.conversation_id), text(event.group), optional(event.member)
    run_id, status = text(event.run_id), QUEUED if event.queued else OPEN
    rows.opened_runs.append(
        OpenedRun(run_id, conversation_id, event.turn_seq, group, member, event.run_epoch, entry.timestamp, status)
    )
    rows.change_run(ChangedRun(run_id, member, event.run_epoch, status=status))  # its time in line is over
    if member is not None:
        rows.owners[conversation_id, group] = Owner(conversation_id, group, member)


def _run_started(rows: Rows, entry: Entry, event: RunStarted) -> None:
    run_id, member = text(event.run_id), text(event.member)
    rows.change_run(ChangedRun(run_id, member, event.run_epoch, started=True, started_at=entry.timestamp))


def _run_cancelling(rows: Rows, _: Entry, event: RunCancelling) -> None:
    rows.change_run(ChangedRun(text(event.run_id), optional(event.member), event.run_epoch, cancelling=True))


def _run_moved(rows: Rows, _: Entry, event: RunMoved) -> None:
    # An adopted run is the same process's, which goes on; any other owner has to start it, anew or where it stopped.
    started, begun = (None, None) if event.adopted else (False, None if event.continued else 0)
    run_id, member = text(event.run_id), optional(event.to_member)
    rows.change_run(ChangedRun(run_id, member, event.run_epoch, started=started, started_at=begun))
    rows.hide(event.conversation_id, event.superseded)


def _run_ended(rows: Rows, entry: Entry, event: RunEnded) -> None:
    rows.change_run(
        ChangedRun(
            run_id=text(event.run_id),
            member=optional(event.member),
            run_epoch=event.run_epoch,
            status=event.status,
            ended_at=entry.timestamp,
            reason=text(event.reason),
            detail=text(event.detail) or None,
        )
    )
    rows.checkpoints.pop(text(event.run_id), None)
    rows.ended_runs.append(EndedRun(text(event.run_id)))
    rows.hide(event.conversation_id, event.superseded)


def _joined(rows: Rows, entry: Entry, event: MemberJoined) -> None:
    rows.joined_members.append(
        JoinedMember(
            member=text(event.member),
            group_id=text(event.group),
            channel=text(event.channel),
            gateway=text(event.gateway),
            since=event.since,
            timestamp=entry.timestamp,
        )
    )


def _draining(rows: Rows, _: Entry, event: MemberDraining) -> None:
    rows.draining_members.append(DrainingMember(text(event.member), text(event.by), text(event.reason)))


def _left(rows: Rows, entry: Entry, event: MemberLeft) -> None:
    rows.left_members.append(LeftMember(text(event.member), entry.timestamp, event.reason))


_ADD: dict[type, Callable[[Rows, Entry, Any], None]] = {
    ConversationOpened: _opened,
    TurnCommitted: _turn,
    FrameCommitted: _frame,
    ConversationClosed: _closed,
    ConversationErased: _erased,
    ConversationReopened: _reopened,
    ConversationHandedOver: _handed_over,
    ConversationHandedBack: _handed_back,
    PersonFrameCommitted: _person_frame,
    TurnEdited: _edited,
    TurnRegenerated: _regenerated,
    OwnerChanged: _owner_changed,
    RunOpened: _run_opened,
    RunStarted: _run_started,
    RunCancelling: _run_cancelling,
    RunMoved: _run_moved,
    RunEnded: _run_ended,
    MemberJoined: _joined,
    MemberDraining: _draining,
    MemberLeft: _left,
}
