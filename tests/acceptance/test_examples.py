"""The tutorial's agent, started as the tutorial starts it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.command import turnlog_async
from tests.support.up import Up

AGENT = Path(__file__).parents[2] / "docs" / "examples" / "agent.py"
PATIENCE_S = 30.0


@asynccontextmanager
async def the_agent(up: Up) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(AGENT),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TURNLOG_GATEWAY": up.gateways[1], "AGENTS_SECRET": up.secret("agents")},
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def test_the_tutorials_agent_says_when_it_is_connected_and_answers(up: Up) -> None:
    async with the_agent(up) as agent:
        assert agent.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await agent.stderr.readline() == f"process {agent.pid} is connected\n".encode()
        person = {"TURNLOG_GATEWAY": up.gateways[0], "TURNLOG_CHANNEL_SECRET": up.secret("web")}
        sent = await turnlog_async("send", "new", "hello", "--wait", environment=person)
        assert sent.out == f"Process {agent.pid} heard you say: hello \n", sent.err
