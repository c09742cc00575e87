"""The runs that an agent's connection holds: what it is given, told of them, and refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import Action, FetchRun, FetchTurn, Follow, RefuseGiven, Unfollow
from connectors.gateway.protocol.delivery import Delivery, Held
from connectors.gateway.protocol.errors import ProtocolError, refusal
from connectors.gateway.protocol.render import encode, person_frame, raw, resume_frame, turn_of
from connectors.gateway.protocol.resume import Resume
from connectors.gateway.protocol.session import Session, State
from streams.core.events import (
    Assignment,
    Entry,
    MoveReason,
    PersonFrameCommitted,
    RefusedReason,
    RunCancelling,
    RunMoved,
    RunOpened,
    RunStatus,
)

CANCELLED = frozenset({RunStatus.CANCELLED, RunStatus.TIMED_OUT, RunStatus.FAILED})
ABORT = encode({"type": "abort"})


class AgentRuns(Session):
    """The part of an agent's session that has to do with runs; `runs_max`: how many it takes. `carried`: see
    `Gateway.carried`."""

    def __init__(
        self,
        *,
        runs_max: int = limits.RUNS_PER_MEMBER,
        carried: Callable[[str, str], str | None] = lambda _run, _member: None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._runs_max = runs_max
        self._refused: set[str] = set()
        """Runs that its process does not take, until they are another's."""
        self.member = self.connection_id
        self.continues = False
        """Whether its process goes on with runs that another one began."""
        self.adopts = False
        """Its process asks what is stored of runs that it had already: else it could not know where to go on."""
        self._delivery = Delivery(
            self._tell,
            followed=lambda conversation_id: self._ask(Follow((conversation_id,), ask=True)),
            forgotten=lambda conversation_id: self._ask(Unfollow(conversation_id)),
            overfull=self._too_far_behind,
            carried=lambda run_id: carried(run_id, self.member),
        )
        self._unsaid: list[bytes] = []
        """Enveloped frames that come behind the welcome."""

    @property
    def runs_open(self) -> int:
        """How many runs this member holds."""
        return self._delivery.runs_open

    @property
    def runs_at_work(self) -> int:
        """How many of them do not wait for a person's answer, with which another process could go on as well."""
        return self._delivery.runs_at_work if self.continues else self._delivery.runs_open

    def holds(self, run_id: str, run_epoch: int) -> bool:
        """Whether it holds this run at this epoch."""
        return self._delivery.holds(run_id, run_epoch)

    def holds_run_in(self, conversation_id: str) -> bool:
        """Whether it holds a run of this conversation."""
        return self._delivery.holds_run_in(conversation_id)

    def watermark(self, conversation_id: str) -> int:
        """The highest seq that its process said that it has, or was given."""
        return self._delivery.highest(conversation_id)

    def _too_far_behind(self) -> None:
        """Turns of its runs cannot be read, and people go on: its runs are better off elsewhere."""
        self._end_with(ProtocolError("unavailable", "turns cannot be read for too long; connect again"))

    # --------------------------------------------------------------------------------------------------- inputs
    def run_given(self, run_id: str, run_epoch: int, entry: Entry, now: int) -> list[Action]:
        """A new turn came with its run for this member."""
        self._now = now
        event = turn_of(entry)
        conversation_id = _of(entry)
        if self._is_full(conversation_id, run_id, run_epoch):
            return self._drain()
        self._delivery.hold(run_id, Held(conversation_id, event.seq, run_epoch))
        self._delivery.give(conversation_id, run_id, entry)
        return self._drain()

    def run_taken_over(self, event: RunOpened | RunMoved, lsn: int, now: int) -> list[Action]:
        """A run of an earlier turn came to this member, at `lsn`. One that is adopted is not given: its process has the
        turn."""
        self._now = now
        conversation_id = event.conversation_id or ""
        if isinstance(event, RunMoved) and not event.adopted:
            self._stop_earlier(event)
        adopted = isinstance(event, RunMoved) and event.adopted
        if not adopted and self._is_full(conversation_id, event.run_id, event.run_epoch):
            return self._drain()
        self._delivery.hold(event.run_id, Held(conversation_id, event.turn_seq, event.run_epoch))
        if isinstance(event, RunMoved) and event.adopted:
            self._delivery.has(conversation_id, event.turn_seq)
            if self.adopts:
                self._ask(FetchRun(conversation_id, event.turn_seq, event.run_id, event.run_epoch, lsn))
            if event.resume is not None:  # nobody was given it yet
                self._tell(conversation_id, encode({**resume_frame(event.resume), **_run_fields(event)}))
            return self._drain()
        fetch = FetchTurn(conversation_id, event.turn_seq, event.run_id, event.run_epoch, lsn)
        if isinstance(event, RunMoved) and event.continued:
            fetch = msgspec.structs.replace(
                fetch, continued=True, checkpoint_lsn=event.checkpoint_lsn, answers=event.resume
            )
        self._delivery.wait_for(fetch)
        self._ask(fetch)
        return self._drain()

    def _stop_earlier(self, event: RunMoved) -> None:
        """Its process may still be at work on what it was given of this run before, over this connection or an earlier
        one. That is over, since others had the run meanwhile, or what it said is superseded: the turn that comes now is
        a new beginning. Where nothing of it was said, it only was slow, and whatever comes first is the answer."""
        conversation_id = event.conversation_id or ""
        slow = event.reason is MoveReason.ADOPT_TIMEOUT and not event.superseded
        if slow or self._delivery.turn_written(conversation_id) < event.turn_seq:
            return
        if self.adopts:
            why = "run: others had it meanwhile; it is given to you again"
            self._tell(conversation_id, _fenced(event.run_id, event.run_epoch - 1, why))
        elif not self._delivery.holds_another_run_in(conversation_id, event.run_id):  # abort would hit the other one
            self._tell(conversation_id, ABORT)

    def answer_given(self, run_id: str, entry: Entry, now: int) -> list[Action]:
        """A person's message answers this member's open question: it is given as the message it is."""
        self._now = now
        self._delivery.give(_of(entry), run_id, entry)
        return self._drain()

    def person_frame(self, event: PersonFrameCommitted, given: Assignment, now: int) -> list[Action]:
        """What a person sent beside their messages, of a run that this member holds, or to it as the owner."""
        self._now = now
        if not given.run_id or self.holds(given.run_id, given.run_epoch):
            shown = encode(person_frame(event, run_id=given.run_id, run_epoch=given.run_epoch))
            self._delivery.say(event.conversation_id or "", given.run_id, given.run_epoch, shown)
        return self._drain()

    def follows(self, conversation_id: str, now: int) -> list[Action]:
        """It is shown all that is said there, a conversation of its channel's own."""
        self._now = now
        self._delivery.wrote(conversation_id)
        return self._drain()

    def resume_part(self, fetch: FetchTurn | FetchRun, frames: Sequence[bytes], now: int) -> list[Action]:
        """The first frames of a run's `resume` that is too long for one message: they come ahead of the rest."""
        self._now = now
        if self.holds(fetch.run_id, fetch.run_epoch):
            part = {"type": "resume_part", "run": fetch.run_id, "runEpoch": fetch.run_epoch}
            self._tell(fetch.conversation_id, encode({**part, "frames": [msgspec.Raw(frame) for frame in frames]}))
        return self._drain()

    def fetched(self, fetch: FetchTurn, entry: Entry, resume: Resume | None, now: int) -> list[Action]:
        """The turn asked for by `FetchTurn` is here."""
        self._now = now
        self._delivery.fetched(fetch, entry, resume)
        return self._drain()

    def adopted(self, fetch: FetchRun, resume: Resume, now: int) -> list[Action]:
        """What is stored of a run that this member's process has, and goes on with, is here."""
        self._now = now
        if self.holds(fetch.run_id, fetch.run_epoch):
            told = {"type": "adopted", "run": fetch.run_id, "runEpoch": fetch.run_epoch, "resume": resume.fields()}
            self._tell(fetch.conversation_id, encode(told))
        return self._drain()

    def _is_full(self, conversation_id: str, run_id: str, run_epoch: int) -> bool:
        """Whether it has as many runs as it may: then it does not take this one, of which it is told nothing."""
        if self._delivery.runs_open < self._runs_max:
            return False
        self._ask(RefuseGiven(conversation_id, run_id, run_epoch, "busy"))
        return True

    def run_cancelling(self, event: RunCancelling, now: int) -> list[Action]:
        """Somebody wants the run to stop: it is its member's until that says that it has."""
        self._now = now
        if self.holds(event.run_id, event.run_epoch):
            named = {"type": "abort", "run": event.run_id, "runEpoch": event.run_epoch, "reason": event.reason}
            self._delivery.say(event.conversation_id or "", event.run_id, event.run_epoch, encode(named))
        return self._drain()

    def run_lost(self, run_id: str, now: int) -> list[Action]:
        """The run went to another member: the process must stop working on it."""
        self._now = now
        held = self._delivery.release(run_id)
        refused = run_id in self._refused
        self._refused.discard(run_id)
        if held is not None and not refused:
            self._stop(held, _fenced(run_id, held.run_epoch, "run: it is another's now"))
        return self._drain()

    def run_ended(self, run_id: str, status: RunStatus, now: int) -> list[Action]:
        """The run is over."""
        self._now = now
        held = self._delivery.release(run_id)
        self._refused.discard(run_id)
        if held is not None and status in CANCELLED:
            self._stop(held, encode({"type": "abort", "run": run_id, "runEpoch": held.run_epoch}))
        return self._drain()

    def _stop(self, held: Held, named: bytes) -> None:
        """Its process is to stop working on a run. `named` says on which, to those that know runs by their names; the
        others stop whatever they do in the conversation, and so are told only where they have nothing else to do."""
        if self.adopts:
            self._tell(held.conversation_id, named)
        elif not self.holds_run_in(held.conversation_id):
            self._tell(held.conversation_id, ABORT)

    def _tell(self, conversation_id: str, frame: bytes) -> None:
        """Write a conversation's frame. The journal may show a turn of this member before the welcome is written."""
        if self.state is State.OPENING:
            self._unsaid.append(_enveloped(conversation_id, frame))
        else:
            self._put(_enveloped(conversation_id, frame))


def _of(entry: Entry) -> str:
    return turn_of(entry).conversation_id or ""


def _fenced(run_id: str, run_epoch: int, why: str) -> bytes:
    """What stops a process that works on a run that is another's: it says nothing more of it."""
    return encode(refusal(RefusedReason.FENCED, why).frame() | {"run": run_id, "runEpoch": run_epoch})


def _run_fields(event: RunMoved) -> dict[str, Any]:
    return {"run": event.run_id, "runEpoch": event.run_epoch}


def _enveloped(conversation_id: str, frame: bytes) -> bytes:
    return encode({"conversationId": conversation_id, "frame": raw(frame.decode())})
