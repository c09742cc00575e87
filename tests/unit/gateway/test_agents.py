"""Agents' sockets: who is given what, what a process that lost a run is told, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from connectors.gateway.ports import Unavailable
from connectors.gateway.protocol.actions import Action, Write
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.parse import UserMessage
from streams.core.commands import CommitFrame, CommitTurn, Leave
from streams.core.events import FrameCommitted, Turn
from streams.core.state import REFUSALS_WRITTEN
from streams.runtime.signals import Goodbye
from tests.support.gateway_world import API_KEY, Peer, Served, World, serve, settings_for


async def closed(peer: Peer) -> tuple[int | None, dict[str, Any]]:
    code, reason, _ = await peer.ended()
    return code, json.loads(reason or "{}")


async def answer(agent: Peer, conversation: str, turn: dict[str, Any], text: str = "hi") -> dict[str, Any]:
    """Answer as the public client does; the ack."""
    seq = turn.get("seq", turn.get("turnSeq"))
    await agent.say(conversation, {"type": "read", "watermark": seq})
    await agent.say(conversation, {"type": "run", "data": {"status": "started"}})
    await agent.say(conversation, {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": text}})
    await agent.say(conversation, {"type": "run", "data": {"status": "finished"}})
    return await agent.until("ack")


async def test_each_turn_goes_to_one_member_of_the_group(world: World, served: Served) -> None:
    async with served.agent() as one, served.agent() as two:
        for number in range(12):
            conversation, token = await served.conversation(f"user-{number}")
            await served.say(conversation, token, "hello")
        seen = [[f["id"] for f in await agent.settled() if f["type"] == "text"] for agent in (one, two)]
    assert len(seen[0]) + len(seen[1]) == 12
    assert seen[0]
    assert seen[1]
    assert not set(seen[0]) & set(seen[1])


async def test_two_groups_each_get_every_turn(served: Served) -> None:
    async with served.agent("a") as one, served.agent("b") as two:
        conversation, token = await served.conversation()
        await served.say(conversation, token, "hello")
        assert (await one.until("text"))["run"].endswith("/agents/a")
        assert (await two.until("text"))["run"].endswith("/agents/b")


async def test_agents_without_a_group_share_the_channels_own(served: Served) -> None:
    async with served.agent(None) as one, served.agent(None) as two:
        conversation, token = await served.conversation()
        await served.say(conversation, token, "hello")
        turns = [f for agent in (one, two) for f in await agent.settled() if f["type"] == "text"]
        assert len(turns) == 1
        assert turns[0]["run"] == f"{conversation}/1/agents"


async def test_a_turn_that_waited_goes_to_the_first_member(served: Served) -> None:
    conversation, token = await served.conversation()
    await served.say(conversation, token, "anybody there?")
    async with served.agent() as agent:
        turn = await agent.until("text")
        assert (turn["seq"], turn["data"]["text"]) == (1, "anybody there?")


async def test_an_unanswered_turn_moves_when_its_member_leaves(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "hello")
        given = await first.until("text")
        async with served.agent() as second:
            await first.raw.close()
            moved = await second.until("text")
            assert (moved["seq"], moved["id"], moved["run"]) == (1, given["id"], given["run"])
            assert (given["runEpoch"], moved["runEpoch"]) == (1, 2)
            assert (await answer(second, conversation, moved))["seq"] == 2


async def test_an_answered_turn_does_not_move(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "hello")
        await answer(first, conversation, await first.until("text"))
    async with served.agent() as second:
        assert await second.settled() == []


async def test_a_turn_below_one_that_was_given_is_given_without_seq(served: Served) -> None:
    """A process drops what is not above everything it got; without `seq` it never does."""
    conversations = [await served.conversation(f"user-{number}") for number in range(20)]
    async with served.agent() as first:
        for conversation, token in conversations:
            await served.say(conversation, token, "one")
        async with served.agent() as second:
            for conversation, token in conversations:
                await served.say(conversation, token, "two")
            won = {f["run"].split("/")[0] for f in await second.settled() if f["type"] == "text"}
            assert won
            await first.raw.close()
            moved: dict[str, list[dict[str, Any]]] = {conversation: [] for conversation, _ in conversations}
            while sum(len(turns) for turns in moved.values()) < 2 * len(conversations) - len(won):
                turn = await second.until("text")
                moved[turn["run"].split("/")[0]].append(turn)
            for conversation, turns in moved.items():
                if conversation in won:
                    assert [(turn["turnSeq"], "seq" in turn) for turn in turns] == [(1, False)]
                else:
                    assert [turn["seq"] for turn in turns] == [1, 2]


async def test_a_process_that_reconnects_keeps_its_turn_in_silence(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "hello")
        given = await first.until("text")
        await first.raw.close()
        async with served.agent(watermarks={conversation: 1}) as again:
            assert [f for f in await again.settled() if f["type"] == "text"] == []
            ack = await answer(again, conversation, given)
            assert ack["seq"] == 2
    assert world.kinds(conversation).count("TurnCommitted") == 1


async def test_an_adopted_turn_that_nothing_comes_of_is_given_again_without_seq(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "hello")
        await first.until("text")
        await first.raw.close()
        async with served.agent(watermarks={conversation: 1}) as again:
            await again.settled()
            world.pass_time(6_000)
            turn = await again.until("text")
            assert "seq" not in turn
            assert turn["turnSeq"] == 1
            assert (await answer(again, conversation, turn))["seq"] == 2


async def test_the_only_agent_that_comes_back_as_new_gets_its_turn_again(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "hello")
        await first.until("text")
    async with served.agent() as fresh:
        assert (await fresh.until("text"))["seq"] == 1


async def test_a_turn_that_moves_is_read_from_the_journal_when_nothing_else_has_it(world: World) -> None:
    async with serve(world) as served:
        conversation, token = await served.conversation()
        async with served.agent() as first:
            await served.say(conversation, token, "hello")
            await first.until("text")
    async with serve(world) as other:
        other.gateway.recent._conversations.clear()
        for partition in other.gateway.recent._partitions:
            partition.floor = partition.last + 1
        other.gateway.history._lag_wait_s = 0.01
        other.read_model.behind = 1_000
        async with other.agent() as second:
            assert (await second.until("text"))["data"]["text"] == "hello"


async def test_a_frame_of_a_run_that_is_held_by_another_is_fenced_and_aborted(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent("a") as owner, served.agent("b") as stranger:
        await served.say(conversation, token, "hello")
        turn = await owner.until("text")
        await stranger.until("text")
        for status in ("started", "aborted"):
            await stranger.say(conversation, {"type": "run", "data": {"status": status}})
        await stranger.say(conversation, _zombies(turn, "z.1"))
        data = (await stranger.until("error"))["data"]
        assert (data["code"], data["clientId"], data["retryable"]) == ("fenced", "z.1", False)
        assert (await stranger.frame())["frame"]["type"] == "abort"
    assert "FrameCommitted" not in world.kinds(conversation)


async def test_a_zombie_is_answered_also_when_the_journal_tells_of_no_more_refusals(
    world: World, served: Served
) -> None:
    conversation, token = await served.conversation()
    async with served.agent("a") as owner, served.agent("b") as stranger:
        await served.say(conversation, token, "hello")
        turn = await owner.until("text")
        await stranger.until("text")
        for status in ("started", "aborted"):
            await stranger.say(conversation, {"type": "run", "data": {"status": status}})
        for number in range(REFUSALS_WRITTEN):
            await stranger.say(conversation, _zombies(turn, f"z.{number}"))
            await _refused(stranger)
            assert (await stranger.frame())["frame"]["type"] == "abort"
        await stranger.say(conversation, _zombies(turn, "z.last"))
        assert await stranger.settled() == []
        world.end_batch(served.gateway.partition_of(conversation))
        assert (await _refused(stranger))["clientId"] == "z.last"
        assert (await stranger.frame())["frame"]["type"] == "abort"
        assert served.gateway.hub._waiting == {}


async def _refused(agent: Peer) -> dict[str, Any]:
    """The data of the next error frame; what comes before it is dropped."""
    while (frame := (await agent.frame())["frame"])["type"] != "error":
        pass
    assert frame["data"]["code"] == "fenced"
    data: dict[str, Any] = frame["data"]
    return data


def _zombies(turn: dict[str, Any], client_id: str) -> dict[str, Any]:
    return {"type": "text", "clientId": client_id, "data": {"text": "me!"}, "run": turn["run"], "runEpoch": 1}


async def test_a_resent_message_gets_the_first_ack(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        turn = await agent.until("text")
        await agent.say(conversation, {"type": "read", "watermark": 1})
        message = {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": "hi"}, "run": turn["run"]}
        await agent.say(conversation, message)
        first = await agent.until("ack")
        await agent.say(conversation, message)
        assert await agent.until("ack") == {**first, "duplicate": True}
    assert world.kinds(conversation).count("FrameCommitted") == 1


async def test_frames_wait_for_the_partition_to_know_the_member(world: World, served: Served) -> None:
    """The topics have no order between them: a frame must not overtake its sender's join."""
    conversation, _ = await served.conversation()
    partition = served.gateway.partition_of(conversation)
    world.stop(partition)
    async with served.agent() as agent:
        await agent.say(conversation, {"type": "text", "clientId": "p.1", "data": {"text": "proactive"}})
        await agent.settled()
        assert not any(isinstance(command, CommitFrame) for command in world.commands)
        world.go_on(partition)
        assert (await agent.until("ack"))["seq"] == 1


