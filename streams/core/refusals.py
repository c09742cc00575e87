"""What answers a command that changes nothing: refusals, and repeats of a close, reopen, handover or erasure.

A refusal is one event, except that a zombie's are written 16 times per (member, run) and then no more.
"""

from __future__ import annotations

from typing import Final, Protocol

from streams.core.commands import CommitFrame
from streams.core.events import Duplicate, Event, Refused, RefusedReason
from streams.core.ids import SEPARATOR
from streams.core.state import REFUSAL_SLOTS, REFUSALS_WRITTEN, Partition, Run, Update

NO_CONVERSATION: Final = (RefusedReason.CONVERSATION_NOT_FOUND, "conversation_id: no such conversation")
"""Reason and detail of what is for a conversation that is not there."""

_COUNTED = frozenset({RefusedReason.FENCED, RefusedReason.HANDED_OVER, RefusedReason.GATEWAY_ENDED})


class OfConversation(Protocol):
    """A command to a conversation."""

    @property
    def conversation_id(self) -> str: ...
    @property
    def ref(self) -> str | None: ...


def refused(command: OfConversation, reason: RefusedReason, detail: str, client_id: str | None = None) -> Refused:
    """A command that breaks a rule; `detail` names field and rule."""
    return Refused(
        conversation_id=command.conversation_id, reason=reason, ref=command.ref, client_id=client_id, detail=detail
    )


def repeat_of(command: OfConversation, update: Update | None, key: str) -> Duplicate:
    """A command that asks for what is so already: the ack of the update that made it so, seq 0 when there was none."""
    made = update or Update(0, command.conversation_id, 0)
    return Duplicate(
        conversation_id=command.conversation_id,
        ref=command.ref,
        of_seq=made.seq,
        id=made.id,
        of_timestamp=made.timestamp,
        key=key,
    )


def slot(event: Refused) -> str | None:
    """What a refusal is counted under; None: it is not counted.

    A frame that names a run which is not open counts under its member alone, so that made-up names buy no more
    events. A refusal of an ended gateway has its incarnation in `detail`.
    """
    if event.reason not in _COUNTED:
        return None
    if event.reason is RefusedReason.GATEWAY_ENDED:
        return f"{SEPARATOR}{event.detail}"
    return f"{event.member}{SEPARATOR}{event.run_id or ''}"


def fenced(
    state: Partition,
    conversation_id: str,
    member: str,
    detail: str,
    *,
    run_id: str | None = None,
    client_id: str | None = None,
    ref: str | None = None,
    reason: RefusedReason = RefusedReason.FENCED,
    n: int = 0,
) -> list[Refused]:
    """Nothing of the frame is stored or shown. `run_id` only when that run is open."""
    count = state.refusals.get(f"{member}{SEPARATOR}{run_id or ''}", 0) + 1
    if count > REFUSALS_WRITTEN:
        return []
    return [
        Refused(
            conversation_id=conversation_id,
            reason=reason,
            ref=ref,
            member=member,
            run_id=run_id,
            client_id=client_id,
            detail=detail,
            count=count,
            n=n,
        )
    ]


def frame_refused(command: CommitFrame, reason: RefusedReason, detail: str) -> Refused:
    """A frame that breaks a rule; `detail` names field and rule."""
    return Refused(
        conversation_id=command.conversation_id,
        reason=reason,
        ref=command.ref,
        member=command.member,
        run_id=command.run_id,
        client_id=command.frame.client_id,
        detail=detail,
        n=command.n,
    )


def frame_fenced(
    state: Partition,
    command: CommitFrame,
    run: Run | None,
    detail: str,
    reason: RefusedReason = RefusedReason.FENCED,
) -> list[Event]:
    """A frame whose sender may not write it; `run`: the open one that it is of, or may be of."""
    return [
        *fenced(
            state,
            command.conversation_id,
            command.member,
            detail,
            run_id=None if run is None else run.id,
            client_id=command.frame.client_id,
            ref=command.ref,
            reason=reason,
            n=command.n,
        )
    ]


def gateway_ended(
    state: Partition, gateway: str, *, member: str | None = None, ref: str | None = None
) -> list[Refused]:
    """An ended incarnation spoke again; `detail` is its id."""
    count = state.refusals.get(f"{SEPARATOR}{gateway}", 0) + 1
    if count > REFUSALS_WRITTEN:
        return []
    return [Refused(reason=RefusedReason.GATEWAY_ENDED, ref=ref, member=member, detail=gateway, count=count)]


def had(state: Partition, member: str, run_id: str) -> bool:
    """Whether the member was refused a frame of this open run because it did not hold it."""
    return f"{member}{SEPARATOR}{run_id}" in state.refusals


def count(state: Partition, event: Refused) -> None:
    """Evolve: remember how many were written."""
    counted = slot(event)
    if counted is None:
        return
    state.refusals[counted] = event.count
    if len(state.refusals) > REFUSAL_SLOTS:
        del state.refusals[next(iter(state.refusals))]
