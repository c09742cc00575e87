"""A person's socket: replay, acks, refusals, limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.gateway.ports import Unavailable
from tests.support.gateway_world import Peer, Served, World, serve, settings_for


async def closed(peer: Peer) -> tuple[int | None, str]:
    """Code and reason of the close that ends the connection."""
    code, reason, _ = await peer.ended()
    return code, reason


async def test_a_replay_continues_live_without_a_gap(served: Served) -> None:
    conversation, token = await served.conversation()
    for number in range(1, 251):
        await served.say(conversation, token, f"m{number}")
    async with served.socket(token, {"watermark": 3}) as person:
        welcome = await person.frame()
        assert (welcome["data"]["watermark"], welcome["data"]["conversationId"]) == (250, conversation)
        await served.say(conversation, token, "m251")
        seqs = [(await person.until("text"))["seq"] for _ in range(248)]
    assert seqs == list(range(4, 252))


async def test_the_own_connection_gets_the_ack_and_the_others_the_frame(served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as one, served.socket(token, {"watermark": 0}) as two:
        await one.frame()
        await two.frame()
        await one.send({"type": "text", "clientId": "c-1", "data": {"text": "hi"}})
        assert [f["type"] for f in await one_of(one)] == ["ack"]
        shown = await two.until("text")
        assert (shown["seq"], shown["clientId"], shown["from"]) == (1, "c-1", "user")


async def one_of(peer: Peer) -> list[dict[str, Any]]:
    """The next frame and whatever is written up to a ping's answer."""
    return [await peer.frame(), *await peer.settled()]


