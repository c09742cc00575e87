"""What a bot says beside messages is shown as it was sent, but for its place: live, replayed, by REST and by SSE."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.gateway.protocol.parse import verbatim
from tests.support.gateway_world import Served, bearer

# Fields as no encoder of ours would write them: spaces, escapes, forms of numbers, an order of keys.
FRAMES = {
    "tool_call": r'{"type": "tool_call", "data": {"status":"completed", "id":"t1","name":"get_order","result": 249.90,'
    r'"params":{ "z":1.0e2,"a":[ ] , "\u00fc":"\ud83d\ude00\/"}},  "x-trace": {"b":1.50, "a":  null}}',
    "skill": r'{"data":{"name":"pdf","id":"s1","status":"loaded", "n":12345678901234567890123},"type":"skill"}',
    "genui": r'{"type":"genui","done":false,"streamId":"s-1","chunk":{"id":1,"type":"ui","props":{"total":249.90},'
    r'"component":"order-card"},"timestamp":1750000000000}',
    "interrupt": r'{"type":"interrupt","id":"approve/0:interrupt#0","data":{"payload":{"t":"249.90\u0020TRY"},'
    r'"actions":[{"value":{"approved":true},"label":"Approve"}]}}',
    "interrupt_resolved": r'{"type":"interrupt_resolved","id":"approve/0:interrupt#0","data":{"answer":{"a" :1}}}',
}


def fields(raw: str | bytes) -> dict[str, str]:
    """Each field's own text, without the one that the server gives."""
    texts = verbatim(f'{{"frame":{raw.decode() if isinstance(raw, bytes) else raw}}}')
    assert texts
    texts.pop("seq", None)
    return texts


@pytest.mark.parametrize("kind", FRAMES)
async def test_every_field_is_shown_byte_by_byte(served: Served, kind: str) -> None:
    raw = FRAMES[kind]
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await agent.raw.send(f'{{"conversationId":"{conversation}","frame":{raw}}}')
        live = await of_kind(person, kind)
        assert fields(live) == fields(raw)
        async with served.socket(token, {"watermark": 1}) as later:
            assert await of_kind(later, kind) == live
        async with served.http.stream(
            "GET", f"/v1/conversations/{conversation}/stream?watermark=1", headers=bearer(token)
        ) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:") and f'"type":"{kind}"' in line:
                    assert line.removeprefix("data:").strip() == live
                    break
        path = f"/api/v1/converger/conversations/{conversation}/activities?watermark=1"
        (activity,) = json.loads((await served.http.get(path, headers=bearer(token))).text)["activities"]
        assert activity["channelData"]["frame"] == json.loads(live)


async def of_kind(peer: Any, kind: str) -> str:
    while True:
        raw = await peer.raw.recv()
        assert isinstance(raw, str)
        if json.loads(raw)["type"] == kind:
            return raw


async def test_what_cannot_be_stored_is_replaced_and_the_rest_is_as_it_was(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {}) as person:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await agent.raw.send(
            f'{{"conversationId":"{conversation}","frame":{{"type":"tool_call","data":'
            r'{"id":"t1","name":"a\u0000b","status":"running","description":"\ud83d"}}}'
        )
        data = (await person.until("tool_call"))["data"]
        assert data == {"id": "t1", "name": "a\ufffdb", "status": "running", "description": "\ufffd"}


async def test_a_bot_does_not_say_what_is_the_servers_to_say(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {}) as person:
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        data = {"id": "t1", "name": "n", "status": "running"}
        forged = {"seq": 77, "superseded": True, "answers": "x", "run": turn["run"], "runEpoch": 1}
        await agent.say(conversation, {"type": "tool_call", "data": data, **forged})
        assert await person.until("tool_call") == {"type": "tool_call", "seq": 2, "data": data}
