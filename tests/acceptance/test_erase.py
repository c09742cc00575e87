"""What was said in an erased conversation is nowhere: not in Kafka, not in PostgreSQL, not in logs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.command import turnlog_async
from tests.support.people import agents
from tests.support.up import Up, add_channels, turnlog_up
from tests.support.waiting import until
from turnlog import Client, TurnlogError

SECRET = "my zebra is called Wilhelmina-von-Streifen"
SAID = b"Wilhelmina-von-Streifen"
SENDER = "person-4711"
MASTER_KEY = uuid.uuid4().hex


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A whole Turnlog that seals what is said."""
    environment = {"TURNLOG_SEAL": "true", "TURNLOG_MASTER_KEY": MASTER_KEY, "TURNLOG_RETENTION_EVERY_S": "1"}
    data = tmp_path_factory.mktemp("sealed") / "data"
    with turnlog_up(data, "--gateways", "2", "--partitions", "2", environment=environment) as up:
        yield up


def files_with(folder: Path, words: bytes) -> list[str]:
    """Files below `folder` that hold these bytes."""
    return [
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and words in path.read_bytes()
    ]


def flushed(up: Up) -> None:
    """PostgreSQL has written its tables, and not only its log of what it will write."""
    with psycopg.connect(up.document["postgres"], autocommit=True) as connection:
        connection.execute("CHECKPOINT")


async def handed_to_and_fro(up: Up, conversation: str) -> None:
    """A system of the tenant's has a human take over, and says why in its own words."""
    made = await turnlog_async("key", "add", "desk", "-o", "json", environment=up.environment)
    headers = {"x-api-key": made.document["key"]}
    async with httpx.AsyncClient(base_url=f"{up.gateways[0]}/api/v1/conversations/{conversation}") as tenant:
        for what in ({"by": "desk", "to": "eve"}, {"by": "desk"}):
            path = "/handover" if "to" in what else "/handback"
            answer = await tenant.post(path, json={**what, "reason": SECRET}, headers=headers)
            assert answer.status_code == 200, answer.text


