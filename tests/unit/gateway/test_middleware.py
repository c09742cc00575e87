"""A channel's middleware: people are shown the same live, in a replay, by REST and in a stream; seqs stay whole."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from connectors.gateway.middleware import MATCHES_MAX, Middleware, middleware_of
from connectors.gateway.protocol.render import encode, numbered
from streams.core.events import Entry, Frame, FrameCommitted, Turn, TurnCommitted
from streams.fence.middleware import Steps
from tests.support.gateway_world import API_KEY, DOCUMENT, MemoryStore, Served, World, bearer, serve

CARD = {"mask": {"pattern": r"\b\d{4}[ -]?\d{4}\b", "with": "####"}}
NO_TOOLS = {"filter": {"types": ["tool_call", "skill", "run", "typing", "skills"]}}
BRAND = {"transform": {"types": ["text"], "set": {"metadata.brand": "acme"}, "drop": ["data.debug.trace"]}}
steps = TypeAdapter(Steps)


def made(*raw: dict[str, Any]) -> Middleware:
    return Middleware(steps.validate_python(raw))


def said(**fields: Any) -> Entry:
    frame = Frame(id="m-1", **{"type": "text", **fields})
    event = FrameCommitted(
        conversation_id="c", seq=3, frame=frame, sender="bot", channel="agents", group="agents", member="m"
    )
    return Entry(9, 1, 1_750_000_000_000, 1, event)


def shown(middleware: Middleware, entry: Entry) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(encode(numbered(middleware.entry(entry)) or {}))
    return frame


def test_a_mask_is_over_every_text_and_no_name_or_id() -> None:
    data = {"4111 1111": ["is 4111 1111", {"deep": "4111-1111"}], "n": 41111111}
    entry = said(type="poll", data=json.dumps(data), client_id="4111 1111", metadata='{"of":"4111 1111"}')
    frame = shown(made(CARD), entry)
    assert frame["data"] == {"4111 1111": ["is ####", {"deep": "####"}], "n": 41111111}
    assert (frame["clientId"], frame["metadata"], frame["seq"], frame["id"]) == ("4111 1111", {"of": "####"}, 3, "m-1")


@pytest.mark.parametrize(
    "entry",
    [
        said(text="card 4111 1111"),
        said(text="card 4111 1111", data='{"text":"card 4111 1111","attachments":[]}'),
        said(type="genui", stream_id="s", data='{"type":"text","content":"card 4111 1111"}'),
        said(type="tool_call", data='{"id":"t","name":"n"}', extra='{"metadata":"4111 1111","text":"4111 1111"}'),
        said(type="interrupt", data='{"type":"ask","text":"4111 1111?"}'),
        said(extra='{"actions":[{"label":"use 4111 1111"}]}', text="x"),
    ],
    ids=lambda entry: entry.event.frame.type,
)
def test_no_kind_of_frame_gets_past_a_mask(entry: Entry) -> None:
    assert b"4111 1111" in encode(numbered(entry) or {})
    masked = made(CARD).entry(entry)
    assert b"4111 1111" not in encode(numbered(masked) or {})
    assert b"####" in encode(numbered(masked) or {})
    assert isinstance(masked.event, FrameCommitted)
    assert "4111 1111" not in (masked.event.frame.text or "")


def test_what_nothing_matches_in_is_the_very_entry() -> None:
    entry = said(type="tool_call", data='{"id": "t",  "n": 1.50}', extra='{"odd":  1}')
    assert made(CARD, {"transform": {"drop": ["metadata.x"]}}).entry(entry) is entry


def test_what_cannot_be_looked_into_is_left_out() -> None:
    entry = said(type="tool_call", data='{"id":"t"}', extra='{"odd":1e400,"card":"4111 1111"}')
    assert b"4111" not in encode(numbered(made(CARD).entry(entry)) or {})


def test_nesting_without_end_is_masked_as_a_whole() -> None:
    data = '{"a":' * 300 + '"4111 1111"' + "}" * 300
    assert b"4111" not in encode(numbered(made(CARD).entry(said(type="poll", data=data))) or {})


def test_a_text_with_matches_without_end_is_masked_as_a_whole_and_in_bounded_time() -> None:
    text = "x" * 65_536
    began = time.thread_time()
    frame = shown(made({"mask": {"pattern": "x.*y|x", "with": "-"}}), said(text=text))
    assert frame["data"] == {"text": "-"}
    assert time.thread_time() - began < 5  # quadratic work would be 65,536 times 64 KiB
    few = "x" * MATCHES_MAX
    assert shown(made({"mask": {"pattern": "x", "with": "-"}}), said(text=few))["data"] == {"text": "-" * MATCHES_MAX}


def test_masks_take_what_the_ones_before_left() -> None:
    frame = shown(
        made({"mask": {"pattern": "a", "with": "b"}}, {"mask": {"pattern": "b+", "with": "c"}}), said(text="ab")
    )
    assert frame["data"] == {"text": "c"}


def test_a_masks_words_are_no_pattern() -> None:
    assert shown(made({"mask": {"pattern": "(a)", "with": r"\1"}}), said(text="a"))["data"] == {"text": r"\1"}


def test_a_filtered_frame_leaves_a_notice_with_its_seq() -> None:
    entry = said(type="tool_call", data='{"id":"t","name":"secret"}', extra='{"odd":"secret"}')
    frame = shown(made(NO_TOOLS), entry)
    assert frame == {
        "type": "event",
        "id": "c/3",
        "seq": 3,
        "from": "bot",
        "data": {"name": "hidden"},
        "timestamp": entry.timestamp,
        "sender": {"id": "system", "role": "system"},
    }


def test_what_a_person_said_is_never_hidden() -> None:
    turn = Turn(id="t", sender="ann", channel="web", type="text", text="card 4111 1111", client_id="k")
    entry = Entry(1, 1, 1, 1, TurnCommitted(conversation_id="c", seq=1, turn=turn, ref="r"))
    masked = made({"filter": {"types": ["text"]}}, CARD).entry(entry)
    assert isinstance(masked.event, TurnCommitted)
    assert (masked.event.turn.text, masked.event.ref, masked.event.turn.client_id) == ("card ####", "r", "k")


def test_fields_are_set_and_dropped() -> None:
    entry = said(data='{"text":"x","debug":{"trace":1,"id":2}}', text="x")
    frame = shown(made(BRAND), entry)
    assert (frame["data"], frame["metadata"]) == ({"text": "x", "debug": {"id": 2}}, {"brand": "acme"})
    assert made(BRAND).entry(said(type="poll", data="{}")) == said(type="poll", data="{}")


def test_a_text_that_is_set_is_the_text_by_rest_too() -> None:
    entry = made({"transform": {"set": {"data.text": "closed"}}}).entry(said(text="open", data='{"text":"open","a":1}'))
    assert isinstance(entry.event, FrameCommitted)
    assert (entry.event.frame.text, entry.event.frame.data) == ("closed", '{"text":"closed","a":1}')


def test_steps_that_cannot_be_read_hide_what_agents_say() -> None:
    newer = {"channels": [{"id": "web", "middleware": [{"translate": {"to": "de"}}]}, {"id": "api"}]}
    found = middleware_of(json.dumps(newer))
    assert list(found) == ["web"]
    assert shown(found["web"], said(text="x"))["data"] == {"name": "hidden"}


@pytest.fixture
async def masked(world: World) -> AsyncIterator[Served]:
    store = MemoryStore()
    document = json.loads(json.dumps(DOCUMENT))
    document["channels"][0]["middleware"] = [CARD, NO_TOOLS]
    store.document_text = json.dumps(document)
    async with serve(world, store=store) as running:
        yield running


async def answered(masked: Served, conversation: str, token: str) -> None:
    """Turn 1, tool call 2, message 3, question 4."""
    async with masked.agent() as agent:
        await masked.say(conversation, token, "mine is 4111 1111", key="k-1")
        turn = await agent.until("text")
        assert turn["data"] == {"text": "mine is 4111 1111"}  # agents get what was said
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}})
        await agent.say(conversation, {"type": "tool_call", "data": {"id": "t", "name": "pay", "status": "running"}})
        await agent.say(conversation, {"type": "text", "data": {"text": "got 4111 1111"}, "clientId": "m"})
        await agent.until("ack")
        ask = {
            "type": "interrupt",
            "id": "i",
            "data": {"kind": "approval", "payload": {"text": "use 4111 1111?"}},
            "clientId": "a",
        }
        await agent.say(conversation, ask)
        await agent.until("ack")


async def test_people_are_shown_the_same_live_and_in_every_replay(masked: Served) -> None:
    conversation, token = await masked.conversation()
    async with masked.socket(token, {"watermark": 0}) as live:
        await live.until("welcome")
        await answered(masked, conversation, token)
        seen = [frame for frame in await live.settled() if frame["type"] != "presence"]
    numbers = [frame for frame in seen if "seq" in frame]
    assert [(frame["seq"], frame["type"]) for frame in numbers] == [
        (1, "text"),
        (2, "event"),
        (3, "text"),
        (4, "interrupt"),
    ]
    assert not any(frame["type"] in {"run", "typing"} for frame in seen)
    assert "4111" not in json.dumps(seen)
    async with masked.socket(token, {"watermark": 0}) as again:
        welcome = await again.until("welcome")
        assert welcome["data"]["pending"] == [{"id": "i", "data": numbers[3]["data"]}]
        assert [await again.frame() for _ in range(4)] == numbers
    page = await masked.http.get(f"/api/v1/converger/conversations/{conversation}/activities", headers=bearer(token))
    assert "4111" not in page.text
    activities = page.json()["activities"]
    assert [(each["seq"], each["text"]) for each in activities[::2]] == [(1, "mine is ####"), (3, "got ####")]
    assert (activities[1]["type"], activities[1]["text"]) == ("event", "hidden")
    streamed: list[dict[str, Any]] = []
    path = f"/v1/conversations/{conversation}/stream"
    async with masked.http.stream("GET", path, headers=bearer(token)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                streamed.append(json.loads(line.removeprefix("data: ")))
            if len(streamed) == 4:
                break
    assert streamed == numbers


async def test_the_tenant_api_has_what_was_said(masked: Served) -> None:
    conversation, token = await masked.conversation()
    await answered(masked, conversation, token)
    path = f"/api/v1/conversations/{conversation}/activities"
    page = (await masked.http.get(path, headers={"x-api-key": API_KEY})).json()
    assert page["data"][0]["text"] == "mine is 4111 1111"
    assert page["data"][1]["metadata"]["frame"]["type"] == "tool_call"


async def test_what_an_agent_shows_of_itself_is_filtered_too(masked: Served) -> None:
    conversation, token = await masked.conversation()
    async with masked.agent() as agent, masked.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await masked.say(conversation, token, "hello")
        await agent.until("text")
        await agent.say(conversation, {"type": "typing", "isTyping": True})
        error = {"type": "error", "data": {"code": "oops", "message": "card 4111 1111"}}
        await agent.say(conversation, error)
        assert (await person.until_refused())["message"] == "card ####"
        assert "typing" not in [frame["type"] for frame in await person.settled()]


async def test_a_new_document_changes_what_comes_next(masked: Served) -> None:
    conversation, token = await masked.conversation()
    async with masked.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        masked.store.document_text, masked.store.version = json.dumps({**DOCUMENT, "version": 2}), 2
        await masked.gateway.directory._refresh_document()
        await masked.say(conversation, token, "4111 1111")
        assert (await person.until("text"))["data"] == {"text": "4111 1111"}


def test_an_entry_is_changed_and_not_written_over() -> None:
    entry = said(text="4111 1111")
    before = msgspec.structs.asdict(entry)
    made(CARD).entry(entry)
    assert msgspec.structs.asdict(entry) == before


async def test_what_a_call_returns_is_masked_as_well(masked: Served) -> None:
    headers = bearer(await masked.token(user={"id": "ann"}))
    calls = "/v1/threads/t/invocations"
    async with masked.agent() as agent:
        body = {"id": "i", "agent": "agents/bots", "input": {"text": "which card?"}}
        assert (await masked.http.post(calls, headers=headers, json=body)).status_code == 202
        turn = await agent.until("text")
        run = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        await agent.say("t", {"type": "tool_call", "data": {"id": "t", "name": "pay", "status": "running"}, **run})
        await agent.say("t", {"type": "text", "data": {"text": "card 4111 1111"}, **run})
        await agent.say("t", {"type": "run", "data": {"status": "finished"}, **run})
        record = (await masked.http.get(f"{calls}/i", headers=headers, params={"wait": 5_000})).json()
    assert (record["state"], record["output"]["text"]) == ("SUCCEEDED", "card ####")
    page = (await masked.http.get(f"{calls}/i/events", headers=headers)).json()
    assert [(event["n"], event["type"]) for event in page["events"]] == [(1, "event"), (2, "text")]
