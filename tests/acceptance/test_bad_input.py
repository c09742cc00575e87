"""Bad input at a whole Turnlog: each with a clear error, nothing lost, and everybody else served."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from streams.topics import Topics
from tests.support.gateway_world import Peer
from tests.support.up import Up

API = "/api/v1/converger"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def http(up: Up) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=up.gateways[0], timeout=30) as client:
        yield client


async def conversation(up: Up, http: httpx.AsyncClient) -> tuple[str, str]:
    made = await http.post(f"{API}/tokens/generate", headers=bearer(up.secret("web")), json={"user": {"id": "ann"}})
    opened = (await http.post(f"{API}/conversations", headers=bearer(made.json()["token"]))).json()
    return opened["conversationId"], opened["token"]


async def say(http: httpx.AsyncClient, conversation_id: str, token: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(f"{API}/conversations/{conversation_id}/activities", headers=bearer(token), content=content)


@asynccontextmanager
async def person(up: Up, token: str, watermark: int, gateway: int = 0) -> AsyncIterator[Peer]:
    url = up.gateways[gateway].replace("http", "ws") + "/socket/converger/v1"
    async with connect(url, subprotocols=[Subprotocol("converger.v1")], additional_headers=bearer(token)) as raw:
        peer = Peer(raw)
        await peer.send({"type": "hello", "protocol": "converger/1", "watermark": watermark})
        yield peer


async def test_each_bad_request_gets_its_error_and_the_next_good_one_is_stored(up: Up, http: httpx.AsyncClient) -> None:
    there, token = await conversation(up, http)
    bodies: list[tuple[Any, int, str]] = [
        (b"{", 400, "bad_request"),
        ({"text": "a\0b"}, 422, "invalid_message"),
        (b'{"text":"a\\ud800b"}', 422, "invalid_message"),
        ({"text": "a" * 1_000_000}, 413, "payload_too_large"),
        ({"text": "a" * 1_048_576}, 413, "payload_too_large"),
        ({"type": "bogus", "text": "x"}, 422, "invalid_message"),
    ]
    for body, status, code in bodies:
        answer = await say(http, there, token, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    for where, credential, status, code in (
        (there, "wrong", 401, "unauthorized"),
        (there, token[:-2] + "AA", 401, "unauthorized"),
        ("00000000-0000-0000-0000-000000000000", token, 403, "forbidden"),
    ):
        answer = await say(http, where, credential, {"text": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert (await say(http, there, token, {"text": "good"})).json()["seq"] == 1
    await http.post(f"{API}/conversations/{there}/close", headers=bearer(token))
    answer = await say(http, there, token, {"text": "late"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conversation_closed")


async def test_each_bad_frame_gets_its_error_and_the_next_good_one_is_acked(up: Up, http: httpx.AsyncClient) -> None:
    _, token = await conversation(up, http)
    async with person(up, token, 0) as peer:
        await peer.until("welcome")
        for raw, code in (
            ("{", "bad_request"),
            ('{"type":"bogus"}', "invalid_message"),
            ('{"type":"text","clientId":"c","data":{"text":"a\\u0000"}}', "invalid_message"),
            ('{"type":"text","clientId":"c","data":{"text":"a\\udc00"}}', "invalid_message"),
            (json.dumps({"type": "text", "clientId": "c", "data": {"text": "a" * 1_000_000}}), "payload_too_large"),
        ):
            await peer.raw.send(raw)
            assert (await peer.until("error"))["data"]["code"] == code
        await peer.send({"type": "text", "clientId": "ok", "data": {"text": "good"}})
        assert (await peer.until("ack"))["seq"] == 1
    async with person(up, token, 7, gateway=1) as peer:
        await peer.until("welcome")
        assert (await peer.until("error"))["data"]["code"] == "invalid_watermark"
        await peer.send({"type": "sync", "watermark": 0})
        assert (await peer.until("text"))["data"]["text"] == "good"


async def test_what_one_gateway_took_the_other_shows_at_once(up: Up, http: httpx.AsyncClient) -> None:
    """No cause that passes is a 4xx: a gateway that is a moment behind looks again before it says not found."""
    async with httpx.AsyncClient(base_url=up.gateways[1], timeout=30) as other:
        for _ in range(20):
            there, token = await conversation(up, http)
            assert (await say(other, there, token, {"text": "x"})).status_code == 201
            shown = await http.get(f"{API}/conversations/{there}/activities?watermark=1", headers=bearer(token))
            assert shown.status_code == 200, shown.text


async def test_garbage_in_every_intake_topic_stops_nobody(up: Up, http: httpx.AsyncClient) -> None:
    there, token = await conversation(up, http)
    topics = Topics()
    producer = AIOKafkaProducer(bootstrap_servers=up.document["kafka"])
    await producer.start()
    try:
        partitions = len(await producer.partitions_for(topics.turns))
        for topic in (topics.turns, topics.frames, topics.membership):
            for partition in range(partitions):
                await producer.send_and_wait(topic, b"\xc3\x01garbage", key=b"stray", partition=partition)
    finally:
        await producer.stop()
    assert (await say(http, there, token, {"text": "good"})).json()["seq"] == 1
    verdict = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "ops.cli", "audit", "verify", "-o", "json"],
        capture_output=True,
        text=True,
        env=os.environ | up.environment,
        check=False,
    )
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
