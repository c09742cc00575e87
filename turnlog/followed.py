"""Conversations of an agent's own channel: what a process follows in them, and says in them.

They are not given to it as turns are: it is shown all that is said there, by whomever, and writes without a run.

What its handler has not heard yet is kept, up to a bound. A frame that does not fit is let go, and so is all that comes
behind it; once the handler is through with what it has, that is asked for anew (`sync`), as after a lost connection:
nothing is missing, and the socket, over which turns come too, is never kept waiting.

KEEPING UP ──one does not fit──▶ BEHIND ──nothing waits: sync──▶ READING AGAIN ──what was let go comes──▶ KEEPING UP
  ▲                                │                               │
  └────── a new connection, which begins behind what was taken ────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine

from turnlog.connection import Connection
from turnlog.errors import AckTimeout, error_of
from turnlog.outbox import Ack
from turnlog.viewer import Viewed, viewed_in
from turnlog.wire import Frame, dump

log = logging.getLogger("turnlog")

Heard = Callable[[str, Viewed], Awaitable[None]]

SHOWN_WITHOUT_SEQ = frozenset({"typing", "presence", "deliveryStatus", "superseded", "edited"})
CHANGES = frozenset({"superseded", "edited"})
"""Those among them that a replay tells again."""
WAITING_MAX = 1_000
"""Frames that wait in one conversation."""
WAITING_BYTES = 4 * 1024 * 1024
"""And how long they are as JSON, together."""
WAITING_BYTES_IN_ALL = 32 * 1024 * 1024
"""The same of all conversations. One of which nothing waits has its next frame taken nevertheless, at most 1 MiB."""
SYNC_AGAIN_S = 1.0
"""When a replay that could not be read is asked for again, where the gateway does not say."""


class _Place:
    """Where a process is in one conversation."""

    def __init__(self, after: int) -> None:
        self.seen = after
        self.waiting: deque[tuple[Viewed, int]] = deque()
        """Taken, and not heard yet, and how long as JSON."""
        self.bytes = 0
        """How long, together."""
        self.behind = False
        """Something was let go, and is to be asked for."""
        self.missed: int | None = None
        """The first seq that was let go, until it comes again: what comes before it was on its way already."""
        self.own: set[int] = set()
        """Seqs, above `seen`, of what this process said there: a next connection is shown them, as another's."""
        self.task: asyncio.Task[None] | None = None
        self.asked = 0
        """The generation of the connection that was asked for what follows `seen`."""


