"""Which runs a member holds, and in which order and form their turns are written to it.

A process of the public clients drops a turn whose `seq` is not above everything it has received of the conversation, so
turns are written in strictly ascending order, and one that comes too late for that is written without `seq`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

import msgspec

from connectors.gateway.protocol.actions import FetchTurn
from connectors.gateway.protocol.limits import HELD_BYTES, MAX_CONVERSATIONS
from connectors.gateway.protocol.render import encode, given_turn, turn_of
from connectors.gateway.protocol.resume import Resume
from streams.core.events import Entry

# Conversations that a connection follows, and whose highest written seq is remembered; beyond, the least recently
# active one without a run is forgotten.
REMEMBERED_MAX = MAX_CONVERSATIONS
# What was said of runs whose turns cannot be read for so long; people may go on speaking meanwhile.
SAID_BYTES_MAX = HELD_BYTES


class Held(msgspec.Struct):
    """A run that the member holds."""

    conversation_id: str
    turn_seq: int
    run_epoch: int
    asks: bool = False
    """Its process said that it waits for a person's answer."""


class _Waiting(msgspec.Struct):
    """A turn to be written once those before it are. `entry` None: it is being fetched, for this epoch of its run.

    `said`: no turn, but what was said of the run meanwhile, ready to be written behind its turn."""

    run_id: str
    run_epoch: int
    turn_seq: int
    entry: Entry | None
    fresh: bool
    """Whether it came live: then its seq is above everything that any process has of the conversation."""
    resume: Resume | None = None
    said: bytes | None = None

    @property
    def is_ready(self) -> bool:
        """Whether nothing has to be fetched for it."""
        return self.entry is not None or self.said is not None


class _Memory(msgspec.Struct):
    """What was written to the member of one conversation."""

    high: int = 0
    """Highest seq written with a seq, or that the process said it has."""
    turn: int = 0
    """Highest turn written in either form, or that the process said it has."""
    given: int = 0
    """Highest turn that the journal says was this member's."""
    wrote: bool = False
    """Whether the member said something here that was stored."""
    runs: int = 0
    """Runs of it that the member holds."""
    waiting: deque[_Waiting] = msgspec.field(default_factory=deque)


