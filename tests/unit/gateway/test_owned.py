"""Conversations of an agents' channel itself: opened by it, followed where it lists them, written in by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import ANY

import pytest

from connectors.gateway.ports import Unavailable
from tests.support.gateway_world import API_KEY, DOCUMENT, MemoryStore, Peer, Served, World, bearer, serve
from tests.support.waiting import until
from turnlog import Ack, Agent, Reply, Turn, TurnlogError, Viewed, seen
from turnlog.backoff import Backoff

CLIENT = "/api/v1/converger/conversations"


@pytest.fixture
async def owning(world: World) -> AsyncIterator[Served]:
    """Conversations of `agents` go to people of `phone`, and those of `web` to `agents`."""
    document = json.loads(json.dumps(DOCUMENT))
    document["channels"] += [{"id": "desk", "kind": "web", "sees": "all"}, {"id": "phone", "kind": "web"}]
    document["routes"] += [{"from": "agents", "to": ["phone"]}]
    store = MemoryStore()
    store.document_text = json.dumps(document)
    async with serve(world, store=store) as served:
        yield served


async def opened(served: Served, user: str | None = "ann", **headers: str) -> tuple[str, str]:
    """A conversation of the agents' own, and a token of their channel."""
    token = await served.token("agents-secret", scope="channel")
    body = {"user": {"id": user}} if user is not None else {}
    answer = await served.http.post(CLIENT, headers=bearer(token) | headers, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["conversationId"], answer.json()["token"]


async def told(peer: Peer, number: int) -> list[tuple[int, str, str]]:
    """The next numbered frames that it follows: seq, side, text."""
    found: list[tuple[int, str, str]] = []
    while len(found) < number:
        frame = await peer.frame()
        inner: dict[str, Any] = frame.get("frame", {})
        assert inner.get("type") != "error", inner
        if "seq" in inner and inner["type"] != "ack":
            found.append((inner["seq"], inner["from"], inner["data"]["text"]))
    return found


async def test_a_channel_opens_one_for_a_person_of_another_and_follows_it_where_it_is_listed(owning: Served) -> None:
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    assert (await owning.say(conversation, ann, "zero")).status_code == 201
    async with owning.agent(watermarks={conversation: 1}) as agent, owning.agent() as other:
        assert (await owning.say(conversation, ann, "one")).status_code == 201
        shown = await agent.until("text")
        assert (shown["seq"], shown["from"], shown["data"]) == (2, "user", {"text": "one"})
        assert shown["meta"] == {"channel": "phone", "participant": {"id": "ann"}}
        assert "run" not in shown
        assert await other.settled() == [], "it did not list it"
        await agent.say(conversation, {"type": "text", "clientId": "m-1", "data": {"text": "two"}})
        assert (await agent.until("ack"))["seq"] == 3
        assert await agent.settled() == [], "its own frame is not shown to it"
    async with owning.socket(ann, {"conversationId": conversation, "watermark": 0}) as person:
        texts: list[str] = []
        while len(texts) < 3:
            frame = await person.frame()
            texts += [frame["data"]["text"]] if "seq" in frame else []
        assert texts == ["zero", "one", "two"]
    async with owning.agent(watermarks={conversation: 1}) as again:
        assert await told(again, 2) == [(2, "user", "one"), (3, "bot", "two")]


async def test_a_backend_opens_one_with_its_key_and_an_agent_follows_it(owning: Served) -> None:
    key = {"x-api-key": API_KEY}
    answer = await owning.http.post(
        "/api/v1/conversations", headers=key, json={"channel_id": "agents", "external_id": "ann"}
    )
    assert answer.status_code == 201, answer.text
    conversation = answer.json()["data"]["id"]
    ann = await owning.token("phone-secret", user={"id": "ann"})
    assert (await owning.say(conversation, ann, "hello")).status_code == 201
    async with owning.agent() as agent:
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        assert await told(agent, 1) == [(1, "user", "hello")]
        by_key = await owning.http.post(
            f"/api/v1/conversations/{conversation}/activities", headers=key, json={"text": "from the backend"}
        )
        assert by_key.status_code == 201
        assert await told(agent, 1) == [(2, "user", "from the backend")]


async def test_who_writes_in_it_follows_it_from_there_on(owning: Served) -> None:
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    await owning.say(conversation, ann, "early")
    async with owning.agent() as agent:
        await agent.say(conversation, {"type": "text", "clientId": "m-1", "data": {"text": "hello"}})
        await agent.until("ack")
        await owning.say(conversation, ann, "late")
        assert await told(agent, 1) == [(3, "user", "late")]


async def test_each_connection_that_lists_it_is_shown_all_of_it_also_what_the_others_say(owning: Served) -> None:
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    await owning.say(conversation, ann, "zero")
    here = {conversation: 1}
    async with owning.agent(watermarks=here) as one, owning.agent("night", watermarks=here) as two:
        await owning.say(conversation, ann, "one")
        assert await told(one, 1) == await told(two, 1) == [(2, "user", "one")]
        await one.say(conversation, {"type": "text", "clientId": "m", "data": {"text": "mine"}})
        assert await told(two, 1) == [(3, "bot", "mine")]


async def test_a_sync_replays_it_and_one_above_its_head_is_refused(owning: Served) -> None:
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    for text in ("one", "two"):
        await owning.say(conversation, ann, text)
    async with owning.agent(watermarks={conversation: 9}) as agent:
        refused = await agent.until_refused()
        assert (refused["code"], refused["details"]) == ("invalid_watermark", {"watermark": 9, "headSeq": 2})
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        assert await told(agent, 2) == [(1, "user", "one"), (2, "user", "two")]
        await owning.say(conversation, ann, "three")
        assert await told(agent, 1) == [(3, "user", "three")]


async def test_a_sync_counts_that_comes_while_it_is_looked_up_whose_the_conversation_is(
    owning: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has just written in it follows it from there on, unless it asks for more."""
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    await owning.say(conversation, ann, "early")
    whole, begun, go_on = owning.gateway.history.conversation, asyncio.Event(), asyncio.Event()

    async def slowly(id_: str) -> Any:
        begun.set()
        await go_on.wait()
        return await whole(id_)

    async with owning.agent() as agent:
        monkeypatch.setattr(owning.gateway.history, "conversation", slowly)
        await agent.say(conversation, {"type": "text", "clientId": "m-1", "data": {"text": "hello"}})
        await asyncio.wait_for(begun.wait(), 10)
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        await agent.settled()
        go_on.set()
        assert await told(agent, 1) == [(1, "user", "early")]


async def test_a_replay_waits_until_history_can_be_read(owning: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.gateway.followed.RETRY_S", 0.01)
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    for text in ("one", "two"):
        await owning.say(conversation, ann, text)
    whole, failures = owning.gateway.history.page, iter([Unavailable("away")] * 3)

    async def page(*given: Any) -> Any:
        for failure in failures:
            raise failure
        return await whole(*given)

    monkeypatch.setattr(owning.gateway.history, "page", page)
    async with owning.agent(watermarks={conversation: 1}) as agent:
        assert await told(agent, 1) == [(2, "user", "two")]


async def test_a_routed_conversation_that_is_listed_is_not_followed_in_this_way(owning: Served) -> None:
    conversation, ann = await owning.conversation("ann")
    async with owning.agent() as first:
        await owning.say(conversation, ann, "one")
        await first.until("text")
        async with owning.agent(watermarks={conversation: 1}) as listed:
            await first.say(conversation, {"type": "text", "clientId": "m", "data": {"text": "answer"}})
            await first.until("ack")
            assert [frame["type"] for frame in await listed.settled() if "seq" in frame] == []


async def test_what_it_followed_ends_with_its_connection(owning: Served) -> None:
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    await owning.say(conversation, ann, "zero")
    async with owning.agent(watermarks={conversation: 1}) as agent:
        await owning.say(conversation, ann, "one")
        await told(agent, 1)
        assert owning.gateway.hub.concerned(conversation)
        connection = next(iter(owning.gateway._connections))
    await connection.closed.wait()
    async with owning.agent() as last:
        await last.settled()
    assert not owning.gateway.hub.concerned(conversation)


async def test_rest_for_the_channel_that_it_is_of_and_for_no_other(owning: Served) -> None:
    conversation, token = await opened(owning)
    path = f"{CLIENT}/{conversation}"
    ann = await owning.token("phone-secret", user={"id": "ann"})
    await owning.say(conversation, ann, "one")
    listed = await owning.http.get(f"{path}/activities", headers=bearer(token))
    assert [each["text"] for each in listed.json()["activities"]] == ["one"]
    assert (await owning.http.post(f"{path}/close", headers=bearer(ann))).status_code == 403
    assert (await owning.http.post(f"{path}/close", headers=bearer(token))).status_code == 200
    assert (await owning.http.post(f"{path}/reopen", headers=bearer(token))).status_code == 200
    refused = await owning.http.post(f"{path}/activities", headers=bearer(token), json={"text": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    theirs, _ = await owning.conversation("ann")
    other = await owning.http.get(f"{CLIENT}/{theirs}/activities", headers=bearer(token))
    assert other.status_code == 404


async def test_a_repeated_opening_is_the_same_conversation(owning: Served) -> None:
    first, _ = await opened(owning, **{"x-idempotency-key": "k"})
    again, _ = await opened(owning, **{"x-idempotency-key": "k"})
    other, _ = await opened(owning, "bob", **{"x-idempotency-key": "k"})
    assert first == again != other


async def test_the_person_that_it_names_must_be_one(owning: Served) -> None:
    token = await owning.token("agents-secret", scope="channel")
    refused = await owning.http.post(CLIENT, headers=bearer(token), json={"user": {"id": ""}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_message")


async def test_a_channel_that_is_routed_nowhere_opens_none(world: World) -> None:
    async with serve(world) as served:
        token = await served.token("agents-secret", scope="channel")
        refused = await served.http.post(CLIENT, headers=bearer(token))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert "routed nowhere" in refused.json()["error"]["message"]


async def test_a_sync_in_a_new_one_follows_it_and_in_another_channels_shows_what_was_given(owning: Served) -> None:
    conversation, _ = await opened(owning)
    theirs, token = await owning.conversation("bob")
    ann = await owning.token("phone-secret", user={"id": "ann"})
    async with owning.agent() as agent:
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        await agent.settled()
        await owning.say(conversation, ann, "first words")
        assert await told(agent, 1) == [(1, "user", "first words")]
        await agent.say(theirs, {"type": "sync", "watermark": 0})
        assert (await agent.until_refused())["code"] == "conversation_not_found"
        await owning.say(theirs, token, "one")
        assert (await agent.until("text"))["run"]
        await agent.say(theirs, {"type": "sync", "watermark": 0})
        assert await told(agent, 1) == [(1, "user", "one")]


async def test_beyond_its_limit_the_least_recently_active_one_is_followed_no_more(
    owning: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.gateway.protocol.delivery.REMEMBERED_MAX", 2)
    first, second, third = [(await opened(owning))[0] for _ in range(3)]
    ann = await owning.token("phone-secret", user={"id": "ann"})
    for conversation in (first, second, third):
        await owning.say(conversation, ann, "one")
    async with owning.agent(watermarks={first: 1, second: 1}) as agent:
        await agent.settled()
        await owning.say(first, ann, "two")
        assert await told(agent, 1) == [(2, "user", "two")]
        await agent.say(third, {"type": "text", "clientId": "m", "data": {"text": "hello"}})
        await agent.until("ack")
        for conversation in (second, first, third):
            await owning.say(conversation, ann, "three")
        shown = [(await agent.frame())["conversationId"] for _ in range(2)]
        assert sorted(shown) == sorted([first, third])
        assert not owning.gateway.hub.concerned(second)


# ------------------------------------------------------------------------------------------------- by the SDK's agent
class Bridge:
    """An agent of the SDK that follows, and what it heard."""

    def __init__(self, served: Served) -> None:
        self.agent = Agent(served.url, channel_secret="agents-secret", backoff=Backoff(first=0.01, most=0.1))
        self.heard: list[tuple[int | None, str]] = []
        self.agent.on_activity(self._hear)

    async def _hear(self, conversation: str, viewed: Viewed) -> None:
        match viewed.seen:
            case seen.Said(text=text):
                self.heard.append((viewed.seq, text))
            case seen.Edited(seq=seq, text=text):
                self.heard.append((None, f"{seq}: {text}"))
            case seen.Typing(who=seen.Who(id=id_), typing=True):
                self.heard.append((viewed.seq, f"{id_} types"))

    async def until(self, *heard: tuple[int | None, str]) -> None:
        await until(lambda: self.heard == [*heard])

    async def __aenter__(self) -> Bridge:
        await self.agent.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.agent.stop(budget=0)


async def test_an_agent_of_the_sdk_follows_before_and_after_its_start_and_over_a_lost_connection(
    owning: Served,
) -> None:
    (one, _), (two, _) = await opened(owning), await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    for text in ("skipped", "first"):
        await owning.say(one, ann, text)
    bridge = Bridge(owning)
    bridge.agent.follow(one, after=1)
    async with bridge:
        await bridge.until((2, "first"))
        assert await bridge.agent.say(one, "mine") == Ack(id=ANY, seq=3)
        await owning.say(one, ann, "second")
        await bridge.until((2, "first"), (4, "second"))
        bridge.agent.follow(two)
        await owning.say(two, ann, "elsewhere")
        await bridge.until((2, "first"), (4, "second"), (1, "elsewhere"))
        assert await bridge.agent.say(one, "last", key="k") == Ack(id=ANY, seq=5)
        socket = bridge.agent._link._socket
        assert socket is not None
        socket.transport.abort()
        await owning.say(one, ann, "meanwhile")
        await bridge.until((2, "first"), (4, "second"), (1, "elsewhere"), (6, "meanwhile"))
        again = await bridge.agent.say(one, "last", key="k")
        assert (again.seq, again.duplicate) == (5, True)
        async with owning.socket(ann, {"conversationId": two, "watermark": 1}) as person:
            await person.until("welcome")
            await person.send({"type": "typing", "isTyping": True})
            await until(lambda: (None, "ann types") in bridge.heard)
        bridge.agent.unfollow(one)
        await owning.say(one, ann, "unheard")
        await owning.say(two, ann, "heard")
        await until(lambda: (2, "heard") in bridge.heard)
        assert "unheard" not in [text for _, text in bridge.heard]


async def test_who_follows_is_told_of_edits_live_and_when_it_comes_back(owning: Served) -> None:
    document = json.loads(owning.store.document_text)
    document["channels"] += [{"id": "bots", "kind": "websocket", "group_settle_ms": 0}]
    document["routes"] = [{"from": "agents", "to": ["phone", "bots"]}]
    owning.store.document_text, owning.store.version = json.dumps(document | {"version": 2}), 2
    await owning.gateway.directory._refresh_document()
    conversation, _ = await opened(owning)
    ann = await owning.token("phone-secret", user={"id": "ann"})
    bridge = Bridge(owning)
    bridge.agent.follow(conversation)

    async def edit(text: str) -> None:
        async with owning.socket(ann, {"conversationId": conversation, "watermark": 1}) as person:
            await person.until("welcome")
            await person.send({"type": "edit", "clientId": text, "messageId": said["id"], "data": {"text": text}})
            assert "error" not in [frame["type"] for frame in await person.settled()]

    async with bridge:
        said = (await owning.say(conversation, ann, "one")).json()
        await bridge.until((1, "one"))
        await edit("two")
        await bridge.until((1, "one"), (None, "1: two"))
        stored = bridge.agent._link._socket
        assert stored is not None
        stored.transport.abort()
        await edit("three")
        await until(lambda: (None, "1: three") in bridge.heard)
    async with owning.agent(watermarks={conversation: 1}, capabilities=["edited"]) as away, owning.agent() as plain:
        await plain.say(conversation, {"type": "sync", "watermark": 1})
        assert (await away.until("edited"))["data"] == {"messageId": said["id"], "seq": 1, "data": {"text": "three"}}
        assert await plain.settled() == []


async def test_an_agent_of_the_sdk_that_follows_what_is_not_its_channels_hears_nothing_and_is_told(
    owning: Served, caplog: pytest.LogCaptureFixture
) -> None:
    conversation, token = await owning.conversation()
    bridge = Bridge(owning)
    bridge.agent.follow(conversation)
    async with bridge:
        await until(lambda: f"{conversation} cannot be followed: " in caplog.text)
        await owning.say(conversation, token, "hello")
        with pytest.raises(TurnlogError):
            await bridge.agent.say("no such conversation", "hello")
        assert bridge.heard == []


async def test_a_handler_has_its_history_also_where_its_agent_meant_to_follow(owning: Served) -> None:
    conversation, token = await owning.conversation()
    bridge = Bridge(owning)
    known: list[str] = []

    @bridge.agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> str:
        bridge.agent.follow(conversation)
        known[:] = [message.text for message in await reply.history()]
        return "done"

    async with bridge:
        for text in ("one", "two"):
            await owning.say(conversation, token, text)
        await until(lambda: "one" in known)
    assert known[0] == "one"


async def test_an_agent_of_the_sdk_that_only_follows_takes_no_turns(owning: Served) -> None:
    async with Bridge(owning):
        conversation, token = await owning.conversation()
        await owning.say(conversation, token, "anybody there?")
        async with owning.agent(None) as other:
            assert (await other.until("text"))["data"] == {"text": "anybody there?"}
            for number in range(8):
                another, token = await owning.conversation(f"user-{number}")
                await owning.say(another, token, f"hello {number}")
                assert (await other.until("text"))["data"] == {"text": f"hello {number}"}


def test_to_follow_an_agent_needs_a_handler_of_activity() -> None:
    agent = Agent("http://unused", token="t")
    with pytest.raises(RuntimeError, match="on_activity"):
        agent.follow("c")
    with pytest.raises(TypeError, match="on_activity"):
        agent.on_activity(lambda viewed: viewed)  # type: ignore[type-var]
