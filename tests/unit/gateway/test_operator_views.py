"""What operators are shown by the API: only with a token of theirs, by pages, and words only where it is noted."""

from __future__ import annotations

import pytest

from connectors.gateway.openapi import DOCUMENT
from connectors.gateway.operator_views import WORDS
from connectors.gateway.ports import Unavailable
from streams.core.commands import EraseConversation, NoteAction
from tests.support.gateway_world import OPERATOR_TOKEN, Served, World, bearer
from tests.unit.gateway.test_openapi import check

OPERATOR = bearer(OPERATOR_TOKEN)
ALL = "/v1/operator/conversations"
ONE = f"{ALL}/{{conversation_id}}"
SECRET = "my number is 4711"


async def test_a_conversation_is_found_by_its_id_and_by_its_person(served: Served) -> None:
    ann, _ = await served.conversation("ann")
    bob, _ = await served.conversation("bob")
    for query, found in (("ann", ann), (bob, bob), (bob[:12], bob)):
        page = check(await served.http.get(ALL, headers=OPERATOR, params={"q": query}), ALL)
        assert [each["id"] for each in page["conversations"]] == [found]
    nothing = check(await served.http.get(ALL, headers=OPERATOR, params={"channel": "phone"}), ALL)
    assert (nothing["conversations"], nothing["next"]) == ([], None)
    closed = await served.http.get(ALL, headers=OPERATOR, params={"status": "closed"})
    assert check(closed, ALL)["conversations"] == []


async def test_conversations_come_by_pages(served: Served) -> None:
    made = sorted([(await served.conversation())[0] for _ in range(3)])
    first = check(await served.http.get(ALL, headers=OPERATOR, params={"limit": 2}), ALL)
    rest = check(await served.http.get(ALL, headers=OPERATOR, params={"limit": 2, "cursor": first["next"]}), ALL)
    assert sorted(each["id"] for each in [*first["conversations"], *rest["conversations"]]) == made
    assert rest["next"] is None


async def test_a_conversation_is_shown_with_its_owner_and_its_run(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, SECRET)
        await agent.until("text")
        shown = check(await served.http.get(ONE.format(conversation_id=conversation), headers=OPERATOR), ONE)
        assert list(shown["owners"].values()) == [shown["open_runs"][0]["member"]]
        members = check(await served.http.get("/v1/operator/members", headers=OPERATOR), "/v1/operator/members")
        assert [each["member"] for each in members["members"]] == list(shown["owners"].values())


async def test_its_journal_comes_by_pages_in_order_and_whole(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        for number in range(3):
            await served.say(conversation, token, f"line {number}")
            await agent.until("text")
    path = f"{ONE.format(conversation_id=conversation)}/events"
    whole = check(await served.http.get(path, headers=OPERATOR), f"{ONE}/events")
    assert (whole["done"], whole["next"]) == (True, whole["end"])
    paged, params = [], {"limit": 2}
    while True:
        page = check(await served.http.get(path, headers=OPERATOR, params=params), f"{ONE}/events")
        paged += page["events"]
        if page["done"]:
            break
        params = {"limit": 2, "offset": page["next"]}
    assert paged == whole["events"]
    kinds = [event["type"] for event in paged]
    assert kinds.count("TurnCommitted") == 3
    assert {"WriterOpened", "ConversationOpened"} <= set(kinds)


async def test_what_was_said_is_masked_unless_it_is_asked_for_which_the_journal_notes(
    served: Served, world: World
) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, SECRET)
        await agent.until("text")
        await agent.say(conversation, {"type": "text", "data": {"text": f"noted: {SECRET}"}})
        await agent.settled()
    path = f"{ONE.format(conversation_id=conversation)}/events"
    masked = await served.http.get(path, headers=OPERATOR)
    assert SECRET not in masked.text
    [turn] = [event for event in check(masked, f"{ONE}/events")["events"] if event["type"] == "TurnCommitted"]
    assert turn["masked"] == {"turn.text": len(SECRET)}
    assert not [command for command in world.commands if isinstance(command, NoteAction)]
    shown = await served.http.get(path, headers=OPERATOR, params={"showText": "1", "why": "ticket 12"})
    assert shown.text.count(SECRET) == 2
    [note] = [command for command in world.commands if isinstance(command, NoteAction)]
    assert (note.action, note.subject, note.by, note.reason) == ("text_shown", conversation, "eve", "ticket 12")


