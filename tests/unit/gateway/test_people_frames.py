"""What people send beside their messages, from their socket to the agent's, and the handover."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectors.gateway.protocol.errors import SPECS
from tests.support.gateway_world import API_KEY, Peer, Served, World, bearer

ABLE: dict[str, Any] = {"capabilities": ["continue"]}


async def asked(served: Served, agent: Peer, conversation: str, token: str) -> dict[str, Any]:
    """The agent works on a turn and asks; the turn as it was given."""
    await served.say(conversation, token, "refund ORD-42")
    turn = await agent.until("text")
    named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
    await agent.say(conversation, {"type": "run", "data": {"status": "started"}} | named)
    payload = {"payload": {"title": "249.90 TRY refund"}}
    await agent.say(conversation, {"type": "interrupt", "id": "approve#0", "clientId": "i1", "data": payload} | named)
    await agent.until("ack")
    return turn


def read_late(served: Served, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """From here on a turn that moves is read once the second event is set; the first one: it was asked for."""
    history, asked_for, may_read = served.gateway.history, asyncio.Event(), asyncio.Event()
    turn_of = history.turn

    async def late(conversation_id: str, seq: int) -> Any:
        asked_for.set()
        await may_read.wait()
        return await turn_of(conversation_id, seq)

    monkeypatch.setattr(history, "turn", late)
    return asked_for, may_read


async def activities(served: Served, conversation: str, token: str) -> list[dict[str, Any]]:
    path = f"/api/v1/converger/conversations/{conversation}/activities"
    answer = await served.http.get(path, headers=bearer(token))
    found: list[dict[str, Any]] = answer.json()["activities"]
    return found


async def test_a_resume_reaches_who_asked_and_is_acknowledged(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        turn = await asked(served, agent, conversation, token)
        await person.until("interrupt")
        answers = {"approve#0": {"approved": True}}
        await person.send({"type": "resume", "clientId": "r1", "answers": answers})
        ack = await person.until("ack")
        assert (ack["clientId"], ack["seq"]) == ("r1", 2), "it has none: what the person was shown so far"
        resume = await agent.until("resume")
        assert (resume["answers"], resume["run"]) == (answers, turn["run"])
        async with served.socket(token, {"conversationId": conversation}) as second:
            assert (await second.until("welcome"))["data"]["pending"] == [], "it is answered, though not resolved"
        await person.send({"type": "resume", "clientId": "r2", "answers": answers})
        refused = await person.until_refused()
        assert (refused["code"], refused["clientId"]) == ("not_interrupted", "r2")


async def test_an_open_question_is_told_again_on_reconnect_and_its_answer_reaches_the_new_owner(
    world: World, served: Served
) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first, served.agent(**ABLE) as second:
        world.pass_time(2000)
        await served.say(conversation, token, "hello")
        held = world.journal_of(conversation)[-1].event.assigned[0].member  # type: ignore[attr-defined]
        owner, other = (first, second) if held == first.member else (second, first)
        turn = await owner.until("text")
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        await owner.say(conversation, {"type": "run", "data": {"status": "started"}} | named)
        ask = {"type": "interrupt", "id": "approve#0", "clientId": "i1", "data": {"payload": {}}}
        await owner.say(conversation, ask | named)
        await owner.until("ack")
        await owner.raw.close()
        moved = await other.until("text")
        assert moved["resume"]["interrupts"] == ["approve#0"]
        async with served.socket(token, {"conversationId": conversation}) as person:
            welcome = await person.until("welcome")
            assert [each["id"] for each in welcome["data"]["pending"]] == ["approve#0"]
            await person.send({"type": "resume", "answers": {"approve#0": "yes"}})
            resume = await other.until("resume")
            assert (resume["answers"], resume["runEpoch"]) == ({"approve#0": "yes"}, 2)


async def test_an_answer_comes_behind_its_turn_also_while_that_is_read_for_the_next_owner(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent lets pass what it is told of a run that it does not know: it would wait for the answer for ever."""
    conversation, token = await served.conversation()
    moved, may_read = read_late(served, monkeypatch)
    async with served.agent(**ABLE) as first, served.socket(token, {"conversationId": conversation}) as person:
        await asked(served, first, conversation, token)
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            await moved.wait()
            await person.send({"type": "resume", "clientId": "r", "answers": {"approve#0": "yes"}})
            await person.until("ack")
            assert "resume" not in [each["type"] for each in await second.settled()]
            may_read.set()
            assert (await second.until("text"))["resume"]["interrupts"] == ["approve#0"]
            assert (await second.until("resume"))["answers"] == {"approve#0": "yes"}


