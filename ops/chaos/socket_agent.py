"""An agent process on a bare socket: it writes down each frame that it is sent, and answers with one message.

    TURNLOG_CHAOS_SECRET=… python -m ops.chaos.socket_agent NOTES GROUP URL …

It says nothing of what it has when it connects: the gateway gives that again, to it or to another one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Coroutine
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from ops.chaos.notes import SECRET_VARIABLE, Notebook, answer_to
from ops.lifeline import hold_on_to_parent

AGAIN_S = 0.3
PING_S = 20.0
THINKS_S = {"stream": 0.2, "slow": 1.5}
"""By the turn's last word."""
LOST = (OSError, TimeoutError, httpx.HTTPError, ConnectionClosed, InvalidHandshake)
REQUEST_S = 10.0
SOCKET = "/socket/converger/v1"
TOKENS = "/api/v1/converger/tokens/generate"


class SocketAgent:
    """One connection after the other, to one gateway after the other.

    What it has not been told to be stored or refused it sends again on the next connection, under the run and the epoch
    that it was given it with: by then they may be another's.
    """

    def __init__(self, group: str, secret: str, notebook: Notebook) -> None:
        self._group = group
        self._secret = secret
        self._notebook = notebook
        self._ready = False
        self.member = ""
        """Of the present or last connection."""
        self.socket: ClientConnection | None = None
        """Once it is welcomed, for as long as it lasts."""
        self._unacked: dict[str, str] = {}
        """Answers by clientId."""
        self._thinking: set[asyncio.Task[None]] = set()

    async def serve(self, urls: list[str]) -> None:
        """For ever. What ends a connection is written down, and the next one is tried."""
        for url in cycle(urls):
            try:
                await self._connection(url)
            except LOST as error:
                self._notebook.note(note="ended", url=url, error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(AGAIN_S)

    async def _connection(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=REQUEST_S) as http:
            bearer = {"Authorization": f"Bearer {self._secret}"}
            answer = await http.post(TOKENS, headers=bearer, json={"scope": "channel"})
            answer.raise_for_status()
        headers = {"Authorization": f"Bearer {answer.json()['token']}"}
        address = url.replace("http", "ws", 1) + SOCKET
        async with connect(
            address, subprotocols=[Subprotocol("converger.v1")], additional_headers=headers, close_timeout=1
        ) as socket:
            await socket.send(json.dumps(self.hello()))
            pinging = asyncio.create_task(self._ping(socket))
            try:
                async for text in socket:
                    await self._take(socket, json.loads(text))
            finally:
                self.socket = None
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)

    def hello(self) -> dict[str, Any]:
        """Its first words on a connection."""
        return {"type": "hello", "protocol": "converger/1", "group": self._group}

    async def _take(self, socket: ClientConnection, frame: dict[str, Any]) -> None:
        inner, conversation = frame.get("frame", {}), str(frame.get("conversationId", ""))
        if frame.get("type") == "welcome":
            self.member = frame["data"]["connectionId"]
        self._notebook.note(note="frame", member=self.member, conversation=conversation, frame=frame)
        if frame.get("type") == "welcome":
            await self.welcomed(socket)
            self.socket = socket
            self._say_ready()
        else:
            await self.take(conversation, inner)

    async def welcomed(self, socket: ClientConnection) -> None:
        """What nobody acknowledged goes again, before anything else."""
        for unacked in list(self._unacked.values()):
            await socket.send(unacked)

    async def take(self, conversation: str, frame: dict[str, Any]) -> None:
        """A frame of a conversation came."""
        if frame.get("from") == "user" and "run" in frame:
            self.soon(self._answer(conversation, frame))
        elif frame.get("type") == "ack":
            self._unacked.pop(str(frame.get("clientId")), None)
        elif frame.get("type") == "error":
            client_id, after_ms = str(frame["data"].get("clientId")), frame["data"].get("retryAfterMs")
            if after_ms is None:
                self._unacked.pop(client_id, None)
            elif client_id in self._unacked:
                self.soon(self._again(client_id, after_ms / 1000))

    def _say_ready(self) -> None:
        if not self._ready:
            self._ready = True
            sys.stdout.write(json.dumps({"event": "ready", "pid": os.getpid(), "member": self.member}) + "\n")
            sys.stdout.flush()

    async def _answer(self, conversation: str, turn: dict[str, Any]) -> None:
        answer = answered(turn)
        await asyncio.sleep(THINKS_S.get(answer["data"]["text"].rpartition("-")[2], 0.0))
        self._unacked[answer["clientId"]] = json.dumps({"conversationId": conversation, "frame": answer})
        await self._again(answer["clientId"], 0.0)

    async def _again(self, client_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        unacked = self._unacked.get(client_id)
        if self.socket is not None and unacked is not None:
            with contextlib.suppress(ConnectionClosed):  # it goes on the next one
                await self.socket.send(unacked)

    async def _ping(self, socket: ClientConnection) -> None:
        while True:
            await asyncio.sleep(PING_S)
            await socket.send(json.dumps({"type": "ping"}))

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._thinking.add(task)
        task.add_done_callback(self._thinking.discard)


def answered(turn: dict[str, Any]) -> dict[str, Any]:
    """The answer to a turn, named after it."""
    return {
        "type": "text",
        "clientId": f"bare.{turn['id']}.m1",
        "data": {"text": answer_to(turn["data"]["text"])},
        "run": turn["run"],
        "runEpoch": turn["runEpoch"],
    }


def serve(kind: type[SocketAgent]) -> None:
    """The process, until SIGTERM."""
    parser = argparse.ArgumentParser(description="An agent on a bare socket.")
    parser.add_argument("notes", type=Path, help="file that each frame is written to")
    parser.add_argument("group", help="group that shares the turns")
    parser.add_argument("urls", nargs="+", help="the gateways")
    arguments = parser.parse_args()
    hold_on_to_parent()
    agent = kind(arguments.group, os.environ[SECRET_VARIABLE], Notebook(arguments.notes))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(agent.serve(arguments.urls))


if __name__ == "__main__":
    serve(SocketAgent)
