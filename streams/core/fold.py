"""The dispatch: `decide` a command, `evolve` an entry, or both at once in `step`.

- `decide(state, command)` gives the events and leaves the state as it was (memos of derived values aside).
- `evolve(state, entry)` applies one journal entry in place and raises `ImpossibleEvent` for one that cannot follow.
  After an exception the state is worth nothing: rebuild it.
- `step(state, command, writer_epoch)` is what a sequencer calls: decide, wrap in entries, evolve each.

Before `step` and `evolve`, the conversation that the command or entry names must be loaded, or known to be absent;
before a command, its older keys too when `Conversation.older_keys` says so (`keys.restore_older`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from streams.core import heard, keys, refusals
from streams.core.commands import (
    ApplyConfig,
    ApplyList,
    CancelRun,
    CloseConversation,
    Command,
    CommitBatch,
    CommitFrame,
    CommitPersonFrame,
    CommitTurn,
    Drain,
    EraseConversation,
    EraseIdle,
    GatewayBehind,
    GatewayExpired,
    HandBack,
    HandOver,
    Join,
    Leave,
    MoveConversation,
    NoteAction,
    OpenConversation,
    OpenWriter,
    RefuseRun,
    Reject,
    ReleaseRun,
    ReopenConversation,
    TimePassed,
)
from streams.core.conversation import (
    decide_close,
    decide_open,
    decide_reopen,
    decide_turn,
    evolve_closed,
    evolve_conversation_opened,
    evolve_owner_changed,
    evolve_reopened,
    evolve_turn,
)
from streams.core.draft import Draft
from streams.core.editions import evolve_wanted_anew
from streams.core.erasure import decide_erase, decide_erase_idle, evolve_erased
from streams.core.events import (
    BatchCommitted,
    ConfigChanged,
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationMoved,
    ConversationOpened,
    ConversationReopened,
    Duplicate,
    Entry,
    Event,
    FrameCommitted,
    GatewayEnded,
    ListApplied,
    ListWanted,
    MemberDraining,
    MemberJoined,
    MemberLeft,
    OperatorActed,
    OwnerChanged,
    PersonFrameCommitted,
    Refused,
    RefusedReason,
    Rejected,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
    TurnUnassigned,
    Unknown,
    WriterOpened,
)
from streams.core.fast import step_turn
from streams.core.frame_events import evolve_frame
from streams.core.frames import decide_frame
from streams.core.handover import decide_hand_back, decide_hand_over, evolve_handed_back, evolve_handed_over
from streams.core.invocations import decide_cancel, decide_release
from streams.core.membership import (
    decide_config,
    decide_drain,
    decide_gateway_behind,
    decide_gateway_expired,
    decide_join,
    decide_leave,
    decide_list,
    decide_wanted_again,
    evolve_config,
    evolve_draining,
    evolve_gateway_ended,
    evolve_joined,
    evolve_left,
    evolve_list_applied,
    evolve_list_wanted,
)
from streams.core.moves import decide_move, decide_note, evolve_conversation_moved
from streams.core.person_frames import decide_person_frame, evolve_person_frame
from streams.core.policies import after
from streams.core.refusing import decide_refuse_run
from streams.core.run_events import (
    evolve_cancelling,
    evolve_ended,
    evolve_moved,
    evolve_opened,
    evolve_started,
    withdraw_claim,
)
from streams.core.state import Conversation, ImpossibleEvent, Partition
from streams.core.timeouts import advance_timers, decide_due
from streams.core.unassigned import advance_waits, decide_waits, evolve_unassigned

# ------------------------------------------------------------------------------------------------ decide


def _decide_time(state: Partition, command: TimePassed) -> list[Event]:
    draft = Draft()
    decide_due(state, draft, command.at)
    decide_waits(state, draft, command.at)
    return [*draft.events, *decide_wanted_again(state, command.at)]


def _decide_writer(state: Partition, command: OpenWriter) -> list[Event]:
    if command.writer_epoch <= state.writer_epoch:
        raise ImpossibleEvent(f"writer epoch {command.writer_epoch} does not exceed {state.writer_epoch}")
    return [WriterOpened(writer_epoch=command.writer_epoch, worker=command.worker)]


def _decide_reject(_: Partition, command: Reject) -> list[Event]:
    return [Rejected(origin=command.origin, reason=command.reason)]


def _decide_batch(_: Partition, command: CommitBatch) -> list[Event]:
    return [BatchCommitted(turns=command.turns, frames=command.frames, membership=command.membership)]


_DECIDERS: Final[dict[type[Command], Callable[[Partition, Any], list[Event]]]] = {
    OpenConversation: decide_open,
    CommitTurn: decide_turn,
    CloseConversation: decide_close,
    ReopenConversation: decide_reopen,
    CommitFrame: decide_frame,
    RefuseRun: decide_refuse_run,
    CancelRun: decide_cancel,
    ReleaseRun: decide_release,
    CommitPersonFrame: decide_person_frame,
    HandOver: decide_hand_over,
    HandBack: decide_hand_back,
    MoveConversation: decide_move,
    EraseConversation: decide_erase,
    EraseIdle: decide_erase_idle,
    Join: decide_join,
    Leave: decide_leave,
    ApplyList: decide_list,
    Drain: decide_drain,
    NoteAction: decide_note,
    GatewayBehind: decide_gateway_behind,
    GatewayExpired: decide_gateway_expired,
    ApplyConfig: decide_config,
    TimePassed: _decide_time,
    OpenWriter: _decide_writer,
    Reject: _decide_reject,
    CommitBatch: _decide_batch,
}


def decide(state: Partition, command: Command) -> list[Event]:
    """What the command comes to; the state stays as it is."""
    events = _DECIDERS[type(command)](state, command)
    return after(state, command.at, events) if state.queued or state.orphans else events


def conversation_of(command: Command) -> str | None:
    """The conversation that must be loaded before the command is decided; None: it names none."""
    id_: str | None = getattr(command, "conversation_id", None)
    return id_


# ------------------------------------------------------------------------------------------------ evolve


def _evolve_writer(state: Partition, entry: Entry, event: WriterOpened) -> None:
    if entry.writer_epoch != event.writer_epoch or event.writer_epoch <= state.writer_epoch:
        raise ImpossibleEvent(f"writer epoch {event.writer_epoch} does not follow {state.writer_epoch}")
    state.writer_epoch = event.writer_epoch
    state.restarted_at = entry.at


def _evolve_batch(state: Partition, _: Entry, event: BatchCommitted) -> None:
    if event.turns < state.turns or event.frames < state.frames or event.membership < state.membership:
        raise ImpossibleEvent(f"intake positions go back: {event}")
    state.turns, state.frames, state.membership = event.turns, event.frames, event.membership


def _evolve_refused(state: Partition, entry: Entry, event: Refused) -> None:
    refusals.count(state, event)
    if event.n > 0:
        heard.note_refused(state, event.member, event.n)
    if event.run_id is not None and event.reason is RefusedReason.FENCED:
        conversation = state.conversations.get(event.conversation_id or "")
        if conversation is not None and withdraw_claim(conversation, event.run_id, event.member):
            _touch(state, conversation, entry)


def _evolve_nothing(_: Partition, __: Entry, ___: Event) -> None:
    """The event informs readers and changes nothing that a decision depends on."""


def _evolve_unknown(state: Partition, entry: Entry, event: Unknown) -> None:
    """An event of a later release: what it did is not known here, but its place in the numbering is kept."""
    conversation = state.conversations.get(event.conversation_id or "")
    if event.seq and conversation is not None:
        _number(conversation, event)
        _touch(state, conversation, entry)


_OF_PARTITION: Final[dict[type[Event], Callable[[Partition, Entry, Any], None]]] = {
    MemberJoined: evolve_joined,
    MemberLeft: evolve_left,
    MemberDraining: evolve_draining,
    GatewayEnded: evolve_gateway_ended,
    ListWanted: evolve_list_wanted,
    ListApplied: evolve_list_applied,
    ConfigChanged: evolve_config,
    WriterOpened: _evolve_writer,
    BatchCommitted: _evolve_batch,
    Refused: _evolve_refused,
    Duplicate: _evolve_nothing,
    Rejected: _evolve_nothing,
    OperatorActed: _evolve_nothing,
    Unknown: _evolve_unknown,
}

_OF_CONVERSATION: Final[dict[type[Event], Callable[[Partition, Conversation, Entry, Any], None]]] = {
    TurnCommitted: evolve_turn,
    FrameCommitted: evolve_frame,
    OwnerChanged: evolve_owner_changed,
    RunOpened: evolve_opened,
    RunStarted: evolve_started,
    RunMoved: evolve_moved,
    RunEnded: evolve_ended,
    ConversationClosed: evolve_closed,
    ConversationReopened: evolve_reopened,
    PersonFrameCommitted: evolve_person_frame,
    TurnEdited: evolve_wanted_anew,
    TurnRegenerated: evolve_wanted_anew,
    ConversationHandedOver: evolve_handed_over,
    ConversationHandedBack: evolve_handed_back,
    ConversationMoved: evolve_conversation_moved,
    ConversationErased: evolve_erased,
    RunCancelling: evolve_cancelling,
    TurnUnassigned: evolve_unassigned,
}

_NUMBERED: Final = frozenset(
    {
        TurnCommitted,
        ConversationClosed,
        ConversationReopened,
        ConversationHandedOver,
        ConversationHandedBack,
        ConversationErased,
    }
)
"""Always numbered; a frame is or is not, by its type, and no other event ever is."""

_BY_TYPE: Final = frozenset({FrameCommitted, PersonFrameCommitted})


def evolve(state: Partition, entry: Entry) -> None:
    """Apply one entry in place. `ImpossibleEvent`: it cannot follow this state."""
    event = entry.event
    if entry.lsn != state.lsn + 1:
        raise ImpossibleEvent(f"lsn {entry.lsn} does not follow {state.lsn}")
    if entry.at < state.at:
        raise ImpossibleEvent(f"lsn {entry.lsn}: log time goes back from {state.at} to {entry.at}")
    kind = type(event)
    if entry.writer_epoch != state.writer_epoch and kind is not WriterOpened:
        raise ImpossibleEvent(f"lsn {entry.lsn} is of writer epoch {entry.writer_epoch}, not {state.writer_epoch}")
    of_conversation = _OF_CONVERSATION.get(kind)
    if of_conversation is not None:
        conversation = state.conversations.get(event.conversation_id)  # type: ignore[arg-type]
        if conversation is None:
            raise ImpossibleEvent(f"lsn {entry.lsn}: conversation {event.conversation_id} is not loaded, or never was")
        if kind in _BY_TYPE:
            if event.seq:
                _number(conversation, event)
        elif kind in _NUMBERED:
            _number(conversation, event)
        elif event.seq:
            raise ImpossibleEvent(f"lsn {entry.lsn}: {kind.__name__} takes no seq, not {event.seq}")
        of_conversation(state, conversation, entry, event)
        _touch(state, conversation, entry)
    elif kind is ConversationOpened:
        _touch(state, evolve_conversation_opened(state, entry, event), entry)  # type: ignore[arg-type]
    else:
        _OF_PARTITION[kind](state, entry, event)
    state.lsn = entry.lsn
    state.at = entry.at


def _number(conversation: Conversation, event: Event) -> None:
    if event.seq != conversation.head + 1:
        raise ImpossibleEvent(f"conversation {conversation.id}: seq {event.seq} does not follow {conversation.head}")
    conversation.head = event.seq


def _touch(state: Partition, conversation: Conversation, entry: Entry) -> None:
    conversation.lsn = entry.lsn
    state.dirty.add(conversation.id)
    if conversation.keys and not conversation.runs and not conversation.waiting:
        keys.pack(conversation)


# -------------------------------------------------------------------------------------------------- step


def step(state: Partition, command: Command, writer_epoch: int) -> list[Entry]:
    """Decide the command and evolve what it came to; the entries, for the journal."""
    if type(command) is CommitTurn and (turn := step_turn(state, command, writer_epoch)) is not None:
        return [turn]
    entries = []
    lsn = state.lsn
    at = command.at
    timestamp = command.timestamp
    events = _DECIDERS[type(command)](state, command)
    if state.queued or state.orphans:
        events = after(state, at, events)
    for event in events:
        lsn += 1
        entry = Entry(lsn, at, timestamp, writer_epoch, event)
        evolve(state, entry)
        entries.append(entry)
    if type(command) is TimePassed:
        advance_timers(state, at)
        advance_waits(state, at)
    return entries
