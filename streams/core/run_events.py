"""What events do to runs: opened, begun, moved, ended; who holds them, or that they wait. The picture is in `runs`."""

from __future__ import annotations

from collections.abc import Collection

from streams.core import heard, refusals
from streams.core.due import watch
from streams.core.events import Entry, Invocation, MoveReason, RunCancelling, RunEnded, RunMoved, RunOpened, RunStarted
from streams.core.latest import keep_answer, latest_of
from streams.core.longest import Longest
from streams.core.state import (
    ENDED_RUNS_KEPT,
    Conversation,
    EndedRun,
    ImpossibleEvent,
    Partition,
    Progress,
    Run,
    WaitingTurn,
)


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
    if run.member is None and not run.queued:
        longest = state.longest.setdefault(run.group, Longest())
        longest.add((run.placed_at, conversation.id, run.turn_seq, run.id))


def release(state: Partition, conversation: Conversation, run: Run) -> None:
    """Undo `hold`; counted, so that it costs the same however many runs the conversation has."""
    holder = _index_of(state, run)
    left = holder.pop(conversation.id, 0) - 1
    if left > 0:
        holder[conversation.id] = left
    if run.member is None and not run.queued:
        state.longest[run.group].drop(run.id)
        if not holder:
            del state.orphans[run.group], state.longest[run.group]


def _index_of(state: Partition, run: Run) -> dict[str, int]:
    if run.terms is not None and run.terms.queued:
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


def bind(state: Partition, run: Run, invocation: Invocation | None, at: int, origin: str = "") -> Run:
    """The run, with what its invocation, or else its group, says of it, and where its turn came from."""
    if origin:
        run.own_terms().origin = origin
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
    if run.progress is None or not run.progress.joined:
        conversation.ended[run.id] = EndedRun(run.turn_id, run.generation)
    else:
        conversation.ended[run.id] = EndedRun(run.turn_id, run.generation, tuple(run.progress.joined))
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
    waited = take_waiting(state, conversation, event.channel, event.turn_seq)
    latest = latest_of(conversation) if waited is None else None
    if waited is not None:
        turn_id, origin = waited.turn_id, waited.origin
    elif event.turn_id and latest is not None and event.turn_seq == latest.seq and latest.editions:
        turn_id, origin = event.turn_id, latest.origin
    else:
        raise ImpossibleEvent(f"turn {event.turn_seq} does not wait for channel {event.channel}")
    run = Run(event.run_id, event.turn_seq, turn_id, event.group, event.member, entry.at)
    if event.queued:
        run.own_terms().queued = True
    open_run(state, conversation, bind(state, run, None, entry.at, origin))
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


def take_waiting(state: Partition, conversation: Conversation, channel: str, turn_seq: int) -> WaitingTurn | None:
    """The turn waits for the channel no more. None: it did not wait."""
    turns = conversation.waiting.get(channel, [])
    turn = next((turn for turn in turns if turn.turn_seq == turn_seq), None)
    if turn is None:
        return None
    turns.remove(turn)
    if not turns:
        del conversation.waiting[channel]
        _forget_channel(state, conversation, channel)
    return turn


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
    if event.n > 0:
        heard.note(state, event.member, event.n)


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
    _keep(run, event)
    run.member = event.to_member
    run.epoch = event.run_epoch
    run.adopted_at = 0
    run.placed_at = entry.at
    hold(state, conversation, run)
    if event.to_member is None:
        watch(state, conversation, run)
        return
    _note_torn(state, run, event)
    run.claimants = tuple(claimant for claimant in run.claimants if claimant != event.to_member)
    if run.progress is not None:
        run.progress.answers_kept = False
    run.silent = event.adopted
    run.handed = run.handed or not (event.adopted or event.from_member == event.to_member)
    if event.adopted:
        run.adopted_at = max(entry.at, 1)
        if run.progress is not None and run.progress.started and not _is_at_work(conversation, event.to_member):
            conversation.current[event.to_member] = run.id
    elif event.continued:
        _hand_on(run, entry, event)
    else:
        run.progress = None
        if event.superseded:
            run.generation += 1
    watch(state, conversation, run)


def _is_at_work(conversation: Conversation, member: str) -> bool:
    """It works on a run by what came over the connection that it has now: one that it adopts, which it had begun over
    an earlier one, does not take that one's place."""
    current = conversation.runs.get(conversation.current.get(member, ""))
    return current is not None and not current.adopted_at


def _keep(run: Run, event: RunMoved) -> None:
    """For whom it waits, or that it came back to whom it was kept for."""
    if event.kept_for and event.to_member is not None:
        raise ImpossibleEvent(f"run {run.id} cannot be {event.to_member}'s and be kept for {event.kept_for}")
    if event.kept_for or event.proved or run.kept_for or run.proved:
        terms = run.own_terms()
        terms.kept_for, terms.proved = event.kept_for, event.proved


def _note_torn(state: Partition, run: Run, event: RunMoved) -> None:
    """What of it may be in the middle, at the process that has it now: see `Terms`. An agent that never says when it
    begins cannot be told from one that goes on. A connection that its gateway ended for it drains was read to its
    end."""
    progress, to = run.progress, event.to_member or ""
    announced = progress is not None and progress.started
    begins = announced or run.anew
    had_it = to == event.from_member or to in run.claimants or refusals.had(state, to, run.id)
    lost = announced and event.adopted and event.reason is not MoveReason.MEMBER_DRAINED
    torn = tuple(progress.streams) if progress is not None and lost else ()
    anew = (run.anew and not announced) if event.adopted else (begins and had_it and not event.continued)
    if torn or anew or run.torn or run.anew:
        terms = run.own_terms()
        terms.torn, terms.anew = torn, anew


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
    if event.n > 0:
        heard.note(state, event.member, event.n)


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


def withdraw_claim(conversation: Conversation, run_id: str, member: str | None) -> bool:
    """A member that says it has the run's turn was refused a frame of it, so that its process has lost part of the
    answer: it does not go on with the run. True when it had said so."""
    run = conversation.runs.get(run_id)
    if run is None or member not in run.claimants:
        return False
    run.claimants = tuple(claimant for claimant in run.claimants if claimant != member)
    return True
