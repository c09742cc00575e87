"""A growing answer.

It is one `genui` stream on the wire: text chunks that share one chunk id (viewers join them into one growing bubble),
closed by a chunk with `done: true` and the event `stream_done`. The stream *is* the answer; no message repeats it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from turnlog.errors import TurnlogError
from turnlog.outbox import Outbox, Tenure
from turnlog.resume import Streamed
from turnlog.run import Run
from turnlog.wire import Frame, client_id

TEXT_CHUNK_ID = 1
DONE_CHUNK_ID = 2


class Stream:
    """A growing text. Pieces written within a moment travel as one chunk.

    After a reconnect the gateway says how much of it was stored, and it goes on behind that. Where the run was given to
    this process once more from its beginning, the server has marked what was stored as superseded: it is then told
    again from the start, under another stream id.

    `resumed`: what another process had said of it, which stays.
    """

    def __init__(
        self, run: Run, outbox: Outbox, *, number: int, flush_every: float, resumed: Streamed | None = None
    ) -> None:
        self._run = run
        self._outbox = outbox
        self._number = number
        self._flush_every = flush_every
        self._pieces: list[str] = [resumed.text] if resumed is not None and resumed.text else []
        self._told = len(self._pieces)
        """How many pieces were sent in the current tenure, or are known to be stored."""
        self._id: str | None = None if resumed is None else resumed.id
        """Its id on the wire, from its first chunk on."""
        self._part = 0
        self._tenure = self._now()
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._failure: TurnlogError | None = None
        self._ended = False

    @property
    def text(self) -> str:
        """All that was written so far, and what another process had said of it."""
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
            await self._outbox.wait_placed(self._run)
            if not self._run.placed.is_set():
                return  # there is no connection: what is stored is said on the next one
            self._look_at_tenure()
            content = "".join(self._pieces[self._told :])
            if content and not self._ended:
                upto = len(self._pieces)
                if await self._chunk({"type": "text", "content": content, "id": TEXT_CHUNK_ID}, done=False):
                    self._told = upto

    async def push(self) -> None:
        """As `flush`, but returns only once all of it was sent, on the connection that there is by then."""
        while not self._ended and not self._is_told():
            await self._outbox.wait_up()
            await self.flush()

    async def end(self) -> None:
        """Send the rest and close it. Waits for a connection when there is none."""
        if self._ended:
            return
        await self._stop_flusher()
        self._raise_failure()
        if not self._pieces and self._id is None:
            self._ended = True  # nothing was said: there is nothing to close, and viewers would show an empty message
        while not self._ended:
            await self._outbox.wait_up()
            await self._flush_and_close()

    async def _flush_and_close(self) -> None:
        await self.flush()
        if not self._ended and self._is_told():
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
            # What a failed handler had said stays open: the run's end closes it for viewers, or its next owner goes on.
            await self._stop_flusher()
            self._ended = True

    # ------------------------------------------------------------------------------------------------- tenures
    def _is_told(self) -> bool:
        return self._told == len(self._pieces) and self._tenure == self._now()

    def _now(self) -> Tenure:
        return self._outbox.tenure(self._run)

    def _look_at_tenure(self) -> None:
        """In a new tenure, go on behind what is known to be stored, or tell it all again under another id."""
        if self._tenure == self._now():
            return
        self._tenure = self._now()
        resume = self._run.stored_in(self._outbox.generation)
        if resume is None:
            self._tell_again()
        else:
            stored = resume.stream(self._id) if self._id is not None else None
            self._go_on(stored or Streamed(self._id or "", "", done=False))

    def _go_on(self, stored: Streamed) -> None:
        text = self.text
        if not text.startswith(stored.text):
            self._tell_again()
            return
        said, rest = stored.text, text[len(stored.text) :]
        if stored.done and rest:
            # It was closed short of this: what is missing follows as a stream of its own.
            self._pieces, self._told = [rest], 1
            self._tell_again()
        else:
            self._pieces = [piece for piece in (said, rest) if piece]
            self._told = 1 if said else 0
            self._ended = stored.done

    def _tell_again(self) -> None:
        self._part += 1 if self._told else 0
        self._told = 0
        self._id = None

    # -------------------------------------------------------------------------------------------------- chunks
    async def _chunk(self, chunk: Frame, *, done: bool) -> bool:
        if self._id is None:
            suffix = f"s{self._number}" + (f".{self._part}" if self._part else "")
            self._id = client_id(f"{self._run.turn.id}.{self._run.epoch or 1}", suffix)
        frame: Frame = {"type": "genui", "streamId": self._id, "done": done, "chunk": chunk}
        return await self._outbox.frame(self._run, frame, within=self._tenure)

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