async def test_an_erased_conversation_is_nowhere_and_the_audit_still_holds(sealed: Up) -> None:
    up = sealed
    async with (
        agents(up, f"g{uuid.uuid4().hex[:8]}", 1),
        Client(up.gateways[0], channel_secret=up.secret("web"), user=SENDER, insist=True) as client,
        Client(up.gateways[1], channel_secret=up.secret("web"), user=SENDER, insist=True) as elsewhere,
    ):
        conversations = [await client.open(), await client.open()]
        for conversation in conversations:
            async with aclosing(conversation.messages()) as messages:
                await conversation.send(SECRET)
                said = [(await anext(messages)).text for _ in range(2)]
            assert said == [SECRET, f"answer to {SECRET}"]
        gone, kept = conversations
        there = [each.text for each in await (await elsewhere.conversation(gone.id)).activities()]
        assert there == [SECRET, f"answer to {SECRET}"], "the other gateway opens what this one sealed"

        await handed_to_and_fro(up, gone.id)
        flushed(up)
        assert {"kafka", "postgres"} <= {name.split("/")[0] for name in files_with(up.data, SENDER.encode())}
        assert files_with(up.data, SAID) == [], "it is sealed wherever it is stored"

        timeline = ("conversation", "timeline", gone.id)
        with_key = {**up.environment, "TURNLOG_MASTER_KEY": MASTER_KEY}
        asked = await turnlog_async(*timeline, "--show-text", "--why", "case 7", environment=with_key)
        assert f"{SENDER} says: {SECRET}" in asked.out, asked.err
        assert f"desk hands the conversation to eve: no agent is heard ({SECRET})" in asked.out
        masked = await turnlog_async(*timeline, environment=up.environment)
        assert "desk gives the conversation back to agents (" in masked.out
        assert SECRET not in masked.out
        keyless = await turnlog_async(*timeline, "--show-text", environment=up.environment)
        assert f"{SENDER} says: [sealed]" in keyless.out, keyless.err

        found = await turnlog_async("erase", gone.id, "--dry-run", "-o", "json", environment=up.environment)
        assert [(each["keys"], each["plain"], each["status"]) for each in found.document] == [(1, 0, "open")]
        erased = await turnlog_async(
            "erase", gone.id, "--why", "request 7", "--yes", "-o", "json", environment=up.environment
        )
        assert erased.code == 0, erased.err
        [done] = erased.document
        assert (done["seq"], done["keys"], done["destroyed"], done["gone_from_topic"]) == (5, 1, 1, 1)

        for who in (client, elsewhere):
            shown = await (await who.conversation(gone.id)).activities()
            assert [each.text for each in shown[:2]] == ["[erased]", "[erased]"]
        after = await turnlog_async(*timeline, "--show-text", environment=with_key)
        assert "desk hands the conversation to eve: no agent is heard ([erased])" in after.out
        assert [each.text for each in await kept.activities()] == [SECRET, f"answer to {SECRET}"]
        with pytest.raises(TurnlogError, match="closed"):
            await gone.send("are you still there?")
        with pytest.raises(TurnlogError):
            await gone.reopen()
        again = await turnlog_async("erase", gone.id, "--yes", "-o", "json", environment=up.environment)
        assert (again.code, again.document[0]["repeated"]) == (0, True)

    by_person = await turnlog_async("erase", "--participant", SENDER, "--yes", "-o", "json", environment=up.environment)
    assert by_person.code == 0, by_person.err
    assert {each["conversation"]: each["repeated"] for each in by_person.document} == {gone.id: True, kept.id: False}
    verdict = await turnlog_async("audit", "verify", "-o", "json", environment=up.environment)
    assert (verdict.code, verdict.document["violations"]) == (0, []), verdict.err


