"""How a handler answers: whole messages, or a stream.

A streamed answer is one `genui` stream on the wire: text chunks that share one chunk id (viewers join them into one
growing bubble), closed by a chunk with `done: true` and the event `stream_done`. The stream *is* the answer; no message
repeats it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from turnlog.errors import TurnlogError
from turnlog.outbox import Ack, Outbox
from turnlog.run import Run
from turnlog.wire import NOT_TURNS, Frame, client_id

TEXT_CHUNK_ID = 1
DONE_CHUNK_ID = 2


class Reply:
    """Answers one turn. Everything sent through it names the turn's run: what comes too late is refused as a whole.

    Message ids follow from the turn and the order of sending, so that a handler that runs again sends the same ones.
    """

    def __init__(self, run: Run, outbox: Outbox, *, flush_every: float) -> None:
        self._run = run
        self._outbox = outbox
        self._flush_every = flush_every
        self._streams: list[Stream] = []
        self._messages = 0

    async def text(
        self, text: str, *, actions: Sequence[str | Mapping[str, Any]] = (), metadata: Mapping[str, Any] | None = None
    ) -> Ack:
        """A text message; returns once it is stored. `actions`: quick replies, as labels or `{label, value}`."""
        return await self.message("text", {"text": text}, actions=actions, metadata=metadata)

    async def message(
        self,
        type: str,  # noqa: A002 - the protocol's word for it
        data: Mapping[str, Any],
        *,
        actions: Sequence[str | Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Ack:
        """A message of any type that viewers know: `buttons`, `card`, `image` … Returns once it is stored."""
        if type in NOT_TURNS:
            raise ValueError(f"type: {type!r} is a frame of the protocol, not a message")
        await self._flush()
        self._messages += 1
        frame: Frame = {
            "type": type,
            "clientId": client_id(self._run.turn.id, f"m{self._messages}"),
            "data": dict(data),
        }
        if actions:
            frame["actions"] = [{"label": each} if isinstance(each, str) else dict(each) for each in actions]
        if metadata:
            frame["metadata"] = dict(metadata)
        return await self._outbox.message(self._run, frame)

    def stream(self) -> Stream:
        """An answer that grows: ``async with reply.stream() as s: await s.write("…")``."""
        number = len(self._streams) + 1
        stream = Stream(self._run, self._outbox, number=number, flush_every=self._flush_every)
        self._streams.append(stream)
        return stream

    async def typing(self, typing: bool = True) -> None:
        """Show, or hide, that an answer is being written. It may get lost."""
        await self._outbox.frame(self._run, {"type": "typing", "isTyping": typing})

    async def close(self) -> None:
        """End the streams that the handler left open."""
        for stream in self._streams:
            await stream.end()

    async def _flush(self) -> None:
        for stream in self._streams:
            await stream.flush()


class Stream:
    """A growing text. Pieces written within a moment travel as one chunk.

    After a reconnect nobody knows how much of it arrived, and the server has marked what did as superseded: it is then
    told again from the start, under another stream id. So it is when the run is given to this process once more.
    """

    def __init__(self, run: Run, outbox: Outbox, *, number: int, flush_every: float) -> None:
        self._run = run
        self._outbox = outbox
        self._number = number
        self._flush_every = flush_every
        self._pieces: list[str] = []
        self._told = 0
        """How many pieces were sent in the current tenure."""
        self._part = 0
        self._tenure = self._now()
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._failure: TurnlogError | None = None
        self._ended = False

    @property
    def text(self) -> str:
        """All that was written so far."""
        return "".join(self._pieces)

    async def write(self, piece: str) -> None:
        """Append `piece`. Raises `Fenced` when the run is not this process's any more."""
        if self._ended:
            raise RuntimeError("the stream has ended")
        self._raise_failure()
        if not piece:
            return
        self._pieces.append(piece)
        if self._flush_every <= 0:
            await self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._flush_every, self._flush_later)

    async def flush(self) -> None:
        """Send what was written since the last chunk; without a connection it waits for the next one."""
        async with self._lock:
            self._retell_in_new_tenure()
            content = "".join(self._pieces[self._told :])
            if content and not self._ended:
                upto = len(self._pieces)
                if await self._chunk({"type": "text", "content": content, "id": TEXT_CHUNK_ID}, done=False):
                    self._told = upto

    async def end(self) -> None:
        """Send the rest and close it. Waits for a connection when there is none."""
        if self._ended:
            return
        await self._stop_flusher()
        self._raise_failure()
        while not self._ended:
            await self._outbox.wait_up()
            await self.flush()
            if self._told == len(self._pieces) and self._tenure == self._now():
                done: Frame = {"type": "event", "name": "stream_done", "id": DONE_CHUNK_ID}
                self._ended = await self._chunk(done, done=True)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.end()
        else:
            # What a failed handler had said stays open: the run's end closes it for viewers.
            await self._stop_flusher()
            self._ended = True

    def _now(self) -> tuple[int, int | None]:
        return self._outbox.generation, self._run.epoch

    def _retell_in_new_tenure(self) -> None:
        if self._tenure != self._now():
            self._tenure = self._now()
            self._part += 1 if self._told else 0
            self._told = 0

    async def _chunk(self, chunk: Frame, *, done: bool) -> bool:
        suffix = f"s{self._number}" + (f".{self._part}" if self._part else "")
        stream_id = client_id(f"{self._run.turn.id}.{self._run.epoch or 1}", suffix)
        return await self._outbox.frame(
            self._run, {"type": "genui", "streamId": stream_id, "done": done, "chunk": chunk}
        )

    def _flush_later(self) -> None:
        self._timer = None
        self._flusher = asyncio.create_task(self._flush_in_background())

    async def _flush_in_background(self) -> None:
        try:
            await self.flush()
        except TurnlogError as error:
            self._failure = error  # raised in the handler, by its next write or by the end

    async def _stop_flusher(self) -> None:
        """No flush from here on; one that is under way is waited for, since half a send cannot be told from a whole."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flusher is not None:
            await self._flusher
            self._flusher = None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