async def test_a_call_is_cancelled_behind_its_turn_also_while_that_is_read_for_the_next_owner(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that is told first to stop would then begin."""
    headers, calls = bearer(await served.token(user={"id": "ann"})), "/v1/threads/t/invocations"
    moved, may_read = read_late(served, monkeypatch)
    async with served.agent(**ABLE) as first:
        body = {"id": "i", "agent": "agents/bots", "input": {"text": "sum it up"}, "retry": True}
        assert (await served.http.post(calls, headers=headers, json=body)).status_code == 202
        turn = await first.until("text")
        started = {"type": "run", "data": {"status": "started"}, "run": turn["run"], "runEpoch": turn["runEpoch"]}
        await first.say("t", started)
        await first.settled()
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            await moved.wait()
            assert (await served.http.post(f"{calls}/i/cancel", headers=headers, json={})).status_code == 202
            assert await second.settled() == []
            may_read.set()
            given = await second.until("text")
            abort = await second.until("abort")
            assert (abort["run"], abort["runEpoch"]) == (given["run"], given["runEpoch"])


async def test_an_answer_that_was_passed_to_an_agent_that_died_is_given_to_the_next(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first, served.socket(token, {"conversationId": conversation}) as person:
        await asked(served, first, conversation, token)
        await person.send({"type": "resume", "clientId": "r", "answers": {"approve#0": "yes"}})
        await first.until("resume")
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            moved = await second.until("text")
            assert moved["resume"]["frames"][-1] == {"type": "resume", "answers": {"approve#0": "yes"}}
            assert moved["resume"]["interrupts"] == []


async def test_an_abort_ends_the_run_and_tells_its_agent_once(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        turn = await asked(served, agent, conversation, token)
        await person.send({"type": "abort"})
        await agent.until("abort")
        assert "abort" not in [frame["type"] for frame in await agent.settled()]
        late = {"type": "text", "clientId": "late", "data": {"text": "too late"}, "run": turn["run"], "runEpoch": 1}
        await agent.say(conversation, late)
        assert (await agent.until_refused())["code"] == "fenced"


async def test_an_edit_gives_the_turn_anew_with_the_new_words_and_shows_them(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        said = (await served.say(conversation, token, "Where is ORD-42?")).json()
        turn = await agent.until("text")
        answer = {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": "On its way"}}
        await agent.say(conversation, answer)
        await person.until("text")
        edit = {"type": "edit", "messageId": said["id"], "data": {"text": "Where is ORD-43?"}}
        await person.send(edit)
        again = await agent.until("text")
        assert again["data"] == {"text": "Where is ORD-43?"}
        assert (again["turnSeq"], "seq" in again) == (1, False), "its process never drops it as seen"
        assert again["id"] != turn["id"]
        await agent.say(conversation, {"type": "text", "clientId": f"p.{again['id']}.m1", "data": {"text": "Here"}})
        await agent.until("ack")
    shown = await activities(served, conversation, token)
    assert [each["text"] for each in shown] == ["Where is ORD-43?", "On its way", "Here"]
    assert [each["channelData"].get("superseded", False) for each in shown] == [False, True, False]


async def test_regenerate_is_asked_for_by_the_answers_id(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        await served.say(conversation, token, "Tell me a joke")
        turn = await agent.until("text")
        await agent.say(conversation, {"type": "text", "clientId": f"p.{turn['id']}.m1", "data": {"text": "No"}})
        await agent.until("ack")
        answer = (await activities(served, conversation, token))[-1]
        await person.send({"type": "regenerate", "messageId": answer["id"]})
        again = await agent.until("text")
        assert (again["data"], again["turnSeq"]) == ({"text": "Tell me a joke"}, 1)
        await person.send({"type": "regenerate", "messageId": "nothing"})
        assert (await person.until_refused())["code"] == "conflict"


async def test_interactions_and_declared_tools_reach_the_owner_unchanged(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        await person.until("welcome")
        event: dict[str, Any] = {
            "type": "genui_event",
            "streamId": "s",
            "eventType": "submit",
            "payload": {"a": [1, None]},
        }
        tools: dict[str, Any] = {"type": "client_tools", "tools": [{"name": "pick_date"}]}
        skills: dict[str, Any] = {"type": "client_skills", "skills": []}
        for frame in (event, tools, skills):
            await person.send(frame)
            assert await agent.until(frame["type"]) == frame
        await person.send({"type": "genui_event", "streamId": "s"})
        refused = await person.until_refused()
        assert (refused["code"], "eventType" in refused["message"]) == ("invalid_message", True)


async def test_nobody_speaks_for_another_run_or_person_to_an_agent(served: Served) -> None:
    """Agents take `meta.participant`, `meta.channel` and `run` for the gateway's word."""
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        meta = {"channel": "vip", "participant": {"id": "root"}, "locale": "tr"}
        await person.send({"type": "text", "clientId": "t1", "data": {"text": "hi"}, "meta": meta})
        turn = await agent.until("text")
        assert turn["meta"] == {"channel": "web", "participant": {"id": "ann"}, "locale": "tr"}
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        await agent.say(conversation, {"type": "run", "data": {"status": "finished"}} | named)
        await agent.settled()
        await person.send({"type": "genui_event", "streamId": "s1", "eventType": "tapped", "payload": 1} | named)
        assert "run" not in await agent.until("genui_event")


async def test_a_survey_is_shown_as_an_event_to_everybody_and_later(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        await person.send({"type": "survey", "rating": 5, "comment": "Quick"})
        shown = await person.until("event")
        assert (shown["seq"], shown["data"]) == (1, {"name": "survey", "value": {"rating": 5, "comment": "Quick"}})
        assert await agent.until("survey") == {"type": "survey", "rating": 5, "comment": "Quick"}
    [activity] = await activities(served, conversation, token)
    assert (activity["type"], activity["channelData"]["frame"]["data"]["name"]) == ("event", "survey")


async def test_no_agent_is_heard_while_a_human_answers(served: Served) -> None:
    conversation, token = await served.conversation()
    key = {"x-api-key": API_KEY}
    path = f"/api/v1/conversations/{conversation}"
    async with served.agent() as agent, served.socket(token, {"conversationId": conversation}) as person:
        turn = await asked(served, agent, conversation, token)
        answer = await served.http.post(f"{path}/handover", headers=key, json={"by": "eve", "to": "desk"})
        assert (answer.status_code, answer.json()["data"]["handed_over"]) == (200, True)
        await agent.until("abort")
        update = await person.until("conversationUpdate")
        assert (update["data"]["event"], update["data"]["to"]) == ("conversation_handed_over", "desk")
        await agent.say(
            conversation,
            {
                "type": "text",
                "clientId": "m",
                "data": {"text": "wait"},
                "run": turn["run"],
                "runEpoch": turn["runEpoch"],
            },
        )
        assert (await agent.until_refused())["code"] == "handed_over"
        await served.say(conversation, token, "is anybody there?")
        assert "text" not in [frame["type"] for frame in await agent.settled()]
        again = await served.http.post(f"{path}/handover", headers=key, json={})
        assert again.status_code == 200
        await served.http.post(f"{path}/handback", headers=key, json={"reason": "solved"})
        await served.say(conversation, token, "thank you")
        assert (await agent.until("text"))["data"] == {"text": "thank you"}
    assert SPECS["handed_over"].status == 409
