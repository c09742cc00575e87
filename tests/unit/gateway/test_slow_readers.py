"""Who reads too slowly is closed, by frames and by bytes, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import ClientConnection, connect

from connectors.gateway import connection
from connectors.gateway.protocol import limits
from tests.support.gateway_world import SUBPROTOCOL, Served, bearer
from tests.support.waiting import until

FRAME = json.dumps({"type": "typing", "isTyping": True, "padding": "x" * 16_384}).encode()


@pytest.fixture(autouse=True)
def _cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that takes no close frame is given no time for it."""
    monkeypatch.setattr(connection, "CLOSE_WAIT_S", 0.05)


@asynccontextmanager
async def deaf(served: Served, token: str) -> AsyncIterator[ClientConnection]:
    """A person's socket that is never read: its kernel takes little, and what it takes stays there."""
    parts = urlsplit(served.url)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    narrow.setblocking(False)  # noqa: FBT003 -- the only way to say it
    await asyncio.get_running_loop().sock_connect(narrow, (parts.hostname, parts.port))
    options: dict[str, Any] = {"sock": narrow, "max_queue": 1, "ping_interval": None, "compression": None}
    opened = await connect(served.ws_url, subprotocols=[SUBPROTOCOL], additional_headers=bearer(token), **options)
    await opened.send('{"type":"hello","protocol":"converger/1","watermark":0}')
    try:
        yield opened
    finally:
        opened.transport.abort()
        await opened.wait_closed()


def slow_closes(served: Served) -> float:
    return served.gateway.metrics.registry.get_sample_value("turnlog_gateway_closes_total", {"code": "4503"}) or 0.0


@pytest.mark.parametrize("limit", ["bytes", "frames"])
async def test_who_reads_nothing_is_given_up_counted_and_let_go(
    served: Served, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(limits, "OUTBOUND_BYTES", 1024 * 1024 if limit == "bytes" else 10**12)
    monkeypatch.setattr(limits, "OUTBOUND_FRAMES", 50 if limit == "frames" else 10**12)
    conversation, token = await served.conversation()
    async with deaf(served, token), served.socket(token, {"watermark": 0}) as reader:
        await reader.until("welcome")
        await until(lambda: len(served.gateway.hub._viewers.get(conversation, ())) == 2)
        sent = 0
        while not slow_closes(served):
            served.gateway.hub.relay(conversation, FRAME)
            sent += 1
            await reader.until("typing")
            assert sent < 2_000, "the kernel's buffers and the gateway's take 32 MiB, and nobody is closed"
        await until(lambda: len(served.gateway._connections) == 1)
        assert slow_closes(served) == 1
        assert not any(frame["type"] == "error" for frame in await reader.settled())
