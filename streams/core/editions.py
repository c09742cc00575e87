"""The latest turn's answer, wanted anew: a person edits what they said last, or asks for another answer to it.

Only the latest turn, only by who said it, and not when it was the answer to an agent's question, or an invocation. Its
open runs end (cancelled: `edited`, `regenerated`), all frames that answered it so far are superseded, and in each group
of the conversation's channel a new run opens for its owner of now, `<conversation>/<seq>~<edition>/<group>`; nothing
opens while a human answers. During runs of turns before, it follows the groups' policies as a new turn would.

The turn is given under an id of its own each time (`RunOpened.turn_id`): an agent names in what it sends the turn that
it answers, and what it still sends to the earlier edition must not be taken for the new answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from streams.core import keys
from streams.core.commands import CommitPersonFrame
from streams.core.draft import Draft
from streams.core.events import (
    Entry,
    Event,
    FrameCommitted,
    RefusedReason,
    RunOpened,
    RunStatus,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ids import edition_id, run_id
from streams.core.latest import latest_of
from streams.core.ownership import change_owner, choose
from streams.core.policies import open_in, takes_no_turn, why_not_taken
from streams.core.routing import ENQUEUE, INTERRUPT, NOBODY, Plan, plan_of
from streams.core.run_events import take_waiting
from streams.core.runs import INTERRUPTED, end
from streams.core.state import Conversation, ImpossibleEvent, Latest, Partition, Run, WaitingTurn
from streams.core.unassigned import refuse_unassigned, wait

EDIT: Final = "edit"

REASONS: Final = {EDIT: "edited", "regenerate": "regenerated"}
"""By frame type, the reason of the runs that end."""


class Named(msgspec.Struct, frozen=True, rename="camel"):
    """Which message an `edit` or `regenerate` is about, from the frame's `extra`."""

    message_id: str


_decoder: Final = msgspec.json.Decoder(Named)

# ------------------------------------------------------------------------------------------------ decide


def decide_wanted_anew(
    state: Partition, conversation: Conversation, command: CommitPersonFrame, key: str | None
) -> list[Event] | tuple[RefusedReason, str]:
    """End what answers the turn, say that it is wanted anew, and open its runs; or why not."""
    plan = plan_of(state, conversation.channel)
    latest = latest_of(conversation)
    if latest is None:
        return RefusedReason.NOT_EDITABLE, "messageId: nothing was said in this conversation yet"
    if (problem := _problem(conversation, latest, command)) is not None:
        return problem
    if plan is None:
        detail = f"channel: {conversation.channel} is not an active channel of document version {state.config.version}"
        return RefusedReason.CHANNEL_UNKNOWN, detail
    if conversation.handed_over:
        plan = NOBODY
    earlier = _earlier(conversation, plan, latest)
    busy = next((group for group, runs in earlier.items() if takes_no_turn(state, group, runs)), None)
    if busy is not None:
        return RefusedReason.BUSY, why_not_taken(state, busy)
    draft = Draft()
    for run in conversation.runs.values():
        if run.turn_seq == latest.seq:
            end(draft, conversation, run, RunStatus.CANCELLED, REASONS[command.frame.type])
    superseded = (*said(conversation), *(e.seq for e in draft.events if isinstance(e, FrameCommitted)))
    queued = _make_room(state, draft, conversation, earlier)
    wanted = _wanted(command, latest, superseded, plan.waiting, key)
    draft.add(wanted)
    _open(draft, conversation, plan, wanted, _When(command.at, queued))
    turn = WaitingTurn(latest.seq, edition_id(conversation.id, latest.id, wanted.edition), wanted.edition)
    refuse_unassigned(state, draft, conversation, turn, plan.waiting, given=bool(plan.groups))
    return draft.events


def _problem(
    conversation: Conversation, latest: Latest, command: CommitPersonFrame
) -> tuple[RefusedReason, str] | None:
    frame = command.frame
    try:
        named = _decoder.decode(frame.extra or "")
    except msgspec.DecodeError as error:
        return RefusedReason.INVALID_TEXT, f"messageId: {error}"
    if named.message_id != latest.id and not _is_of_the_answer(conversation, frame.watermark):
        return RefusedReason.NOT_EDITABLE, "messageId: it names neither the conversation's latest turn nor its answer"
    if frame.type == EDIT and named.message_id != latest.id:
        return RefusedReason.NOT_EDITABLE, "messageId: only a person's own turn can be edited"
    if latest.speaker != command.sender:
        return RefusedReason.NOT_EDITABLE, "messageId: only who said the turn may"
    runs = conversation.runs.values()
    joined = (each for run in runs if run.progress is not None for each in run.progress.joined)
    if latest.id in joined or any(latest.id in ended.joined for ended in conversation.ended.values()):
        return RefusedReason.NOT_EDITABLE, "messageId: it answered a question of the agent; say something new"
    return None


