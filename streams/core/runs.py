"""Runs: the processing of one turn by one member of one group (rules 5, 7, 8 and the time-outs of rule 9).

```
                 turn committed, group has members            turn committed, no member at all
                              │                                           │ (waits on the conversation)
                              ▼                                           ▼ first group joins: RunOpened
          ┌──────────────▶  GIVEN  ◀──────────────────────────────────────┘
          │ restart           │ read, run started, first frame
          │ (RunMoved,        ▼
          │  epoch + 1)    WORKING ──interrupt──▶ ASKING (no watchdog) ──answering turn, interrupt_resolved──▶ WORKING
          │                 │   ▲                    │    ▲
          │                 │   └── continued (RunMoved, epoch + 1): as it is, with another member
          ├── its member is gone, another is there ──┤
          │                   │
          │     its member is gone, the group is empty: RunMoved to none, epoch + 1
          │                   ▼
          └────────────── ORPHANED ──next member: adopted (it has the turn), continued, restarted, or ended
                              │           (by what the member can and `on_owner_loss` says)
          any of them ──finished, error, aborted, first message of an unannounced run, watchdog, too many events,
                        conversation closed, owner gone (`fail`, or answered already), not begun in time, no member
                        in time──▶ ended (RunEnded)
```

These are read from a run's fields: GIVEN has no `progress`, ASKING has `progress.asks`, ORPHANED has no `member`.

A run is continued where its new member can go on with what another began, unless the channel forces `restart` or
`fail`: nothing is closed or superseded, and the member is given the turn with all that was committed. Also a run with
a message and nothing open: its agent would have said that it is over.

When a run that left something open ends or restarts, closing frames of the sender `system` come first: a last chunk
for each open stream, an `interrupt_resolved` for each open interrupt, with the answer that a person gave, if any. A
restart supersedes all frames of the run so far, the closing ones too, unless there is a committed message and nothing
open: then the run counts as answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from streams.core.draft import Draft
from streams.core.due import FAIL, is_kept, on_owner_loss
from streams.core.events import Frame, FrameCommitted, MoveReason, RunEnded, RunMoved, RunStatus
from streams.core.ids import channel_of_group, message_id
from streams.core.state import Conversation, Member, Partition, Run

CANCELLED: Final = "cancelled"
"""Why a run ended that somebody cancelled."""

INTERRUPTED: Final = "interrupted"
"""Why a run ended in whose place a later turn got one."""

SYSTEM: Final = "system"
"""Sender of closing frames."""

RESTART: Final = "restart"
"""The value of `on_owner_loss` by which such a run begins anew, also with an owner that could continue it."""

STREAM_CLOSED: Final = '{"type":"event","name":"stream_done","id":"closed"}'
"""Payload of a closing chunk: the protocol's genui event chunk."""

ASK_CLOSED: Final = '{"answer":null}'
"""Payload of a closing `interrupt_resolved`: nobody answered."""


def has_open_work(run: Run) -> bool:
    """A stream or an interrupt of it is open."""
    progress = run.progress
    return progress is not None and bool(progress.streams or progress.asks or progress.answers)


def is_answered(run: Run) -> bool:
    """It has a committed message and left nothing open: giving it again would answer it twice. Whoever calls an agent
    waits for its end, not for a message."""
    progress = run.progress
    return run.invocation is None and progress is not None and progress.messages > 0 and not has_open_work(run)


def close_open_work(
    draft: Draft, conversation: Conversation, run: Run, *, closing: str | None = None
) -> tuple[int, ...]:
    """Closing frames for what the run left open; their seqs. `closing`: the stream that a frame of the draft closes."""
    progress = run.progress
    if progress is None or not has_open_work(run):
        return ()
    frames = [
        Frame(
            id=message_id(conversation.id, f"{SYSTEM}:{run.id}:{run.epoch}:stream:{stream}"),
            type="genui",
            data=STREAM_CLOSED,
            stream_id=stream,
            done=True,
        )
        for stream in progress.streams
        if stream != closing
    ]
    asks = dict.fromkeys(progress.asks, ASK_CLOSED)
    asks |= {ask: f'{{"answer":{answer}}}' for ask, (_, answer) in progress.answers.items()}
    frames += [Frame(id=ask, type="interrupt_resolved", data=data) for ask, data in asks.items()]
    seqs = []
    for frame in frames:
        seq = draft.next_seq(conversation)
        seqs.append(seq)
        draft.add(
            FrameCommitted(
                conversation_id=conversation.id,
                seq=seq,
                frame=frame,
                sender=SYSTEM,
                channel=channel_of_group(run.group),
                group=run.group,
                member=run.member or "",
                run_id=run.id,
                run_epoch=run.epoch,
                origin=run.origin,
            )
        )
    return tuple(seqs)


def end(
    draft: Draft,
    conversation: Conversation,
    run: Run,
    status: RunStatus,
    reason: str,
    *,
    closing: str | None = None,
    n: int = 0,
) -> None:
    """The run is over, after closing what it left open. `closing`: the stream that a frame of the draft closes. `n`:
    the number of the frame that ends it, where that has no event of its own."""
    if has_open_work(run):
        close_open_work(draft, conversation, run, closing=closing)
    draft.add(
        RunEnded(
            run.id, run.turn_seq, run.group, run.member, run.epoch, status, reason, n=n, conversation_id=conversation.id
        )
    )


