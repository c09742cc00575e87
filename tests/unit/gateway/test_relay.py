"""What passes between a person's client and the agents beside messages: what it declares, catalogs, errors, edits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway_world import DOCUMENT, MemoryStore, Peer, Served, World, bearer, serve

TOOLS = [{"name": "pick_date", "description": "a date picker"}]
SKILLS = [{"name": "page", "description": "the page", "instructions": "use its title"}]


def masking() -> MemoryStore:
    """Its people's channel shows no four digits."""
    document = json.loads(json.dumps(DOCUMENT))
    document["channels"][0]["middleware"] = [{"mask": {"pattern": r"\d{4}", "with": "####"}}]
    store = MemoryStore()
    store.document_text = json.dumps(document)
    return store


async def given(served: Served, agent: Peer, token: str, **hello: Any) -> dict[str, Any]:
    """The `meta` of a turn from a connection that said this in its hello."""
    async with served.socket(token, {"watermark": 0, **hello}) as person:
        await person.until("welcome")
        await person.send({"type": "text", "clientId": "m", "data": {"text": "hi"}, "meta": {"locale": "tr"}})
        meta: dict[str, Any] = (await agent.until("text"))["meta"]
        return meta


async def test_what_hello_declares_goes_with_each_message_to_whoever_is_given_it(served: Served) -> None:
    _, token = await served.conversation()
    async with served.agent() as agent:
        meta = await given(served, agent, token, meta={"locale": "en", "page": "/"}, tools=TOOLS, skills=SKILLS)
    assert {name: meta[name] for name in ("locale", "page", "tools", "skills")} == {
        "locale": "tr", "page": "/", "tools": TOOLS, "skills": SKILLS,
    }  # fmt: skip


async def test_who_is_at_work_is_told_of_them_at_once_and_of_what_replaces_them(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "work")
        await agent.until("text")
        async with served.socket(token, {"watermark": 0, "tools": TOOLS}) as person:
            assert (await agent.until("client_tools"))["tools"] == TOOLS
            await person.until("welcome")
            await person.send({"type": "client_tools", "tools": []})
            assert (await agent.until("client_tools"))["tools"] == []
            await person.send({"type": "text", "data": {"text": "hi"}})
            assert "tools" not in (await agent.until("text"))["meta"]


async def test_without_an_agent_what_hello_declares_is_no_error(served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0, "tools": TOOLS}) as person:
        assert [frame["type"] for frame in await person.settled()] == ["welcome"]


async def test_what_is_too_much_to_go_with_each_message_is_refused_and_the_connection_goes_on(served: Served) -> None:
    _, token = await served.conversation()
    tools = [{"name": "t", "description": "x" * 17_000}]
    async with served.agent() as agent, served.socket(token, {"watermark": 0, "tools": tools}) as person:
        refused = await person.until_refused()
        assert (refused["code"], refused["frameType"]) == ("payload_too_large", "hello")
        await person.send({"type": "client_tools", "clientId": "c", "tools": tools})
        assert (await person.until_refused())["clientId"] == "c"
        await person.send({"type": "text", "data": {"text": "hi"}})
        assert "tools" not in (await agent.until("text"))["meta"]


@pytest.mark.parametrize("declared", [{"tools": [{"name": 7}]}, {"tools": [{}]}, {"skills": [{"name": "s"}]}])
async def test_what_is_no_tool_or_skill_is_refused_and_the_connection_goes_on(
    served: Served, declared: dict[str, Any]
) -> None:
    _, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0, **declared}) as person:
        refused = await person.until_refused()
        assert (refused["code"], refused["frameType"]) == ("invalid_message", "hello")
        await person.send({"type": "text", "data": {"text": "hi"}})
        assert not (await agent.until("text"))["meta"].keys() & {"tools", "skills"}


async def test_a_catalog_is_told_to_who_comes_later_and_not_again_to_who_has_it(served: Served) -> None:
    conversation, token = await served.conversation()
    catalog = {"type": "genui_components", "hash": "h1", "components": [{"name": "c", "template": "<b></b>"}]}
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as first:
        await first.until("welcome")
        await served.say(conversation, token, "hi")
        await agent.until("text")
        await agent.say(conversation, catalog)
        assert await first.until("genui_components") == catalog
        async with served.socket(token, {"watermark": 0}) as later:
            assert await later.until("genui_components") == catalog
        async with served.socket(token, {"watermark": 0, "componentsHash": "h1"}) as knows:
            told = await knows.until("genui_components")
            assert told == {"type": "genui_components", "hash": "h1", "unchanged": True}