class Followed:
    """Each frame once, in order, one at a time per conversation, over as many connections as it takes."""

    def __init__(self, link: Connection, heard: Heard, *, ack_timeout: float) -> None:
        self._link = link
        self._heard = heard
        self._ack_timeout = ack_timeout
        self._places: dict[str, _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._saying: dict[tuple[str, str], tuple[Frame, asyncio.Future[Ack]]] = {}
        self._bytes = 0
        """How long as JSON what waits is, in all conversations."""

    @property
    def watermarks(self) -> dict[str, int]:
        """What is followed, and up to where it was taken."""
        return {conversation: place.seen for conversation, place in self._places.items()}

    @property
    def idle(self) -> bool:
        """Whether all that was taken is heard."""
        return not self._tasks

    def follow(self, conversation: str, after: int) -> None:
        """Be told of what is said there behind `after`. Where it is followed already, nothing changes."""
        if conversation not in self._places:
            self._places[conversation] = _Place(after)
            if self._link.generation:
                self._spawn(self._sync(conversation))

    def unfollow(self, conversation: str) -> None:
        """What comes, and what was taken and not heard yet, is dropped."""
        place = self._places.pop(conversation, None)
        if place is not None:
            self._bytes -= place.bytes
            place.bytes = 0
            place.waiting.clear()
            place.behind = False

    async def welcomed(self) -> None:
        """A new connection: go on behind what was taken, and say again what nobody acknowledged."""
        for place in self._places.values():
            place.behind, place.missed = False, None
        self._spawn(self._go_on(self._link.generation))  # what comes meanwhile, turns too, is read

    async def _go_on(self, generation: int) -> None:
        for conversation in list(self._places):
            if self._link.generation == generation:
                await self._sync(conversation)
        for (conversation, _), (frame, said) in list(self._saying.items()):
            if not said.done():
                await self._send(conversation, frame)

    async def close(self, budget: float) -> None:
        """Hear nothing more; what is being heard may be finished within `budget` seconds."""
        for conversation in list(self._places):
            self.unfollow(conversation)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=budget)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -------------------------------------------------------------------------------------------------- what is said
    async def say(self, conversation: str, frame: Frame) -> Ack:
        """Say it, and return once it is stored: once, however often it is sent. `frame` has a `clientId`."""
        key = (conversation, str(frame["clientId"]))
        if key in self._saying:
            raise ValueError(f"key: {key[1]!r} is being said already")
        said: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._saying[key] = (frame, said)
        try:
            await self._send(conversation, frame)  # or the next connection does
            async with asyncio.timeout(self._ack_timeout):
                return await said
        except TimeoutError as error:
            raise AckTimeout(
                f"no acknowledgement within {self._ack_timeout:g} s: the message may or may not be stored",
                code="ack_timeout",
                conversation=conversation,
            ) from error
        finally:
            del self._saying[key]

    def acked(self, conversation: str, ack: Frame) -> None:
        """An ack came in; one of something else is nothing to do."""
        _, said = self._saying.get((conversation, str(ack.get("clientId"))), (None, None))
        if said is None or said.done():
            return
        seq = int(ack.get("seq") or 0)
        place = self._places.get(conversation)
        if place is not None and seq > place.seen:
            place.own.add(seq)
        said.set_result(Ack(id=str(ack.get("id")), seq=seq, duplicate=ack.get("duplicate") is True))

    def refused(self, conversation: str, data: Frame) -> bool:
        """An error came in: whether it was about what is followed or said here."""
        error = error_of(data, conversation=conversation)
        _, said = self._saying.get((conversation, str(data.get("clientId"))), (None, None))
        if said is not None:
            if not said.done():
                said.set_exception(error)
            return True
        about_sync = data.get("frameType") == "sync" or error.code == "invalid_watermark"
        if conversation not in self._places or not about_sync:
            return False
        if error.retryable:
            self._spawn(self._sync(conversation, after_s=error.retry_after or SYNC_AGAIN_S))
        else:
            log.error("turnlog: %s cannot be followed: %s", conversation, error)
            self.unfollow(conversation)
        return True

    # ------------------------------------------------------------------------------------------------- what is heard
    def takes(self, conversation: str, frame: Frame) -> bool:
        """Take a frame off the socket, unless it is not about what is followed."""
        place = self._places.get(conversation)
        if place is None or "run" in frame or not (_seq(frame) or frame.get("type") in SHOWN_WITHOUT_SEQ):
            return False
        seq = _seq(frame)
        if seq:
            if place.asked != self._link.generation:
                return True  # shown before it was asked: what lies between was not, and both come once it is
            if seq <= place.seen or (place.missed is not None and seq > place.missed):
                return True
            if seq in place.own:
                _went_on(place, seq)
                return True
        elif place.behind or (place.missed is not None and not _of_what_was_seen(frame, place)):
            return True
        weight = len(dump(frame))
        if not self._fits(place, weight):
            self._let_go(conversation, place, seq, str(frame.get("type")))
            return True
        if seq:
            _went_on(place, seq)
        place.waiting.append((viewed_in(frame), weight))
        place.bytes += weight
        self._bytes += weight
        if place.task is None:
            place.task = self._spawn(self._hear(conversation, place))
        return True

    def _fits(self, place: _Place, weight: int) -> bool:
        if not place.waiting:
            return True
        small = len(place.waiting) < WAITING_MAX and place.bytes + weight <= WAITING_BYTES
        return small and self._bytes + weight <= WAITING_BYTES_IN_ALL

    @staticmethod
    def _let_go(conversation: str, place: _Place, seq: int, kind: str) -> None:
        if seq:
            place.missed = seq
        elif kind not in CHANGES:
            return  # it is shown once, or never
        place.behind = True
        log.warning(
            "turnlog: the handler of activity is slow in %s: %d frames wait, and what comes behind seq %d is asked for"
            " anew once it is through with them",
            conversation,
            len(place.waiting),
            place.seen,
        )

    async def _hear(self, conversation: str, place: _Place) -> None:
        try:
            while place.waiting:
                viewed, weight = place.waiting.popleft()
                place.bytes -= weight
                self._bytes -= weight
                try:
                    await self._heard(conversation, viewed)
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise  # of this process's end; else the handler's own, of something that it awaited
                    log.exception("turnlog: the handler of activity failed on seq %s of %s", viewed.seq, conversation)
        finally:
            place.task = None
        if place.behind:
            place.behind = False
            await self._sync(conversation)

    async def _sync(self, conversation: str, *, after_s: float = 0.0) -> None:
        generation = self._link.generation
        await asyncio.sleep(after_s)
        await self._link.pace()
        place = self._places.get(conversation)
        if place is not None and self._link.generation == generation:  # the next connection asks by itself
            # Not by hello's `watermarks`: these would claim runs, were the conversation given to this agent.
            sync = {"type": "sync", "watermark": place.seen}
            place.asked = generation
            await self._link.send({"conversationId": conversation, "frame": sync})

    async def _send(self, conversation: str, frame: Frame) -> None:
        await self._link.pace()
        await self._link.send({"conversationId": conversation, "frame": frame})

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _went_on(place: _Place, seq: int) -> None:
    place.seen, place.missed = seq, None
    place.own = {each for each in place.own if each > seq}


def _of_what_was_seen(frame: Frame, place: _Place) -> bool:
    """Whether it changes what was taken before something was let go; what comes again says itself what it says now."""
    data = frame.get("data")
    about = data.get("seq") if isinstance(data, dict) else None
    return frame.get("type") in CHANGES and (not isinstance(about, int) or about <= place.seen)


def _seq(frame: Frame) -> int:
    seq = frame.get("seq")
    return seq if isinstance(seq, int) and not isinstance(seq, bool) and frame.get("type") != "ack" else 0