def move(
    draft: Draft,
    conversation: Conversation,
    run: Run,
    *,
    to: str | None,
    reason: MoveReason,
    superseded: tuple[int, ...] = (),
    adopted: bool = False,
    continued: bool = False,
    kept_for: str = "",
    proved: bool = False,
) -> None:
    """The run is `to`'s from here on (None: it waits, `kept_for` a process or for any), at the next epoch.

    An answer that was passed to the lost member, or to nobody, is given to one that goes on where it stopped; to a
    process that comes back only what was passed to nobody: it may have the rest.
    """
    progress = run.progress
    passed = progress is not None and (continued or (adopted and progress.answers_kept))
    answers = progress.answers if passed and progress is not None else {}
    draft.add(
        RunMoved(
            conversation_id=conversation.id,
            run_id=run.id,
            turn_seq=run.turn_seq,
            group=run.group,
            from_member=run.member,
            to_member=to,
            run_epoch=run.epoch + 1,
            reason=reason,
            superseded=superseded,
            adopted=adopted,
            continued=continued,
            checkpoint_lsn=progress.checkpoint if continued and progress is not None else 0,
            answers=tuple(sorted({lsn for lsn, _ in answers.values()})),
            resume=_encode({ask: msgspec.Raw(answer.encode()) for ask, (_, answer) in answers.items()}),
            kept_for=kept_for,
            proved=proved,
        )
    )


def may_continue(state: Partition, run: Run, member: Member) -> bool:
    """Whether `member`, to whom the run is given (or who lost it), goes on where it stopped, or would."""
    policy = on_owner_loss(state, run)
    return member.continues and run.progress is not None and policy not in {RESTART, FAIL}


def give(
    state: Partition, draft: Draft, conversation: Conversation, run: Run, *, to: Member, reason: MoveReason
) -> None:
    """Nobody works on the run: `to` goes on where it stopped, or begins anew; one that was answered ends."""
    if may_continue(state, run, to):
        move(draft, conversation, run, to=to.id, reason=reason, continued=True)
    elif is_answered(run):
        end(draft, conversation, run, RunStatus.ANSWERED, "owner_gone_after_answer")
    else:
        closing = close_open_work(draft, conversation, run)
        frames = () if run.progress is None else tuple(run.progress.frames)
        move(draft, conversation, run, to=to.id, reason=reason, superseded=frames + closing)


def lose_owner(
    state: Partition,
    draft: Draft,
    conversation: Conversation,
    run: Run,
    *,
    to: Member | None,
    reason: MoveReason,
    can_wait: bool = True,
    may_return: bool = False,
) -> None:
    """The run's member is gone (or never got to work): give the run to `to`, who does not have the turn, or end it.

    `to` None: the group is empty; the run waits unless it is to end anyway, or `can_wait` is False (a group that
    cannot have another member). What is open stays open while it waits, for the member's process may come back and go
    on. Where that process declared itself (`keeper`), or where an invocation is executed once, the run is kept for it
    (`may_return`), and nobody else gets it. A run that has a message and nothing open waits only when its member would
    have said that it is over: one that can continue ends its runs itself.
    """
    if run.cancelling:
        end(draft, conversation, run, RunStatus.CANCELLED, CANCELLED)
    elif may_return and can_wait and run.member is not None and (keeper(state, run) or is_kept(state, run)):
        move(draft, conversation, run, to=None, reason=reason, kept_for=keeper(state, run))
    elif (run.member is not None or run.progress is not None) and on_owner_loss(state, run) == FAIL:
        end(draft, conversation, run, RunStatus.OWNER_GONE, "owner_gone")
    elif to is not None:
        give(state, draft, conversation, run, to=to, reason=reason)
    elif can_wait and (not is_answered(run) or _had_more_to_say(state, run)):
        move(draft, conversation, run, to=None, reason=reason)
    elif is_answered(run):
        end(draft, conversation, run, RunStatus.ANSWERED, "owner_gone_after_answer")
    else:
        end(draft, conversation, run, RunStatus.OWNER_GONE, "owner_gone")


def keeper(state: Partition, run: Run) -> str:
    """The process that the run is its, and for which it is kept when its connection is lost; empty: none that declared
    itself, or the channel keeps nothing."""
    member = state.members.get(run.member or "")
    if member is None or state.config.group(run.group).grace_ms <= 0:
        return ""
    return member.instance


def _had_more_to_say(state: Partition, run: Run) -> bool:
    member = state.members.get(run.member or "")
    return member is not None and may_continue(state, run, member)


def may_be_adopted(run: Run) -> bool:
    """Whether who says that it has the turn may go on where its process was: all that was said of the run is then that
    process's. A run that was given to another one meanwhile may have that one's words in it, or have lost the first
    one's: a watermark says that a process has the turn, and not which of them it is."""
    progress = run.progress
    said = progress is not None and bool(progress.frames or progress.checkpoint)
    return not (run.handed and (said or run.generation))


def connection_of(process: str, run: Run, roster: Mapping[str, Member]) -> Member | None:
    """The connection of this process among the group's members, the last one, but for the one that holds the run."""
    if not process:
        return None
    present = [member for member in roster.values() if member.instance == process and member.id != run.member]
    return max(present, key=lambda member: (not member.draining, member.since, member.id), default=None)


def adopt(
    draft: Draft, conversation: Conversation, run: Run, to: str, reason: MoveReason, *, proved: bool = False
) -> None:
    """`to` says that it has the turn already, or has `proved` to be the process that worked on it: the run is its, and
    it goes on where it was."""
    move(draft, conversation, run, to=to, reason=reason, adopted=True, proved=proved)


def _encode(answers: dict[str, msgspec.Raw]) -> str | None:
    return msgspec.json.encode(answers).decode() if answers else None
