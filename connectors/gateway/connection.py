"""One WebSocket: a reader, a writer and a submitter around a session without IO.

The reader feeds the session and never waits for Kafka or Postgres; the submitter writes to the intake in the order of
the frames; the writer sends what the session wrote. A peer that reads too slowly is closed, and delays nobody else.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from connectors.gateway.clock import wall_ms
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.actions import Action, Close, SubmitFrame, SubmitPersonFrame, SubmitTurn, Write
from connectors.gateway.protocol.errors import CLOSE_INTERNAL, CLOSE_SLOW, ProtocolError, close_reason
from connectors.gateway.protocol.session import Session, State

log = structlog.get_logger(__name__)

# Submits that wait for the producer, and characters in them; the reader stops reading beyond.
SUBMITS_MAX = 1_000
SUBMITS_CHARS = 4 * 1024 * 1024
CLOSE_WAIT_S = 2.0
FINISH_WAIT_S = 5.0
SLOW_RETRY_MS = 1_000

# Name of the scope's extension under which the server offers to cut the connection.
ABORT_EXTENSION = "turnlog.abort"

Submit = SubmitTurn | SubmitPersonFrame | SubmitFrame
# Called once its task runs: a connection that ends before has begun nothing.
Work = Callable[[], Coroutine[Any, Any, None]]


class Connection(ABC):
    """What both kinds of socket share. Subclasses say what their session's actions mean."""

    kind = "socket"

    def __init__(self, websocket: WebSocket, session: Session) -> None:
        self._websocket = websocket
        self._session = session
        self._outbound: deque[bytes] = deque()
        self._outbound_bytes = 0
        self._crowded = False
        """Whether more than may pile up waited when the actions that are performed now began."""
        self._writable = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._submits: deque[Submit] = deque()
        self._submit_chars = 0
        self._submittable = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._close: Close | None = None
        self._finishing = False
        self.peer_code: int | None = None
        """The code that the peer closed with."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_close: Callable[[int], None] = lambda _: None
        """Called once with the code that this side ends it with."""
        self.closed = asyncio.Event()
        """Set once nothing of it is left to be done."""

    # --------------------------------------------------------------------------------------------------- actions
    def perform(self, actions: Sequence[Action]) -> None:
        """Do what the session asks for. Never waits."""
        self._crowded = self._outbound_bytes > limits.OUTBOUND_BYTES
        for action in actions:
            match action:
                case Write():
                    self._enqueue(action.frame)
                case Close():
                    self._end(action)
                case SubmitTurn() | SubmitPersonFrame() | SubmitFrame():
                    self._submits.append(action)
                    self._submit_chars += _weight(action)
                    self._submittable.set()
                    if not self._has_room():
                        self._room.clear()
                case _:
                    self._begin(action)

    def contained(self, work: Callable[[], Sequence[Action]]) -> None:
        """Perform what `work` makes of the session. What fails ends this connection and disturbs nobody else: the
        journal's tail is among those who call this, and it serves everybody."""
        try:
            self.perform(work())
        except Exception:
            log.exception("a connection failed", **self.about())
            self.end(CLOSE_INTERNAL, "internal error")

    def about(self) -> dict[str, Any]:
        """What log lines say of it."""
        return {"kind": self.kind, "connection": self._session.connection_id}

    def tick(self) -> None:
        """About once a second."""
        self.contained(lambda: self._session.tick(wall_ms()))

    def end(self, code: int, reason: str = "") -> None:
        """Close it from this side, after what is written so far."""
        self.perform(self._session.end(code, reason))

    def give_up(self, code: int, reason: str) -> None:
        """Close it from this side; what is not on its way yet is not written."""
        self._discard()
        self.end(code, reason)

    @property
    def channel(self) -> str | None:
        """The channel that its token is of; None before an accepted hello."""
        return self._session.channel

    def refuse(self, error: ProtocolError) -> None:
        """Tell it of an error; one that ends connections ends it."""
        self.perform(self._session.fail(error))

    @property
    def ending(self) -> bool:
        """Whether it is closed or being closed."""
        return self._session.state is State.CLOSED

    def _begin(self, action: Action) -> None:
        """Begin to carry out an action that only this kind of connection has."""
        self._spawn(partial(self._do, action))

    @abstractmethod
    async def _do(self, action: Action) -> None:
        """Carry out an action that only this kind of connection has."""

    @abstractmethod
    async def _submit(self, submit: Submit) -> None:
        """Write what the session submits."""

    @abstractmethod
    async def _gone(self) -> None:
        """The connection is over."""

    def _may_write(self) -> bool:
        """Whether the next frame may still be written."""
        return True

    # ------------------------------------------------------------------------------------------------------ life
    async def serve(self, first: str | bytes) -> None:
        """Run it until either side ends it; `first` is the message that was read before the session was made."""
        structlog.contextvars.bind_contextvars(connection=self._session.connection_id)  # in the socket's own task
        writer = asyncio.create_task(self._guarded(self._write))
        submitter = asyncio.create_task(self._guarded(self._submit_all))
        try:
            self.perform(self._session.receive(first, wall_ms()))
            await self._read()
        finally:
            self._session.gone()
            try:
                await self._finish(writer, submitter)
                await self._gone()
            finally:
                self.closed.set()

    async def _finish(self, writer: asyncio.Task[None], submitter: asyncio.Task[None]) -> None:
        """What was read is still submitted, since the peer may have sent its last answer and left."""
        self._finishing = True
        self._submittable.set()
        for task in self._tasks:
            task.cancel()
        if self._close is None:
            writer.cancel()
        await asyncio.wait({writer, submitter, *self._tasks}, timeout=FINISH_WAIT_S)
        submitter.cancel()
        writer.cancel()
        await asyncio.wait({writer, submitter})

    async def _read(self) -> None:
        while self._session.state is not State.CLOSED:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self.peer_code = message.get("code")
                return
            raw = message.get("text")
            self.perform(self._session.receive(raw if raw is not None else message["bytes"], wall_ms()))
            await self._room.wait()
            if self._session.pace_ms:
                await asyncio.sleep(self._session.pace_ms / 1000)

    async def _write(self) -> None:
        try:
            while True:
                while self._outbound:
                    if not self._may_write():
                        self._discard()
                        break
                    frame = self._outbound.popleft()
                    self._outbound_bytes -= len(frame)
                    await self._websocket.send_text(frame.decode())
                self._drained.set()
                if self._close is not None:
                    await self._say_close(self._close)
                    return
                self._writable.clear()
                await self._writable.wait()
        except (WebSocketDisconnect, OSError):
            self._session.gone()  # the reader sees the end of it too

    async def _say_close(self, close: Close) -> None:
        await self._websocket.close(close.code, close.reason)

    async def _submit_all(self) -> None:
        while True:
            while self._submits:
                submit = self._submits.popleft()
                self._submit_chars -= _weight(submit)
                if self._has_room():
                    self._room.set()
                await self._submit(submit)
            if self._finishing:
                return
            self._submittable.clear()
            await self._submittable.wait()

    # --------------------------------------------------------------------------------------------------- details
    def _has_room(self) -> bool:
        return len(self._submits) < SUBMITS_MAX and self._submit_chars < SUBMITS_CHARS

    def _enqueue(self, frame: bytes) -> None:
        if self._crowded or len(self._outbound) >= limits.OUTBOUND_FRAMES:
            log.warning("a slow consumer is closed", **self.about())
            self._discard()
            self.perform(self._session.end(CLOSE_SLOW, close_reason("slow_consumer", SLOW_RETRY_MS)))
            return
        self._outbound.append(frame)
        self._outbound_bytes += len(frame)
        self._drained.clear()
        self._writable.set()

    def _discard(self) -> None:
        """What waits is not written."""
        self._outbound.clear()
        self._outbound_bytes = 0
        self._crowded = False

    def _end(self, close: Close) -> None:
        self._close = close
        self.on_close(close.code)  # a peer that reads nothing is never told, but closed all the same
        self._writable.set()
        self._room.set()  # the reader has nothing to wait for any more
        asyncio.get_running_loop().call_later(CLOSE_WAIT_S, self._cut)

    def _cut(self) -> None:
        """Cut the connection unless it has ended: a peer that reads nothing takes no close frame either."""
        abort = self._websocket.scope["extensions"].get(ABORT_EXTENSION)
        if abort is not None and not self.closed.is_set():
            abort()

    def _spawn(self, work: Work) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Work) -> None:
        try:
            await work()
        except Exception:
            log.exception("a connection failed", **self.about())
            self.end(CLOSE_INTERNAL, "internal error")

    async def until_drained(self) -> None:
        """Wait until the peer has taken what was written so far."""
        await self._drained.wait()


def _weight(submit: Submit) -> int:
    """Characters of what may be long in it."""
    content = submit.message if isinstance(submit, SubmitTurn) else submit.frame
    return len(content.text or "") + len(content.data or "") + len(content.metadata or "")
