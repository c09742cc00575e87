"""What must hold of what people, callers and operators do (`deeds`), and of the rules of the agents' channel, read off
the journal: independently of the core's own state, and of the audit, which folds the journal with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streams.core.due import FAIL
from streams.core.events import (
    ConversationClosed,
    ConversationErased,
    ConversationHandedBack,
    ConversationHandedOver,
    ConversationMoved,
    ConversationReopened,
    Entry,
    FrameCommitted,
    Invocation,
    MoveReason,
    OwnerChanged,
    PersonFrameCommitted,
    RunCancelling,
    RunEnded,
    RunMoved,
    RunOpened,
    RunStarted,
    RunStatus,
    TurnCommitted,
    TurnEdited,
    TurnRegenerated,
)
from streams.core.ids import edition_of, run_id
from streams.core.runs import SYSTEM
from tests.simulation.roster import Roster

SURVEY = "survey"


@dataclass(slots=True)
class Open:
    """An open run."""

    id: str
    group: str
    turn_seq: int
    deadline_at: int
    call: Invocation | None = None
    queued: bool = False
    member: str | None = None
    asked: bool = False
    cancelling: bool = False
    refusers: set[str] = field(default_factory=set)
    kept: bool = False
    """It waits for the process that had it."""
    stored: set[int] = field(default_factory=set)
    """Seqs of its frames that are not superseded."""


@dataclass(slots=True)
class Talk:
    """One conversation so far."""

    closed: bool = False
    handed_over: bool = False
    editions: dict[int, int] = field(default_factory=dict)
    """Turn -> how often it was wanted anew."""
    runs: dict[str, Open] = field(default_factory=dict)
    answers: dict[int, set[int]] = field(default_factory=dict)
    """Turn -> seqs of what ended runs said to it."""
    aborted: set[str] = field(default_factory=set)
    """Runs that have to end at once."""
    erased: bool = False
    pins: dict[str, str] = field(default_factory=dict)
    """Group -> the member that an operator moved it to."""
    taken: set[str] = field(default_factory=set)
    """Runs that a move has to take from who has them at once."""


def broken(entries: Iterable[Entry], rules: Mapping[str, object]) -> Iterator[str]:
    """What one partition's journal shows. `rules`: of the agents' channel."""
    kept = Kept(rules)
    for entry in entries:
        if entry.event.conversation_id is None:
            kept.roster.see(entry.event)
            continue
        for problem in kept.see(entry):
            yield f"lsn {entry.lsn}: {problem}"


class Kept:
    """Sees one entry after the other."""

    def __init__(self, rules: Mapping[str, object]) -> None:
        self._policy = rules["policy"]
        self._deadline_ms = int(str(rules["deadline_ms"]))
        self._loss = rules["on_owner_loss"]
        self._most_waiting = int(str(rules["max_waiting"]))
        self._talks: dict[str, Talk] = {}
        self.roster = Roster()

    def see(self, entry: Entry) -> Iterator[str]:
        event: Any = entry.event
        talk = self._talks.setdefault(event.conversation_id, Talk())
        yield from _at_once(talk, event)
        yield from _silence(talk, event)
        yield from self._changes(talk, entry, event)

    def _changes(self, talk: Talk, entry: Entry, event: Any) -> Iterator[str]:
        match event:
            case TurnCommitted():
                yield from self._turn(talk, entry, event)
            case RunOpened():
                yield from self._opened(talk, entry, event)
            case RunStarted():
                yield from _outdated(talk, str(event.conversation_id), event.run_id)
            case FrameCommitted():
                yield from _frame(talk, entry, event)
            case PersonFrameCommitted() if event.frame.type == "abort":
                talk.aborted = {run.id for run in talk.runs.values() if not run.queued}
            case RunMoved():
                yield from self._moved(talk, event)
            case RunCancelling():
                talk.runs[event.run_id].cancelling = True
            case RunEnded():
                yield from _ended(talk, event)
            case TurnEdited() | TurnRegenerated():
                yield from _wanted_anew(talk, event)
            case ConversationMoved():
                self._conversation_moved(talk, event)
            case _:
                yield from _of_the_conversation(talk, event)

    def _turn(self, talk: Talk, entry: Entry, turn: TurnCommitted) -> Iterator[str]:
        call = turn.turn.invocation
        joined = talk.runs.get(turn.joins_run or "")
        if joined is not None and joined.cancelling:
            yield f"turn {turn.seq} joins {joined.id}, which is to stop"
        talk.answers[turn.seq] = set()
        deadline_ms = self._deadline_ms if call is None else call.deadline_ms
        deadline_at = entry.at + deadline_ms if deadline_ms else 0
        policy = self._policy if call is None else call.policy or self._policy
        groups = [given.group for given in turn.assigned] + list(turn.queued)
        for group in groups:
            before = [run.id for run in talk.runs.values() if run.group == group]
            if before and policy in {"reject", "interrupt"}:
                yield f"turn {turn.seq} is taken by {policy} while {before} are open"
            if before and policy == "enqueue" and group not in turn.queued:
                yield f"turn {turn.seq} is given at once while {before} are open"
        for given in turn.assigned:
            run = Open(given.run_id, given.group, turn.seq, deadline_at, call, member=given.member)
            talk.runs[run.id] = run
            yield from self._is_pinned(talk, run)
            yield from self._at_work(talk, run)
        for group in turn.queued:
            id_ = run_id(str(turn.conversation_id), turn.seq, group)
            talk.runs[id_] = Open(id_, group, turn.seq, deadline_at, call, queued=True)
            waiting = sum(run.queued and run.group == group for run in talk.runs.values())
            if waiting > self._most_waiting:
                yield f"{waiting} turns wait in line for {group}; at most {self._most_waiting} may"

    def _at_work(self, talk: Talk, run: Open) -> Iterator[str]:
        """A call never runs beside another one of its thread."""
        others = [other.id for other in talk.runs.values() if other.call is not None and not other.queued]
        if run.call is not None and len(others) > 1:
            yield f"calls run beside each other: {others}"

    def _opened(self, talk: Talk, entry: Entry, opened: RunOpened) -> Iterator[str]:
        yield from _outdated(talk, str(opened.conversation_id), opened.run_id)
        run = talk.runs.get(opened.run_id)
        if run is None:
            deadline_at = entry.at + self._deadline_ms if self._deadline_ms else 0
            run = talk.runs[opened.run_id] = Open(opened.run_id, opened.group, opened.turn_seq, deadline_at)
        run.queued, run.member = opened.queued, opened.member
        if not run.queued:
            yield from self._at_work(talk, run)
        if run.member is not None:
            yield from self._is_pinned(talk, run)

    def _is_pinned(self, talk: Talk, run: Open) -> Iterator[str]:
        """Whom an operator moved the conversation to is given what comes next, while it is there and does not drain."""
        pin = talk.pins.get(run.group)
        if self.roster.takes(pin) and run.member != pin:
            yield f"{run.id} is given to {run.member}, after the conversation was moved to {pin}"

    def _conversation_moved(self, talk: Talk, moved: ConversationMoved) -> None:
        """Its open runs are to be taken from who has them, but for what is executed once, and for what nobody is there
        to be given in its place."""
        if moved.to is not None:
            talk.pins[moved.group] = moved.to
        elif moved.group:
            talk.pins.pop(moved.group, None)
        else:
            talk.pins.clear()
        for run in talk.runs.values():
            if run.queued or run.kept or run.call is not None or (moved.group and run.group != moved.group):
                continue
            if run.member is not None and self._loss == FAIL:
                continue
            if moved.to is None and run.member is not None:
                others = self.roster.another(run.group, {run.member, *run.refusers})
                is_taken = others or self.roster.takes(run.member)
            else:
                is_taken = moved.to is not None and run.member != moved.to
            if is_taken:
                talk.taken.add(run.id)

    def _moved(self, talk: Talk, moved: RunMoved) -> Iterator[str]:
        run = talk.runs[moved.run_id]
        if run.id in talk.taken:
            talk.taken.discard(run.id)
            yield from self._is_pinned(talk, replace(run, member=moved.to_member))
        if run.cancelling:
            yield f"run {run.id} was to stop, and is given to {moved.to_member}"
        refused = moved.reason is MoveReason.REFUSED
        once = run.call is not None and (self._loss == FAIL or (self._loss is None and not run.call.retry))
        if once and moved.to_member is not None and not (refused or moved.adopted):
            yield f"run {run.id} is a call, to be executed once, and is given to {moved.to_member} after another"
        if refused and moved.from_member is not None and moved.to_member is not None:
            run.refusers.add(moved.from_member)
            if moved.to_member in run.refusers:
                yield f"run {run.id} is given to {moved.to_member}, who refused it"
        else:
            run.refusers.clear()
        run.stored.difference_update(moved.superseded)
        run.member, run.kept = moved.to_member, bool(moved.kept_for)


def _at_once(talk: Talk, event: object) -> Iterator[str]:
    """What an abort, or a move, does to runs comes before anything else."""
    if talk.aborted and not _is_an_end(event):
        yield f"{sorted(talk.aborted)} are open after an abort"
        talk.aborted.clear()
    if talk.taken and not _is_of_a_move(event):
        yield f"{sorted(talk.taken)} stay with who had them, after a move"
        talk.taken.clear()


def _is_of_a_move(event: object) -> bool:
    """What follows from it at once: `RunOpened`, of a turn in line whose time has come."""
    return _is_an_end(event) or isinstance(event, RunMoved | OwnerChanged | RunOpened)


def _is_an_end(event: object) -> bool:
    return isinstance(event, RunEnded) or (isinstance(event, FrameCommitted) and event.sender == SYSTEM)


def _silence(talk: Talk, event: Any) -> Iterator[str]:
    """While a conversation is closed nothing is said in it, but for a survey; while a human answers, no agent says
    anything, is given anything, or begins anything."""
    heard = isinstance(event, FrameCommitted) and event.sender != SYSTEM
    given = isinstance(event, RunOpened | RunMoved | RunStarted)
    given |= isinstance(event, TurnCommitted) and bool(event.assigned or event.queued or event.waiting)
    if talk.handed_over and (heard or given):
        yield f"{type(event).__name__} of an agent while a human answers"
    said = isinstance(event, TurnCommitted) or (isinstance(event, PersonFrameCommitted) and event.frame.type != SURVEY)
    if talk.closed and (heard or given or said):
        yield f"{type(event).__name__} in a conversation that is closed"
    if talk.erased and (said or isinstance(event, PersonFrameCommitted | ConversationReopened | ConversationErased)):
        yield f"{type(event).__name__} in a conversation that is erased"


def _outdated(talk: Talk, conversation: str, run: str) -> Iterator[str]:
    """Nothing becomes of an answer any more once its turn is wanted anew."""
    known = talk.runs.get(run)
    seq = known.turn_seq if known is not None else int(run.removeprefix(f"{conversation}/").split("/")[0].split("~")[0])
    if edition_of(conversation, run) < talk.editions.get(seq, 0):
        yield f"{run} goes on, though the answer is wanted anew for the {talk.editions[seq]}. time"


def _frame(talk: Talk, entry: Entry, frame: FrameCommitted) -> Iterator[str]:
    if frame.run_id is None:
        return
    run = talk.runs[frame.run_id]
    run.asked |= frame.frame.type == "interrupt"
    if frame.seq:
        run.stored.add(frame.seq)
    if frame.sender != SYSTEM:
        yield from _outdated(talk, str(frame.conversation_id), frame.run_id)
        if run.deadline_at and not run.asked and entry.at >= run.deadline_at:
            yield f"a frame of {run.id} is stored {entry.at - run.deadline_at} ms after its deadline"


def _ended(talk: Talk, ended: RunEnded) -> Iterator[str]:
    run = talk.runs.pop(ended.run_id)
    talk.taken.discard(run.id)
    talk.answers.setdefault(run.turn_seq, set()).update(run.stored)
    if run.id in talk.aborted:
        talk.aborted.discard(run.id)
        if ended.status is not RunStatus.CANCELLED:
            yield f"run {run.id} was aborted, and ended as {ended.status}"


def _wanted_anew(talk: Talk, wanted: TurnEdited | TurnRegenerated) -> Iterator[str]:
    seq = wanted.turn_seq
    still = [run.id for run in talk.runs.values() if run.turn_seq == seq]
    if still:
        yield f"turn {seq} is wanted anew while {still} are open"
    if seq != max(talk.answers):
        yield f"turn {seq} is wanted anew, and is not the latest"
    if set(wanted.superseded) != talk.answers[seq]:
        yield f"turn {seq} is wanted anew: {sorted(talk.answers[seq])} answered it, {wanted.superseded} are superseded"
    talk.answers[seq] = set()
    talk.editions[seq] = wanted.edition


def _of_the_conversation(talk: Talk, event: Any) -> Iterator[str]:
    """Its close and its reopening, its handover and its return."""
    match event:
        case ConversationClosed():
            talk.closed = True
        case ConversationErased():
            talk.closed = talk.erased = True
        case ConversationHandedOver():
            talk.handed_over = True
        case ConversationReopened():
            talk.closed = False
        case ConversationHandedBack():
            talk.handed_over = False
    if isinstance(event, ConversationClosed | ConversationErased | ConversationHandedOver) and talk.runs:
        yield f"{type(event).__name__} while {[*talk.runs]} are open"