def _is_of_the_answer(conversation: Conversation, seq: int) -> bool:
    """`seq`: of the message that the frame names, where its gateway knows it; 0: it does not."""
    return seq > 0 and seq in said(conversation)


def said(conversation: Conversation) -> Iterator[int]:
    """seqs of all that answers the conversation's latest turn and is not superseded."""
    latest = latest_of(conversation)
    if latest is None:
        return
    ends = latest.answered
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        yield from range(first, last + 1)
    for run in conversation.runs.values():
        if run.turn_seq == latest.seq and run.progress is not None:
            yield from run.progress.frames


def _wanted(
    command: CommitPersonFrame, latest: Latest, superseded: tuple[int, ...], waiting: tuple[str, ...], key: str | None
) -> TurnEdited | TurnRegenerated:
    wanted = TurnRegenerated(
        conversation_id=command.conversation_id,
        turn_seq=latest.seq,
        turn_id=latest.id,
        by=command.sender,
        superseded=superseded,
        waiting=waiting,
        edition=latest.editions + 1,
        client_id=command.frame.client_id,
        key=key,
        ref=command.ref,
    )
    if command.frame.type != EDIT:
        return wanted
    return TurnEdited(text=command.frame.text, data=command.frame.data, **msgspec.structs.asdict(wanted))


def _earlier(conversation: Conversation, plan: Plan, latest: Latest) -> dict[str, list[Run]]:
    """Per group of the plan that is busy with turns before, its open runs of those."""
    runs = {g.id: [r for r in open_in(conversation, g.id) if r.turn_seq != latest.seq] for g in plan.groups}
    return {group: open_runs for group, open_runs in runs.items() if open_runs}


def _make_room(
    state: Partition, draft: Draft, conversation: Conversation, earlier: dict[str, list[Run]]
) -> frozenset[str]:
    """End the runs that the turn interrupts, as any turn does; the groups in which it waits in line."""
    for group, runs in earlier.items():
        if state.config.group(group).policy == INTERRUPT:
            for run in runs:
                end(draft, conversation, run, RunStatus.CANCELLED, INTERRUPTED)
    return frozenset(group for group in earlier if state.config.group(group).policy == ENQUEUE)


class _When(msgspec.Struct, frozen=True):
    """When the runs open: at this log time; in these groups in line."""

    at: int
    queued: frozenset[str]


def _open(
    draft: Draft, conversation: Conversation, plan: Plan, wanted: TurnEdited | TurnRegenerated, when: _When
) -> None:
    id_, seq, edition = conversation.id, wanted.turn_seq, wanted.edition
    for group in plan.groups:
        queued = group.id in when.queued
        pinned = conversation.pinned(group.id)
        owner = None if queued else choose(group.members.values(), id_, when.at, pinned=pinned)
        if not queued:
            change_owner(draft, conversation, group.id, owner, group.members)
        draft.add(
            RunOpened(
                conversation_id=id_,
                run_id=run_id(id_, seq, group.id, edition),
                turn_seq=seq,
                group=group.id,
                channel=group.channel,
                member=owner,
                turn_id=edition_id(id_, wanted.turn_id, edition),
                queued=queued,
            )
        )


# ------------------------------------------------------------------------------------------------ evolve


def evolve_wanted_anew(
    state: Partition, conversation: Conversation, entry: Entry, event: TurnEdited | TurnRegenerated
) -> None:
    """Nothing answers the turn any more; its next runs open just after."""
    latest = latest_of(conversation)
    expected = None if latest is None else (latest.seq, latest.id, latest.editions + 1)
    if latest is None or (event.turn_seq, event.turn_id, event.edition) != expected:
        raise ImpossibleEvent(f"turn {event.turn_seq} is not the latest, or this is not its next edition")
    if any(run.turn_seq == event.turn_seq for run in conversation.runs.values()):
        raise ImpossibleEvent(f"turn {event.turn_seq} has open runs: they end first")
    if event.key is not None:
        keys.take(conversation, event.key, 0, event.turn_id, at=entry.at, timestamp=entry.timestamp)
    conversation.latest = msgspec.structs.replace(latest, editions=event.edition, answered=())
    turn_id = edition_id(conversation.id, event.turn_id, event.edition)
    for channel in [*conversation.waiting]:
        take_waiting(state, conversation, channel, event.turn_seq)
    for channel in event.waiting:
        wait(state, conversation, channel, WaitingTurn(event.turn_seq, turn_id, event.edition, entry.at, latest.origin))