async def test_a_resent_message_gets_the_first_ack_again(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    acks = []
    for _ in range(2):
        async with served.socket(token, {"watermark": 0}) as person:
            await person.until("welcome")
            await person.send({"type": "text", "clientId": "c-1", "data": {"text": "hi"}})
            acks.append(await person.until("ack"))
    assert "duplicate" not in acks[0]
    assert acks[1] == {**acks[0], "duplicate": True}
    assert world.kinds(conversation).count("TurnCommitted") == 1


async def test_a_send_without_client_id_comes_back_as_a_frame(served: Served) -> None:
    """It gets no ack, so that nothing else could fill its seq."""
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await person.send({"type": "text", "data": {"text": "hi"}})
        assert (await person.until("text"))["seq"] == 1


@pytest.mark.parametrize(
    ("raw", "code", "client_id", "named"),
    [
        ("{", "bad_request", None, "JSON"),
        ("[]", "bad_request", None, "object"),
        ('{"data":{}}', "bad_request", None, "type"),
        ('{"type":"bogus","clientId":"c"}', "invalid_message", "c", "data"),
        ('{"type":"BOGUS","clientId":"c","data":{}}', "invalid_message", "c", "type"),
        ('{"type":"ack","clientId":"c","data":{}}', "bad_request", "c", "ack"),
        ('{"type":"resume","clientId":"c","answers":{"a":1}}', "not_interrupted", "c", "answers"),
        ('{"type":"resume","clientId":"c","answers":{}}', "invalid_message", "c", "answers"),
        ('{"type":"edit","messageId":"m","data":"new"}', "invalid_message", None, "edit.data"),
        ('{"type":"regenerate"}', "invalid_message", None, "messageId"),
        ('{"type":"hello"}', "bad_request", None, "hello"),
        ('{"type":"text","clientId":"c","data":{}}', "invalid_message", "c", "text"),
        ('{"type":"text","clientId":"c","data":{"text":"a\\u0000"}}', "invalid_message", "c", "data.text"),
        ('{"type":"text","clientId":"c","data":{"text":"a\\ud83d"}}', "invalid_message", "c", "data.text"),
        ('{"type":"text","clientId":"has space","data":{"text":"a"}}', "invalid_message", None, "clientId"),
        ('{"type":"location","clientId":"c","data":{"latitude":91,"longitude":0}}', "invalid_message", "c", "latitude"),
        ('{"type":"text","clientId":"c","data":{"text":"%s"}}' % ("a" * 70_000), "payload_too_large", "c", "data.text"),
        ('{"type":"text","clientId":"c","data":{"text":"%s"}}' % ("a" * 200_000), "payload_too_large", "c", "frame"),
        ('{"type":"text","clientId":"c","data":{"text":"%s"}}' % ("a" * 1_000_000), "payload_too_large", "c", "frame"),
        ('{"type":"sync","watermark":"seven"}', "invalid_watermark", None, "watermark"),
        ('{"type":"auth"}', "bad_request", None, "token"),
    ],
)
async def test_a_bad_frame_is_refused_by_name_and_the_connection_goes_on(
    world: World, served: Served, raw: str, code: str, client_id: str | None, named: str
) -> None:
    conversation, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await person.raw.send(raw)
        data = (await person.until("error"))["data"]
        assert (data["code"], data.get("clientId")) == (code, client_id)
        assert named in data["message"]
        await person.send({"type": "text", "clientId": "ok", "data": {"text": "fine"}})
        assert (await person.until("ack"))["seq"] == 1
    assert world.kinds(conversation).count("TurnCommitted") == 1


async def test_a_message_above_the_hard_cap_closes_with_1009(served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await person.send({"type": "text", "data": {"text": "a" * 1_100_000}})
        assert (await closed(person))[0] == 1009


async def test_the_33rd_unacked_send_is_refused_and_the_others_are_acked(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    partition = served.gateway.partition_of(conversation)
    world.stop(partition)
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        for number in range(1, 34):
            await person.send({"type": "text", "clientId": f"c-{number}", "data": {"text": "x"}})
        refused = (await person.until("error"))["data"]
        assert (refused["code"], refused["clientId"], refused["retryable"]) == ("too_many_in_flight", "c-33", True)
        world.go_on(partition)
        assert [(await person.until("ack"))["clientId"] for _ in range(32)] == [f"c-{n}" for n in range(1, 33)]


async def test_frames_above_the_rate_are_refused_with_a_time_to_wait(served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        for _ in range(60):
            await person.send({"type": "typing", "isTyping": True})
        data = (await person.until("error"))["data"]
        assert (data["code"], data["retryable"]) == ("rate_limited", True)
        assert data["retryAfterMs"] > 0
        person.raw.transport.abort()  # the other refusals are not read


async def test_a_closed_conversation_refuses_sends_by_client_id(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.gateway.commands.close_conversation(conversation, "ann")
        update = await person.until("conversationUpdate")
        assert (update["data"]["status"], update["seq"]) == ("closed", 1)
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "hi"}})
        data = (await person.until("error"))["data"]
        assert (data["code"], data["clientId"], data["retryable"]) == ("conversation_closed", "c-1", False)


async def test_a_watermark_above_the_head_is_told_and_sync_mends_it(served: Served) -> None:
    conversation, token = await served.conversation()
    await served.say(conversation, token, "m1")
    async with served.socket(token, {"watermark": 9}) as person:
        assert (await person.frame())["data"]["watermark"] == 1
        data = (await person.until("error"))["data"]
        assert data["code"] == "invalid_watermark"
        assert "clientId" not in data
        await person.send({"type": "sync", "watermark": 0})
        assert (await person.until("text"))["seq"] == 1
        await served.say(conversation, token, "m2")
        assert (await person.until("text"))["seq"] == 2


async def test_sync_replays_on_a_live_connection(served: Served) -> None:
    conversation, token = await served.conversation()
    for number in range(3):
        await served.say(conversation, token, f"m{number}")
    async with served.socket(token, {"watermark": 3}) as person:
        await person.until("welcome")
        await person.send({"type": "sync", "watermark": 1})
        assert [(await person.until("text"))["seq"] for _ in range(2)] == [2, 3]


async def test_a_history_that_cannot_be_read_is_told_and_asked_again(served: Served) -> None:
    conversation, token = await served.conversation()
    await served.say(conversation, token, "m1")
    served.gateway.recent._conversations.clear()  # as if it were long ago
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        assert (await person.until("text"))["seq"] == 1
        served.read_model.broken = Unavailable("PostgreSQL is away")
        await person.send({"type": "sync", "watermark": 0})
        data = (await person.until("error"))["data"]
        assert (data["code"], data["retryAfterMs"]) == ("replay_unavailable", 1_000)
        served.read_model.broken = None
        await person.send({"type": "sync", "watermark": 0})
        assert (await person.until("text"))["seq"] == 1


async def test_a_send_that_the_intake_does_not_take_is_refused_by_client_id(world: World, served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        world.broken = Unavailable("Kafka is away")
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "x"}})
        data = (await person.until("error"))["data"]
        assert (data["code"], data["clientId"], data["retryable"]) == ("unavailable", "c-1", True)
        world.broken = None
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "x"}})
        assert (await person.until("ack"))["seq"] == 1


async def test_a_token_without_a_conversation_gets_a_new_one(served: Served) -> None:
    async with served.socket(await served.token(), {}) as person:
        welcome = (await person.frame())["data"]
        await person.send({"type": "text", "clientId": "c", "data": {"text": "x"}})
        assert (await person.until("ack"))["seq"] == 1
    assert welcome["watermark"] == 0