async def test_a_leave_says_where_the_members_last_frame_lies(world: World, served: Served) -> None:
    conversation, _ = await served.conversation()
    async with served.agent() as agent:
        for number in range(3):
            await agent.say(conversation, {"type": "text", "clientId": f"p.{number}", "data": {"text": "x"}})
            await agent.until("ack")
    ends: dict[int, int] = {}
    while len(ends) < world.partitions:
        leaves = [c for c in world.commands if isinstance(c, Leave)]
        ends = {number: leave.frames_end for number, leave in enumerate(leaves)}
        await served.http.get("/healthz")
    assert ends[served.gateway.partition_of(conversation)] == 3
    assert sum(ends.values()) == 3


async def test_what_an_agent_sends_is_stored_without_unstorable_characters(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hello")
        await agent.until("text")
        chunk = '{"type":"text","content":"a\\u0000b\\ud800c","id":1}'
        genui = f'{{"type":"genui","streamId":"s","done":false,"chunk":{chunk}}}'
        await agent.raw.send(f'{{"conversationId":"{conversation}","frame":{genui}}}')
        shown = await person.until("genui")
        assert shown["chunk"]["content"] == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    ("frame", "code", "named"),
    [
        ({"type": "text", "clientId": "c", "data": {}}, "invalid_message", "text"),
        ({"type": "bogus", "clientId": "c"}, "invalid_message", "data"),
        ({"type": "text", "clientId": "c", "data": {"text": "x"}, "actions": [{}]}, "invalid_message", "actions"),
        ({"type": "genui", "streamId": "s", "done": 1, "chunk": {}}, "invalid_message", "done"),
        ({"type": "genui", "streamId": "s", "done": True, "chunk": {"type": "x"}}, "invalid_message", "chunk"),
        ({"type": "tool_call", "data": {"id": "t", "name": "n", "status": "done"}}, "invalid_message", "status"),
        ({"type": "interrupt", "data": {"payload": 1}}, "invalid_message", "id"),
        ({"type": "interrupt", "id": "i", "data": {}}, "invalid_message", "payload"),
        ({"type": "run", "data": {"status": "exploded"}}, "invalid_message", "status"),
        ({"type": "run", "data": {"status": []}}, "invalid_message", "status"),
        ({"type": "read", "watermark": -1}, "invalid_watermark", "watermark"),
        ({"type": "welcome", "clientId": "c", "data": {}}, "bad_request", "welcome"),
        ({"type": "text", "clientId": "c", "data": {"text": "x" * 70_000}}, "payload_too_large", "text"),
        ({"type": "text", "clientId": "c", "data": {"text": "x"}, "run": "r" * 1_000}, "invalid_message", "run"),
        ({"type": "text", "clientId": "c", "data": {"text": "x"}, "runEpoch": 0}, "invalid_message", "runEpoch"),
        ({"clientId": "c"}, "bad_request", "type"),
    ],
)
async def test_a_bad_frame_is_refused_in_its_envelope(
    served: Served, frame: dict[str, Any], code: str, named: str
) -> None:
    conversation, _ = await served.conversation()
    async with served.agent() as agent:
        await agent.say(conversation, frame)
        refused = await agent.frame()
        data = refused["frame"]["data"]
        assert (refused["conversationId"], data["code"], data.get("clientId")) == (
            conversation, code, frame.get("clientId"),
        )  # fmt: skip
        assert named in data["message"]
        await agent.settled()


