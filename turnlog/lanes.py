"""Turns in order within a conversation, side by side across conversations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

from turnlog.errors import Fenced
from turnlog.logs import about
from turnlog.outbox import Outbox
from turnlog.resume import Resume
from turnlog.run import Run, RunState, Seat
from turnlog.turn import Turn
from turnlog.wire import Frame

log = logging.getLogger("turnlog")

EARLY_MAX = 1_000
"""Runs whose answers wait for their turn; beyond, the oldest go: they were of runs that went elsewhere."""


class _Lane:
    """One conversation that has turns in this process's hands."""

    def __init__(self) -> None:
        self.runs: deque[Run] = deque()
        """Not yet ended, in the order in which they are answered; the first one runs or is about to."""
        self.watermark = 0


class Lanes:
    """Holds the runs of this process and has each answered once, one at a time per conversation."""

    def __init__(
        self, outbox: Outbox, answer: Callable[[Run], Awaitable[None]], *, most_at_once: int, most_runs: int | None
    ) -> None:
        self._outbox = outbox
        self._answer = answer
        self._room = asyncio.Semaphore(most_at_once)
        self._most_runs = most_runs
        self._lanes: dict[str, _Lane] = {}
        self._early: dict[str, dict[str, Any]] = {}
        """Answers for runs whose turns are not here yet."""
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False
        """Whether turns that come are left to others."""
        self._left = asyncio.Event()
        """Set when a run has given its place to others: it ended, or waits for a person."""

    @property
    def watermarks(self) -> dict[str, int]:
        """Per conversation with a turn in hand, the highest seq given: "these I still have". The others need none."""
        return {conversation: lane.watermark for conversation, lane in self._lanes.items() if lane.watermark}

    def give(self, turn: Turn) -> None:
        """A turn came in. The run that this process has already is only renewed: its handler goes on."""
        if self._closed:
            return  # it moves to another process as soon as this one has left
        lane = self._lanes.get(turn.conversation)
        known = _find(lane, turn) if lane is not None else None
        if known is None and self._is_full(turn):
            self._spawn(self._outbox.refuse(turn))
            return
        if lane is None:
            lane = self._lanes[turn.conversation] = _Lane()
            self._spawn(self._work(turn.conversation, lane))
        elif turn.run is None and turn.seq is not None and turn.seq <= lane.watermark:
            return  # a server that names no runs replays what this process has
        elif known is not None:
            if turn.id == known.turn.id:
                known.renew(turn.run_epoch, turn.resume, self._outbox.generation)
                self._spawn(self._confirm(known))
            else:
                known.asks.answered_by(turn)
            return
        lane.watermark = max(lane.watermark, turn.seq or 0)
        run = Run(turn, self._outbox.generation)
        for ask_id, answer in self._early.pop(turn.run or "", {}).items():
            run.asks.answer(ask_id, answer)
        lane.runs.append(run)

    def stop(self, conversation: str, state: RunState, *, run: str | None, epoch: int | None) -> None:
        """The gateway cancelled `run` (ABORTED) or refused a frame of it (FENCED). Unnamed: the one that runs."""
        lane = self._lanes.get(conversation)
        if lane is None:
            return
        for each in lane.runs:
            meant = each.turn.run == run if run is not None else each.state is RunState.RUNNING
            if meant and each.open and each.holds(epoch):
                if run is not None and epoch is not None and state is RunState.ABORTED:
                    each.named(epoch, self._outbox.generation)
                each.stop(state)
                return

    def _is_full(self, turn: Turn) -> bool:
        """Whether another process is to have it. Without a name of its run, nothing can be refused."""
        if self._most_runs is None or turn.run is None or not self._outbox.may_refuse:
            return False
        return sum(1 for _ in self._runs()) >= self._most_runs

    def answered(self, conversation: str, answers: Mapping[str, Any], *, run: str | None) -> None:
        """A person answered questions, by their ids. One that its handler has not asked yet finds its answer there."""
        lane = self._lanes.get(conversation)
        there = [each for each in lane.runs if each.open] if lane is not None else []
        for ask_id, answer in answers.items():
            named = (each for each in there if each.turn.run == run or each.asks.is_known(ask_id))
            target = next(named, there[0] if there and run is None else None)
            if target is not None:
                target.asks.answer(ask_id, answer)
            elif run is not None:
                self._keep(run, ask_id, answer)

    def _keep(self, run: str, ask_id: str, answer: Any) -> None:
        """An answer overtook the turn of a run that comes here: a gateway looks that one up, and passes answers on."""
        self._early.setdefault(run, {})[ask_id] = answer
        if len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    def happened(self, conversation: str, event: str, payload: Any) -> bool:
        """A component's event: whether it answers a question of a run in hand."""
        lane = self._lanes.get(conversation)
        there = lane.runs if lane is not None else ()
        return any(each.open and each.asks.happened(event, payload) for each in there)

    async def reconnected(self, *, told: bool) -> None:
        """A new connection is up. `told`: its gateway says of each run whether it is this process's, and what is stored
        of it. Else this process says so itself, before the server gives the run away or again."""
        self._early.clear()
        runs = list(self._runs())
        if told:
            for run in runs:
                run.unplace(asyncio.get_running_loop().time())
                self._spawn(self._confirm(run))
        else:
            for run in runs:
                await self._confirm(run)

    def adopted(self, conversation: str, run_id: str, epoch: int | None, resume: Resume | None) -> None:
        """The gateway says that this process goes on with the run that it has, and what is stored of it."""
        lane = self._lanes.get(conversation)
        for run in lane.runs if lane is not None else ():
            if run.turn.run == run_id and run.open:
                run.renew(epoch, resume, self._outbox.generation)

    async def drain(self, budget: float, *, late: bool, asks: bool = False) -> None:
        """Let what this process was given finish within `budget` seconds; the rest is left to other processes.

        `late`: what comes meanwhile is taken too. `asks`: what waits for people is left at once when there is nothing
        else, since others go on with it as it is.
        """
        self._closed = not late
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget
        while self._workers and (left := deadline - loop.time()) > 0 and not (asks and self._only_ask()):
            self._left.clear()
            news = asyncio.create_task(self._left.wait())
            await asyncio.wait({news, *self._workers}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        self._closed = True
        for run in list(self._runs()):
            run.stop(RunState.LEFT)
        if self._workers:
            await asyncio.wait(self._workers)

    def _only_ask(self) -> bool:
        """Whether all that is in hand waits for people. An invocation is not left: it would be its end."""
        first = [lane.runs[0] for lane in self._lanes.values() if lane.runs]
        return bool(first) and all(run.asking and run.turn.invocation is None for run in first)

    # ----------------------------------------------------------------------------------------------- one lane

    async def _work(self, conversation: str, lane: _Lane) -> None:
        while lane.runs:
            run = lane.runs[0]
            if run.open:
                run.seat = Seat(self._room, self._left.set)
                await run.seat.take()
                try:
                    await self._run(run)
                finally:
                    run.seat.leave()
            lane.runs.popleft()
        del self._lanes[conversation]

    async def _run(self, run: Run) -> None:
        if not run.open:  # stopped while it waited for room
            return
        run.enter(RunState.RUNNING)
        run.task = asyncio.create_task(self._started(run))
        await asyncio.wait({run.task})
        error = asyncio.CancelledError() if run.task.cancelled() else run.task.exception()
        if run.state is RunState.RUNNING:
            run.enter(_verdict(error))
        if run.state is RunState.FAILED:
            log.error(
                "turnlog: the handler failed on turn %s of %s",
                run.turn.id,
                run.turn.conversation,
                exc_info=error,
                extra=about(run),
            )
        for frame in _LAST_FRAMES.get(run.state, ()):
            await self._outbox.last(run, frame)

    async def _started(self, run: Run) -> None:
        await self._outbox.frame(run, _status("started"))
        await self._answer(run)
        await self._outbox.wait_placed(run)  # its end is said in the name of whoever has it

    async def _confirm(self, run: Run) -> None:
        """Say that the run is in hand, and again what nobody acknowledged of it."""
        with contextlib.suppress(Fenced):  # it was stopped meanwhile, and its handler knows
            await self._outbox.wait_placed(run)
            if run.state is RunState.RUNNING:
                await self._outbox.frame(run, _status("started"))
            elif run.turn.seq:
                await self._outbox.frame(run, {"type": "read", "watermark": run.turn.seq})
            await self._outbox.resend(run)

    def _runs(self) -> Iterator[Run]:
        return (run for lane in self._lanes.values() for run in lane.runs if run.open)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._workers.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("turnlog: a conversation's worker failed", exc_info=error)


def _find(lane: _Lane, turn: Turn) -> Run | None:
    """The open run that `turn` is about: the same run, or the same message where runs have no names."""
    for run in lane.runs:
        same = run.turn.run == turn.run if turn.run is not None else bool(turn.id) and run.turn.id == turn.id
        if same and run.open:
            return run
    return None


def _verdict(error: BaseException | None) -> RunState:
    if error is None:
        return RunState.ANSWERED
    return RunState.FENCED if isinstance(error, Fenced) else RunState.FAILED


def _status(status: str) -> Frame:
    return {"type": "run", "data": {"status": status}}


_FAILED: Frame = {
    "type": "error",
    "data": {"code": "agent_error", "message": "the agent could not answer this turn", "retryable": False},
}
_LAST_FRAMES: dict[RunState, tuple[Frame, ...]] = {
    RunState.ANSWERED: (_status("finished"),),
    RunState.FAILED: (_FAILED, _status("error")),
    RunState.ABORTED: (_status("aborted"),),
}