def asked(up: Up, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """What PostgreSQL answers."""
    with psycopg.connect(up.document["postgres"], autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def idle_for(up: Up, conversation: str, days: int) -> None:
    """Where idle conversations are looked for, nothing was said in it for so many days more than there was."""
    ms = days * 24 * 60 * 60 * 1000
    asked(up, "UPDATE transcript SET at = at - %s WHERE conversation_id = %s", ms, conversation)
    asked(up, "UPDATE runs SET opened_at = opened_at - %s WHERE conversation_id = %s", ms, conversation)
    asked(up, "UPDATE conversations SET updated_at = updated_at - %s WHERE id = %s", ms, conversation)


async def test_what_a_channel_keeps_no_longer_is_erased_by_itself(sealed: Up, tmp_path: Path) -> None:
    up = sealed
    async with (
        agents(up, f"g{uuid.uuid4().hex[:8]}", 1),
        Client(up.gateways[0], channel_secret=up.secret("web"), user="a passer-by", insist=True) as client,
    ):
        old, new = [await client.open(), await client.open()]
        for conversation in (old, new):
            async with aclosing(conversation.messages()) as messages:
                await conversation.send(SECRET)
                assert [(await anext(messages)).text for _ in range(2)] == [SECRET, f"answer to {SECRET}"]
        listed = (await turnlog_async("channel", "list", "-o", "json", environment=up.environment)).document
        for channel in listed["channels"]:
            channel["retain_days"] = 30 if channel["id"] == "web" else None
        file = tmp_path / "channels.json"
        file.write_text(json.dumps(listed))
        applied = await turnlog_async("channel", "apply", str(file), "--yes", environment=up.environment)
        assert "~ channel web: retain_days null → 30" in applied.err
        assert "warning" not in applied.err, "there are keys"

        soon = ("erase", "--due", "--within", "31d", "--dry-run", "-o", "json")

        async def both_are_due() -> bool:
            found = (await turnlog_async(*soon, environment=up.environment)).document
            return {old.id, new.id} <= {each["conversation"] for each in found}

        await until(both_are_due)
        idle_for(up, old.id, 31)
        await until(lambda: asked(up, "SELECT status FROM conversations WHERE id = %s", old.id) == [("erased",)])
        assert [each.text for each in (await old.activities())[:2]] == ["[erased]", "[erased]"]
        assert [each.text for each in await new.activities()] == [SECRET, f"answer to {SECRET}"]

    told = await turnlog_async("conversation", "timeline", old.id, environment=up.environment)
    assert "retain_days 30 of channel web" in told.out
    again = await turnlog_async("erase", old.id, "--yes", "-o", "json", environment=up.environment)
    assert [(each["repeated"], each["destroyed"], each["gone_from_topic"]) for each in again.document] == [(True, 1, 1)]
    verdict = await turnlog_async("audit", "verify", "-o", "json", environment=up.environment)
    assert (verdict.code, verdict.document["violations"]) == (0, []), verdict.err


async def test_what_is_due_is_erased_at_once_when_asked_unless_somebody_came_back(up: Up, tmp_path: Path) -> None:
    channel = f"brief-{uuid.uuid4().hex[:8]}"
    [secret] = (await add_channels(up, tmp_path, [{"id": channel, "kind": "web", "retain_days": 1}], [])).values()
    file = str(tmp_path / "channels.json")
    warned = await turnlog_async("channel", "apply", file, "--dry-run", environment=up.environment)
    assert f"warning: {channel}: retain_days is set, and nobody seals what is said" in warned.err
    async with Client(up.gateways[0], channel_secret=secret, user="otto", insist=True) as client:
        old, back = [await client.open(), await client.open()]
        for conversation in (old, back):
            await conversation.send("plain as day")
    due = ("erase", "--due", "--channel", channel, "-o", "json")

    async def both_are_soon() -> bool:
        found = (await turnlog_async(*due, "--within", "2d", "--dry-run", environment=up.environment)).document
        return {old.id, back.id} == {each["conversation"] for each in found if each["messages"] == 1}

    await until(both_are_soon)
    for conversation in (old, back):
        idle_for(up, conversation.id, 2)
    # As who has not read yet what was said in it just now.
    asked(up, "UPDATE conversations SET head_seq = 0 WHERE id = %s", back.id)
    ended = await turnlog_async(*due, "--yes", environment=up.environment)
    assert f"{back.id}: not erased: head_seq: 0 was the highest seq, 1 is now" in ended.err
    assert ended.code == 1
    assert asked(up, "SELECT text FROM transcript WHERE conversation_id = %s AND seq = 1", old.id) == [("[erased]",)]
    assert asked(up, "SELECT text FROM transcript WHERE conversation_id = %s", back.id) == [("plain as day",)]
    idle_for(up, back.id, -2)
    asked(up, "UPDATE conversations SET head_seq = 1 WHERE id = %s", back.id)
    nothing = await turnlog_async(*due, "--yes", environment=up.environment)
    assert (nothing.code, nothing.document) == (0, [])


async def test_what_was_said_while_nothing_was_sealed_is_named_and_not_passed_over(up: Up) -> None:
    async with Client(up.gateways[0], channel_secret=up.secret("web"), user="otto", insist=True) as client:
        conversation = await client.open()
        await conversation.send("plain as day")
    refused = await turnlog_async("erase", conversation.id, "--yes", environment=up.environment)
    assert refused.code == 1
    assert "1 messages that were stored before TURNLOG_SEAL was on" in refused.err
    forced = await turnlog_async(
        "erase", conversation.id, "--plain-too", "--yes", "-o", "json", environment=up.environment
    )
    assert forced.code == 0, forced.err
    async with Client(up.gateways[1], channel_secret=up.secret("web"), user="otto", insist=True) as client:
        shown = await (await client.conversation(conversation.id)).activities()
        assert shown[0].text == "[erased]"
