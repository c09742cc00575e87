"""The fold of a partition's journal into rows of `tables`: pure, entry by entry, the same rows for any increments.

Besides rows it keeps what later rows will tell of what came before: each conversation in a line, each open run, each
turn that waits. That state can be taken out and put back (`Fold.state`), so that the next increment goes on from it.

Entries are those of `turnlog.data.events`, or any that have the same names and fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from turnlog.data.cells import assignments, between, content, turn_seq
from turnlog.data.state import Asked, Conversation, Run, State, count_tokens
from turnlog.data.tables import TABLES, Row

SYSTEM: Final = "system"
"""Sender of the closing frames that a takeover makes."""
INTERRUPT: Final = "interrupt"
REFUSED: Final = "refused"

Given = tuple[str, str, int, str | None]
"""Run id, group, run epoch, member: what an assignment says."""


class Fold:
    """One partition's fold. `take` entries in order, `drain` the rows made so far."""

    def __init__(self, partition: int, state: State | None = None) -> None:
        self.partition = partition
        self.state = State() if state is None else state
        self._rows: dict[str, list[Row]] = {table.name: [] for table in TABLES}
        self._common: Row = ()

    def take(self, offset: int, entry: Any) -> None:
        """Fold one entry, whose record lies at `offset`."""
        event = entry.event
        name = type(event).__name__
        handle = _HANDLERS.get(name)
        if handle is None:
            return
        conversation = self._conversation(event)
        if conversation is not None and event.seq > conversation.last_seq:
            conversation.last_seq = event.seq
        self._common = (
            self.partition,
            offset,
            entry.lsn,
            name,
            entry.timestamp,
            entry.at,
            entry.writer_epoch,
            event.conversation_id,
            # An opening says it itself; what comes before it in the row is the same tuple for all tables.
            event.channel if name == "ConversationOpened" else None if conversation is None else conversation.channel,
        )
        handle(self, event, entry.timestamp)

    def drain(self) -> Mapping[str, list[Row]]:
        """The rows since the last call, of each table."""
        rows, self._rows = self._rows, {table.name: [] for table in TABLES}
        return rows

    def open_runs(self) -> Iterator[tuple[str, Run]]:
        """The runs that are not over after the last entry: id and run."""
        return iter(self.state.runs.items())

    def _conversation(self, event: Any) -> Conversation | None:
        if event.conversation_id is None:
            return None
        known = self.state.conversations.get(event.conversation_id)
        if known is None:
            known = self.state.conversations[event.conversation_id] = Conversation()
        return known

    def _of(self, event: Any) -> Conversation:
        return self.state.conversations[event.conversation_id]

    def _add(self, table: str, *values: Any) -> None:
        self._rows[table].append((*self._common, *values))

    def _turn(self, event: Any, at: int) -> None:
        turn, invocation = event.turn, event.turn.invocation
        self._add(
            "turns",
            event.seq,
            0,
            turn.id,
            turn.sender,
            turn.channel,
            turn.type,
            turn.text,
            turn.key_id,
            turn.data,
            turn.metadata,
            turn.reply_to,
            turn.client_id,
            turn.key,
            turn.client_at,
            None if invocation is None else invocation.id,
            None if invocation is None else invocation.deadline_ms,
            event.joins_run,
            event.interrupt_id,
            assignments(event.assigned),
            list(event.queued),
            list(event.waiting),
        )
        conversation = self._of(event)
        conversation.turns += 1
        asked = Asked(event.seq, at, None if invocation is None else invocation.id, list(event.waiting))
        conversation.latest = asked
        if asked.channels:
            conversation.waiting.append(asked)
        for each in event.assigned:
            self._open((each.run_id, each.group, each.run_epoch, each.member), asked, at)
        for group in event.queued:
            run_id = f"{event.conversation_id}/{event.seq}/{group}"
            self._open((run_id, group, 1, None), asked, at, queued=True)

    def _wanted_anew(self, event: Any, at: int) -> None:
        edited = type(event).__name__ == "TurnEdited"
        said = ("text", event.text, getattr(event, "key_id", None), event.data) if edited else (None,) * 4
        self._add(
            "turns",
            event.turn_seq,
            event.edition,
            event.turn_id,
            event.by,
            None,
            *said,
            None,
            None,
            event.client_id,
            event.key,
            *(None,) * 5,
            [],
            [],
            list(event.waiting),
        )
        conversation = self._of(event)
        conversation.waiting = [asked for asked in conversation.waiting if asked.seq != event.turn_seq]
        asked = Asked(event.turn_seq, at, None, list(event.waiting))
        conversation.latest = asked
        if asked.channels:
            conversation.waiting.append(asked)

    def _unassigned(self, event: Any, _: int) -> None:
        self._waits_no_more(self._of(event), event.turn_seq, event.channel)

    def _waits_no_more(self, conversation: Conversation, turn_seq: int, channel: str) -> Asked | None:
        """The turn that waited for the channel, if it did."""
        for asked in conversation.waiting:
            if asked.seq == turn_seq and channel in asked.channels:
                asked.channels.remove(channel)
                if not asked.channels:
                    conversation.waiting.remove(asked)
                return asked
        return None

    def _open(self, given: Given, asked: Asked, at: int, *, queued: bool = False) -> None:
        run_id, group, epoch, member = given
        run = self.state.runs.get(run_id)  # it waited in line, and its time has come
        if run is None:
            run = self.state.runs[run_id] = Run(asked.seq, group, asked.at, asked.invocation, epoch)
        run.epoch = epoch
        run.give(member, at)
        change = "queued" if queued else "assigned"
        self._add("ownership", group, change, run_id, epoch, asked.seq, None, member, *(None,) * 4)

    def _opened(self, event: Any, at: int) -> None:
        conversation = self._of(event)
        asked = self._waits_no_more(conversation, event.turn_seq, event.channel)
        if asked is None:
            latest = conversation.latest
            known = latest is not None and latest.seq == event.turn_seq
            asked = latest if latest is not None and known else Asked(event.turn_seq, None, None)
        given = (event.run_id, event.group, event.run_epoch, event.member)
        self._open(given, asked, at, queued=event.queued)

    def _run(self, event: Any) -> Run:
        """The run that an event names; one that was opened before what was read is made up of what the event says."""
        run = self.state.runs.get(event.run_id)
        if run is None:
            run = Run(event.turn_seq, event.group, None, None, event.run_epoch)
            self.state.runs[event.run_id] = run
        return run

    def _started(self, event: Any, at: int) -> None:
        run = self._run(event)
        run.started_at = at if run.started_at is None else run.started_at

    def _moved(self, event: Any, at: int) -> None:
        run = self._run(event)
        taken_over = event.from_member if event.from_member is not None else run.lost
        run.lost = None
        if event.to_member is None:
            run.lost = None if event.reason == REFUSED else event.from_member
        elif taken_over not in {None, event.to_member} and not event.adopted and event.reason != REFUSED:
            run.takeovers += 1
            run.continued += event.continued
        run.superseded += len(event.superseded)
        run.epoch = event.run_epoch
        run.give(event.to_member, at)
        self._add(
            "ownership",
            event.group,
            "moved",
            event.run_id,
            event.run_epoch,
            event.turn_seq,
            event.from_member,
            event.to_member,
            str(event.reason),
            event.adopted,
            event.continued,
            list(event.superseded),
        )

    def _owner(self, event: Any, _: int) -> None:
        given = (event.previous, event.owner, str(event.reason))
        self._add("ownership", event.group, "owner", None, None, None, *given, None, None, None)

    def _ended(self, event: Any, at: int) -> None:
        run = self._run(event)
        del self.state.runs[event.run_id]
        asked_at = run.turn_at
        self._add(
            "runs",
            event.run_id,
            event.turn_seq,
            event.group,
            run.invocation,
            str(event.status),
            event.reason,
            event.by,
            event.detail,
            run.first_member,
            event.member,
            event.run_epoch,
            run.takeovers,
            run.continued,
            asked_at,
            run.given_at,
            run.started_at,
            run.first_frame_at,
            between(asked_at, run.given_at),
            between(asked_at, run.first_frame_at),
            between(asked_at, at),
            run.frames,
            run.interrupts,
            run.superseded + len(event.superseded),
            run.tokens_in,
            run.tokens_out,
        )

    def _frame(self, event: Any, at: int) -> None:
        run = self._counted(event, at) if event.run_id is not None else None
        self._add(
            "frames",
            event.seq,
            event.frame.id,
            SYSTEM if event.sender == SYSTEM else "agent",
            event.frame.type,
            event.sender,
            event.channel,
            event.group,
            event.member,
            event.run_id,
            event.run_epoch if event.run_id is not None else None,
            None if run is None else run.turn_seq,
            *content(event.frame),
            event.key,
            [],
        )
        self._of(event).frames += 1

    def _counted(self, event: Any, at: int) -> Run:
        """The frame's run, with the frame counted."""
        run = self.state.runs.get(event.run_id)
        if run is None:
            run = Run(turn_seq(event.run_id, event.conversation_id), event.group, None, None, event.run_epoch)
            self.state.runs[event.run_id] = run
        run.frames += 1
        run.interrupts += event.frame.type == INTERRUPT and event.sender != SYSTEM
        if event.seq and run.first_frame_at is None and event.sender != SYSTEM:
            run.first_frame_at = at
        if event.frame.key_id is None:
            for text in (event.frame.metadata, event.frame.data, event.frame.extra):
                count_tokens(run, text)
        return run

    def _person_frame(self, event: Any, _: int) -> None:
        self._add(
            "frames",
            event.seq,
            event.frame.id,
            "person",
            event.frame.type,
            event.sender,
            event.channel,
            *(None,) * 5,
            *content(event.frame),
            event.key,
            assignments(event.to),
        )
        self._of(event).frames += 1

    def _joined(self, event: Any, _: int) -> None:
        told = (event.gateway, "joined", event.since, event.continues, event.each, None, None)
        self._add("membership", event.member, event.group, event.channel, *told)

    def _draining(self, event: Any, _: int) -> None:
        told = (None, None, "draining", None, None, None, event.by, event.reason)
        self._add("membership", event.member, event.group, *told)

    def _left(self, event: Any, _: int) -> None:
        told = (None, event.gateway, "left", None, None, None, None, str(event.reason))
        self._add("membership", event.member, event.group, *told)

    def _gateway_ended(self, event: Any, _: int) -> None:
        told = (event.gateway, "gateway_ended", None, None, None, None, event.reason)
        self._add("membership", None, None, None, *told)

    def _life(self, event: Any, status: str, *, to: str | None = None, reason: str | None = None) -> None:
        conversation = self._of(event)
        conversation.version += 1
        self._add(
            "conversations",
            conversation.version,
            status,
            conversation.participant,
            conversation.external_id,
            conversation.metadata,
            getattr(event, "by", None),
            to,
            reason,
            conversation.opened_at,
            conversation.turns,
            conversation.frames,
            conversation.last_seq,
        )

    def _conversation_opened(self, event: Any, at: int) -> None:
        conversation = self._of(event)
        conversation.channel, conversation.participant = event.channel, event.participant
        conversation.external_id, conversation.metadata = event.external_id, event.metadata
        conversation.opened_at = at
        self._life(event, "open")

    def _closed(self, event: Any, _: int) -> None:
        self._of(event).waiting.clear()
        self._life(event, "closed", reason=event.reason)

    def _reopened(self, event: Any, _: int) -> None:
        self._life(event, "open")

    def _handed_over(self, event: Any, _: int) -> None:
        self._of(event).waiting.clear()
        self._life(event, "handed_over", to=event.to, reason=event.reason)

    def _handed_back(self, event: Any, _: int) -> None:
        self._life(event, "open", reason=event.reason)

    def _erased(self, event: Any, _: int) -> None:
        conversation = self._of(event)
        conversation.waiting.clear()
        conversation.participant = conversation.external_id = conversation.metadata = None
        self._life(event, "erased", reason=event.reason)


_HANDLERS: Final[Mapping[str, Callable[[Fold, Any, int], None]]] = {
    "TurnCommitted": Fold._turn,
    "TurnEdited": Fold._wanted_anew,
    "TurnRegenerated": Fold._wanted_anew,
    "TurnUnassigned": Fold._unassigned,
    "RunOpened": Fold._opened,
    "RunStarted": Fold._started,
    "RunMoved": Fold._moved,
    "RunEnded": Fold._ended,
    "OwnerChanged": Fold._owner,
    "FrameCommitted": Fold._frame,
    "PersonFrameCommitted": Fold._person_frame,
    "MemberJoined": Fold._joined,
    "MemberDraining": Fold._draining,
    "MemberLeft": Fold._left,
    "GatewayEnded": Fold._gateway_ended,
    "ConversationOpened": Fold._conversation_opened,
    "ConversationClosed": Fold._closed,
    "ConversationReopened": Fold._reopened,
    "ConversationHandedOver": Fold._handed_over,
    "ConversationHandedBack": Fold._handed_back,
    "ConversationErased": Fold._erased,
}