@pytest.mark.parametrize("raw", ["{", "[]", '{"type":"text","data":{"text":"x"}}', '{"conversationId":1,"frame":{}}'])
async def test_a_bad_envelope_is_refused_bare(served: Served, raw: str) -> None:
    async with served.agent() as agent:
        await agent.raw.send(raw)
        assert (await agent.frame())["data"]["code"] == "bad_request"
        await agent.settled()


async def test_a_frame_that_the_intake_does_not_take_is_refused_for_a_retry(world: World, served: Served) -> None:
    conversation, _ = await served.conversation()
    async with served.agent() as agent:
        await agent.settled()
        world.broken = Unavailable("Kafka is away")
        message = {"type": "text", "clientId": "p.1", "data": {"text": "x"}}
        await agent.say(conversation, message)
        data = (await agent.until("error"))["data"]
        assert (data["code"], data["clientId"], data["retryable"]) == ("unavailable", "p.1", True)
        world.broken = None
        await agent.say(conversation, message)
        assert (await agent.until("ack"))["seq"] == 1


async def test_an_agent_is_sent_away_when_a_frame_is_lost_that_it_cannot_know_of_and_nothing_after_it_is_taken(
    world: World, served: Served
) -> None:
    conversation, _ = await served.conversation()
    async with served.agent() as agent:
        await agent.settled()
        world.broken = Unavailable("Kafka is away")
        chunk = {"type": "genui", "streamId": "s", "done": False, "chunk": {"type": "text", "content": "lost", "id": 1}}
        await agent.say(conversation, chunk)
        await agent.say(conversation, {"type": "text", "clientId": "p.1", "data": {"text": "behind it"}})
        assert (await agent.until("error"))["data"]["code"] == "unavailable"
        world.broken = None
        code, reason = await closed(agent)
        assert (code, reason["reason"]) == (1012, "unavailable")
    assert "FrameCommitted" not in world.kinds(conversation)


