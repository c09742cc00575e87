"""An agent process that does what the public protocol's clients do: it names neither run nor epoch, streams what it
answers, and outlives its connections with whatever it is at.

    TURNLOG_CHAOS_SECRET=… python -m ops.chaos.public_agent NOTES GROUP URL …

One turn of a conversation at a time; what it says while there is no connection is held and goes on the next one, pieces
that were written to a connection are never sent again, and a turn that it has by its watermark is no news to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from ops.chaos.notes import Notebook, answer_to
from ops.chaos.socket_agent import SocketAgent, serve

PIECE_S: Final = {"stream": 0.05, "slow": 0.4}
"""Between two pieces, by the turn's last word."""
PIECES: Final = 4
DROPPED_OFFLINE: Final = frozenset({"read", "run"})


class PublicAgent(SocketAgent):
    """One handler a turn, each in its conversation's line."""

    def __init__(self, group: str, secret: str, notebook: Notebook) -> None:
        super().__init__(group, secret, notebook)
        self._watermarks: dict[str, int] = {}
        self._lines: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._held: list[str] = []
        """What was said while there was no connection."""
        self._streams = 0

    def hello(self) -> dict[str, Any]:
        """With what it has."""
        return {**super().hello(), "watermarks": dict(self._watermarks)}

    async def welcomed(self, socket: ClientConnection) -> None:
        """What was held goes first."""
        while self._held:
            await socket.send(self._held[0])
            del self._held[0]

    async def take(self, conversation: str, frame: dict[str, Any]) -> None:
        """A turn, or the order to stop the running one."""
        if frame.get("type") == "abort" and (running := self._running.get(conversation)) is not None:
            running.cancel()
        elif (
            frame.get("from") == "user"
            and frame.get("type") == "text"
            and self._is_news(conversation, frame.get("seq"))
        ):
            if conversation not in self._lines:
                self._lines[conversation] = asyncio.Queue()
                self.soon(self._work(conversation, self._lines[conversation]))
            self._lines[conversation].put_nowait(frame)

    def _is_news(self, conversation: str, seq: int | None) -> bool:
        if seq is None:
            return True
        news = seq > self._watermarks.get(conversation, 0)
        self._watermarks[conversation] = max(seq, self._watermarks.get(conversation, 0))
        return news

    async def _work(self, conversation: str, line: asyncio.Queue[dict[str, Any]]) -> None:
        while True:
            turn = await line.get()
            self._running[conversation] = asyncio.create_task(self._answer(conversation, turn))
            with contextlib.suppress(asyncio.CancelledError):
                await self._running[conversation]

    async def _answer(self, conversation: str, turn: dict[str, Any]) -> None:
        if "seq" in turn:
            await self._say(conversation, {"type": "read", "watermark": turn["seq"]})
        await self._say(conversation, {"type": "run", "data": {"status": "started"}})
        try:
            await self._stream(conversation, turn["data"]["text"])
        except asyncio.CancelledError:
            await self._say(conversation, {"type": "run", "data": {"status": "aborted"}})
            return
        await self._say(conversation, {"type": "run", "data": {"status": "finished"}})

    async def _stream(self, conversation: str, text: str) -> None:
        whole, pace_s = answer_to(text), PIECE_S.get(text.rpartition("-")[2], 0.0)
        self._streams += 1
        stream, size = f"{self.member or 'none'}.{self._streams}", -(-len(whole) // PIECES)
        for start in range(0, len(whole), size):
            chunk = {"type": "text", "content": whole[start : start + size], "id": 1}
            done = start + size >= len(whole)
            await self._say(conversation, {"type": "genui", "streamId": stream, "done": done, "chunk": chunk})
            await asyncio.sleep(pace_s)

    async def _say(self, conversation: str, frame: dict[str, Any]) -> None:
        said = json.dumps({"conversationId": conversation, "frame": frame})
        if self.socket is None or self._held:
            if frame["type"] not in DROPPED_OFFLINE:
                self._held.append(said)
            return
        with contextlib.suppress(ConnectionClosed):  # a piece that is lost with its connection is lost
            await self.socket.send(said)


if __name__ == "__main__":
    serve(PublicAgent)
