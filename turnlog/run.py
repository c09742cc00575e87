"""A run as the process that holds it sees it.

QUEUED ──▶ RUNNING ──▶ ANSWERED          the handler returned
   │          ├──────▶ FAILED            it raised
   │          ├──────▶ ABORTED           a person, or the gateway, cancelled it
   ├──────────┼──────▶ FENCED            another process holds it, or it has ended
   └──────────┴──────▶ LEFT              this process drains: the run moves to another one
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto

from turnlog.asks import Asks
from turnlog.errors import Fenced
from turnlog.resume import Resume
from turnlog.turn import Turn
from turnlog.wire import Frame


class RunState(Enum):
    """See the diagram above."""

    QUEUED = auto()
    RUNNING = auto()
    ANSWERED = auto()
    FAILED = auto()
    ABORTED = auto()
    FENCED = auto()
    LEFT = auto()


_NEXT: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.ABORTED, RunState.FENCED, RunState.LEFT}),
    RunState.RUNNING: frozenset({RunState.ANSWERED, RunState.FAILED, RunState.ABORTED, RunState.FENCED, RunState.LEFT}),
    RunState.ANSWERED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.ABORTED: frozenset(),
    RunState.FENCED: frozenset(),
    RunState.LEFT: frozenset(),
}


class Seat:
    """A run's place among those that are answered at the same time. A question to a person takes none."""

    def __init__(self, room: asyncio.Semaphore, left: Callable[[], None] = lambda: None) -> None:
        self._room = room
        self._left = left
        """Told each time that the place is given to others."""
        self.taken = False

    async def take(self) -> None:
        """Wait for a place, unless it has one."""
        if not self.taken:
            await self._room.acquire()
            self.taken = True

    def leave(self) -> None:
        """Give the place to others, if it has one."""
        if self.taken:
            self.taken = False
            self._room.release()
            self._left()


class Run:
    """One turn in this process's hands, and the token that its frames carry."""

    def __init__(self, turn: Turn, generation: int) -> None:
        self.turn = turn
        self.state = RunState.QUEUED
        self.task: asyncio.Task[None] | None = None
        """The handler, while it runs."""
        self.seat: Seat | None = None
        """While it is answered."""
        self.asks = Asks(turn)
        self.resume = turn.resume
        """What was stored of it when this process was last given it; None: nobody said."""
        self.placed = asyncio.Event()
        """Clear while a new connection's gateway has yet to say whose it is: nothing of it is sent until then."""
        self.placed.set()
        self.unplaced_since: float | None = None
        """When that connection was welcomed, by the loop's clock; None: whose it is is known, or never said."""
        self.traceparent = turn.traceparent
        """Of the span that its frames are said in; None: nobody traces."""
        self._epoch = turn.run_epoch
        self._generation = generation

    @property
    def epoch(self) -> int | None:
        """The run epoch at which this process was last given it."""
        return self._epoch

    @property
    def open(self) -> bool:
        return self.state in {RunState.QUEUED, RunState.RUNNING}

    @property
    def asking(self) -> bool:
        """Whether its handler waits for a person's answer."""
        return self.state is RunState.RUNNING and self.seat is not None and not self.seat.taken

    def enter(self, state: RunState) -> None:
        if state not in _NEXT[self.state]:
            raise AssertionError(f"run: {self.state.name} never becomes {state.name}")
        self.state = state
        if not self.open:
            self.placed.set()  # who waits for it is told by `check`

    def renew(self, epoch: int | None, resume: Resume | None, generation: int) -> None:
        """The same run was given to this process again: its frames carry the new epoch from here on."""
        self._epoch = epoch
        self.resume = resume
        self.asks.learn(resume)
        if self.state is RunState.QUEUED:
            self.turn = replace(self.turn, run_epoch=epoch, resume=resume)  # no handler has seen it yet
        self._generation = generation
        self.unplaced_since = None
        self.placed.set()

    def named(self, epoch: int, generation: int) -> None:
        """An order of this connection's gateway names it: it is this process's, at `epoch`."""
        self._epoch, self._generation, self.unplaced_since = epoch, generation, None

    def unplace(self, now: float) -> None:
        """A new connection was welcomed at `now`, whose gateway says of each run whether it is this process's."""
        self.unplaced_since = now
        self.placed.clear()

    def stored_in(self, generation: int) -> Resume | None:
        """What the gateway of this connection said was stored of it; None: it said nothing."""
        return self.resume if generation == self._generation else None

    def holds(self, epoch: int | None) -> bool:
        """Whether an order about `epoch` is about what this process holds, or may be."""
        return epoch is None or self._epoch is None or epoch >= self._epoch

    def stop(self, state: RunState) -> None:
        """End it from outside: ABORTED, FENCED or LEFT. A handler that runs is cancelled."""
        self.enter(state)
        self.turn.cancelled.set()
        if self.task is not None:
            self.task.cancel()

    def check(self) -> None:
        """Raises `Fenced` once nothing of it may be sent any more."""
        if not self.open:
            raise Fenced(
                f"turn {self.turn.id} is not this process's to answer any more ({self.state.name.lower()})",
                code="fenced",
                conversation=self.turn.conversation,
            )

    def stamp(self, frame: Frame, generation: int) -> Frame:
        """`frame` in its envelope, naming its run. `generation`: number of the connection that it goes out on.

        A reconnect makes the process another member, to which the run may have moved silently at an epoch that it was
        not told. The epoch is then left out: the gateway's own member id is token enough, for it is never used again.
        """
        stamped = dict(frame)
        if self.turn.run is not None:
            stamped["run"] = self.turn.run
            if self._epoch is not None and generation == self._generation:
                stamped["runEpoch"] = self._epoch
        if self.traceparent is not None:
            stamped["traceparent"] = self.traceparent
        return {"conversationId": self.turn.conversation, "frame": stamped}
