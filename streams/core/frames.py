"""An agent's frames: whether its sender may write one, and what it does to the run that it belongs to (rules 1, 6, 7).

A frame of no run is *proactive*: stored only from the conversation's owner in the sender's group, and never when it
names a run, or a turn, that is not open. Nor is a piece of an answer (a chunk, a tool call, a question) of a process
that came back while its old connection holds the run: it is refused, and so is what else comes of it. Its run is then
given anew to somebody, for the end of an answer without its beginning is none.

In a conversation of its own channel an agent is given no runs: whatever it says there is proactive, also what names a
turn by its clientId, and any member of that channel may say it.

| frame type | what it becomes |
|---|---|
| `read` | `RunStarted` for the last run given up to its watermark; nothing when that is started, or there is none |
| `run` started | `RunStarted`; an unnumbered frame when the run was started already and something happened since |
| `read`, `run` started that name a run which is not open | fenced: who works on it must be told to stop |
| `run` finished, error, aborted | `RunEnded` answered, failed, cancelled; nothing without a run that was begun |
| `run` interrupted, `error`, `skills`, `genui_components` | an unnumbered frame of its run |
| `checkpoint` | an unnumbered frame of its run, for whoever continues it; shown to nobody |
| `interrupt`, `interrupt_resolved` | a numbered frame; opens, closes an ask |
| `interrupt` of a run that is to stop | fenced, and `RunEnded` cancelled: nobody is asked what would not be heard |
| `interrupt`, `error`, `skills`, `genui_components` of no run, where the conversation is another channel's | fenced |
| `genui`, `tool_call`, `skill`, `event` | a numbered frame |
| `typing`, `presence`, and others of the protocol's own that only a server sends | nothing |
| any other: a message | a numbered frame; it is the answer when neither `read` nor `run started` announced its run |

The answer of an unannounced run ends it. A message that names neither run nor turn answers all turns that its sender
had been given when it was sent, for such an agent may fold them into one; a message that names its turn answers that
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from streams.core import heard, keys, proactive, refusals
from streams.core.commands import CommitFrame
from streams.core.correlation import (
    Target,
    begun,
    by_turn,
    claimed_run,
    correlate,
    is_its_own,
    is_started,
    lacks_something,
    may_be_a_rest,
)
from streams.core.draft import Draft
from streams.core.events import (
    Event,
    Frame,
    FrameCommitted,
    MoveReason,
    RefusedReason,
    RunStarted,
    RunStatus,
)
from streams.core.frame_events import continues
from streams.core.frame_types import CHECKPOINT, INTERRUPT, NOT_KEPT, STRUCTURED, UNNUMBERED
from streams.core.ids import frame_key, message_id
from streams.core.limits import (
    RUN_EVENTS_MAX,
    RUN_FRAMES_MAX,
    problem_of_checkpoint,
    problem_of_frame,
)
from streams.core.runs import CANCELLED, end, lose_owner
from streams.core.state import Conversation, Partition, Run
from streams.core.timeouts import heir_of_adopter

NOT_OPEN: Final = "run: it has ended, or never was one of this group"
TORN: Final = "run: what was sent before over a lost connection may be missing; it is given again"
NEEDS_RUN: Final = "type: needs a run that its sender holds"
"""A question of no run, as of one that was just stopped, could not be answered and would stay open for ever."""
TO_STOP: Final = "run: it was told to stop, and asks"
REST: Final = "run: what came of it before was refused; say `run started`, then begin anew"

RUN_ENDS: Final = {
    "finished": RunStatus.ANSWERED,
    "error": RunStatus.FAILED,
    "aborted": RunStatus.CANCELLED,
}


def decide_frame(state: Partition, command: CommitFrame) -> list[Event]:
    """What a frame comes to; see the table above."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [refusals.frame_refused(command, *refusals.NO_CONVERSATION)]
    kind = command.frame.type
    if kind in NOT_KEPT:
        return []
    target = correlate(conversation, command)
    if target.key is not None and (known := keys.find(conversation, target.key, command.at)) is not None:
        return [keys.repeat(conversation, known, target.key, command.ref, command.frame.client_id)]
    problem = problem_of_frame(command.frame, command.sender)
    if problem is not None:
        return [refusals.frame_refused(command, *problem)]
    member = state.members.get(command.member)
    if member is None or member.group != command.group:
        return refusals.frame_fenced(state, command, target.run, "member: it is not (or no longer) in this group")
    if heard.is_repeat(member, command):
        return []  # whoever waits for its `ref` got the first one's outcome
    return _CONTROL.get(kind, _decide_kept)(state, conversation, command, target)


