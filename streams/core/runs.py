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
for each open stream, an `interrupt_resolved` for each open interrupt. A restart supersedes all frames of the run so
far, the closing ones too, unless there is a committed message and nothing open: then the run counts as answered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from streams.core.draft import Draft
from streams.core.events import (
    Entry,
    Frame,
    FrameCommitted,
    Invocation,
    MoveReason,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    RunStatus,
)
from streams.core.ids import channel_of_group, message_id
from streams.core.latest import keep_answer, latest_of
from streams.core.routing import GroupRules
from streams.core.state import (
    ENDED_RUNS_KEPT,
    Conversation,
    EndedRun,
    ImpossibleEvent,
    Member,
    Partition,
    Progress,
    Run,
)

CANCELLED: Final = "cancelled"
"""Why a run ended that somebody cancelled."""

INTERRUPTED: Final = "interrupted"
"""Why a run ended in whose place a later turn got one."""

TRY_AGAIN_MS: Final = 1000
"""A run that every member of its group refused is given to one of them again after this long: a tick."""

SYSTEM: Final = "system"
"""Sender of closing frames."""

FAIL: Final = "fail"
"""The value of `on_owner_loss` by which a run whose owner is gone is never executed again."""

RESTART: Final = "restart"
"""The value of `on_owner_loss` by which such a run begins anew, also with an owner that could continue it."""

STREAM_CLOSED: Final = '{"type":"event","name":"stream_done","id":"closed"}'
"""Payload of a closing chunk: the protocol's genui event chunk."""

ASK_CLOSED: Final = '{"answer":null}'
"""Payload of a closing `interrupt_resolved`: nobody answered."""


def _encode(answers: dict[str, msgspec.Raw]) -> str | None:
    return msgspec.json.encode(answers).decode() if answers else None


