"""What was said in a conversation before a turn, asked of the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

from turnlog.connection import Connection
from turnlog.errors import Unavailable
from turnlog.turn import Turn
from turnlog.viewer import Joiner, Message, viewed_in
from turnlog.wire import Frame


class Past:
    """Replays of conversations, one at a time each. A frame of one has a number and, unlike a turn, names no run."""

    def __init__(self, link: Connection, *, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._asked: dict[str, _Replay] = {}

    async def before(self, turn: Turn) -> tuple[Message, ...]:
        """The whole messages before `turn`, oldest first. Raises `Unavailable`."""
        if not turn.seq or turn.seq == 1:
            return ()
        try:
            async with asyncio.timeout(self._timeout):
                frames = await self._replayed(turn.conversation, turn.seq)
        except TimeoutError as error:
            raise Unavailable(
                f"history: the gateway did not replay it within {self._timeout:g} s", code="replay_unavailable"
            ) from error
        joiner = Joiner()
        found = (joiner.add(viewed_in(frame)) for frame in frames if frame["seq"] < turn.seq)
        return tuple(message for message in found if message is not None)

    async def _replayed(self, conversation: str, upto: int) -> list[Frame]:
        while True:
            await self._link.wait_up(None)
            replay = self._asked[conversation] = _Replay(upto)
            try:
                sent = await self._link.send(
                    {"conversationId": conversation, "frame": {"type": "sync", "watermark": 0}}
                )
                if sent and await replay.done(self._link):
                    return replay.frames
            finally:
                self._asked.pop(conversation, None)

    def asks(self, conversation: str) -> bool:
        """Whether a replay of it is on its way."""
        return conversation in self._asked

    def add(self, conversation: str, frame: Frame) -> None:
        """A frame of a replay. One that nobody waits for (any more) is nothing to do."""
        replay = self._asked.get(conversation)
        if replay is not None:
            replay.add(frame)


class _Replay:
    def __init__(self, upto: int) -> None:
        self.frames: list[dict[str, Any]] = []
        self._upto = upto
        self._whole = asyncio.Event()

    def add(self, frame: Frame) -> None:
        seq = frame.get("seq")
        if seq == len(self.frames) + 1:
            self.frames.append(frame)
            if seq >= self._upto:
                self._whole.set()

    async def done(self, link: Connection) -> bool:
        """Once it is whole; False when the connection that it was asked for on is gone."""
        generation = link.generation
        while not self._whole.is_set():
            if link.generation != generation:
                return False
            try:
                async with asyncio.timeout(1.0):
                    await self._whole.wait()
            except TimeoutError:
                continue
        return True
