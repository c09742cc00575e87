"""A gateway that is killed, paused or stopped: each turn that its agents held is answered by one process, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.support.gateway_world import Peer, bearer
from tests.support.pinging import pinging
from tests.support.processes import eventually
from tests.support.up import Up
from tests.support.waiting import until

API = "/api/v1/converger"
# A gateway's members are expired 5 s after its last heartbeat, by the partition's clock, which ticks once a second.
EXPIRED_WITHIN_S = 15.0


@contextmanager
def gateway(up: Up) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One more gateway: its process and URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", "gateway", "--port", "0", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | up.environment,
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
async def http(up: Up) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=up.gateways[0], timeout=30) as client:
        yield client


@asynccontextmanager
async def agent(up: Up, http: httpx.AsyncClient, url: str, group: str) -> AsyncIterator[Peer]:
    made = await http.post(f"{API}/tokens/generate", headers=bearer(up.secret("agents")), json={"scope": "channel"})
    headers = bearer(made.json()["token"])
    address = url.replace("http", "ws") + "/socket/converger/v1"
    async with connect(
        address, subprotocols=[Subprotocol("converger.v1")], additional_headers=headers, close_timeout=1
    ) as raw:
        peer = Peer(raw)
        await peer.send({"type": "hello", "protocol": "converger/1", "group": group})
        await peer.until("welcome")
        async with pinging(peer):
            yield peer


async def ask(up: Up, http: httpx.AsyncClient, text: str) -> tuple[str, str]:
    """A new conversation with one turn."""
    made = await http.post(f"{API}/tokens/generate", headers=bearer(up.secret("web")), json={})
    opened = (await http.post(f"{API}/conversations", headers=bearer(made.json()["token"]))).json()
    there, token = opened["conversationId"], opened["token"]
    answer = await http.post(f"{API}/conversations/{there}/activities", headers=bearer(token), json={"text": text})
    assert answer.status_code == 201, answer.text
    return there, token


async def turn_of(peer: Peer, conversation: str, within_s: float) -> dict[str, Any]:
    """The next turn of this conversation."""
    while True:
        frame = await peer.frame(within_s)
        if frame.get("conversationId") == conversation and frame["frame"]["type"] == "text":
            inner: dict[str, Any] = frame["frame"]
            return inner


async def answer(peer: Peer, conversation: str, turn: dict[str, Any], text: str) -> None:
    message = {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": text}}
    await peer.say(conversation, message | {"run": turn["run"], "runEpoch": turn["runEpoch"]})
    await peer.until("ack")


async def said(http: httpx.AsyncClient, conversation: str, token: str) -> list[str]:
    shown = await http.get(f"{API}/conversations/{conversation}/activities", headers=bearer(token))
    return [activity["text"] for activity in shown.json()["activities"]]


async def test_a_killed_gateways_turn_is_given_to_an_agent_of_another(up: Up, http: httpx.AsyncClient) -> None:
    with gateway(up) as (process, url):
        async with agent(up, http, url, "killed") as first:
            there, token = await ask(up, http, "hello")
            given = await turn_of(first, there, 10)
            async with agent(up, http, up.gateways[1], "killed") as second:
                process.kill()
                moved = await turn_of(second, there, EXPIRED_WITHIN_S)
                assert (moved["id"], moved["seq"], moved["runEpoch"]) == (given["id"], 1, given["runEpoch"] + 1)
                await answer(second, there, moved, "hi")
    assert await said(http, there, token) == ["hello", "hi"]


async def test_a_paused_gateway_closes_its_agents_before_it_gives_them_anything(
    up: Up, http: httpx.AsyncClient
) -> None:
    with gateway(up) as (process, url):
        async with agent(up, http, url, "paused") as zombie:
            process.send_signal(signal.SIGSTOP)
            there, token = await ask(up, http, "while it was away")
            async with agent(up, http, up.gateways[1], "paused") as heir:
                moved = await turn_of(heir, there, EXPIRED_WITHIN_S)
                process.send_signal(signal.SIGCONT)
                code, _, frames = await zombie.ended()
                assert code == 1012
                assert [frame for frame in frames if "frame" in frame] == []
                await answer(heir, there, moved, "hi")

            async def is_ready() -> bool:
                return (await http.get(f"{url}/readyz")).status_code == 200

            await until(is_ready)  # once it has read what it missed
    assert await said(http, there, token) == ["while it was away", "hi"]


async def test_a_stopped_gateway_lets_runs_finish_and_hands_on_the_rest(up: Up, http: httpx.AsyncClient) -> None:
    with gateway(up) as (process, url):
        async with agent(up, http, url, "stopped") as first:
            there, token = await ask(up, http, "hello")
            given = await turn_of(first, there, 10)
            process.terminate()
            await answer(first, there, given, "done in time")
            code, reason, _ = await first.ended()
            assert (code, json.loads(reason)["reason"]) == (1012, "restart")
        assert eventually(lambda: process.poll() is not None, 15)
        assert process.returncode == 0
    assert await said(http, there, token) == ["hello", "done in time"]