class Delivery:
    """One member's. `write` takes a conversation's frame; `followed` and `forgotten` are told of conversations;
    `overfull` is called when more waits behind turns that are being fetched than is kept; `carried` says what a run's
    turn carries of its trace."""

    def __init__(
        self,
        write: Callable[[str, bytes], None],
        *,
        followed: Callable[[str], None] = lambda _: None,
        forgotten: Callable[[str], None] = lambda _: None,
        overfull: Callable[[], None] = lambda: None,
        carried: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._write = write
        self._followed = followed
        self._forgotten = forgotten
        self._overfull = overfull
        self._carried = carried
        self._said_bytes = 0
        self._runs: dict[str, Held] = {}
        self._memory: OrderedDict[str, _Memory] = OrderedDict()
        self._forgot = False

    @property
    def runs_open(self) -> int:
        """How many runs the member holds."""
        return len(self._runs)

    @property
    def runs_at_work(self) -> int:
        """How many of them do not wait for a person."""
        return sum(not held.asks for held in self._runs.values())

    def said(self, conversation_id: str, run_id: str | None, status: object) -> None:
        """Its process said how a run is; one that it does not name is the conversation's only one, or none."""
        there = [each for each in self._runs.values() if each.conversation_id == conversation_id]
        held = self._runs.get(run_id) if run_id is not None else there[0] if len(there) == 1 else None
        if held is not None:
            held.asks = status == "interrupted"

    def holds(self, run_id: str, run_epoch: int) -> bool:
        """Whether it holds this run at this epoch."""
        held = self._runs.get(run_id)
        return held is not None and held.run_epoch == run_epoch

    def holds_run_in(self, conversation_id: str) -> bool:
        """Whether it holds a run of this conversation."""
        memory = self._memory.get(conversation_id)
        return memory is not None and memory.runs > 0

    def holds_another_run_in(self, conversation_id: str, run_id: str) -> bool:
        """Whether the member holds a run of this conversation beside that one."""
        memory = self._memory.get(conversation_id)
        return memory is not None and memory.runs > (run_id in self._runs)

    def highest(self, conversation_id: str) -> int:
        """The highest seq that its process was given, or said it has; 0: none."""
        memory = self._memory.get(conversation_id)
        return 0 if memory is None else memory.high

    def turn_written(self, conversation_id: str) -> int:
        """The highest turn that was written to it, or that its process has; 0: none."""
        memory = self._memory.get(conversation_id)
        return 0 if memory is None else memory.turn

    def given(self, conversation_id: str) -> int:
        """The highest turn that was this member's by the journal, whatever its process says that it has; 0: none."""
        memory = self._memory.get(conversation_id)
        return 0 if memory is None else memory.given

    def wrote(self, conversation_id: str) -> None:
        """Something of the member was stored there, or all of it is shown to it: it follows what becomes of it."""
        self._remember(conversation_id).wrote = True

    def active(self, conversation_id: str) -> None:
        """Something went on there that it was told of."""
        if conversation_id in self._memory:
            self._memory.move_to_end(conversation_id)

    def know(self, watermarks: Mapping[str, int]) -> None:
        """Its process says what it has."""
        for conversation_id, seq in watermarks.items():
            self._memory[conversation_id] = _Memory(high=seq, turn=seq)

    def knows_not_all(self) -> None:
        """It said more than is remembered: what it does not seem to have, it may have."""
        self._forgot = True

    # ------------------------------------------------------------------------------------------------------- runs
    def hold(self, run_id: str, held: Held) -> None:
        """The run is the member's, at this epoch."""
        if run_id not in self._runs:
            self._remember(held.conversation_id).runs += 1
        self._runs[run_id] = held

    def release(self, run_id: str) -> Held | None:
        """The run is the member's no more; None: it was not."""
        held = self._runs.pop(run_id, None)
        if held is not None:
            memory = self._memory[held.conversation_id]
            memory.runs -= 1
            self._give_ready(memory)  # what waited behind its turn waits no more
        return held

    # ------------------------------------------------------------------------------------------------------ turns
    def give(self, conversation_id: str, run_id: str, entry: Entry) -> None:
        """Write a message that came live, of a run that is held; behind what waits."""
        held = self._runs.get(run_id)
        if held is not None:
            memory = self._remember(conversation_id)
            memory.waiting.append(_Waiting(run_id, held.run_epoch, turn_of(entry).seq, entry, fresh=True))
            self._give_ready(memory)

    def say(self, conversation_id: str, run_id: str, run_epoch: int, frame: bytes) -> None:
        """Write what is said of a run at this epoch: behind its turn, which may be on its way still."""
        memory = self._remember(conversation_id)
        if any(waiting.run_id == run_id for waiting in memory.waiting):
            memory.waiting.append(_Waiting(run_id, run_epoch, 0, None, fresh=False, said=frame))
            self._said_bytes += len(frame)
            if self._said_bytes > SAID_BYTES_MAX:
                self._overfull()
        else:
            self._write(conversation_id, frame)

    def has(self, conversation_id: str, turn_seq: int) -> None:
        """Its process has the turn already."""
        memory = self._remember(conversation_id)
        memory.turn = max(memory.turn, turn_seq)
        memory.given = max(memory.given, turn_seq)

    def wait_for(self, fetch: FetchTurn) -> None:
        """A turn that is fetched has its place from now on."""
        memory = self._remember(fetch.conversation_id)
        for wanted in memory.waiting:
            if wanted.run_id == fetch.run_id and wanted.turn_seq == fetch.turn_seq:
                # It was here a moment ago, and is being fetched still: what comes of that is of an earlier epoch.
                wanted.run_epoch, wanted.entry = fetch.run_epoch, None
                return
        memory.waiting.append(_Waiting(fetch.run_id, fetch.run_epoch, fetch.turn_seq, None, fresh=False))

    def fetched(self, fetch: FetchTurn, entry: Entry, resume: Resume | None) -> None:
        """It is here."""
        memory = self._remember(fetch.conversation_id)
        for wanted in memory.waiting:
            if (wanted.run_id, wanted.run_epoch, wanted.turn_seq) == (fetch.run_id, fetch.run_epoch, fetch.turn_seq):
                wanted.entry, wanted.resume = entry, resume
        self._give_ready(memory)

    def _give_ready(self, memory: _Memory) -> None:
        """Write what waits, up to the first turn that is being fetched."""
        while memory.waiting and (memory.waiting[0].is_ready or memory.waiting[0].run_id not in self._runs):
            self._give(memory, memory.waiting.popleft())

    def _give(self, memory: _Memory, turn: _Waiting) -> None:
        held = self._runs.get(turn.run_id)
        self._said_bytes -= len(turn.said or b"")
        if held is not None and turn.said is not None and held.run_epoch == turn.run_epoch:
            self._write(held.conversation_id, turn.said)
        if held is None or turn.entry is None:
            return  # the run ended or moved on while its turn was fetched
        seq = turn.turn_seq
        # A late turn of a conversation that was forgotten may be below what the process has: without seq it is safe.
        with_seq = seq > memory.high and (turn.fresh or not self._forgot or memory.high > 0)
        memory.high = max(memory.high, seq)
        memory.turn = max(memory.turn, seq)
        memory.given = max(memory.given, seq)
        frame = given_turn(
            turn_of(turn.entry),
            turn.entry.timestamp,
            run_id=turn.run_id,
            run_epoch=held.run_epoch,
            with_seq=with_seq,
            resume=turn.resume.fields() if turn.resume is not None else None,
            traceparent=self._carried(turn.run_id),
        )
        self._write(held.conversation_id, encode(frame))

    # ----------------------------------------------------------------------------------------------------- memory
    def _remember(self, conversation_id: str) -> _Memory:
        memory = self._memory.get(conversation_id)
        if memory is None:
            memory = self._memory[conversation_id] = _Memory()
            self._followed(conversation_id)
            if len(self._memory) > REMEMBERED_MAX:
                self._forget()
        else:
            self._memory.move_to_end(conversation_id)
        return memory

    def _forget(self) -> None:
        for conversation_id, memory in self._memory.items():
            if not memory.runs and not memory.waiting and (memory.turn or memory.wrote):
                del self._memory[conversation_id]
                self._forgot = True
                self._forgotten(conversation_id)
                return
