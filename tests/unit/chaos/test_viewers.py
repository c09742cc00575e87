"""A viewer of the fault suite does as the protocol asks of clients; else gateways would be blamed for its omissions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from connectors.gateway.protocol.errors import ProtocolError
from ops.chaos.notes import Notebook
from ops.chaos.viewers import By, Viewer
from tests.support.waiting import until


async def test_a_viewer_asks_again_on_the_same_connection_for_a_history_that_could_not_be_read(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def gateway(socket: ServerConnection) -> None:
        refusal = ProtocolError("replay_unavailable", "not now", retry_after_ms=1).frame()
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "hello":
                await socket.send(json.dumps({"type": "text", "seq": 1, "from": "user", "data": {"text": "hello"}}))
                await socket.send(json.dumps(refusal))
            elif frame["type"] == "sync":
                asked.append(frame)
                await socket.send(json.dumps({"type": "text", "seq": 2, "from": "bot", "data": {"text": "hi"}}))

    async with serve(gateway, "127.0.0.1", 0, subprotocols=[Subprotocol("converger.v1")]) as server:
        [(host, port)] = [each.getsockname() for each in server.sockets]
        notebook = Notebook(tmp_path / "viewers.jsonl")
        viewer = Viewer("c", "token", [f"http://{host}:{port}"], By.SOCKET, notebook)
        looking = asyncio.create_task(viewer.look())
        await until(lambda: viewer.last == 2)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        notebook.close()
    assert asked == [{"type": "sync", "watermark": 1}]
    assert viewer.connections == 1
