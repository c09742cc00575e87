"""A person's answer finds the agent that asks, whichever process that is by now; and a human takes over."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from websockets.asyncio.client import connect

from tests.support.command import turnlog_async
from tests.support.gateway_world import Peer, bearer
from tests.support.pinging import pinging
from tests.support.up import Up

API = "/api/v1/converger"
ABLE = {"protocol": "converger/1", "capabilities": ["continue"]}


@asynccontextmanager
async def socket(gateway: str, token: str, hello: dict[str, Any]) -> AsyncIterator[Peer]:
    address = gateway.replace("http", "ws") + "/socket/converger/v1"
    async with connect(address, additional_headers=bearer(token), max_queue=None) as raw:
        peer = Peer(raw)
        await peer.send({"type": "hello", **hello})
        welcome = await peer.frame(30)
        peer.member = welcome["data"]["connectionId"]
        async with pinging(peer):
            yield peer


async def token(http: httpx.AsyncClient, secret: str, **body: Any) -> str:
    answer = await http.post(f"{API}/tokens/generate", headers=bearer(secret), json=body)
    made: str = answer.json()["token"]
    return made


async def next_of(peer: Peer, kind: str, conversation: str) -> dict[str, Any]:
    """The next frame of this kind and conversation, within what a busy machine takes. A new agent is given what waits
    for any, of other tests' conversations too."""
    while True:
        frame = await peer.frame(60)
        inner: dict[str, Any] = frame.get("frame", frame)
        if inner["type"] == kind and frame.get("conversationId", conversation) == conversation:
            return inner


def named(turn: dict[str, Any]) -> dict[str, Any]:
    return {"run": turn["run"], "runEpoch": turn["runEpoch"]}


async def test_the_answer_reaches_the_new_owner_and_a_human_takes_over(up: Up) -> None:
    first_gateway, second_gateway = up.gateways[:2]
    group = f"g{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=second_gateway, timeout=60))
        opened = (await http.post(f"{API}/conversations", headers=bearer(await token(http, up.secret("web"))))).json()
        conversation, person_token = opened["conversationId"], opened["token"]
        agents = await token(http, up.secret("agents"), scope="channel")
        owner = await stack.enter_async_context(socket(first_gateway, agents, {**ABLE, "group": group}))
        path = f"{API}/conversations/{conversation}/activities"
        await http.post(path, headers=bearer(person_token), json={"text": "refund ORD-42"})
        turn = await next_of(owner, "text", conversation)
        await owner.say(conversation, {"type": "run", "data": {"status": "started"}} | named(turn))
        ask = {"type": "interrupt", "id": "approve#0", "clientId": "i1", "data": {"payload": {"title": "Refund?"}}}
        await owner.say(conversation, ask | named(turn))
        await next_of(owner, "ack", conversation)

        heir = await stack.enter_async_context(socket(second_gateway, agents, {**ABLE, "group": group}))
        owner.raw.transport.abort()
        moved = await next_of(heir, "text", conversation)
        assert (moved["run"], moved["runEpoch"]) == (turn["run"], 2)
        assert moved["resume"]["interrupts"] == ["approve#0"]
        hello = {"protocol": "converger/1", "conversationId": conversation, "watermark": 0}
        person = await stack.enter_async_context(socket(first_gateway, person_token, hello))
        await next_of(person, "interrupt", conversation)
        await person.send({"type": "resume", "clientId": "r1", "answers": {"approve#0": {"approved": True}}})
        resume = await next_of(heir, "resume", conversation)
        assert (resume["answers"], resume["runEpoch"]) == ({"approve#0": {"approved": True}}, 2)
        assert (await next_of(person, "ack", conversation))["clientId"] == "r1"
        resolved = {"type": "interrupt_resolved", "id": "approve#0", "data": {"answer": {"approved": True}}}
        await heir.say(conversation, resolved | named(moved))
        await next_of(person, "interrupt_resolved", conversation)

        handed = await turnlog_async(
            "conversation", "handover", conversation, "--to", "desk", "-o", "json", environment=up.environment
        )
        assert json.loads(handed.out) == {"conversation": conversation, "handed_over": True, "already": False}
        await next_of(heir, "abort", conversation)
        assert (await next_of(person, "conversationUpdate", conversation))["data"]["to"] == "desk"
        await heir.say(conversation, {"type": "text", "clientId": "late", "data": {"text": "wait"}} | named(moved))
        assert (await next_of(heir, "error", conversation))["data"]["code"] == "handed_over"
        again = await turnlog_async("conversation", "handback", conversation, environment=up.environment)
        assert again.code == 0, again.err
        await http.post(path, headers=bearer(person_token), json={"text": "thank you"})
        assert (await next_of(heir, "text", conversation))["data"] == {"text": "thank you"}
