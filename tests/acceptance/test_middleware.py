"""A channel's middleware on a whole Turnlog, as the unmodified public clients meet it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.acceptance.test_public_clients import CLIENTS, Person
from tests.support.program import program
from tests.support.up import Up, add_channels
from tests.support.waiting import until


async def test_a_person_is_shown_what_is_masked_and_no_gap_where_something_is_filtered(
    up: Up, clients_python: str, tmp_path: Path
) -> None:
    name = uuid.uuid4().hex[:8]
    people, agents = f"shop-{name}", f"bots-{name}"
    steps = [{"mask": {"pattern": r"\d{4}-\d{4}", "with": "****"}}, {"filter": {"types": ["buttons", "run"]}}]
    channels: list[dict[str, Any]] = [
        {"id": people, "kind": "web", "middleware": steps},
        {"id": agents, "kind": "websocket", "group_settle_ms": 0},
    ]
    secrets = await add_channels(up, tmp_path, channels, [{"from": people, "to": [agents]}])
    url = up.gateways[0]
    agent = program(clients_python, str(CLIENTS / "agent.py"), url, "A", "g", environment={"SECRET": secrets[agents]})
    user = program(clients_python, str(CLIENTS / "user.py"), url, environment={"SECRET": secrets[people]})
    async with user as client:

        async def logged_in() -> str | None:  # gateways look for a new document once a second
            answer = await client.ask("generate_token", user_id="ana")
            return answer["value"]["token"] if "value" in answer else None

        token = await until(logged_in)
        opened = await client.call("create_conversation", token=token)
        person = Person(client, opened["conversationId"], opened["token"])
        async with agent as bot:
            await bot.until("ready")
            await client.call("connect", name="s", token=person.token, conversation_id=person.conversation)
            await person.say("buttons please")
            assert [(await client.call("receive", name="s"))["type"] for _ in range(2)] == ["text", "event"]
            await person.say("pay by 1234-5678")
            assert (await bot.until("turn", text="pay by 1234-5678"))["seq"] == 3
            shown = [await client.call("receive", name="s") for _ in range(2)]
        assert [(each["seq"], each["data"]["text"]) for each in shown] == [(3, "pay by ****"), (4, "A: pay by ****")]
        activities = await person.activities()
        assert [(each["type"], each["text"]) for each in activities] == [
            ("message", "buttons please"),
            ("event", "hidden"),
            ("message", "pay by ****"),
            ("message", "A: pay by ****"),
        ]
