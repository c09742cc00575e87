"""The mutation gate's second half: what the core promises of handovers, editions, cancellations, calls and lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from streams.core import conversation, due, editions, fold, frames, invocations, person_frames, policies, runs
from streams.core.commands import CommitFrame
from streams.core.correlation import Target
from streams.core.events import Entry, Event, RunMoved
from streams.core.state import Conversation, Partition, Run
from tests.simulation.mutation import Apply, Mutation, swap


def _replaced(owner: Any, name: str, new: Any) -> Apply:
    """Another function, or constant, in its place."""

    def apply(undo: ExitStack) -> None:
        swap(undo, owner, name, new)

    return apply


def _nothing(*_: Any, **__: Any) -> None:
    """Is done."""


def _nobody_said(_: Conversation) -> Iterator[int]:
    return iter(())


def _heard_beside_humans(undo: ExitStack) -> None:
    def kept(state: Partition, talk: Conversation, command: CommitFrame, target: Target) -> list[Event]:
        handed_over, talk.handed_over = talk.handed_over, False
        try:
            return before(state, talk, command, target)  # type: ignore[no-any-return]
        finally:
            talk.handed_over = handed_over

    before = swap(undo, frames, "_decide_kept", kept)


def _refusers_forgotten(undo: ExitStack) -> None:
    def moved(state: Partition, talk: Conversation, entry: Entry, event: RunMoved) -> None:
        before(state, talk, entry, event)
        run = talk.runs[event.run_id]
        if run.terms is not None:
            run.terms.refusers = ()

    table = next(value for value in vars(fold).values() if isinstance(value, dict) and RunMoved in value)
    before = table[RunMoved]
    undo.enter_context(patch.dict(table, {RunMoved: moved}))


def _executed_again(undo: ExitStack) -> None:
    def as_the_group_has_it(state: Partition, run: Run) -> str | None:
        return state.config.group(run.group).on_owner_loss

    for module in (due, runs):
        swap(undo, module, "on_owner_loss", as_the_group_has_it)


def _beside_others(undo: ExitStack) -> None:
    swap(undo, invocations, "REJECT", "never")
    swap(undo, invocations, "DELIVER", "never")


RULES = (
    Mutation(
        "handed over, no agent is heard",
        "its frames are stored all the same",
        _heard_beside_humans,
        ("hand over", "spell"),
    ),
    Mutation(
        "what is wanted anew is superseded",
        "frames of the edition before stay",
        _replaced(editions, "said", _nobody_said),
        ("edit", "regenerate"),
    ),
    Mutation("an abort ends the runs", "they go on", _replaced(person_frames, "end", _nothing), ("abort",)),
    Mutation(
        "a run that is to stop is given to nobody",
        "it moves as any other",
        _replaced(Run, "cancelling", property(lambda run: False)),
        ("cancel", "kill gateway"),
    ),
    Mutation("refusers are remembered", "they are asked again", _refusers_forgotten, ("refuse",)),
    Mutation(
        "policy reject",
        "a turn is taken while another is answered",
        _replaced(conversation, "rejecting", lambda *_: []),
        ("reject",),
    ),
    Mutation("policy enqueue", "a turn is given at once", _replaced(policies, "ENQUEUE", "never"), ("enqueue",)),
    Mutation("lines are bounded", "one more waits", _replaced(policies, "is_full", lambda *_: False), ("enqueue",)),
    Mutation("policy interrupt", "the run before goes on", _replaced(policies, "end", _nothing), ("interrupt",)),
    Mutation("a call has its thread for itself", "it runs beside others", _beside_others, ("invoke",)),
    Mutation(
        "a call is executed once",
        "it is given to the next when its owner is lost",
        _executed_again,
        ("invoke", "interrupt agent"),
    ),
    Mutation(
        "a call ends by its deadline",
        "it has none",
        _replaced(Run, "deadline_at", property(lambda run: 0)),
        ("invoke",),
    ),
)
