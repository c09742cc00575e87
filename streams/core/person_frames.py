"""What people send beside their turns (rules 8 and 10): answers to interrupts, abort, interactions, edit, regenerate.

All but `edit` and `regenerate` (see `editions`) become a `PersonFrameCommitted`, which is

- of a `resume`: one for each run that asks one of its `answers`, with that run's, given to its member. The interrupts
  count as answered: what a person says next is a turn of its own;
- of an `abort`: given to the members of the runs that it ends, which are all but those that only wait in a queue;
- of a `survey`: numbered, for viewers, and given as any other; taken in a closed conversation too, in no erased one;
- of any other (`genui_event`, `client_tools`, `client_skills`): given to one member a group, who is at work there, or
  the owner.

All of these but `survey` are for agents: in a conversation whose channel is routed to none they are refused
(`bot_unavailable`), and so is what is to be passed on while no agent is there.

A `resume` that answers nothing which is open is refused (`not_interrupted`), as is one that leaves an open interrupt of
a run out which it answers another of (`incomplete_resume`); answers to what is not open are dropped from one that is
taken. An answered interrupt stays the run's until its agent says `interrupt_resolved`: a takeover that continues the
run gives the new member the answer too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from streams.core import keys
from streams.core.commands import CommitPersonFrame
from streams.core.draft import Draft
from streams.core.due import watch
from streams.core.editions import decide_wanted_anew
from streams.core.events import Assignment, Entry, Event, Frame, PersonFrameCommitted, Refused, RefusedReason, RunStatus
from streams.core.ids import message_id, person_key
from streams.core.limits import problem_of_frame, problem_of_ids
from streams.core.ownership import owner_of
from streams.core.refusals import NO_CONVERSATION, refused
from streams.core.routing import may_write, plan_of
from streams.core.run_events import note_asks
from streams.core.runs import end
from streams.core.state import Conversation, ImpossibleEvent, Partition, Run

RESUME: Final = "resume"
SURVEY: Final = "survey"

ABORTED: Final = "aborted"
"""Reason of the runs that an `abort` ended."""


class Resume(msgspec.Struct, frozen=True):
    """The payload of a `resume`: what was answered, by interrupt."""

    answers: dict[str, msgspec.Raw]


_resume_decoder: Final = msgspec.json.Decoder(Resume)
_encode: Final = msgspec.json.Encoder().encode

# ------------------------------------------------------------------------------------------------ decide


def decide_person_frame(state: Partition, command: CommitPersonFrame) -> list[Event]:
    """What it comes to; see the table above."""
    conversation = state.conversations.get(command.conversation_id)
    if conversation is None:
        return [_refused(command, *NO_CONVERSATION)]
    key = _key(command)
    if key is not None and (known := keys.find(conversation, key, command.at)) is not None:
        return [keys.repeat(conversation, known, key, command.ref, command.frame.client_id)]
    problem = problem_of_frame(command.frame, command.sender) or problem_of_ids(
        (("sender", command.sender), ("channel", command.channel))
    )
    if problem is not None:
        return [_refused(command, *problem)]
    kind = command.frame.type
    if not conversation.open and (kind != SURVEY or conversation.erased):
        return [_refused(command, RefusedReason.CONVERSATION_CLOSED, "conversation_id: it is closed")]
    return _misrouted(state, conversation, command) or _DECIDERS.get(kind, _decide_passed_on)(
        state, conversation, command
    )


def _misrouted(state: Partition, conversation: Conversation, command: CommitPersonFrame) -> list[Event]:
    """Its sender's channel may not write here, or no agent's is there to be told."""
    kind, own = command.frame.type, conversation.channel
    if not may_write(state.config, own, command.channel):
        detail = f"channel: {own} is not routed to {command.channel}"
        return [_refused(command, RefusedReason.CHANNEL_NOT_ROUTED, detail)]
    if kind == SURVEY or conversation.runs or _has_agents(state, conversation):
        return []
    detail = f"type: {kind} is for agents, and channel {own} is routed to none"
    return [_refused(command, RefusedReason.BOT_UNAVAILABLE, detail)]


def _has_agents(state: Partition, conversation: Conversation) -> bool:
    """Whether its channel is routed to agents, be they there or not."""
    plan = plan_of(state, conversation.channel)
    return plan is not None and bool(plan.groups or plan.waiting)


def _key(command: CommitPersonFrame) -> str | None:
    client_id = command.frame.client_id
    return None if client_id is None else person_key(command.sender, client_id)


def _decide_resume(_: Partition, conversation: Conversation, command: CommitPersonFrame) -> list[Event]:
    try:
        answers = _resume_decoder.decode(command.frame.data or "").answers
    except msgspec.DecodeError as error:
        return [_refused(command, RefusedReason.INVALID_TEXT, f"answers: {error}")]
    concerned = [
        run
        for run in conversation.runs.values()
        if run.progress is not None and not run.progress.asks.keys().isdisjoint(answers)
    ]
    if not concerned:
        return [_refused(command, RefusedReason.NOT_INTERRUPTED, "answers: none of these interrupts is open")]
    left_out = [ask for run in concerned for ask in _asks(run) if ask not in answers]
    if left_out:
        detail = f"answers: {', '.join(left_out)} of the same run is open too: answer all of them at once"
        return [_refused(command, RefusedReason.INCOMPLETE_RESUME, detail[:400])]
    events: list[Event] = []
    for run in concerned:
        of_run = {ask: answers[ask] for ask in _asks(run)}
        frame = msgspec.structs.replace(command.frame, data=_encode(Resume(of_run)).decode())
        given = () if run.member is None else (Assignment(run.group, run.member, run.id, run.epoch),)
        events.append(_committed(conversation, command, frame, given, first=not events))
    return events


def _asks(run: Run) -> dict[str, int]:
    return {} if run.progress is None else run.progress.asks


def _decide_abort(_: Partition, conversation: Conversation, command: CommitPersonFrame) -> list[Event]:
    ended = [run for run in conversation.runs.values() if not run.queued]
    given = tuple(Assignment(run.group, run.member, run.id, run.epoch) for run in ended if run.member is not None)
    draft = Draft()
    draft.add(_committed(conversation, command, command.frame, given))
    for run in ended:
        end(draft, conversation, run, RunStatus.CANCELLED, ABORTED)
    return draft.events


def _decide_survey(state: Partition, conversation: Conversation, command: CommitPersonFrame) -> list[Event]:
    heard = conversation.open and not conversation.handed_over
    given = _addressees(state, conversation, command.at) if heard else ()
    return [_committed(conversation, command, command.frame, given, seq=conversation.head + 1)]


def _decide_passed_on(state: Partition, conversation: Conversation, command: CommitPersonFrame) -> list[Event]:
    given = () if conversation.handed_over else _addressees(state, conversation, command.at)
    if not conversation.handed_over and all(to.member is None for to in given):
        detail = f"type: no agent is there to be given {command.frame.type}"
        return [_refused(command, RefusedReason.BOT_UNAVAILABLE, detail)]
    return [_committed(conversation, command, command.frame, given)]


def _addressees(state: Partition, conversation: Conversation, at: int) -> tuple[Assignment, ...]:
    """One member a group: who said last that it works on a run, else who holds the first one, else the owner."""
    found: dict[str, Assignment] = {}
    current = set(conversation.current.values())
    for run in conversation.runs.values():
        if run.member is not None and (run.id in current or run.group not in found):
            found[run.group] = Assignment(run.group, run.member, run.id, run.epoch)
    plan = plan_of(state, conversation.channel)
    for group in () if plan is None else plan.groups:
        if group.id not in found:
            owner = owner_of(state, group.id, conversation.id, at)
            found[group.id] = Assignment(group.id, owner, "", 0)
    return tuple(found.values())


def _committed(
    conversation: Conversation,
    command: CommitPersonFrame,
    frame: Frame,
    to: tuple[Assignment, ...],
    *,
    seq: int = 0,
    first: bool = True,
) -> PersonFrameCommitted:
    """`first`: of the events that one frame comes to, the one that answers its sender."""
    key = _key(command) if first else None
    if key is not None:
        frame = msgspec.structs.replace(frame, id=message_id(conversation.id, key))
    return PersonFrameCommitted(
        conversation_id=conversation.id,
        seq=seq,
        frame=frame,
        sender=command.sender,
        channel=command.channel,
        to=to,
        key=key,
        ref=command.ref if first else None,
    )


def _refused(command: CommitPersonFrame, reason: RefusedReason, detail: str) -> Refused:
    return refused(command, reason, detail, command.frame.client_id)


def _decide_wanted_anew(state: Partition, conversation: Conversation, command: CommitPersonFrame) -> list[Event]:
    events = decide_wanted_anew(state, conversation, command, _key(command))
    return [_refused(command, *events)] if isinstance(events, tuple) else events


_DECIDERS: Final[dict[str, Callable[[Partition, Conversation, CommitPersonFrame], list[Event]]]] = {
    RESUME: _decide_resume,
    "abort": _decide_abort,
    SURVEY: _decide_survey,
    "edit": _decide_wanted_anew,
    "regenerate": _decide_wanted_anew,
}

# ------------------------------------------------------------------------------------------------ evolve


def evolve_person_frame(
    state: Partition, conversation: Conversation, entry: Entry, event: PersonFrameCommitted
) -> None:
    """Its key; the interrupts that it answered wait for nobody any more."""
    frame = event.frame
    if (frame.type == SURVEY) != (event.seq > 0):
        raise ImpossibleEvent(f"a person's frame of type {frame.type} cannot have seq {event.seq}")
    if event.key is not None:
        keys.take(conversation, event.key, event.seq, frame.id, at=entry.at, timestamp=entry.timestamp)
    if frame.type == RESUME:
        _answered(state, conversation, entry, event)


def _answered(state: Partition, conversation: Conversation, entry: Entry, event: PersonFrameCommitted) -> None:
    answers = _resume_decoder.decode(event.frame.data or "").answers
    member = event.to[0].member if event.to else None
    runs = (run for run in conversation.runs.values() if run.member == member)
    run = next((run for run in runs if _asks(run).keys() == answers.keys()), None)
    progress = None if run is None else run.progress
    if run is None or progress is None:
        raise ImpossibleEvent(f"no run asks {', '.join(answers)}")
    conversation.asking -= len(progress.asks)
    progress.answers |= {ask: (entry.lsn, bytes(answers[ask]).decode()) for ask in progress.asks}
    progress.asks = {}
    progress.answers_kept = progress.answers_kept or run.member is None
    note_asks(run, progress, entry.at)
    progress.active_at = entry.at
    if run.adopted_at:  # who adopted it could say nothing until now
        run.adopted_at = entry.at
    watch(state, conversation, run)
