"""A turn of one gateway, answered at another one, is seen at both: the same frames, without a gap."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.up import Up
from turnlog import Agent, Reply, Turn

PIECES = 60
API = "/api/v1/converger"


async def answer(turn: Turn, reply: Reply) -> AsyncGenerator[str, None]:
    """Slow enough that no gateway gets it in one piece."""
    for number in range(PIECES):
        yield f"{number} "
        await asyncio.sleep(0.005)


async def socket(undo: AsyncExitStack, gateway: str, conversation: str, token: str) -> ClientConnection:
    """A person's socket, welcomed."""
    opened = await undo.enter_async_context(
        connect(
            gateway.replace("http", "ws", 1) + "/socket/converger/v1",
            subprotocols=[Subprotocol("converger.v1")],
            additional_headers={"Authorization": f"Bearer {token}"},
        )
    )
    await opened.send(json.dumps({"type": "hello", "conversationId": conversation, "watermark": 0}))
    assert json.loads(await opened.recv())["type"] == "welcome"
    return opened


async def stored(opened: ClientConnection) -> list[bytes]:
    """Every numbered frame up to the end of the stream, as it came."""
    frames: list[bytes] = []
    async with asyncio.timeout(30):
        while True:
            raw = await opened.recv(decode=False)
            frame = json.loads(raw)
            if frame.get("seq"):
                frames.append(raw)
            if frame["type"] == "genui" and frame["done"]:
                return frames


async def test_a_stream_of_an_agent_elsewhere_is_the_same_at_every_gateway(up: Up) -> None:
    here, there = up.gateways[:2]
    agent = Agent(there, channel_secret=up.secret("agents"), group=f"g{uuid.uuid4().hex[:8]}", flush_every=0.0)
    agent.on_turn(answer)
    async with AsyncExitStack() as undo:
        http = await undo.enter_async_context(httpx.AsyncClient(base_url=here, timeout=30))
        login = {"Authorization": f"Bearer {up.secret('web')}"}
        token = (await http.post(f"{API}/tokens/generate", headers=login, json={})).json()["token"]
        opened = (await http.post(f"{API}/conversations", headers={"Authorization": f"Bearer {token}"})).json()
        conversation, bound = opened["conversationId"], {"Authorization": f"Bearer {opened['token']}"}
        await agent.start()
        undo.push_async_callback(agent.stop, budget=0)
        sockets = [await socket(undo, gateway, conversation, opened["token"]) for gateway in (here, there)]
        seen = [asyncio.create_task(stored(each)) for each in sockets]
        said = await http.post(f"{API}/conversations/{conversation}/activities", headers=bound, json={"text": "count"})
        assert said.status_code == 201
        first, second = await asyncio.gather(*seen)
    assert first == second, "byte for byte"
    frames = [json.loads(raw) for raw in first]
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1)), "without a gap"
    assert (frames[0]["type"], frames[0]["data"]["text"]) == ("text", "count")
    text = "".join(frame["chunk"]["content"] for frame in frames[1:] if frame["chunk"]["type"] == "text")
    assert text == "".join(f"{number} " for number in range(PIECES))
    assert len(frames) > 10, "it was streamed"
