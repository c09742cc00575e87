"""The mutation gate's second half: what the core promises of handovers, editions, cancellations, calls and
lines, of operators' moves, erasures, and processes that come back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from msgspec import structs

from streams.core import (
    conversation,
    due,
    editions,
    erasure,
    fold,
    frames,
    invocations,
    moves,
    person_frames,
    placement,
    policies,
    runs,
    timeouts,
)
from streams.core.commands import CommitFrame
from streams.core.correlation import Target
from streams.core.draft import Draft
from streams.core.events import ConversationErased, Entry, Event, RunMoved
from streams.core.routing import plan_of
from streams.core.run_events import bind
from streams.core.state import Conversation, Member, Partition, Run
from streams.runtime import memory
from tests.simulation.mutation import Apply, Mutation, swap
from tests.simulation.routes import OWN, ROUTE, WEB


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


def _executed_again(undo: ExitStack) -> None:
    def as_the_group_has_it(state: Partition, run: Run) -> str | None:
        return state.config.group(run.group).on_owner_loss

    for module in (due, runs):
        swap(undo, module, "on_owner_loss", as_the_group_has_it)


def _evolved(kind: type[Event], then: Callable[[Partition, Conversation, Any], None]) -> Apply:
    """After an event of this kind, something more is done to the conversation."""

    def apply(undo: ExitStack) -> None:
        def evolve(state: Partition, talk: Conversation, entry: Entry, event: Any) -> None:
            before(state, talk, entry, event)
            then(state, talk, event)

        table = next(value for value in vars(fold).values() if isinstance(value, dict) and kind in value)
        before = table[kind]
        undo.enter_context(patch.dict(table, {kind: evolve}))

    return apply


def _refusers_gone(_: Partition, talk: Conversation, event: RunMoved) -> None:
    run = talk.runs[event.run_id]
    if run.terms is not None:
        run.terms.refusers = ()


def _not_erased(_: Partition, talk: Conversation, __: ConversationErased) -> None:
    talk.erased = False


def _forgotten_by_rows(**fields: Any) -> Apply:
    """What a conversation's row keeps of it is not there when it is loaded."""

    def apply(undo: ExitStack) -> None:
        def load(conversation_id: str, row: bytes) -> Conversation:
            return structs.replace(before(conversation_id, row), **fields)  # type: ignore[no-any-return]

        before = swap(undo, memory, "load_conversation", load)

    return apply


def _given_its_own(undo: ExitStack) -> None:
    """What is said in the agents' own conversations is given to them as what is said in people's."""
    swap(undo, conversation, "plan_of", lambda state, channel: plan_of(state, WEB))


def _no_origins(undo: ExitStack) -> None:
    swap(undo, conversation, "bind", lambda state, run, call, at, origin: bind(state, run, call, at))


def _no_grace(undo: ExitStack) -> None:
    for module in (placement, runs):
        swap(undo, module, "keeper", lambda state, run: "")


def _any_process(undo: ExitStack) -> None:
    def connection_of(process: str, run: Run, roster: Mapping[str, Member]) -> Member | None:
        return next((member for member in roster.values() if process and member.id != run.member), None)

    swap(undo, placement, "connection_of", connection_of)


def _never_adopted(undo: ExitStack) -> None:
    """Whoever comes back is given what it had from the beginning."""

    def claimants_of(run: Run, present: Collection[str]) -> list[str]:
        return []

    def init(self: placement.Placement, state: Partition, draft: Draft, change: placement.Change, at: int) -> None:
        before(self, state, draft, change, at)
        self._watermarks = {}

    swap(undo, placement, "claimants_of", claimants_of)
    before = swap(undo, placement.Placement, "__init__", init)


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
    Mutation("refusers are remembered", "they are asked again", _evolved(RunMoved, _refusers_gone), ("refuse",)),
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
    Mutation("a move takes the open runs along", "they stay", _replaced(moves, "_take", _nothing), ("move",)),
    Mutation(
        "who it was moved to gets its turns",
        "the hash decides again",
        _replaced(Conversation, "pinned", lambda talk, group: None),
        ("move",),
    ),
    Mutation(
        "a move outlives its writer",
        "the next one does not know of it",
        _forgotten_by_rows(pins=None),
        ("move", "kill worker"),
    ),
    Mutation(
        "what is erased stays closed", "it is as any closed one", _evolved(ConversationErased, _not_erased), ("erase",)
    ),
    Mutation(
        "what is erased as idle is so when it is decided",
        "who looked a moment ago is believed",
        _replaced(erasure, "_why_not", lambda *_: None),
        ("erase",),
    ),
    Mutation(
        "an erasure outlives its writer",
        "the next one takes it for a close",
        _forgotten_by_rows(erased=False),
        ("erase", "kill worker"),
    ),
    Mutation(
        "a process that declared itself has its grace",
        "its runs move at once",
        _no_grace,
        ("declare", "interrupt agent"),
    ),
    Mutation(
        "what is kept is kept for one process",
        "who joins next gets it",
        _any_process,
        ("declare", "interrupt agent", "disconnect agent"),
    ),
    Mutation(
        "who comes back goes on",
        "it begins anew",
        _never_adopted,
        ("declare", "interrupt agent"),
    ),
    Mutation(
        "a grace ends",
        "a run waits for its process for ever",
        _replaced(timeouts, "_give_up_waiting", _nothing),
        ("declare", "interrupt agent"),
    ),
    Mutation(
        "who speaks is of a channel that it is routed to",
        "anybody may",
        _replaced(conversation, "may_write", lambda *_: True),
        (ROUTE,),
    ),
    Mutation("an answer says where its turn came from", "it came from the conversation's own", _no_origins, (ROUTE,)),
    Mutation(
        "agents speak in conversations of their own",
        "only who was given something may",
        _replaced(frames, "is_its_own", lambda *_: False),
        (OWN,),
    ),
    Mutation("what is their own is not given to them", "it is, as people's is", _given_its_own, (OWN,)),
)
