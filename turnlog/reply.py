"""How a handler answers: whole messages, streams, and checkpoints of where it is."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.outbox import Ack, Outbox
from turnlog.run import Run
from turnlog.stream import Stream
from turnlog.wire import NOT_TURNS, Frame, client_id


class Reply:
    """Answers one turn. Everything sent through it names the turn's run: what comes too late is refused as a whole.

    Message ids follow from the turn and the order of sending, so that a handler that runs again sends the same ones.
    In a run that another process began (`turn.resume`), they go on behind the ones that it had sent.
    """

    def __init__(self, run: Run, outbox: Outbox, *, flush_every: float) -> None:
        self._run = run
        self._outbox = outbox
        self._flush_every = flush_every
        self._streams: list[Stream] = []
        resume = run.turn.resume
        self._resumed = deque(each for each in resume.streams if not each.done) if resume is not None else deque()
        self._numbered = len(resume.streams) if resume is not None else 0
        """Streams of the run so far."""
        self._messages = _last_number(run)
        self._checkpoints = 0

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
        if type in NOT_TURNS or type == "checkpoint":
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
        """An answer that grows: ``async with reply.stream() as s: await s.write("…")``.

        In a run that another process began, first the streams that it left open: what is written goes on behind it.
        """
        if self._resumed:
            resumed = self._resumed.popleft()
            stream = Stream(self._run, self._outbox, number=0, flush_every=self._flush_every, resumed=resumed)
        else:
            self._numbered += 1
            stream = Stream(self._run, self._outbox, number=self._numbered, flush_every=self._flush_every)
        self._streams.append(stream)
        return stream

    async def checkpoint(self, state: Any) -> None:
        """Store where the handler is, as JSON: whoever goes on with this run gets it as `turn.resume.checkpoint`.

        The last one counts. What was streamed before it is sent first. Returns once it is stored; raises
        `InvalidRequest` above 256 KiB.
        """
        await self._flush()
        self._checkpoints += 1
        suffix = f"{self._run.epoch or 1}.c{self._checkpoints}"
        frame: Frame = {"type": "checkpoint", "clientId": client_id(self._run.turn.id, suffix), "data": state}
        await self._outbox.message(self._run, frame)

    async def typing(self, typing: bool = True) -> None:
        """Show, or hide, that an answer is being written. It may get lost."""
        await self._outbox.frame(self._run, {"type": "typing", "isTyping": typing})

    async def close(self) -> None:
        """End the streams that the handler left open, and those of an earlier owner that it did not take up."""
        while self._resumed:
            self.stream()
        for stream in self._streams:
            await stream.end()

    async def _flush(self) -> None:
        for stream in self._streams:
            await stream.push()


def _last_number(run: Run) -> int:
    """The number of the last message that an earlier owner of the run sent; 0: none."""
    resume = run.turn.resume
    if resume is None:
        return 0
    pattern = re.compile(re.escape(client_id(run.turn.id, "m")) + r"(\d+)")
    found = (pattern.fullmatch(str(frame.frame.get("clientId"))) for frame in resume.frames)
    return max((int(each[1]) for each in found if each is not None), default=0)
