"""A conversation and the people of several channels: who sees it, who writes in it, where an answer is shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.gateway_world import API_KEY, DOCUMENT, MemoryStore, Peer, Served, World, bearer, serve

CLIENT = "/api/v1/converger/conversations"
TENANT = "/api/v1/conversations"


async def running(world: World, **route: Any) -> AsyncIterator[Served]:
    """Conversations of `web` go to `phone`, to the same person there, and to everybody at `desk`."""
    document = json.loads(json.dumps(DOCUMENT))
    document["channels"] += [{"id": "desk", "kind": "web", "sees": "all"}, {"id": "phone", "kind": "web"}]
    document["routes"] = [{"from": "web", "to": ["agents", "desk", "phone"], **route}]
    store = MemoryStore()
    store.document_text = json.dumps(document)
    async with serve(world, store=store) as served:
        yield served


@pytest.fixture
async def linked(world: World) -> AsyncIterator[Served]:
    async for served in running(world):
        yield served


@pytest.fixture
async def to_origin(world: World) -> AsyncIterator[Served]:
    async for served in running(world, replies="origin"):
        yield served


async def told(peer: Peer, number: int) -> list[tuple[int, str, str]]:
    """The next numbered frames: seq, side, text (or name)."""
    found: list[tuple[int, str, str]] = []
    while len(found) < number:
        frame = await peer.frame()
        if "seq" in frame and frame["type"] != "ack":
            found.append((frame["seq"], frame["from"], frame["data"].get("text") or frame["data"].get("name")))
    return found


async def test_people_of_a_routed_channel_see_it_write_in_it_and_are_answered(linked: Served) -> None:
    conversation, token = await linked.conversation("ann")
    desk = await linked.token("desk-secret", user={"id": "eve"})
    async with (
        linked.agent() as agent,
        linked.socket(token, {"watermark": 0}) as ann,
        linked.socket(desk, {"conversationId": conversation, "watermark": 0}) as eve,
    ):
        await ann.send({"type": "text", "data": {"text": "help"}})
        await agent.until("text")
        await eve.until("welcome")
        await eve.send({"type": "text", "clientId": "e-1", "data": {"text": "I am Eve"}})
        turn = await agent.until("text")
        assert turn["meta"] == {"channel": "desk", "participant": {"id": "eve"}}
        await agent.say(conversation, {"type": "text", "data": {"text": "hi"}, "run": turn["run"], "runEpoch": 1})
        expected = [(1, "user", "help"), (2, "user", "I am Eve"), (3, "bot", "hi")]
        assert await told(ann, 3) == expected
        assert await told(eve, 2) == [expected[0], expected[2]]
    listed = await linked.http.get(f"{TENANT}/{conversation}/activities", headers={"x-api-key": API_KEY})
    assert [each["source_channel_id"] for each in listed.json()["data"]] == [None, "desk", "agents"]


async def test_agents_are_told_who_types_in_another_channel(linked: Served) -> None:
    conversation, token = await linked.conversation("ann")
    desk = await linked.token("desk-secret", user={"id": "eve"})
    async with linked.agent() as agent, linked.socket(desk, {"conversationId": conversation}) as eve:
        await eve.until("welcome")
        await linked.say(conversation, token, "help")
        await agent.until("text")
        await eve.send({"type": "typing", "isTyping": True})
        assert (await agent.until("typing"))["sender"] == {"id": "eve", "role": "user"}


async def test_the_same_person_elsewhere_sees_it_and_nobody_else_does(linked: Served) -> None:
    conversation, _ = await linked.conversation("ann")
    path = f"{CLIENT}/{conversation}"
    for secret, body, expected in (
        ("phone-secret", {"user": {"id": "ann"}}, 200),
        ("phone-secret", {"user": {"id": "bob"}}, 404),
        ("phone-secret", {}, 404),  # a guest
        ("desk-secret", {"user": {"id": "bob"}}, 200),
        ("desk-secret", {}, 404),
        ("web-secret", {"user": {"id": "bob"}}, 404),
    ):
        token = await linked.token(secret, **body)
        got = await linked.http.get(path, headers=bearer(token))
        assert (secret, body, got.status_code) == (secret, body, expected)
        if got.status_code == 200:
            bound = got.json()["token"]
            assert (await linked.http.get(f"{path}/activities", headers=bearer(bound))).status_code == 200


async def test_only_its_own_channel_closes_it(linked: Served) -> None:
    conversation, token = await linked.conversation("ann")
    desk = await linked.token("desk-secret", user={"id": "eve"})
    for action in ("close", "reopen"):
        refused = await linked.http.post(f"{CLIENT}/{conversation}/{action}", headers=bearer(desk))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert (await linked.http.post(f"{CLIENT}/{conversation}/close", headers=bearer(token))).status_code == 200


async def test_a_backend_writes_for_a_person_of_another_channel(linked: Served) -> None:
    conversation, _ = await linked.conversation("ann")
    path, key = f"{TENANT}/{conversation}/activities", {"x-api-key": API_KEY}
    said = {"text": "from the phone", "source_channel_id": "phone", "sender": "ann"}
    stored = await linked.http.post(path, headers=key, json=said)
    assert (stored.status_code, stored.json()["data"]["source_channel_id"]) == (201, "phone")
    refused = await linked.http.post(path, headers=key, json=said | {"source_channel_id": "agents"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


async def test_a_question_is_answered_from_another_channel(linked: Served) -> None:
    conversation, token = await linked.conversation("ann")
    phone = await linked.token("phone-secret", user={"id": "ann"})
    async with linked.agent() as agent, linked.socket(phone, {"conversationId": conversation}) as ann:
        await ann.until("welcome")
        await linked.say(conversation, token, "refund")
        turn = await agent.until("text")
        run = {"run": turn["run"], "runEpoch": 1}
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}, **run})
        await agent.say(
            conversation, {"type": "interrupt", "id": "ask", "data": {"payload": {}}, "clientId": "i", **run}
        )
        await agent.until("ack")
        await ann.until("interrupt")
        await ann.send({"type": "resume", "clientId": "r", "answers": {"ask": True}})
        assert (await agent.until("resume"))["answers"] == {"ask": True}


async def test_an_answer_goes_back_only_to_where_its_question_came_from(to_origin: Served) -> None:
    linked = to_origin
    conversation, token = await linked.conversation("ann")
    desk = await linked.token("desk-secret", user={"id": "eve"})
    phone = await linked.token("phone-secret", user={"id": "ann"})
    here = {"conversationId": conversation, "watermark": 0}
    async with linked.agent() as agent:
        for writer, text in ((token, "one"), (desk, "two")):
            await linked.say(conversation, writer, text)
            turn = await agent.until("text")
            named = {"run": turn["run"], "runEpoch": 1, "clientId": f"m-{text}"}
            await agent.say(conversation, {"type": "text", "data": {"text": f"to {text}"}, **named})
            await agent.until("ack")
    seen = {}
    for name, writer in (("web", token), ("desk", desk), ("phone", phone)):
        async with linked.socket(writer, here) as peer:
            seen[name] = [text for _, _, text in await told(peer, 4)]
        page = await linked.http.get(f"{CLIENT}/{conversation}/activities", headers=bearer(writer))
        assert [each["seq"] for each in page.json()["activities"]] == [1, 2, 3, 4]
    assert seen == {
        "web": ["one", "to one", "two", "to two"],
        "desk": ["one", "hidden", "two", "to two"],
        "phone": ["one", "hidden", "two", "hidden"],
    }


async def test_a_question_is_told_again_only_where_its_answer_goes(to_origin: Served) -> None:
    conversation, token = await to_origin.conversation("ann")
    desk = await to_origin.token("desk-secret", user={"id": "eve"})
    async with to_origin.agent() as agent:
        await to_origin.say(conversation, token, "refund")
        turn = await agent.until("text")
        run = {"run": turn["run"], "runEpoch": 1}
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}, **run})
        ask = {"type": "interrupt", "id": "ask", "data": {"payload": {}}, "clientId": "i"}
        await agent.say(conversation, {**ask, **run})
        await agent.until("ack")
        for writer, pending in ((token, [{"id": "ask", "data": {"payload": {}}}]), (desk, [])):
            async with to_origin.socket(writer, {"conversationId": conversation}) as peer:
                assert (await peer.until("welcome"))["data"]["pending"] == pending


async def test_where_no_agents_are_what_is_for_them_is_refused(world: World) -> None:
    document = json.loads(json.dumps(DOCUMENT)) | {"routes": []}
    store = MemoryStore()
    store.document_text = json.dumps(document)
    async with serve(world, store=store) as served:
        _, token = await served.conversation()
        async with served.socket(token, {"watermark": 0}) as person:
            await person.until("welcome")
            await person.send({"type": "client_tools", "clientId": "t", "tools": []})
            refused = await person.until_refused()
            assert (refused["code"], refused["number"], refused["clientId"]) == ("bot_unavailable", 5004, "t")