@pytest.mark.parametrize("code", ["busy", "interrupted", "my_own_code"])
async def test_an_agents_error_reaches_every_connection_of_the_conversation(
    world: World, served: Served, code: str
) -> None:
    conversation, token = await served.conversation()
    error = {"code": code, "message": "a run is already in flight"}
    hello = {"watermark": 0}
    async with (
        serve(world) as other,
        served.agent() as agent,
        served.socket(token, hello) as one,
        other.socket(token, hello) as two,
    ):
        for person in (one, two):
            await person.until("welcome")
        await served.say(conversation, token, "hi")
        turn = await agent.until("text")
        run = {"run": turn["run"], "runEpoch": 1}
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}, **run})
        await agent.say(conversation, {"type": "error", "data": error, **run})
        for person in (one, two):
            assert await person.until_refused() == error


async def test_a_text_run_grows_and_a_component_of_the_same_id_takes_its_place(served: Served) -> None:
    """A chunk is passed on as it is: what one id means is for clients, see the protocol page."""
    conversation, token = await served.conversation()
    chunks: list[dict[str, Any]] = [
        {"type": "text", "content": "one ", "id": 1}, {"type": "text", "content": "two", "id": 1},
        {"type": "ui", "component": "bar", "props": {"n": 1}, "id": 2},
        {"type": "ui", "component": "bar", "props": {"n": 2}, "id": 2},
    ]  # fmt: skip
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hi")
        turn = await agent.until("text")
        for chunk in chunks:
            frame = {"type": "genui", "streamId": "s", "done": False, "chunk": chunk}
            await agent.say(conversation, {**frame, "run": turn["run"], "runEpoch": 1})
        assert [(await person.until("genui"))["chunk"] for _ in chunks] == chunks


async def test_an_edit_is_shown_at_once_to_who_asks_to_be_told_as_the_channel_masks_it(world: World) -> None:
    async with serve(world, store=masking()) as served:
        conversation, token = await served.conversation()
        hello = {"conversationId": conversation, "watermark": 0}
        path = f"/v1/conversations/{conversation}/stream"
        async with (
            served.agent(),
            served.socket(token, hello | {"capabilities": ["edited"]}) as told,
            served.socket(token, hello) as plain,
            served.http.stream("GET", path, headers=bearer(token)) as stream,
        ):
            await told.until("welcome")
            await plain.send({"type": "text", "clientId": "m", "data": {"text": "pin 1234"}})
            ack = await plain.until("ack")
            await plain.send({"type": "edit", "clientId": "e", "messageId": ack["id"], "data": {"text": "pin 5678"}})
            edited = await told.until("edited")
            assert edited["data"] == {"messageId": ack["id"], "seq": 1, "data": {"text": "pin ####"}}
            assert "edited" not in [frame["type"] for frame in await plain.settled()]
            async for line in stream.aiter_lines():
                if line == "event: edited":
                    break


async def test_who_was_away_is_told_what_a_message_says_now_as_its_channel_masks_it(world: World) -> None:
    async with serve(world, store=masking()) as served:
        conversation, token = await served.conversation()
        hello = {"conversationId": conversation, "watermark": 1}
        path = f"/v1/conversations/{conversation}/stream"
        said = (await served.say(conversation, token, "pin 1234")).json()
        async with served.agent() as agent, served.socket(token, hello) as plain:
            await plain.until("welcome")
            await agent.until("text")
            edit = {"type": "edit", "clientId": "e", "messageId": said["id"], "data": {"text": "pin 5678"}}
            await plain.send(edit)
            await plain.until("ack")
            turn = await agent.until("text")
            await agent.say(conversation, {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": "yes"}})
            await plain.until("text")
        expected = {"messageId": said["id"], "seq": 1, "data": {"text": "pin ####"}}
        wants = {"capabilities": ["edited"]}
        async with (
            served.socket(token, hello | wants) as away,
            served.socket(token, hello) as plain,
            served.socket(token, hello | wants | {"watermark": 0}) as new,
            served.http.stream("GET", path, headers=bearer(token) | {"last-event-id": "1"}) as stream,
        ):
            assert (await away.until("edited"))["data"] == expected
            assert "edited" not in [frame["type"] for frame in await plain.settled()]
            shown = await new.settled()
            assert "edited" not in [frame["type"] for frame in shown], "it is shown the message as it is"
            edits = {frame["seq"]: frame.get("editedAt") for frame in shown if frame["type"] == "text"}
            assert (list(edits), type(edits.pop(1)), set(edits.values())) == ([1, 2], int, {None})
            async for line in stream.aiter_lines():
                if line.startswith("data: ") and '"edited"' in line:
                    assert json.loads(line.removeprefix("data: "))["data"] == expected
                    break
        page = await served.http.get(
            f"/api/v1/converger/conversations/{conversation}/activities", headers=bearer(token)
        )
        first, second = page.json()["activities"]
        assert (first["text"], first["editedAt"] is not None) == ("pin ####", True)
        assert second["editedAt"] is None
