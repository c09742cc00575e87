"""Those who look on at real sockets, by SSE or WebSocket, and write down each frame as it came: nothing is mended here.

A viewer that is cut off comes back, to the other gateway, and asks for what is after the last number it saw. What it
then sees must go on there, and rise by one from frame to frame.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from ops.chaos.notes import Notebook, answer_to
from turnlog.sse import EventParser

AGAIN_S: Final = 0.3
PING_S: Final = 20.0
SILENCE: Final = httpx.Timeout(10.0, read=45.0)  # the gateway says something every 30 s


class By(StrEnum):
    """The kind of connection."""

    SSE = "sse"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True)
class Seen:
    """A frame as one connection gave it. `after`: the last seq that was seen when the connection began."""

    connection: int
    after: int
    frame: dict[str, Any]


@dataclass(slots=True)
class Viewer:
    """One conversation, looked at by one client."""

    conversation: str
    token: str
    urls: Sequence[str]
    by: By
    notebook: Notebook
    seen: list[Seen] = field(default_factory=list)
    """Every frame, in the order of coming."""
    connections: int = 0
    problems: list[str] = field(default_factory=list)
    """Refusals for good."""
    ends: list[str] = field(default_factory=list)
    """How its connections ended that failed, and what it was refused, each with the gateway's address."""
    socket_options: Sequence[tuple[int, int, int]] = ()
    """Of its connection, by SSE."""
    _last: int = 0
    _texts: dict[str, str] = field(default_factory=dict)
    """Text of each stream so far."""
    _heard: set[str] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._reading.set()

    @property
    def last(self) -> int:
        """The highest seq seen."""
        return self._last

    def stop_reading(self) -> None:
        """Read nothing from here on: the gateway's writes pile up."""
        self._reading.clear()

    def go_on(self) -> None:
        """Read again."""
        self._reading.set()

    async def heard(self, text: str, within_s: float) -> bool:
        """Whether the answer to `text` was seen whole in time."""
        try:
            async with asyncio.timeout(within_s):
                await self.hears(text)
        except TimeoutError:
            return False
        return True

    async def hears(self, text: str) -> None:
        """Until the answer to `text` was seen whole."""
        while answer_to(text) not in self._heard:
            self._news.clear()
            await self._news.wait()

    async def look(self) -> None:
        """For ever, over as many connections as it takes."""
        while True:
            url = self.urls[self.connections % len(self.urls)]
            self.connections += 1
            self.notebook.note(note="connect", conversation=self.conversation, url=url, after=self._last)
            frames = self._by_sse(url) if self.by is By.SSE else self._by_socket(url)
            try:
                await self._take(frames)
            except (httpx.HTTPError, OSError, TimeoutError, ConnectionClosed, InvalidHandshake) as error:
                why = f"{type(error).__name__}: {error}"
                self.ends.append(f"{url}: {why}")
                self.notebook.note(note="ended", conversation=self.conversation, error=why)
            await asyncio.sleep(AGAIN_S)

    async def _take(self, frames: AsyncIterator[dict[str, Any]]) -> None:
        after = self._last
        async for frame in frames:
            self.seen.append(Seen(self.connections, after, frame))
            self.notebook.note(note="frame", conversation=self.conversation, after=after, frame=frame)
            if isinstance(seq := frame.get("seq"), int):
                self._last = max(self._last, seq)
                self._hear(frame)
            await self._reading.wait()

    def _hear(self, frame: dict[str, Any]) -> None:
        if frame.get("type") == "genui":
            stream, chunk = str(frame["streamId"]), frame["chunk"]
            text = self._texts[stream] = self._texts.get(stream, "") + str(chunk.get("content", ""))
            if frame.get("done"):
                self._heard.add(text)
        elif frame.get("from") == "bot":
            self._heard.add(str(frame.get("data", {}).get("text", "")))
        self._news.set()

    async def _by_sse(self, url: str) -> AsyncIterator[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "text/event-stream"}
        if self._last:
            headers["Last-Event-ID"] = str(self._last)
        parser = EventParser()
        async with (
            httpx.AsyncClient(timeout=SILENCE, transport=self._transport()) as http,
            http.stream("GET", f"{url}/v1/conversations/{self.conversation}/stream", headers=headers) as response,
        ):
            if not response.is_success:
                await response.aread()
                self._refused(response.status_code, response.text)
                return
            async for chunk in response.aiter_bytes():
                for event in parser.feed(chunk):
                    yield {"type": event.event, **json.loads(event.data)}

    def _transport(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(socket_options=list(self.socket_options))

    async def _by_socket(self, url: str) -> AsyncIterator[dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.token}"}
        address = url.replace("http", "ws", 1) + "/socket/converger/v1"
        async with connect(
            address, subprotocols=[Subprotocol("converger.v1")], additional_headers=headers, close_timeout=1
        ) as socket:
            hello = {"type": "hello", "protocol": "converger/1", "watermark": self._last}
            await socket.send(json.dumps({**hello, "conversationId": self.conversation}))
            pinging = asyncio.create_task(_pings(socket))
            try:
                async for text in socket:
                    frame = json.loads(text)
                    # An agent's word that it could not answer has no number: it is shown, and ends its turn.
                    if frame.get("type") == "error" and "number" in frame["data"]:
                        self._refused(int(frame["data"]["number"]), json.dumps(frame))
                        if frame["data"]["code"] == "replay_unavailable":
                            # On this connection nothing is shown until it is asked for again.
                            await asyncio.sleep(frame["data"]["retryAfterMs"] / 1000)
                            await socket.send(json.dumps({"type": "sync", "watermark": self._last}))
                    yield frame
            finally:
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)

    def _refused(self, status: int, text: str) -> None:
        self.ends.append(f"refused: {status} {text[:100]}")
        self.notebook.note(note="refused", conversation=self.conversation, status=status, text=text)
        if "retryAfterMs" not in text:
            self.problems.append(f"a viewer of {self.conversation} was refused for good: {status} {text[:300]}")


async def _pings(socket: ClientConnection) -> None:
    """A gateway closes a socket that says nothing for a minute."""
    while True:
        await asyncio.sleep(PING_S)
        await socket.send(json.dumps({"type": "ping"}))