async def test_what_was_said_in_an_erased_conversation_is_shown_to_nobody(served: Served, world: World) -> None:
    """Though nobody had sealed it, so that no key could be destroyed; and whether or not the erasure is on the page."""
    conversation, token = await served.conversation()
    await served.say(conversation, token, SECRET)
    erase = EraseConversation(at=0, timestamp=0, conversation_id=conversation, by="op", reason="asked", id="e")
    await (await world.send(erase))
    path = f"{ONE.format(conversation_id=conversation)}/events"
    for limit in ("1", "2", "3", "4", "5", "100"):
        shown = await served.http.get(path, headers=OPERATOR, params={"showText": "1", "limit": limit})
        assert SECRET not in shown.text
    [turn] = [each for each in check(shown, f"{ONE}/events")["events"] if each["type"] == "TurnCommitted"]
    assert turn["fields"]["turn"]["text"] == "[erased]"


async def test_why_a_conversation_was_handed_over_is_masked_too_and_why_it_was_closed_is_not(served: Served) -> None:
    conversation, _ = await served.conversation()
    tenant = f"/api/v1/conversations/{conversation}"
    handed = {"by": "desk", "to": "eve", "reason": SECRET}
    assert (
        await served.http.post(f"{tenant}/handover", headers={"x-api-key": "tlk_test"}, json=handed)
    ).status_code == 200
    closed = await served.http.post(
        f"/v1/operator/conversations/{conversation}/close", headers=OPERATOR, json={"why": "ticket 12"}
    )
    assert closed.status_code == 200, closed.text
    path = f"{ONE.format(conversation_id=conversation)}/events"
    masked = await served.http.get(path, headers=OPERATOR)
    assert SECRET not in masked.text
    events = {event["type"]: event for event in check(masked, f"{ONE}/events")["events"]}
    over = events["ConversationHandedOver"]
    assert (over["masked"], over["fields"]["to"], "reason" in over["fields"]) == ({"reason": len(SECRET)}, "eve", False)
    assert events["ConversationClosed"]["fields"]["reason"] == "ticket 12"


async def test_nothing_is_shown_that_cannot_be_noted(served: Served, world: World) -> None:
    conversation, token = await served.conversation()
    await served.say(conversation, token, SECRET)
    world.broken = Unavailable("Kafka is away")
    path = f"{ONE.format(conversation_id=conversation)}/events"
    refused = await served.http.get(path, headers=OPERATOR, params={"showText": "1"})
    assert refused.status_code == 503
    assert SECRET not in refused.text
    world.broken = None


async def test_partitions_are_shown_with_who_writes_them_and_how_far_they_are(served: Served, world: World) -> None:
    path = "/v1/operator/partitions"
    served.read_model.behind = 1
    shown = check(await served.http.get(path, headers=OPERATOR), path)["partitions"]
    assert [each["partition"] for each in shown] == list(range(world.partitions))
    assert {(each["worker"], each["writer_epoch"], each["live"], each["lag"]) for each in shown} == {
        ("wk-test", 1, True, 1)
    }


async def test_whose_token_it_is_is_told(served: Served) -> None:
    assert check(await served.http.get("/v1/operator/me", headers=OPERATOR), "/v1/operator/me") == {"name": "eve"}


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path, operations in DOCUMENT["paths"].items()
        if path.startswith("/v1/operator") and "get" in operations
    ),
)
async def test_nobody_else_is_shown_anything(served: Served, path: str) -> None:
    conversation, token = await served.conversation()
    path = path.format(conversation_id=conversation)
    for headers in ({}, bearer(token), bearer("tlo_wrong"), {"x-api-key": "tlk_test"}):
        assert (await served.http.get(path, headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("params", "named"),
    [({"status": "odd"}, "status"), ({"limit": "0"}, "limit"), ({"q": "x" * 300}, "q"), ({"q": "\0"}, "q")],
)
async def test_a_bad_question_names_what_is_wrong(served: Served, params: dict[str, str], named: str) -> None:
    answer = await served.http.get(ALL, headers=OPERATOR, params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(named)


def test_no_field_with_words_is_forgotten() -> None:
    assert {"text", "data", "metadata", "meta", "extra", "resume", "raw"} == WORDS
