"""The client API: answers, refusals, and what a client is told when something is away."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from connectors.gateway.ports import Unavailable
from streams.core.routing import Config
from tests.support.gateway_world import API_KEY, Served, World, bearer, serve, settings_for

CONVERSATIONS = "/api/v1/converger/conversations"


def code(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()["error"]
    assert body["message"]
    assert body["request_id"]
    return answer.status_code, body["code"]


async def post_raw(served: Served, conversation: str, token: str, body: bytes) -> httpx.Response:
    return await served.http.post(f"{CONVERSATIONS}/{conversation}/activities", headers=bearer(token), content=body)


async def test_a_wrong_secret_is_unauthorized(served: Served) -> None:
    answer = await served.http.post("/api/v1/converger/tokens/generate", headers=bearer("wrong"), json={})
    assert code(answer) == (401, "unauthorized")


async def test_no_credential_is_unauthorized(served: Served) -> None:
    assert code(await served.http.post(CONVERSATIONS)) == (401, "unauthorized")


async def test_an_inactive_channel_is_refused(served: Served) -> None:
    answer = await served.http.post("/api/v1/converger/tokens/generate", headers=bearer("shut-secret"), json={})
    assert code(answer) == (400, "channel_inactive")


@pytest.mark.parametrize(
    ("secret", "body"), [("web-secret", {"scope": "channel"}), ("agents-secret", {}), ("web-secret", {"scope": 7})]
)
async def test_a_scope_that_does_not_fit_the_channel_is_refused(served: Served, secret: str, body: Any) -> None:
    answer = await served.http.post("/api/v1/converger/tokens/generate", headers=bearer(secret), json=body)
    assert answer.status_code in {403, 422}
    assert "scope" in answer.json()["error"]["message"]


@pytest.mark.parametrize("user", ["", "a" * 257, "\N{FOX FACE}" * 129])
async def test_a_user_who_could_open_nothing_gets_no_token(served: Served, user: str) -> None:
    body = {"user": {"id": user}}
    answer = await served.http.post("/api/v1/converger/tokens/generate", headers=bearer("web-secret"), json=body)
    assert code(answer) == (422, "invalid_message")
    assert "user.id" in answer.json()["error"]["message"]


async def test_a_store_that_is_away_is_no_reason_for_a_4xx(served: Served) -> None:
    """An agent of the public client ends for good on any 4xx."""
    served.store.broken = Unavailable("PostgreSQL is away")
    answer = await served.http.post("/api/v1/converger/tokens/generate", headers=bearer("agents-secret"), json={})
    assert code(answer) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_partition_that_lacks_the_document_yet_is_no_reason_for_a_4xx(world: World, served: Served) -> None:
    """It asks for it and gets it: what the client sent is taken a moment later."""
    conversation, token = await served.conversation()
    for journal in world.journals:
        journal.state.config = Config()
        journal.state.plans.clear()
    answers = [
        await served.say(conversation, token, "hello"),
        await served.http.post(CONVERSATIONS, headers=bearer(await served.token())),
    ]
    for answer in answers:
        assert code(answer) == (503, "unavailable")
        assert answer.json()["error"]["details"] == {"retryAfterMs": 1000, "budgetMs": 60_000}
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_known_secret_logs_in_while_the_store_is_away(served: Served) -> None:
    await served.token()
    served.store.broken = Unavailable("PostgreSQL is away")
    token = await served.token()
    assert (await served.http.post("/api/v1/converger/conversations", headers=bearer(token))).status_code == 201


async def test_a_repeat_with_the_same_key_gets_the_first_answer(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    first = await served.say(conversation, token, "hello", "k-1")
    again = await served.say(conversation, token, "hello", "k-1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "duplicate": True}
    assert world.kinds(conversation).count("TurnCommitted") == 1


async def test_a_conversation_of_the_same_key_is_the_same(served: Served) -> None:
    token = await served.token(user={"id": "ann"})
    headers = bearer(token) | {"x-idempotency-key": "open-1"}
    answers = [await served.http.post(CONVERSATIONS, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["conversationId"] == answers[1].json()["conversationId"]


async def test_messages_without_a_key_are_each_stored(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    for _ in range(2):
        await served.say(conversation, token, "hello")
    assert world.kinds(conversation).count("TurnCommitted") == 2


@pytest.mark.parametrize(
    ("body", "expected", "named"),
    [
        (b"{", (400, "bad_request"), "JSON"),
        (b"[1]", (400, "bad_request"), "object"),
        (b'\xff{"text":"x"}', (400, "bad_request"), "UTF-8"),
        (b'{"text":NaN}', (400, "bad_request"), "NaN"),
        (b"[" * 100_000, (400, "bad_request"), "JSON"),
        (b'{"text":"x","channelData":' + b'{"a":' * 99 + b"[]" + b"}" * 100, (400, "bad_request"), "100 levels"),
        (b'{"text":"x","channelData":{"a":1e999}}', (400, "bad_request"), "too large"),
        (b"{}", (422, "invalid_message"), "text"),
        (b'{"text":""}', (422, "invalid_message"), "text"),
        (b'{"text":" \\n\\u3000"}', (422, "invalid_message"), "text"),
        (b'{"text":7}', (422, "invalid_message"), "text"),
        (b'{"text":"a\\u0000b"}', (422, "invalid_message"), "text"),
        (b'{"text":"a\\ud800b"}', (422, "invalid_message"), "text"),
        (b'{"channelData":{"a":["\\udfff"]},"text":"x"}', (422, "invalid_message"), "channelData.a[0]"),
        (b'{"type":"invoice","text":"x"}', (422, "invalid_message"), "type"),
        (b'{"text":"x","attachments":[7]}', (422, "invalid_message"), "attachments[0]"),
        (b'{"text":"x","attachments":[{}]}', (422, "invalid_message"), "attachments[0].contentType"),
        (b'{"text":"x","replyToId":""}', (422, "invalid_message"), "replyToId"),
        (b'{"text":"' + b"a" * 65_537 + b'"}', (413, "payload_too_large"), "text"),
        (b'{"text":"' + "é".encode() * 32_769 + b'"}', (413, "payload_too_large"), "text"),
        (b'{"text":"' + b"a" * 1_048_576 + b'"}', (413, "payload_too_large"), "body"),
        (b'{"text":"x","channelData":{"a":"' + b"b" * 16_384 + b'"}}', (413, "payload_too_large"), "channelData"),
    ],
)
async def test_a_body_that_breaks_a_rule_is_refused_by_name(
    world: World, served: Served, body: bytes, expected: tuple[int, str], named: str
) -> None:
    conversation, token = await served.conversation()
    answer = await post_raw(served, conversation, token, body)
    assert code(answer) == expected
    assert named in answer.json()["error"]["message"]
    assert world.kinds(conversation) == ["ConversationOpened"]
    assert (await served.say(conversation, token, "still fine")).status_code == 201


async def test_a_text_of_the_limit_is_stored_whole(served: Served) -> None:
    conversation, token = await served.conversation()
    text = "é" * 32_768
    assert (await served.say(conversation, token, text)).status_code == 201
    listed = await served.http.get(f"{CONVERSATIONS}/{conversation}/activities", headers=bearer(token))
    assert listed.json()["activities"][0]["text"] == text


async def test_an_unknown_conversation_is_not_found(served: Served) -> None:
    token = await served.token()
    assert code(await served.say("nowhere", token, "hello")) == (404, "conversation_not_found")


async def test_somebody_elses_conversation_is_not_found(served: Served) -> None:
    conversation, _ = await served.conversation("ann")
    stranger = await served.token(user={"id": "bob"})
    assert code(await served.say(conversation, stranger, "hello")) == (404, "conversation_not_found")
    assert (await served.say(conversation, await served.token(user={"id": "ann"}), "me")).status_code == 201


async def test_a_token_for_one_conversation_opens_no_other(served: Served) -> None:
    _, token = await served.conversation("ann")
    other, _ = await served.conversation("ann")
    assert code(await served.say(other, token, "hello")) == (403, "forbidden")


async def test_a_closed_conversation_takes_nothing_until_it_is_reopened(served: Served) -> None:
    conversation, token = await served.conversation()
    path = f"{CONVERSATIONS}/{conversation}"
    for _ in range(2):
        closed = await served.http.post(f"{path}/close", headers=bearer(token))
        assert closed.json() == {"conversationId": conversation, "status": "closed"}
    assert code(await served.say(conversation, token, "hello")) == (409, "conversation_closed")
    for _ in range(2):
        reopened = await served.http.post(f"{path}/reopen", headers=bearer(token))
        assert reopened.json() == {"conversationId": conversation, "status": "active"}
    assert (await served.say(conversation, token, "hello")).status_code == 201


async def test_an_expired_token_says_so(world: World) -> None:
    async with serve(world, settings_for(token_ttl_s=1)) as served:
        conversation, token = await served.conversation()
        served.gateway.tokens.ttl_s = -60
        late = await served.http.post("/api/v1/converger/tokens/refresh", headers=bearer(token))
        assert code(await served.say(conversation, late.json()["token"], "hello")) == (401, "token_expired")


async def test_a_refreshed_token_is_for_the_same_conversation(served: Served) -> None:
    conversation, token = await served.conversation()
    fresh = await served.http.post("/api/v1/converger/tokens/refresh", headers=bearer(token))
    assert fresh.json()["conversationId"] == conversation
    assert (await served.say(conversation, fresh.json()["token"], "hello")).status_code == 201


async def test_a_token_of_another_gateways_new_key_is_taken(world: World, served: Served) -> None:
    async with serve(world) as other:
        other.store.keys["k2"], other.store.signs = b"b" * 32, "k2"
        await other.gateway.directory.refresh_keys()
        conversation, token = await other.conversation()
        served.store.keys["k2"] = b"b" * 32
        assert (await served.say(conversation, token, "hello")).status_code == 201


async def test_a_forged_token_is_unauthorized(served: Served) -> None:
    conversation, token = await served.conversation()
    head, body, _ = token.split(".")
    for forged in (f"{head}.{body}.AAAA", "eyJhbGciOiJub25lIn0.e30.", "x", "a.b.c"):
        assert code(await served.say(conversation, forged, "hello")) == (401, "unauthorized")


async def test_a_commit_that_is_late_is_pending_and_its_repeat_safe(world: World) -> None:
    async with serve(world, settings_for(commit_wait_ms=50)) as served:
        conversation, token = await served.conversation()
        partition = served.gateway.partition_of(conversation)
        world.stop(partition)
        answer = await served.say(conversation, token, "hello", "k-1")
        assert code(answer) == (503, "pending")
        details = answer.json()["error"]["details"]
        assert (details["key"], details["retryAfterMs"]) == ("k-1", 1_000)
        assert answer.headers["retry-after"] == "1"
        world.go_on(partition)
        again = await served.say(conversation, token, "hello", "k-1")
        assert (again.status_code, again.json()["seq"], again.json()["duplicate"]) == (200, 1, True)


async def test_what_the_intake_does_not_have_is_unavailable(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    world.broken = Unavailable("Kafka is away")
    answer = await served.say(conversation, token, "hello", "k-1")
    assert code(answer) == (503, "unavailable")
    assert answer.json()["error"]["message"].startswith("not taken, as far as is known: ")
    assert answer.headers["retry-after"] == "1"
    world.broken = None
    assert (await served.say(conversation, token, "hello", "k-1")).status_code == 201


async def test_activities_come_in_pages(served: Served) -> None:
    conversation, token = await served.conversation()
    for number in range(5):
        await served.say(conversation, token, f"m{number}")
    path = f"{CONVERSATIONS}/{conversation}/activities"
    page = (await served.http.get(f"{path}?limit=3", headers=bearer(token))).json()
    assert ([a["text"] for a in page["activities"]], page["watermark"], page["has_more"]) == (
        ["m0", "m1", "m2"],
        3,
        True,
    )
    rest = (await served.http.get(f"{path}?watermark=3", headers=bearer(token))).json()
    assert ([a["text"] for a in rest["activities"]], rest["watermark"], rest["has_more"]) == (["m3", "m4"], 5, False)


@pytest.mark.parametrize("watermark", ["6", "-1", "x", "1" * 30])
async def test_a_watermark_that_cannot_be_is_refused(served: Served, watermark: str) -> None:
    conversation, token = await served.conversation()
    path = f"{CONVERSATIONS}/{conversation}/activities?watermark={watermark}"
    assert code(await served.http.get(path, headers=bearer(token))) == (400, "invalid_watermark")


async def test_a_read_model_that_lags_is_made_up_for(served: Served) -> None:
    conversation, token = await served.conversation()
    served.read_model.behind = 1_000
    await served.say(conversation, token, "hello")
    path = f"{CONVERSATIONS}/{conversation}/activities"
    assert len((await served.http.get(path, headers=bearer(token))).json()["activities"]) == 1


async def test_unknown_paths_and_methods_are_errors_of_the_same_shape(served: Served) -> None:
    assert code(await served.http.get("/nowhere")) == (404, "not_found")
    assert code(await served.http.put(CONVERSATIONS)) == (405, "method_not_allowed")


async def test_requests_are_refused_until_the_tail_is_caught_up(world: World) -> None:
    async with serve(world, ready=False) as served:
        answer = await served.http.post(CONVERSATIONS, headers=bearer("x"))
        assert code(answer) == (503, "unavailable")
        assert (await served.http.get("/readyz")).status_code == 503
        assert (await served.http.get("/healthz")).status_code == 200
        served.gateway.ready()
        assert (await served.http.get("/readyz")).status_code == 200


async def test_the_tenant_api_needs_its_key(served: Served) -> None:
    for headers in ({}, {"x-api-key": "wrong"}):
        assert code(await served.http.get("/api/v1/conversations", headers=headers)) == (401, "unauthorized")


@pytest.mark.parametrize("name", ["channel_id", "external_id"])
async def test_a_filter_that_no_store_can_be_asked_for_is_refused_by_name(served: Served, name: str) -> None:
    answer = await served.http.get("/api/v1/conversations", headers={"x-api-key": API_KEY}, params={name: "a\0b"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert answer.json()["error"]["message"].startswith(name)


async def test_the_tenant_api_reads_and_writes_any_conversation(served: Served) -> None:
    conversation, _ = await served.conversation("ann")
    headers, path = {"x-api-key": API_KEY}, f"/api/v1/conversations/{conversation}"
    posted = await served.http.post(
        f"{path}/activities", headers=headers | {"x-idempotency-key": "k"}, json={"text": "hi", "metadata": {"a": 1}}
    )
    data = posted.json()["data"]
    assert (posted.status_code, data["type"], data["sender"], data["text"], data["metadata"], data["seq"]) == (
        201, "message", "ann", "hi", {"a": 1}, 1,
    )  # fmt: skip
    listed = (await served.http.get(f"{path}/activities", headers=headers)).json()
    assert ([a["id"] for a in listed["data"]], listed["meta"]["watermark"]) == ([data["id"]], 1)
    found = (await served.http.get("/api/v1/conversations?limit=1", headers=headers)).json()
    assert [c["id"] for c in found["data"]] == [conversation]
    closed = (await served.http.post(f"{path}/close", headers=headers)).json()["data"]
    assert (closed["id"], closed["status"]) == (conversation, "closed")
    assert (await served.http.get(path, headers=headers)).json()["data"]["status"] == "closed"
    assert (await served.http.post(f"{path}/reopen", headers=headers)).json()["data"]["status"] == "active"


async def test_the_tenant_api_opens_a_conversation_once_for_a_key_and_its_person_finds_it(served: Served) -> None:
    headers, path = {"x-api-key": API_KEY, "x-idempotency-key": "o-1"}, "/api/v1/conversations"
    wanted = {"channel_id": "web", "external_id": "ann", "metadata": {"order": 7}}
    answers = [await served.http.post(path, headers=headers, json=wanted) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
    first, again = (answer.json()["data"] for answer in answers)
    assert first["id"] == again["id"]
    assert (first["channel_id"], first["status"], first["metadata"]) == ("web", "active", {"order": 7})
    assert first["participant"] == {"id": "ann", "external_id": "ann"}
    ann = await served.token("web-secret", user={"id": "ann"})
    assert (await served.say(first["id"], ann, "it is mine")).status_code == 201
    bob = await served.token("web-secret", user={"id": "bob"})
    assert (await served.say(first["id"], bob, "is it?")).status_code == 404
    nobodys = await served.http.post(path, headers=headers, json={"channel_id": "web"})
    assert nobodys.json()["data"]["participant"]["external_id"] is None
    assert nobodys.json()["data"]["id"] != first["id"]


@pytest.mark.parametrize(
    ("wanted", "refused", "named"),
    [
        ({}, (422, "invalid_message"), "channel_id"),
        ({"channel_id": "nowhere"}, (400, "channel_inactive"), "nowhere"),
        ({"channel_id": "agents"}, (403, "forbidden"), "agents"),  # it is routed nowhere
        ({"channel_id": "web", "external_id": ""}, (422, "invalid_message"), "external_id"),
        ({"channel_id": "web", "metadata": []}, (422, "invalid_message"), "metadata"),
        ({"channel_id": "web", "metadata": {"a": "x" * 17_000}}, (413, "payload_too_large"), "metadata"),
    ],
)
async def test_what_the_tenant_api_cannot_open_is_refused_by_name(
    served: Served, wanted: dict[str, Any], refused: tuple[int, str], named: str
) -> None:
    answer = await served.http.post("/api/v1/conversations", headers={"x-api-key": API_KEY}, json=wanted)
    assert code(answer) == refused
    assert named in answer.json()["error"]["message"]


async def test_the_tenant_api_lists_by_page_and_filter(served: Served) -> None:
    ids = {user: (await served.conversation(user))[0] for user in ("ann", "bob", "cleo")}
    headers, path = {"x-api-key": API_KEY}, "/api/v1/conversations"
    await served.http.post(f"{path}/{ids['bob']}/close", headers=headers)

    async def listed(**query: Any) -> dict[str, Any]:
        answer = await served.http.get(path, headers=headers, params=query)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    seen: list[str] = []
    page = await listed(limit=2)
    assert (page["meta"]["has_more"], page["meta"]["limit"]) == (True, 2)
    seen += [each["id"] for each in page["data"]]
    page = await listed(limit=2, cursor=page["meta"]["next_cursor"])
    assert (page["meta"]["has_more"], page["meta"]["next_cursor"]) == (False, None)
    seen += [each["id"] for each in page["data"]]
    assert sorted(seen) == sorted(ids.values())
    assert [each["id"] for each in (await listed(status="closed"))["data"]] == [ids["bob"]]
    assert (await listed(channel_id="agents"))["data"] == []
    [found] = (await listed(channel_id="web", external_id="cleo"))["data"]
    assert (found["id"], found["status"], found["channel_id"]) == (ids["cleo"], "active", "web")
    assert found["participant"] == {"id": "cleo", "external_id": "cleo"}
    for wrong in ({"status": "asleep"}, {"limit": "0"}, {"limit": "501"}):
        assert code(await served.http.get(path, headers=headers, params=wrong)) == (400, "bad_request")


async def test_the_tenant_api_says_which_channel_something_came_from(served: Served) -> None:
    conversation, token = await served.conversation("ann")
    headers, path = {"x-api-key": API_KEY}, f"/api/v1/conversations/{conversation}/activities"
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        await agent.say(conversation, {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": "hi"}})
        await agent.until("ack")
    listed = (await served.http.get(path, headers=headers)).json()["data"]
    assert [(each["text"], each["source_channel_id"]) for each in listed] == [("hello", None), ("hi", "agents")]


async def test_the_tenant_api_shows_that_somebody_types(served: Served) -> None:
    conversation, token = await served.conversation("ann")
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        path = f"/api/v1/conversations/{conversation}/activities"
        body = {"type": "typing", "sender": "clerk"}
        posted = await served.http.post(path, headers={"x-api-key": API_KEY}, json=body)
        assert (posted.status_code, posted.json()["data"]["type"]) == (202, "typing")
        assert (await person.until("typing"))["isTyping"] is True


async def test_many_requests_at_once_are_each_answered(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    answers = await asyncio.gather(*(served.say(conversation, token, f"m{n}", f"k{n}") for n in range(50)))
    assert sorted(answer.json()["seq"] for answer in answers) == list(range(1, 51))


async def test_a_trace_goes_with_the_command(world: World, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, token = await served.conversation()
    seen = []
    send = world.send

    async def noted(command: Any, **given: Any) -> Any:
        seen.append(list(given.get("headers", ())))
        return await send(command, **given)

    monkeypatch.setattr(world, "send", noted)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for given in (trace, "garbage", trace.upper()):
        headers = bearer(token) | {"traceparent": given}
        await served.http.post(f"{CONVERSATIONS}/{conversation}/activities", headers=headers, json={"text": "x"})
    assert [headers for headers in seen if headers] == [[("traceparent", trace.encode())]]