def _decide_kept(state: Partition, conversation: Conversation, command: CommitFrame, target: Target) -> list[Event]:
    """A frame that is shown: of a run that its sender holds, or proactive."""
    if conversation.handed_over:  # which ended all runs
        return refusals.frame_fenced(
            state, command, None, "conversation_id: a human answers", RefusedReason.HANDED_OVER
        )
    if target.run is None:
        return _decide_proactive(state, conversation, command, target)
    if not _holds(command, target.run):
        return refusals.frame_fenced(state, command, target.run, "run: held by another member, or at a later epoch")
    if command.frame.type in STRUCTURED and may_be_a_rest(command, target.run):
        return refusals.frame_fenced(state, command, target.run, REST)
    if command.frame.type == INTERRUPT and target.run.cancelling:
        return _stop_at_a_question(state, conversation, command, target.run)
    if command.frame.type == "genui" and lacks_something(command, target.run, _stream_id(command.frame, target.run)):
        return _begin_anew(state, conversation, command, target.run)
    return _decide_run_frame(conversation, command, target.run, target)


def _holds(command: CommitFrame, run: Run) -> bool:
    return run.member == command.member and (command.run_epoch is None or command.run_epoch == run.epoch)


def _begin_anew(state: Partition, conversation: Conversation, command: CommitFrame, run: Run) -> list[Event]:
    """Part of the answer is lost: what there is is superseded, and the run given again, or as its channel says."""
    draft = Draft()
    to = heir_of_adopter(state, run, conversation.id, command.at)
    lose_owner(state, draft, conversation, run, to=to, reason=MoveReason.ADOPT_TIMEOUT)
    return [*refusals.frame_fenced(state, command, run, TORN), *draft.events]


def _stop_at_a_question(state: Partition, conversation: Conversation, command: CommitFrame, run: Run) -> list[Event]:
    """Who was told to stop asks instead, and would wait for a person whose answer would end with the run: it ends."""
    draft = Draft()
    end(draft, conversation, run, RunStatus.CANCELLED, CANCELLED)
    return [*refusals.frame_fenced(state, command, run, TO_STOP), *draft.events]


def _decide_proactive(
    state: Partition, conversation: Conversation, command: CommitFrame, target: Target
) -> list[Event]:
    if target.names:
        return refusals.frame_fenced(state, command, None, NOT_OPEN)
    if command.frame.type in STRUCTURED and (claimed := claimed_run(state, conversation, command)) is not None:
        return refusals.frame_fenced(state, command, claimed, "run: another connection holds the one that it may be of")
    if is_its_own(conversation, command.group):
        problem = None
    elif command.frame.type in UNNUMBERED or command.frame.type == INTERRUPT:
        problem = NEEDS_RUN
    else:
        problem = proactive.why_not(state, conversation, command)
    if problem is not None:
        return refusals.frame_fenced(state, command, None, problem)
    if not conversation.open:
        return [refusals.frame_refused(command, RefusedReason.CONVERSATION_CLOSED, "conversation_id: it is closed")]
    if command.frame.type in UNNUMBERED:
        return [_committed(conversation, command, None, None, 0)]
    key = None if command.frame.client_id is None else frame_key(command.group, None, command.frame.client_id)
    return [_committed(conversation, command, None, key, conversation.head + 1)]


def _decide_run_frame(conversation: Conversation, command: CommitFrame, run: Run, target: Target) -> list[Event]:
    kind = command.frame.type
    progress = run.progress
    if progress is not None and (
        len(progress.frames) >= RUN_FRAMES_MAX
        or (progress.events >= RUN_EVENTS_MAX and not continues(progress, _stream_id(command.frame, run)))
    ):
        draft = Draft()
        end(draft, conversation, run, RunStatus.FAILED, "too_many_events")
        detail = f"run: more than {RUN_EVENTS_MAX} events; it has ended"
        return [*draft.events, refusals.frame_refused(command, RefusedReason.TOO_MANY_EVENTS, detail)]
    if kind in UNNUMBERED:
        return [_committed(conversation, command, run, None, 0)]
    event = _committed(conversation, command, run, target.key, conversation.head + 1)
    if not _is_answer(event.frame) or is_started(run):
        return [event]
    draft = Draft()
    draft.add(event)
    draft.next_seq(conversation)
    for answered in _answered_by(conversation, command, run, target):
        closing = event.frame.stream_id if answered is run and event.frame.done else None
        end(draft, conversation, answered, RunStatus.ANSWERED, "message", closing=closing)
    return draft.events


def _answered_by(conversation: Conversation, command: CommitFrame, run: Run, target: Target) -> list[Run]:
    """The frame's own run comes last: it is remembered the longest, for the frame is a repeat if it comes again."""
    if target.names:
        return [run]
    others = [
        held
        for held in conversation.runs.values()
        if held is not run
        and held.member == command.member
        and not is_started(held)
        and held.turn_seq <= command.delivered_seq
    ]
    return [*others, run]