async def test_an_unknown_conversation_is_refused_by_client_id(served: Served) -> None:
    async with served.agent() as agent:
        await agent.say("nowhere", {"type": "text", "clientId": "c", "data": {"text": "x"}})
        data = (await agent.until("error"))["data"]
        assert (data["code"], data["clientId"]) == ("conversation_not_found", "c")


async def test_history_ends_at_what_the_member_was_given(served: Served) -> None:
    """A higher turn of the person's would start work in the process that asked."""
    conversation, token = await served.conversation()
    for number in range(1, 4):
        await served.say(conversation, token, f"m{number}")
    async with served.agent() as agent:
        turns = [f for f in await agent.settled() if f["type"] == "text"]
        assert [turn["seq"] for turn in turns] == [1, 2, 3]
        await agent.say(conversation, {"type": "sync", "watermark": 1})
        assert [(await agent.until("text"))["seq"] for _ in range(2)] == [2, 3]
    async with served.agent("other") as stranger:
        await stranger.say(conversation, {"type": "sync", "watermark": 0})
        assert (await stranger.until_refused())["code"] == "conversation_not_found"


async def test_history_holds_no_turn_that_was_given_to_nobody_of_the_channel(served: Served) -> None:
    """A process may say that it has anything: what a person and a human said to each other it was never given."""
    conversation, token = await served.conversation()
    tenant = f"/api/v1/conversations/{conversation}"
    async with served.agent() as agent:
        await served.say(conversation, token, "m1")
        turn = await agent.until("text")
        await answer(agent, conversation, turn)
        await served.http.post(f"{tenant}/handover", headers={"x-api-key": API_KEY}, json={})
        await served.say(conversation, token, "between us")
    async with served.agent(watermarks={conversation: 1_000_000}) as again:
        await again.say(conversation, {"type": "sync", "watermark": 0})
        assert [(await again.until("text"))["seq"] for _ in range(2)] == [1, 2]
        assert (await again.until("conversationUpdate"))["seq"] == 3
        assert await again.settled() == []  # a page is written at once


