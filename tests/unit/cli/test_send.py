"""`turnlog send`."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ops.cli import send

pytestmark = pytest.mark.unit


async def test_who_sends_is_told_that_a_gateway_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(send, "SILENCE_S", 0.01)
    monkeypatch.setattr(send, "progress", told.put_nowait)
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        sending = asyncio.create_task(send._send(url, "secret", "me", send.NEW, "hello", None, None))
        await asked.wait()
        assert await told.get() == f"{url} has not taken it yet: trying on"
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