async def test_what_is_sent_before_the_welcome_is_taken_after_it(served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "x"}})
        assert (await person.frame())["type"] == "welcome"
        assert (await person.until("ack"))["seq"] == 1


async def test_a_socket_opens_while_postgres_is_away(served: Served) -> None:
    _, token = await served.conversation()
    served.read_model.broken = Unavailable("PostgreSQL is away")
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "x"}})
        assert (await person.until("ack"))["seq"] == 1


@pytest.mark.parametrize(
    ("hello", "code", "close"),
    [
        ({"protocol": "other/9"}, "unsupported_protocol", 4400),
        ({"conversationId": "another"}, "forbidden", 4403),
        ({"token": "forged"}, "unauthorized", 4401),
    ],
)
async def test_a_refused_hello_is_answered_and_closed(
    served: Served, hello: dict[str, Any], code: str, close: int
) -> None:
    _, token = await served.conversation()
    async with served.socket(token) as person:
        await person.send({"type": "hello", **hello})
        assert (await person.frame())["data"]["code"] == code
        assert (await closed(person))[0] == close


async def test_anything_before_hello_ends_the_connection(served: Served) -> None:
    _, token = await served.conversation()
    async with served.socket(token) as person:
        await person.send({"type": "text", "data": {"text": "x"}})
        assert (await person.frame())["data"]["code"] == "unsupported_protocol"
        assert (await closed(person))[0] == 4400


async def test_a_wrong_token_is_refused_after_hello_with_4401(served: Served) -> None:
    """Refused earlier, the public clients retry for ever."""
    async with served.socket("wrong", {}) as person:
        assert (await person.frame())["data"]["code"] == "unauthorized"
        assert (await closed(person))[0] == 4401


async def test_an_unknown_conversation_is_refused(served: Served) -> None:
    async with served.socket(await served.token(), {"conversationId": "nowhere"}) as person:
        assert (await person.frame())["data"]["code"] == "conversation_not_found"
        assert (await closed(person))[0] == 4400


async def test_a_gateway_that_is_not_ready_sends_clients_away_for_a_while(world: World) -> None:
    async with serve(world) as ready:
        _, token = await ready.conversation()
    async with serve(world, ready=False) as served, served.socket(token, {}) as person:
        assert (await person.frame())["data"]["code"] == "unavailable"
        code, reason = await closed(person)
        assert code == 1012
        assert json.loads(reason)["retryAfterMs"] > 0


async def test_a_fresh_token_prolongs_the_session(served: Served) -> None:
    _, token = await served.conversation()
    fresh = (
        await served.http.post("/api/v1/converger/tokens/refresh", headers={"authorization": f"Bearer {token}"})
    ).json()["token"]
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await person.send({"type": "auth", "token": fresh})
        assert (await person.until("tokenRefreshed"))["data"]["expiresAt"] > 0
        await person.send({"type": "auth", "token": await served.token(user={"id": "bob"})})
        assert (await person.until("error"))["data"]["code"] == "forbidden"
        await person.send({"type": "auth", "token": "forged"})
        assert (await person.until("error"))["data"]["code"] == "unauthorized"
        await person.settled()


async def test_an_expired_token_closes_the_session(world: World) -> None:
    async with serve(world, settings_for(token_ttl_s=1)) as served:
        _, token = await served.conversation()
        async with served.socket(token, {"watermark": 0}) as person:
            await person.until("welcome")
            assert (await person.until("error"))["data"]["code"] == "token_expired"
            assert (await closed(person))[0] == 4401


async def test_who_says_something_that_no_agent_is_there_for_is_told_where_the_channel_lets_no_turn_wait(
    world: World, served: Served
) -> None:
    newer = json.loads(served.store.document_text) | {"version": 2}
    newer["channels"][-1]["unassigned"] = "refuse"
    served.store.document_text, served.store.version = json.dumps(newer), 2
    await served.gateway.directory._refresh_document()
    while any(journal.state.config.version != 2 for journal in world.journals):
        await served.http.get("/healthz")
    _, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "hi"}})
        ack, told = await person.frame(), await person.frame()
        assert (ack["type"], told["type"], told["data"]["code"]) == ("ack", "error", "bot_unavailable")
        assert (told["data"]["retryable"], told["data"]["details"]["turnSeq"]) == (True, ack["seq"])
        assert "clientId" not in told["data"], "it is stored: sending it again would be a repeat"