async def test_no_agent_reads_a_conversation_of_which_its_channel_was_given_nothing(served: Served) -> None:
    conversation, token = await served.conversation()
    await served.http.post(f"/api/v1/conversations/{conversation}/handover", headers={"x-api-key": API_KEY}, json={})
    await served.say(conversation, token, "between us")
    async with served.agent(watermarks={conversation: 2}) as agent:
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        assert (await agent.until_refused())["code"] == "conversation_not_found"


async def test_an_agent_follows_what_it_wrote_to(served: Served) -> None:
    """The owner of a conversation may speak first in it: it sees what becomes of that."""
    conversation, token = await served.conversation()
    await served.say(conversation, token, "m1")
    async with served.agent() as agent:
        await answer(agent, conversation, await agent.until("text"))
    async with served.agent() as owner, served.socket(token, {"watermark": 2}) as person:
        await person.until("welcome")
        proactive = {"type": "text", "data": {"text": "one more thing"}, "clientId": "p-1"}
        await owner.say(conversation, proactive)
        assert (await owner.until("ack"))["seq"] == 3
        await person.until("text")
        await person.send({"type": "typing", "isTyping": True})
        assert (await owner.until("typing"))["isTyping"] is True


async def test_no_agent_reads_a_conversation_of_a_channel_that_is_not_routed_to_it(served: Served) -> None:
    """Whatever its process says that it has of it."""
    conversation, token = await served.conversation()
    await served.say(conversation, token, "between us")
    newer = json.loads(served.store.document_text) | {"version": 2, "routes": []}
    served.store.document_text, served.store.version = json.dumps(newer), 2
    await served.gateway.directory._refresh_document()
    async with served.agent(watermarks={conversation: 1_000}) as agent:
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        assert (await agent.until_refused())["code"] == "conversation_not_found"
        assert await agent.settled() == []


