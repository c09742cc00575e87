"""How long a run waits, and for what (rule 9): the log time at which its next time-out is due.

What becomes of a run whose time is up is `timeouts`'.
"""

from __future__ import annotations

from typing import Final

from streams.core.routing import GroupRules
from streams.core.state import Conversation, Partition, Run

TRY_AGAIN_MS: Final = 1000
"""A run that every member of its group refused is given to one of them again after this long: a tick."""

FAIL: Final = "fail"
"""The value of `on_owner_loss` by which a run whose owner is gone is never executed again."""


def on_owner_loss(state: Partition, run: Run) -> str | None:
    """What becomes of the run when its member is gone. An invocation is executed once, unless its caller or its group
    says otherwise."""
    policy = state.config.group(run.group).on_owner_loss
    return FAIL if policy is None and run.invocation is not None and not run.retry else policy


def is_kept(state: Partition, run: Run) -> bool:
    """Once nobody holds it, it is kept for the process that had it, and given to no other: one that declared itself, or
    of a run that is executed once, any that says it has the turn."""
    if run.queued or state.config.group(run.group).grace_ms <= 0:
        return False
    return bool(run.kept_for) or is_executed_once(state, run)


def is_executed_once(state: Partition, run: Run) -> bool:
    """An invocation that nobody else may do again."""
    return run.invocation is not None and on_owner_loss(state, run) == FAIL


def waits_for_room(state: Partition, run: Run) -> bool:
    """Nobody holds it though its group has members: each of them refused it."""
    return run.member is None and not run.queued and run.group in state.groups and not is_kept(state, run)


def due(state: Partition, run: Run) -> int | None:
    """Log time at which the run's next time-out fires; None: none is set.

    A run whose member asks a person waits `interrupt_ttl_ms` for the answer. Else an adopted run waits `adopt_ms` for a
    frame, and a run that someone works on may be idle for `watchdog_ms`. Where the channel sets them: a run waits
    `wait_ms` for a member, and `begin_ms` for its member to begin. All count from the present writer's begin if that is
    later. One that all members refused has a deadline at most: a tick finds what is to be tried again by itself.

    The deadline is a moment of log time, which passes with a writer only. It stands still while a person is asked.
    """
    rules = state.config.group(run.group)
    progress = run.progress
    if progress is not None and run.member is not None and not run.adopted_at:
        if progress.asks:
            return max(progress.asked_at, state.restarted_at) + rules.interrupt_ttl_ms
        since, restarted_at = progress.active_at, state.restarted_at
        # For every frame: a call of `max` costs as much as all the rest.
        watchdog = (since if since > restarted_at else restarted_at) + rules.watchdog_ms  # noqa: FURB136
        if run.terms is None or not run.terms.deadline_at:
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
        # What is given to no other, and what a process proved to have, may be silent for as long as work may be.
        patience_ms = rules.watchdog_ms if run.proved or is_kept(state, run) else rules.adopt_ms
        return max(run.adopted_at, state.restarted_at) + patience_ms
    if run.queued:
        return None
    if run.member is None and is_kept(state, run):
        return max(run.placed_at, state.restarted_at) + rules.grace_ms
    if waits_for_room(state, run):
        return None
    limit = rules.wait_ms if run.member is None else rules.begin_ms
    return max(run.placed_at, state.restarted_at) + limit if limit else None


def watch(state: Partition, conversation: Conversation, run: Run) -> None:
    """Make sure that the run is looked at when its next time-out is due."""
    when = due(state, run)
    if when is not None:
        state.timers.add(run.id, conversation.id, when)


def watch_orphans(state: Partition, group: str) -> None:
    """What waited for room among the group's members waits for a member from here on, as long as its rules let it."""
    for id_ in state.orphans.get(group, ()):
        conversation = state.conversations[id_]
        for run in conversation.runs.values():
            if run.member is None and run.group == group:
                watch(state, conversation, run)
