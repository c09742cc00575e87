"""The API's description is what the API does: its schemas hold for real answers, and nothing in these is left out."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from connectors.gateway.openapi import DOCUMENT
from tests.support.gateway_world import API_KEY, Served, bearer

CLIENT, TENANT = "/api/v1/converger", "/api/v1"
KEY = {"x-api-key": API_KEY}


def closed(schema: Any) -> Any:
    """The same schema, with nothing allowed in an object beside what it describes."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema else {}
    return {name: closed(value) for name, value in schema.items()} | more


def described(method: str, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = DOCUMENT["paths"][path][method]
    return operation


def check(answer: httpx.Response, path: str, status: int = 200) -> Any:
    """Its JSON, which is as the description says of that endpoint and status."""
    assert answer.status_code == status, answer.text
    operation = described(answer.request.method.lower(), path)
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), closed(schema), jsonschema.Draft202012Validator)
    return answer.json()


async def test_the_answers_of_the_client_api_are_as_described(served: Served) -> None:
    at = f"{CLIENT}/conversations/{{conversation_id}}"
    asked = {"scope": "conversation", "user": {"id": "ann"}}
    login = await served.http.post(f"{CLIENT}/tokens/generate", headers=bearer("web-secret"), json=asked)
    token = check(login, f"{CLIENT}/tokens/generate")["token"]
    check(await served.http.post(f"{CLIENT}/tokens/refresh", headers=bearer(token)), f"{CLIENT}/tokens/refresh")
    opened = await served.http.post(f"{CLIENT}/conversations", headers=bearer(token))
    bound = check(opened, f"{CLIENT}/conversations", 201)
    one, headers = f"{CLIENT}/conversations/{bound['conversationId']}", bearer(bound["token"])
    check(await served.http.get(one, headers=headers), at)
    said = {
        "type": "message",
        "text": "hello",
        "from": {"id": "ann"},
        "attachments": [{"contentType": "text/plain"}],
        "channelData": {"a": 1},
        "replyToId": "m-1",
    }
    properties = described("post", f"{at}/activities")["requestBody"]["content"]["application/json"]["schema"]
    assert set(said) == set(properties["properties"])
    keyed = headers | {"x-idempotency-key": "k"}
    check(await served.http.post(f"{one}/activities", headers=keyed, json=said), f"{at}/activities", 201)
    check(await served.http.post(f"{one}/activities", headers=keyed, json=said), f"{at}/activities", 200)
    typing = await served.http.post(f"{one}/activities", headers=headers, json={"type": "typing"})
    check(typing, f"{at}/activities", 202)
    page = check(await served.http.get(f"{one}/activities", headers=headers), f"{at}/activities")
    assert len(page["activities"]) == 1
    check(await served.http.post(f"{one}/close", headers=headers), f"{at}/close")
    check(await served.http.post(f"{one}/reopen", headers=headers), f"{at}/reopen")


async def test_the_answers_of_the_tenant_api_are_as_described(served: Served) -> None:
    conversation, _ = await served.conversation()
    at, one = f"{TENANT}/conversations/{{conversation_id}}", f"{TENANT}/conversations/{conversation}"
    said = {
        "type": "message",
        "text": "hello",
        "sender": "ann",
        "attachments": [{"contentType": "text/plain"}],
        "metadata": {"a": 1},
        "reply_to_id": "m-1",
        "source_channel_id": "web",
    }
    properties = described("post", f"{at}/activities")["requestBody"]["content"]["application/json"]["schema"]
    assert set(said) == set(properties["properties"])
    check(await served.http.post(f"{one}/activities", headers=KEY, json=said), f"{at}/activities", 201)
    assert check(await served.http.get(f"{one}/activities", headers=KEY), f"{at}/activities")["data"]
    check(await served.http.get(one, headers=KEY), at)
    assert check(await served.http.get(f"{TENANT}/conversations", headers=KEY), f"{TENANT}/conversations")["data"]
    check(await served.http.post(f"{one}/close", headers=KEY), f"{at}/close")
    check(await served.http.post(f"{one}/reopen", headers=KEY), f"{at}/reopen")
    wanted = {"channel_id": "web", "external_id": "bob", "metadata": {"a": 1}}
    all_ = described("post", f"{TENANT}/conversations")["requestBody"]["content"]["application/json"]["schema"]
    assert set(wanted) == set(all_["properties"])
    opened = await served.http.post(f"{TENANT}/conversations", headers=KEY, json=wanted)
    check(opened, f"{TENANT}/conversations", 201)


async def test_the_state_is_as_described(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        state = await served.http.get(f"/v1/conversations/{conversation}", headers=KEY)
        assert check(state, "/v1/conversations/{conversation_id}")["open_runs"]
        check(await served.http.get("/v1/members", headers=KEY), "/v1/members")
        check(await served.http.get("/v1/leases", headers=KEY), "/v1/leases")


@pytest.mark.parametrize("said", ["replyToId", "reply_to_id", "channelData", "from.id", "attachments[].contentType"])
async def test_the_page_shows_what_bodies_may_hold(served: Served, said: str) -> None:
    page = (await served.http.get("/docs")).text
    assert f"<td>body</td><td><code>{said}</code></td>" in page


async def test_the_page_says_which_credential_each_endpoint_takes(served: Served) -> None:
    page = (await served.http.get("/docs")).text
    assert page.count("Credential: ") == page.count("<details>") == sum(map(len, DOCUMENT["paths"].values()))
    assert "Credential: token or apiKey." in page
