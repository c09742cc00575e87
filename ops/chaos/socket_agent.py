"""An agent process on a bare socket: it writes down each frame that it is sent, and answers with one message.

    TURNLOG_CHAOS_SECRET=… python -m ops.chaos.socket_agent NOTES GROUP URL …

It keeps nothing: what it had in hand when its connection ended, the gateway gives again, to it or to another one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
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
REQUEST_S = 10.0
SOCKET = "/socket/converger/v1"
TOKENS = "/api/v1/converger/tokens/generate"


class SocketAgent:
    """One connection after the other, to one gateway after the other."""

    def __init__(self, group: str, secret: str, notebook: Notebook) -> None:
        self._group = group
        self._secret = secret
        self._notebook = notebook
        self._ready = False

    async def serve(self, urls: list[str]) -> None:
        """For ever. What ends a connection is written down, and the next one is tried."""
        for url in cycle(urls):
            try:
                await self._connection(url)
            except* (OSError, TimeoutError, httpx.HTTPError, ConnectionClosed, InvalidHandshake) as errors:
                for error in errors.exceptions:
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
            await socket.send(json.dumps({"type": "hello", "protocol": "converger/1", "group": self._group}))
            await self._listen(socket)

    async def _listen(self, socket: ClientConnection) -> None:
        member = ""
        unacked: dict[str, str] = {}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pings(socket))
            async for text in socket:
                frame = json.loads(text)
                if frame.get("type") == "welcome":
                    member = frame["data"]["connectionId"]
                    self._welcomed(member)
                inner = frame.get("frame", {})
                self._notebook.note(note="frame", member=member, conversation=frame.get("conversationId"), frame=frame)
                if inner.get("from") == "user" and "run" in inner:
                    answer = answered(inner)
                    unacked[answer["clientId"]] = json.dumps(
                        {"conversationId": frame["conversationId"], "frame": answer}
                    )
                    await socket.send(unacked[answer["clientId"]])
                elif inner.get("type") == "ack":
                    unacked.pop(inner.get("clientId"), None)
                elif inner.get("type") == "error":
                    again = unacked.get(inner["data"].get("clientId"))
                    if again is not None and "retryAfterMs" in inner["data"]:
                        tasks.create_task(_later(socket, again, inner["data"]["retryAfterMs"] / 1000))
            raise ConnectionError("the gateway closed the connection")

    def _welcomed(self, member: str) -> None:
        self._notebook.note(note="welcome", member=member)
        if not self._ready:
            self._ready = True
            sys.stdout.write(json.dumps({"event": "ready", "pid": os.getpid(), "member": member}) + "\n")
            sys.stdout.flush()


async def _pings(socket: ClientConnection) -> None:
    while True:
        await asyncio.sleep(PING_S)
        await socket.send(json.dumps({"type": "ping"}))


async def _later(socket: ClientConnection, text: str, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await socket.send(text)


def answered(turn: dict[str, Any]) -> dict[str, Any]:
    """The answer to a turn, named after it."""
    return {
        "type": "text",
        "clientId": f"bare.{turn['id']}.m1",
        "data": {"text": answer_to(turn["data"]["text"])},
        "run": turn["run"],
        "runEpoch": turn["runEpoch"],
    }


def main() -> None:
    """The process, until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.socket_agent", description="An agent on a bare socket.")
    parser.add_argument("notes", type=Path, help="file that each frame is written to")
    parser.add_argument("group", help="group that shares the turns")
    parser.add_argument("urls", nargs="+", help="the gateways")
    arguments = parser.parse_args()
    hold_on_to_parent()
    agent = SocketAgent(arguments.group, os.environ[SECRET_VARIABLE], Notebook(arguments.notes))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(agent.serve(arguments.urls))


if __name__ == "__main__":
    main()
