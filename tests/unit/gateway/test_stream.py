"""Server-sent events: replayed, live, resumed, and ended with the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from connectors.gateway.clock import wall_ms
from connectors.gateway.protocol.limits import OUTBOUND_BYTES, OUTBOUND_FRAMES
from connectors.gateway.protocol.session import Claims, Scope
from connectors.gateway.server import application
from connectors.gateway.sse import EventStream
from tests.support.gateway_world import API_KEY, Served, World, bearer, serve, settings_for


@asynccontextmanager
async def stream(served: Served, conversation: str, token: str, **headers: str) -> AsyncIterator[httpx.Response]:
    path = f"/v1/conversations/{conversation}/stream"
    async with served.http.stream("GET", path, headers=bearer(token) | headers) as response:
        assert response.status_code == 200, await response.aread()
        yield response


async def events(response: httpx.Response, count: int) -> list[dict[str, Any]]:
    """The next events, as field to value."""
    found: list[dict[str, Any]] = []
    event: dict[str, Any] = {}
    async with asyncio.timeout(5):
        async for line in response.aiter_lines():
            if not line:
                if "data" in event:
                    found.append(event)
                event = {}
                if len(found) == count:
                    return found
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value
    return found


async def test_history_then_live_events_with_their_seq_as_id(served: Served) -> None:
    conversation, token = await served.conversation()
    await served.say(conversation, token, "m1")
    async with stream(served, conversation, token) as response:
        await served.say(conversation, token, "m2")
        found = await events(response, 2)
    assert [(event["event"], event["id"]) for event in found] == [("text", "1"), ("text", "2")]
    assert '"m2"' in found[1]["data"]


async def test_it_resumes_after_the_last_event_id(served: Served) -> None:
    conversation, token = await served.conversation()
    for number in range(1, 4):
        await served.say(conversation, token, f"m{number}")
    async with stream(served, conversation, token, **{"last-event-id": "2"}) as response:
        assert [event["id"] for event in await events(response, 1)] == ["3"]


async def test_what_has_no_seq_has_no_id(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, stream(served, conversation, token) as response:
        await served.say(conversation, token, "m1")
        await agent.until("text")
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}})
        found = await events(response, 2)
    assert [(event["event"], event.get("id")) for event in found] == [("text", "1"), ("run", None)]


async def test_a_last_event_id_above_the_head_is_refused(served: Served) -> None:
    conversation, token = await served.conversation()
    path = f"/v1/conversations/{conversation}/stream"
    for last in ("7", "x"):
        answer = await served.http.get(path, headers=bearer(token) | {"last-event-id": last})
        assert answer.json()["error"]["code"] == "invalid_watermark"


async def test_a_token_may_be_in_the_query(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.http.stream("GET", f"/v1/conversations/{conversation}/stream?token={token}") as response:
        assert response.status_code == 200


async def test_a_stream_ends_when_the_gateway_stops(world: World) -> None:
    async with serve(world) as served:
        conversation, token = await served.conversation()
        async with stream(served, conversation, token) as response:
            await events_until_open(served)
            await served.gateway.drain()
            assert await events(response, 1) == []


async def events_until_open(served: Served) -> None:
    async with asyncio.timeout(5):
        while not served.gateway.streams:
            await served.http.get("/healthz")


async def test_a_conversations_owners_and_runs_are_shown(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        for headers in (bearer(token), {"x-api-key": API_KEY}):
            shown = (await served.http.get(f"/v1/conversations/{conversation}", headers=headers)).json()
            assert (shown["conversation"], shown["status"]) == (conversation, "open")
            assert (shown["head_seq"], shown["owners"]) == (1, {"agents/bots": agent.member})
            assert [(run["turn_seq"], run["member"]) for run in shown["open_runs"]] == [(1, agent.member)]
            assert shown["as_of_lsn"] > 0
        members = (await served.http.get("/v1/members", headers={"x-api-key": API_KEY})).json()
        assert [member["member"] for member in members["members"]] == [agent.member]
        leases = (await served.http.get("/v1/leases", headers={"x-api-key": API_KEY})).json()["leases"]
        assert [lease["worker"] for lease in leases] == ["wk-test", "wk-test"]
    assert (await served.http.get("/v1/members")).status_code == 401


async def test_metrics_docs_and_the_api_description_are_served(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
    text = (await served.http.get("/metrics")).text
    assert "turnlog_turn_delivery_seconds_count 1.0" in text
    assert "turnlog_gateway_ready 1.0" in text
    document = (await served.http.get("/openapi.json")).json()
    assert (await served.http.get("/asyncapi.json")).json()["channels"]["people"]["address"] == "/socket/converger/v1"
    assert document["openapi"].startswith("3.1")
    assert (await served.http.get("/docs")).headers["content-type"].startswith("text/html")


async def test_the_api_description_names_every_route(served: Served) -> None:
    described = set((await served.http.get("/openapi.json")).json()["paths"])
    routes = {route.path for route in application(served.gateway).routes}  # type: ignore[attr-defined]
    pages = {f"/{site}{rest}" for site in ("chat", "console") for rest in ("", "/", "/{name}")}
    pages |= {"/docs", "/openapi.json", "/asyncapi.json"}
    assert routes - described == pages | {"/socket/converger/v1"}
    assert described <= routes


async def test_a_stream_ends_with_its_token(world: World) -> None:
    async with serve(world, settings_for(token_ttl_s=3)) as served:
        conversation, token = await served.conversation()
        async with stream(served, conversation, token) as response:
            await served.say(conversation, token, "m1")
            assert len(await events(response, 2)) == 1
        assert served.gateway.streams == set()


async def test_a_stream_whose_reader_is_too_slow_keeps_nothing_more_for_it(served: Served) -> None:
    conversation, _ = await served.conversation()
    info = await served.gateway.conversation(conversation)
    claims = Claims(channel="web", scope=Scope.CONVERSATION, user="ann", expires_at=wall_ms() + 60_000)
    slow = EventStream(served.gateway, info, 0, claims)
    for _ in range(3 * OUTBOUND_FRAMES):
        slow.relay(b'{"type":"typing","isTyping":true}')
    assert len(slow._frames) == 0
    assert len([event async for event in slow.events()]) == 1  # the comment that opens it


async def test_few_large_frames_are_as_much_as_many_small_ones(served: Served) -> None:
    conversation, token = await served.conversation()
    claims, info = served.gateway.tokens.verify(token), await served.gateway.conversation(conversation)
    frame = b'{"type":"typing","padding":"' + b"x" * 65_536 + b'"}'
    keeps, slow = EventStream(served.gateway, info, 0, claims), EventStream(served.gateway, info, 0, claims)
    for _ in range(OUTBOUND_BYTES // len(frame)):
        keeps.relay(frame)
    assert len(keeps._frames) == OUTBOUND_BYTES // len(frame)
    for _ in range(OUTBOUND_BYTES // len(frame) + 2):
        slow.relay(frame)
    assert len(slow._frames) == 0