async def test_history_that_cannot_be_read_now_is_refused_for_a_retry(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, token = await served.conversation()
    await served.say(conversation, token, "m1")

    async def away(*_: Any) -> Any:
        raise Unavailable("PostgreSQL is away")

    async with served.agent(watermarks={conversation: 1}) as agent:
        monkeypatch.setattr(served.gateway.history, "page", away)
        await agent.say(conversation, {"type": "sync", "watermark": 0})
        refused = await agent.until_refused()
        assert (refused["code"], refused["retryable"], refused["frameType"]) == ("replay_unavailable", True, "sync")
        assert refused["retryAfterMs"] > 0


async def test_a_message_answers_the_open_question_and_joins_its_run(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "refund please")
        turn = await agent.until("text")
        await agent.say(conversation, {"type": "read", "watermark": 1})
        ask = {"type": "interrupt", "id": "ask-1", "data": {"payload": {"title": "really?"}}}
        await agent.say(conversation, ask)
        assert (await person.until("interrupt"))["id"] == "ask-1"
        async with served.socket(token, {"watermark": 2}) as late:
            pending = (await late.frame())["data"]["pending"]
            assert pending == [{"id": "ask-1", "data": {"payload": {"title": "really?"}}}]
        await served.say(conversation, token, "yes")
        reply = await agent.until("text")
        assert (reply["data"]["text"], reply["run"]) == ("yes", turn["run"])
        async with served.socket(token, {"watermark": 3}) as later:
            assert (await later.frame())["data"]["pending"] == []


async def test_what_has_a_client_id_and_is_no_message_is_acknowledged_and_stored_once(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "refund please")
        turn = await agent.until("text")
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        call = {"type": "tool_call", "clientId": "t-1", "data": {"id": "t", "name": "look_up", "status": "running"}}
        ask = {"type": "interrupt", "id": "ask-1", "clientId": "i-1", "data": {"payload": {"title": "really?"}}}
        resolved = {"type": "interrupt_resolved", "id": "ask-1", "clientId": "i-1.done", "data": {"answer": 1}}
        card = {"type": "ui", "component": "order-card", "props": {"id": 1}, "id": 1}
        shown = {"type": "genui", "clientId": "g-1", "streamId": "g", "done": False, "chunk": card}
        frames: list[dict[str, Any]] = [call, ask, resolved, shown]
        for seq, frame in enumerate(frames, start=2):
            for duplicate in (None, True):
                await agent.say(conversation, frame | named)
                ack = await agent.until("ack")
                assert (ack["clientId"], ack["seq"], ack.get("duplicate")) == (frame["clientId"], seq, duplicate)
        assert [f["type"] for f in await person.settled() if f.get("seq", 0) > 1] == [
            "tool_call",
            "interrupt",
            "interrupt_resolved",
            "genui",
        ]


async def test_typing_is_shown_only_of_who_holds_a_run(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await agent.say(conversation, {"type": "typing", "isTyping": True})
        await agent.settled()
        assert await person.settled() == []
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await agent.say(conversation, {"type": "typing", "isTyping": True})
        assert (await person.until("typing"))["from"] == "bot"


async def test_rich_frames_are_numbered_and_shown_as_they_came(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    frames: list[dict[str, Any]] = [
        {"type": "tool_call", "data": {"id": "t", "name": "n", "status": "running"}},
        {"type": "genui", "streamId": "s", "done": False, "chunk": {"type": "text", "content": "a", "id": 1}},
        {"type": "genui", "streamId": "s", "done": True, "chunk": {"type": "event", "name": "stream_done"}},
        {"type": "buttons", "clientId": "b", "data": {"buttons": [{"label": "A"}]}, "replyTo": {"id": "x"}},
        {"type": "order-summary", "clientId": "o", "data": {"total": 2.5}, "metadata": {"k": [1]}},
        {"type": "text", "clientId": "t", "data": {"text": "x"}, "actions": [{"label": "Yes", "value": {"a": 1}}]},
    ]
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await agent.say(conversation, {"type": "read", "watermark": 1})
        for frame in frames:
            await agent.say(conversation, frame)
        await agent.settled()
        shown = [f for f in await person.settled() if "seq" in f][1:]
        assert [f["seq"] for f in shown] == list(range(2, 8))
        for sent, got in zip(frames, shown, strict=True):
            assert {key: got.get(key) for key in sent} == sent
    async with served.socket(token, {"watermark": 1}) as again:
        await again.until("welcome")
        assert [f for f in await again.settled() if "seq" in f] == shown


async def test_a_failed_run_shows_its_error(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await agent.say(conversation, {"type": "read", "watermark": 1})
        await agent.say(conversation, {"type": "error", "data": {"code": "agent_error", "message": "sorry"}})
        await agent.say(conversation, {"type": "run", "data": {"status": "error"}})
        await agent.settled()
        shown = await person.settled()
        assert [f["data"]["message"] for f in shown if f["type"] == "error"] == ["sorry"]
        assert [f["data"]["status"] for f in shown if f["type"] == "run"] == ["started", "error"]


async def test_closing_a_conversation_aborts_the_run(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        await served.gateway.commands.close_conversation(conversation, "ann")
        assert (await agent.until("abort"))["type"] == "abort"


@pytest.mark.parametrize("group", ["", "a/b", "~x", "g" * 65])
async def test_a_group_that_cannot_be_is_refused(served: Served, group: str) -> None:
    token = await served.token("agents-secret", scope="channel")
    async with served.socket(token, {"group": group}) as agent:
        assert (await agent.frame())["data"]["code"] == "bad_request"
        with pytest.raises(ConnectionClosed):
            await agent.frame()
        assert agent.raw.close_code == 4400


async def test_a_join_that_cannot_be_written_sends_the_agent_away_for_a_while(world: World, served: Served) -> None:
    token = await served.token("agents-secret", scope="channel")
    world.broken = Unavailable("Kafka is away")
    async with served.socket(token, {"group": "bots"}) as agent:
        assert (await agent.frame())["data"]["code"] == "unavailable"
        code, reason = await closed(agent)
        assert (code, reason["reason"]) == (1012, "unavailable")
    world.broken = None
    conversation, user = await served.conversation()
    async with served.agent() as again:
        await served.say(conversation, user, "hello")
        assert (await again.until("text"))["seq"] == 1


async def test_a_newer_document_reaches_every_partition(world: World, served: Served) -> None:
    newer = json.loads(served.store.document_text) | {"version": 2, "routes": []}
    served.store.document_text, served.store.version = json.dumps(newer), 2
    await served.gateway.directory._refresh_document()
    while any(journal.state.config.version != 2 for journal in world.journals):
        await served.http.get("/healthz")
    async with served.agent() as agent:
        conversation, token = await served.conversation()
        await served.say(conversation, token, "to nobody")
        assert await agent.settled() == []


async def test_an_ended_incarnation_closes_its_agents_and_goes_on_as_new(world: World, served: Served) -> None:
    before = served.gateway.membership.incarnation
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await served.say(conversation, token, "hello")
        await agent.until("text")
        world.expire(before)
        code, reason = await closed(agent)
        assert (code, reason["reason"]) == (1012, "gateway_expired")
    assert served.gateway.membership.incarnation != before
    async with served.agent() as again:
        turn = await again.until("text")
        assert (await answer(again, conversation, turn))["seq"] == 2


async def test_after_a_pause_agents_are_closed_before_anything_is_written_to_them(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await agent.settled()
        served.gateway._guard._beaten_at -= served.gateway.settings.member_ttl_ms
        await served.gateway.commands.commit_turn(
            served.gateway.commands.turn(
                conversation, served.gateway.tokens.verify(token), "ann", _text("while it was away")
            )
        )
        code, _, frames = await agent.ended()
        assert (code, frames) == (1012, [])
    async with served.agent() as again:
        assert (await again.until("text"))["data"]["text"] == "while it was away"


def _text(text: str) -> Any:
    return UserMessage(type="text", text=text)


async def test_a_slow_consumer_is_closed_and_delays_nobody_else(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.socket(token, {"watermark": 0}) as slow, served.socket(token, {"watermark": 0}) as other:
        await slow.until("welcome")
        await other.until("welcome")
        viewers = list(served.gateway.hub._viewers[conversation])
        for _ in range(1_200):
            viewers[0].relay(b'{"type":"typing","isTyping":true}')
        closed_first = slow if viewers[0].session.connection_id else other  # type: ignore[attr-defined]
        code, reason = await closed(closed_first)
        assert code == 4503
        assert reason["retryAfterMs"] > 0
        await (other if closed_first is slow else slow).settled()


async def test_draining_lets_runs_finish_then_closes_everything(world: World) -> None:
    async with serve(world, settings_for(drain_budget_ms=5_000)) as served:
        conversation, token = await served.conversation()
        async with served.agent() as busy, served.socket(token, {"watermark": 0}) as person:
            await person.until("welcome")
            await served.say(conversation, token, "hello")
            turn = await busy.until("text")
            draining = asyncio.create_task(served.gateway.drain())
            assert (await closed(person))[0] == 1012
            assert (await served.http.get("/readyz")).status_code == 503
            assert (await answer(busy, conversation, turn))["seq"] == 2
            code, reason = await closed(busy)
            assert (code, reason["reason"]) == (1012, "restart")
            await draining
        leaves = [command for command in world.commands if isinstance(command, Leave)]
        assert {leave.reason for leave in leaves} == {"drained"}
        assert sum(isinstance(command, Goodbye) for command in world.commands) == world.partitions
    assert any(isinstance(entry.event, FrameCommitted) for entry in world.journal_of(conversation))


async def test_a_gateway_that_a_partition_lost_count_of_is_asked_for_its_members(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent:
        await agent.settled()
        # As if the partition had lost the join: its state is that of before.
        journal = world.journals[served.gateway.partition_of(conversation)]
        journal.state.gateways[served.gateway.membership.incarnation].n = 7
        async with served.agent() as second:
            await second.settled()
            await served.say(conversation, token, "hello")
            turns = [f for a in (agent, second) for f in await a.settled() if f["type"] == "text"]
            assert len(turns) == 1


async def test_after_a_pause_nothing_that_was_queued_is_written_to_any_agent(served: Served) -> None:
    async with served.agent("a") as one, served.agent("b") as two:
        for agent in (one, two):
            await agent.settled()
        served.gateway._guard._beaten_at -= served.gateway.settings.member_ttl_ms
        for connection in list(served.gateway._connections):
            connection.perform([Write(b'{"type":"heartbeat"}')])
        for agent in (one, two):
            code, _, frames = await agent.ended()
            assert (code, frames) == (1012, [])


async def test_a_connection_that_fails_ends_alone(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, token = await served.conversation()
    async with served.agent("a") as one, served.agent("b") as two, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")

        def fail(session: AgentSession, *args: Any, **kwargs: Any) -> list[Action]:
            if session.member == one.member:
                raise RuntimeError("a mistake of ours")
            return given(session, *args, **kwargs)

        given = AgentSession.run_given
        monkeypatch.setattr(AgentSession, "run_given", fail)
        assert (await served.say(conversation, token, "hello")).status_code == 201
        assert (await one.ended())[0] == 1011
        assert (await two.until("text"))["data"]["text"] == "hello"
        assert (await person.until("text"))["data"]["text"] == "hello"


async def test_a_connection_whose_frames_cannot_be_submitted_ends_and_its_member_leaves(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = await served.conversation()
    async with served.agent() as agent:
        await agent.settled()
        send = world.send

        async def fail(command: Any, **kwargs: Any) -> Any:
            if isinstance(command, CommitFrame):
                raise TypeError("a mistake of ours")
            return await send(command, **kwargs)

        monkeypatch.setattr(world, "send", fail)
        await agent.say(conversation, {"type": "text", "clientId": "p.1", "data": {"text": "x"}})
        assert (await agent.ended())[0] == 1011
        while agent.member in served.gateway.membership.members:
            await served.http.get("/healthz")
    assert any(isinstance(command, Leave) for command in world.commands)


async def test_what_another_writer_stored_and_is_no_json_is_shown_as_json(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    turn = Turn(
        id="i", sender="ann", channel="web", type="receipt", data="{", metadata="[", meta='"x"', key="k", client_id="k"
    )
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await world.send(CommitTurn(at=0, timestamp=0, ref="r", conversation_id=conversation, turn=turn))
        assert (await agent.until("receipt"))["data"] == {}
        assert (await person.until("receipt"))["data"] == {}
        answer = await served.http.get(
            f"/api/v1/converger/conversations/{conversation}/activities", headers={"authorization": f"Bearer {token}"}
        )
        assert [each["text"] for each in answer.json()["activities"]] == [None]


async def test_agents_and_people_of_a_channel_that_is_ended_are_sent_away(served: Served) -> None:
    _, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        newer = json.loads(served.store.document_text) | {"version": 2}
        for channel in newer["channels"]:
            channel["active"] = channel["id"] == "web"
        served.store.document_text, served.store.version = json.dumps(newer), 2
        await served.gateway.directory._refresh_document()
        code, _, frames = await agent.ended()
        assert (code, frames[-1]["data"]["code"]) == (4403, "channel_inactive")
        await person.settled()


async def test_agents_of_a_channel_that_becomes_peoples_are_sent_away_and_their_tokens_are_over(served: Served) -> None:
    token = await served.token("agents-secret", scope="channel")
    async with served.agent() as agent:
        newer = json.loads(served.store.document_text) | {"version": 2, "routes": []}
        for channel in newer["channels"]:
            channel["kind"] = "web"
        served.store.document_text, served.store.version = json.dumps(newer), 2
        await served.gateway.directory._refresh_document()
        code, _, frames = await agent.ended()
        assert (code, frames[-1]["data"]["code"]) == (4403, "channel_inactive")
    async with served.socket(token, {}) as late:
        code, _, frames = await late.ended()
        assert (code, frames[-1]["data"]["code"]) == (4403, "channel_inactive")


async def test_draining_waits_for_requests_that_are_being_answered(world: World) -> None:
    async with serve(world, settings_for(drain_budget_ms=5_000)) as served:
        conversation, token = await served.conversation()
        world.stop(served.gateway.partition_of(conversation))
        saying = asyncio.create_task(served.say(conversation, token, "hello"))
        while not any(isinstance(command, CommitTurn) for command in world.commands):
            await served.http.get("/healthz")
        draining = asyncio.create_task(served.gateway.drain())
        assert (await served.http.get("/readyz")).status_code == 503
        assert not draining.done()
        world.go_on(served.gateway.partition_of(conversation))
        assert (await saying).status_code == 201
        await draining
