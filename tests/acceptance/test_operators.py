"""What an operator does by the API of a real gateway, with a token made on the command line."""

from __future__ import annotations

import json
import uuid

import httpx

from tests.support.command import turnlog
from tests.support.up import Up


def test_an_operator_closes_a_conversation_and_takes_a_lease_and_both_are_in_the_journal(up: Up) -> None:
    name = f"eve-{uuid.uuid4().hex[:8]}"
    made = turnlog("key", "operator", "add", name, "-o", "json", environment=up.environment)
    operator = {"authorization": f"Bearer {made.document['token']}"}
    with httpx.Client(base_url=up.gateways[-1], timeout=30.0) as http:
        secret = {"authorization": f"Bearer {up.secret('web')}"}
        login = http.post("/api/v1/converger/tokens/generate", headers=secret, json={"user": {"id": "ann"}})
        person = {"authorization": f"Bearer {login.json()['token']}"}
        conversation = http.post("/api/v1/converger/conversations", headers=person).json()["conversationId"]
        one = f"/v1/operator/conversations/{conversation}"
        assert http.post(f"{one}/close", headers=person, json={"why": "spam"}).status_code == 401
        closed = http.post(f"{one}/close", headers=operator, json={"why": "spam"})
        assert (closed.status_code, closed.json()["by"]) == (200, name)
        taken = http.post("/v1/operator/leases/0/release", headers=operator, json={"why": "a drill"})
        assert (taken.status_code, taken.json()["released"]) == (202, True)
        told = turnlog("conversation", "timeline", conversation, "-o", "jsonl", environment=up.environment)
        [event] = [line for line in map(json.loads, told.out.splitlines()) if line["event"] == "ConversationClosed"]
        assert (event["by"], event["reason"]) == (name, "spam")
        assert turnlog("key", "operator", "revoke", name, "--yes", environment=up.environment).code == 0
        assert http.post(f"{one}/close", headers=operator, json={"why": "spam"}).status_code == 401