def _is_answer(frame: Frame) -> bool:
    """A persistent message, or the end of a stream (a reply may be a stream only)."""
    return frame.done if frame.type == "genui" else frame.type not in STRUCTURED


def _stream_id(frame: Frame, run: Run | None) -> str | None:
    """The stream as viewers know it: a stream id used again after its frames were superseded is a new stream. Who
    continues a run knows the stream by the name that viewers know."""
    if frame.stream_id is None or run is None or run.generation == 0:
        return frame.stream_id
    suffix = f"#{run.generation}"
    return frame.stream_id if frame.stream_id.endswith(suffix) else frame.stream_id + suffix


def _committed(
    conversation: Conversation, command: CommitFrame, run: Run | None, key: str | None, seq: int
) -> FrameCommitted:
    frame = command.frame
    stream_id = _stream_id(frame, run)
    if stream_id != frame.stream_id:
        frame = msgspec.structs.replace(frame, stream_id=stream_id)
    if key is not None and frame.type not in {"interrupt", "interrupt_resolved"}:
        frame = msgspec.structs.replace(frame, id=message_id(conversation.id, key))
    return FrameCommitted(  # by position where it may be: this is made for every frame, and names cost as much again
        frame,
        command.sender,
        command.channel,
        command.group,
        command.member,
        None if run is None else run.id,
        0 if run is None else run.epoch,
        key,
        command.ref,
        command.n,
        "" if run is None else run.origin,
        conversation_id=conversation.id,
        seq=seq,
    )


def _decide_read(state: Partition, conversation: Conversation, command: CommitFrame, target: Target) -> list[Event]:
    """`read` names a turn by its watermark: its run, else the last one below it that was given and not started."""
    run = target.run if target.names else _run_read(conversation, command)
    if run is None and target.names:
        return refusals.frame_fenced(state, command, None, NOT_OPEN)
    if run is None or is_started(run):
        return []
    if not _holds(command, run):
        return refusals.frame_fenced(state, command, run, "run: held by another member, or at a later epoch")
    return [_started(conversation, command, run, "read")]


def _run_read(conversation: Conversation, command: CommitFrame) -> Run | None:
    held = [
        run
        for run in conversation.runs.values()
        if run.member == command.member and not is_started(run) and run.turn_seq <= command.frame.watermark
    ]
    return max(held, key=by_turn, default=None)


def _decide_run_status(
    state: Partition, conversation: Conversation, command: CommitFrame, target: Target
) -> list[Event]:
    status = command.frame.status
    run = target.run
    if run is None:
        # Who says that it works on a run which is over must be told to stop; that it has stopped is no news.
        return refusals.frame_fenced(state, command, None, NOT_OPEN) if target.names and status == "started" else []
    if not _holds(command, run):
        return refusals.frame_fenced(state, command, run, "run: held by another member, or at a later epoch")
    if status == "started":
        begins = run if target.names else begun(conversation, command, run)
        if not is_started(begins):
            return [_started(conversation, command, begins, "run")]
    ended = RUN_ENDS.get(status or "")
    if ended is RunStatus.ANSWERED and lacks_something(command, run):
        return _begin_anew(state, conversation, command, run)
    if ended is not None and (run.progress is None or run.progress.inherited) and not target.names:
        return []  # its sender did nothing of it: this is the end of another run, which is over
    if ended is not None:
        draft = Draft()
        end(draft, conversation, run, ended, status or "", n=command.n)
        return draft.events
    if status == "started" and (run.progress is None or not run.progress.events):
        return []
    return [_committed(conversation, command, run, None, 0)]


def _decide_checkpoint(
    state: Partition, conversation: Conversation, command: CommitFrame, target: Target
) -> list[Event]:
    """Any number of them, beside the limits of what is shown; a re-sent one is a repeat: the last one stays so."""
    run = target.run
    if run is None:
        return refusals.frame_fenced(state, command, None, NOT_OPEN)
    if not _holds(command, run):
        return refusals.frame_fenced(state, command, run, "run: held by another member, or at a later epoch")
    problem = problem_of_checkpoint(command.frame)
    if problem is not None:
        return [refusals.frame_refused(command, *problem)]
    return [_committed(conversation, command, run, target.key, 0)]


def _started(conversation: Conversation, command: CommitFrame, run: Run, by: str) -> RunStarted:
    return RunStarted(
        conversation_id=conversation.id,
        run_id=run.id,
        run_epoch=run.epoch,
        group=run.group,
        member=command.member,
        turn_seq=run.turn_seq,
        by=by,
        n=command.n,
    )


_CONTROL: Final[dict[str, Callable[[Partition, Conversation, CommitFrame, Target], list[Event]]]] = {
    "read": _decide_read,
    "run": _decide_run_status,
    CHECKPOINT: _decide_checkpoint,
}
