"""What was said in an erased conversation is nowhere: not in Kafka, not in PostgreSQL, not in logs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import psycopg
import pytest

from tests.support.command import turnlog_async
from tests.support.people import agents
from tests.support.up import Up, turnlog_up
from turnlog import Client, TurnlogError

SECRET = "my zebra is called Wilhelmina-von-Streifen"
SAID = b"Wilhelmina-von-Streifen"
SENDER = "person-4711"
MASTER_KEY = uuid.uuid4().hex


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A whole Turnlog that seals what is said."""
    environment = {"TURNLOG_SEAL": "true", "TURNLOG_MASTER_KEY": MASTER_KEY}
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

        flushed(up)
        assert {"kafka", "postgres"} <= {name.split("/")[0] for name in files_with(up.data, SENDER.encode())}
        assert files_with(up.data, SAID) == [], "it is sealed wherever it is stored"

        timeline = ("conversation", "timeline", gone.id)
        with_key = {**up.environment, "TURNLOG_MASTER_KEY": MASTER_KEY}
        asked = await turnlog_async(*timeline, "--show-text", "--why", "case 7", environment=with_key)
        assert f"{SENDER} says: {SECRET}" in asked.out, asked.err
        keyless = await turnlog_async(*timeline, "--show-text", environment=up.environment)
        assert f"{SENDER} says: [sealed]" in keyless.out, keyless.err

        found = await turnlog_async("erase", gone.id, "--dry-run", "-o", "json", environment=up.environment)
        assert [(each["keys"], each["plain"], each["status"]) for each in found.document] == [(1, 0, "open")]
        erased = await turnlog_async(
            "erase", gone.id, "--why", "request 7", "--yes", "-o", "json", environment=up.environment
        )
        assert erased.code == 0, erased.err
        [done] = erased.document
        assert (done["seq"], done["keys"], done["destroyed"], done["gone_from_topic"]) == (3, 1, 1, 1)

        for who in (client, elsewhere):
            shown = await (await who.conversation(gone.id)).activities()
            assert [each.text for each in shown[:2]] == ["[erased]", "[erased]"]
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