# ------------------------------------------------------------------------------------------------ decide


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
    if progress is None:
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
    asks = [*progress.asks, *progress.answers]
    frames += [Frame(id=ask, type="interrupt_resolved", data=ASK_CLOSED) for ask in asks]
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
) -> None:
    """The run is over, after closing what it left open. `closing`: the stream that a frame of the draft closes."""
    close_open_work(draft, conversation, run, closing=closing)
    draft.add(
        RunEnded(
            conversation_id=conversation.id,
            run_id=run.id,
            turn_seq=run.turn_seq,
            group=run.group,
            member=run.member,
            run_epoch=run.epoch,
            status=status,
            reason=reason,
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
) -> None:
    """The run is `to`'s from here on (None: it waits), at the next epoch.

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
        )
    )


def on_owner_loss(state: Partition, run: Run) -> str | None:
    """What becomes of the run when its member is gone. An invocation is executed once, unless its caller or its group
    says otherwise."""
    policy = state.config.group(run.group).on_owner_loss
    return FAIL if policy is None and run.invocation is not None and not run.retry else policy


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
    on. So it may where an invocation is executed once: its claim is kept for that (`may_return`), and nobody else gets
    it. A run that has a message and nothing open waits only when its member would have said that it is over: one that
    can continue ends its runs itself.
    """
    if run.cancelling:
        end(draft, conversation, run, RunStatus.CANCELLED, CANCELLED)
    elif may_return and can_wait and run.member is not None and is_kept(state, run):
        move(draft, conversation, run, to=None, reason=reason)
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


def adopt(draft: Draft, conversation: Conversation, run: Run, to: str, reason: MoveReason) -> None:
    """`to` says that it has the turn already: the run is its, and it goes on where it was."""
    move(draft, conversation, run, to=to, reason=reason, adopted=True)


def due(state: Partition, run: Run) -> int | None:
    """Log time at which the run's next time-out fires; None: none is set.

    A run whose member asks a person waits `interrupt_ttl_ms` for the answer. Else an adopted run waits `adopt_ms` for a
    frame, and a run that someone works on may be idle for `watchdog_ms`. Where the channel sets them: a run waits
    `wait_ms` for a member, and `begin_ms` for its member to begin. One that all members refused is tried again after
    `TRY_AGAIN_MS`. All count from the present writer's begin if that is later.

    The deadline is a moment of log time, which passes with a writer only. It stands still while a person is asked.
    """
    rules = state.config.group(run.group)
    progress = run.progress
    if progress is not None and run.member is not None and not run.adopted_at:
        if progress.asks:
            return max(progress.asked_at, state.restarted_at) + rules.interrupt_ttl_ms
        watchdog = max(progress.active_at, state.restarted_at) + rules.watchdog_ms
        if not run.deadline_at:
            return watchdog
        return min(watchdog, run.deadline_at) if run.streamed else run.deadline_at
    when = _due_unwatched(state, run, rules)
    if not run.deadline_at or (progress is not None and progress.paused_at):
        return when
    return run.deadline_at if when is None else min(when, run.deadline_at)


def _due_unwatched(state: Partition, run: Run, rules: GroupRules) -> int | None:
    """Of a run that nobody works on, as far as is known."""
    if run.adopted_at:
        asks = run.progress is not None and run.progress.asks and run.member is not None
        if asks and run.progress is not None:
            return max(run.progress.asked_at, state.restarted_at) + rules.interrupt_ttl_ms
        # What is given to no other may be silent for as long as work may be.
        patience_ms = rules.watchdog_ms if is_kept(state, run) else rules.adopt_ms
        return max(run.adopted_at, state.restarted_at) + patience_ms
    if run.queued:
        return None
    if run.member is None and is_kept(state, run):
        return max(run.placed_at, state.restarted_at) + rules.grace_ms
    if waits_for_room(state, run):
        return max(run.placed_at, state.restarted_at) + TRY_AGAIN_MS
    limit = rules.wait_ms if run.member is None else rules.begin_ms
    return max(run.placed_at, state.restarted_at) + limit if limit else None


def waits_for_room(state: Partition, run: Run) -> bool:
    """Nobody holds it though its group has members: each of them refused it."""
    return run.member is None and not run.queued and run.group in state.groups and not is_kept(state, run)


def is_kept(state: Partition, run: Run) -> bool:
    """Once nobody holds it, it is kept for the process that had it, and given to no other."""
    return (
        run.invocation is not None
        and on_owner_loss(state, run) == FAIL
        and state.config.group(run.group).grace_ms > 0
        and not run.queued
    )


# ------------------------------------------------------------------------------------------------ evolve


def run_of(conversation: Conversation, run_id: str, epoch: int) -> Run:
    """The open run that an event speaks of, at the epoch that it names."""
    run = conversation.runs.get(run_id)
    if run is None:
        raise ImpossibleEvent(f"run {run_id} is not open")
    if run.epoch != epoch:
        raise ImpossibleEvent(f"run {run_id} is at epoch {run.epoch}, the event is of epoch {epoch}")
    return run


def hold(state: Partition, conversation: Conversation, run: Run) -> None:
    """Index who holds the run, or that it waits."""
    holder = _index_of(state, run)
    holder[conversation.id] = holder.get(conversation.id, 0) + 1


def release(state: Partition, conversation: Conversation, run: Run) -> None:
    """Undo `hold`; counted, so that it costs the same however many runs the conversation has."""
    holder = _index_of(state, run)
    left = holder.pop(conversation.id, 0) - 1
    if left > 0:
        holder[conversation.id] = left
    elif run.member is None and not run.queued and not holder:
        del state.orphans[run.group]


def _index_of(state: Partition, run: Run) -> dict[str, int]:
    if run.queued:
        return state.queued
    if run.member is None:
        return state.orphans.setdefault(run.group, {})
    member = state.members.get(run.member)
    return {} if member is None else member.conversations


def note_asks(run: Run, progress: Progress, at: int) -> None:
    """What it asks has changed: while an interrupt is open and unanswered, its deadline stands still."""
    if progress.asks:
        progress.paused_at = progress.paused_at or max(at, 1)
    elif progress.paused_at:
        if run.deadline_at:
            run.own_terms().deadline_at += at - progress.paused_at
        progress.paused_at = 0


def watch(state: Partition, conversation: Conversation, run: Run) -> None:
    """Make sure that the run is looked at when its next time-out is due."""
    when = due(state, run)
    if when is not None:
        state.timers.add(run.id, conversation.id, when)


def bind(state: Partition, run: Run, invocation: Invocation | None, at: int) -> Run:
    """The run, with what its invocation, or else its group, says of it."""
    if invocation is None:
        deadline_ms = state.config.group(run.group).deadline_ms
    else:
        deadline_ms = invocation.deadline_ms
        terms = run.own_terms()
        terms.invocation, terms.streamed, terms.retry = invocation.id, invocation.streamed, invocation.retry
    if deadline_ms:
        run.own_terms().deadline_at = at + deadline_ms
    return run


def open_run(state: Partition, conversation: Conversation, run: Run) -> None:
    """A turn found its group."""
    conversation.runs[run.id] = run
    hold(state, conversation, run)
    if run.deadline_at or state.config.limits_begin:
        watch(state, conversation, run)


def forget_waiting(state: Partition, conversation: Conversation) -> None:
    """No turn of the conversation waits for a group any more."""
    for channel in conversation.waiting:
        _forget_channel(state, conversation, channel)
    conversation.waiting = {}


def forget_run(state: Partition, conversation: Conversation, run: Run) -> None:
    """Take the run out of all that speaks of it."""
    release(state, conversation, run)
    del conversation.runs[run.id]
    state.timers.drop(run.id)
    if run.member is not None and conversation.current.get(run.member) == run.id:
        del conversation.current[run.member]
    joined = () if run.progress is None else tuple(run.progress.joined)
    conversation.ended[run.id] = EndedRun(run.turn_id, run.generation, joined)
    if len(conversation.ended) > ENDED_RUNS_KEPT:
        del conversation.ended[next(iter(conversation.ended))]
    keep_answer(conversation, run)


def evolve_opened(state: Partition, conversation: Conversation, entry: Entry, event: RunOpened) -> None:
    """A waiting turn became a run, or came to its place in line, or a run's time in line is over."""
    queued = conversation.runs.get(event.run_id)
    if queued is not None and queued.queued and not event.queued:
        _leave_line(state, conversation, queued, entry, event)
        return
    if queued is not None:
        raise ImpossibleEvent(f"run {event.run_id} is open already")
    turn_id = take_waiting(state, conversation, event.channel, event.turn_seq)
    if turn_id is None:
        latest = latest_of(conversation)
        if not event.turn_id or latest is None or event.turn_seq != latest.seq or not latest.editions:
            raise ImpossibleEvent(f"turn {event.turn_seq} does not wait for channel {event.channel}")
        turn_id = event.turn_id
    run = Run(event.run_id, event.turn_seq, turn_id, event.group, event.member, entry.at)
    if event.queued:
        run.own_terms().queued = True
    open_run(state, conversation, bind(state, run, None, entry.at))
    _own(conversation, event)


def _leave_line(state: Partition, conversation: Conversation, run: Run, entry: Entry, event: RunOpened) -> None:
    release(state, conversation, run)
    run.own_terms().queued = False
    run.member, run.placed_at = event.member, entry.at
    hold(state, conversation, run)
    watch(state, conversation, run)
    _own(conversation, event)


def _own(conversation: Conversation, event: RunOpened) -> None:
    if event.member is not None:
        conversation.owners[event.group] = event.member
        conversation.plan = None


def take_waiting(state: Partition, conversation: Conversation, channel: str, turn_seq: int) -> str | None:
    """The turn waits for the channel no more. Its id; None: it did not wait."""
    turns = conversation.waiting.get(channel, [])
    turn = next((turn for turn in turns if turn.turn_seq == turn_seq), None)
    if turn is None:
        return None
    turns.remove(turn)
    if not turns:
        del conversation.waiting[channel]
        _forget_channel(state, conversation, channel)
    return turn.turn_id


def _forget_channel(state: Partition, conversation: Conversation, channel: str) -> None:
    waiting = state.waiting[channel]
    waiting.discard(conversation.id)
    if not waiting:
        del state.waiting[channel]


def evolve_started(state: Partition, conversation: Conversation, entry: Entry, event: RunStarted) -> None:
    """Its member works on it: `current` for what it sends next."""
    run = run_of(conversation, event.run_id, event.run_epoch)
    if run.member != event.member:
        raise ImpossibleEvent(f"run {run.id} is held by {run.member}, {event.member} cannot start it")
    if run.progress is None:
        run.progress = Progress(entry.at)
    run.progress.started = True
    run.progress.inherited = False
    run.progress.active_at = entry.at
    run.adopted_at = 0
    conversation.current[event.member] = run.id
    watch(state, conversation, run)


def evolve_moved(state: Partition, conversation: Conversation, entry: Entry, event: RunMoved) -> None:
    """Another member, the next epoch; unless adopted, continued or waiting, from a clean sheet."""
    run = run_of(conversation, event.run_id, event.run_epoch - 1)
    if run.member != event.from_member:
        raise ImpossibleEvent(f"run {run.id} is held by {run.member}, it cannot move from {event.from_member}")
    release(state, conversation, run)
    was_current = run.member is not None and conversation.current.get(run.member) == run.id
    if run.member is not None and was_current:
        del conversation.current[run.member]
    refused = event.reason is MoveReason.REFUSED and event.from_member is not None and event.to_member is not None
    if event.reason is MoveReason.REFUSED:
        run.own_terms().given_back = event.to_member is not None
    if refused or run.refusers:
        run.own_terms().refusers = (*run.refusers, event.from_member or "") if refused else ()
    run.member = event.to_member
    run.epoch = event.run_epoch
    run.adopted_at = 0
    run.placed_at = entry.at
    hold(state, conversation, run)
    if event.to_member is None:
        watch(state, conversation, run)
        return
    run.claimants = tuple(claimant for claimant in run.claimants if claimant != event.to_member)
    if run.progress is not None:
        run.progress.answers_kept = False
    run.silent = event.adopted
    run.handed = run.handed or not (event.adopted or event.from_member == event.to_member)
    if event.adopted:
        run.adopted_at = max(entry.at, 1)
        if run.progress is not None and run.progress.started:
            conversation.current[event.to_member] = run.id
    elif event.continued:
        _hand_on(run, entry, event)
    else:
        run.progress = None
        if event.superseded:
            run.generation += 1
    watch(state, conversation, run)


def _hand_on(run: Run, entry: Entry, event: RunMoved) -> None:
    """All that was done stays; who has it now must say by itself that it works on it."""
    progress = run.progress
    if progress is None or event.superseded or event.checkpoint_lsn != progress.checkpoint:
        raise ImpossibleEvent(
            f"run {run.id} cannot be continued so: nothing was done of it, or the event is of another"
        )
    progress.started = False
    progress.inherited = True
    progress.active_at = entry.at


def evolve_ended(state: Partition, conversation: Conversation, _: Entry, event: RunEnded) -> None:
    """Nothing of it is accepted any more."""
    run = run_of(conversation, event.run_id, event.run_epoch)
    if run.member != event.member:
        raise ImpossibleEvent(f"run {run.id} is held by {run.member}, the event says {event.member}")
    forget_run(state, conversation, run)


def evolve_cancelling(_: Partition, conversation: Conversation, __: Entry, event: RunCancelling) -> None:
    """Its member was told to stop."""
    run = run_of(conversation, event.run_id, event.run_epoch)
    if run.cancelling or run.member != event.member:
        raise ImpossibleEvent(f"run {run.id} is being cancelled already, or is held by {run.member}")
    run.own_terms().cancelling = True


def claim_runs(state: Partition, conversation: Conversation, group: str, member: str, watermark: int) -> bool:
    """A member that joined says that it has the turns up to `watermark`: remember it for when a run of them is free.
    What waits in line was given to nobody, though an answer after it may have been.

    True when there is such a run.
    """
    runs = conversation.runs.values()
    claimed = [run for run in runs if run.group == group and run.turn_seq <= watermark and not run.queued]
    for run in claimed:
        run.claimants = (*claimants_of(run, state.members), member)
    return bool(claimed)


def claimants_of(run: Run, present: Collection[str]) -> list[str]:
    """Members of `present` that say they have the run's turn, in the order they joined."""
    return [claimant for claimant in run.claimants if claimant in present]
