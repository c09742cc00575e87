"""A person and an agent talk through a gateway."""

from __future__ import annotations

from tests.support.gateway_world import Served, World, bearer


async def test_a_turn_reaches_the_agent_and_its_answer_the_person(world: World, served: Served) -> None:
    conversation, token = await served.conversation("ann")
    async with served.agent() as agent, served.socket(token, {"watermark": 0}) as person:
        assert (await person.frame())["type"] == "welcome"
        await person.send({"type": "text", "clientId": "c-1", "data": {"text": "hello"}})
        ack = await person.until("ack")
        assert (ack["clientId"], ack["seq"]) == ("c-1", 1)

        turn = await agent.until("text")
        assert (turn["seq"], turn["from"], turn["data"], turn["id"]) == (1, "user", {"text": "hello"}, ack["id"])
        assert turn["meta"] == {"channel": "web", "participant": {"id": "ann"}}
        assert turn["run"] == f"{conversation}/1/agents/bots"
        assert turn["runEpoch"] == 1

        await agent.say(conversation, {"type": "read", "watermark": 1})
        await agent.say(conversation, {"type": "run", "data": {"status": "started"}})
        await agent.say(conversation, {"type": "text", "clientId": f"p.{ack['id']}.m1", "data": {"text": "hi"}})
        await agent.say(conversation, {"type": "run", "data": {"status": "finished"}})
        answered = await agent.until("ack")
        assert answered["seq"] == 2

        shown = await person.settled()
        assert [frame["type"] for frame in shown] == ["deliveryStatus", "run", "text", "run"]
        assert (shown[2]["seq"], shown[2]["id"], shown[2]["data"]) == (2, answered["id"], {"text": "hi"})
        assert [frame["data"]["status"] for frame in shown if frame["type"] == "run"] == ["started", "finished"]

    listed = await served.http.get(f"/api/v1/converger/conversations/{conversation}/activities", headers=bearer(token))
    assert [(a["seq"], a["text"]) for a in listed.json()["activities"]] == [(1, "hello"), (2, "hi")]
    assert world.kinds(conversation) == [
        "ConversationOpened", "TurnCommitted", "RunStarted", "FrameCommitted", "RunEnded"
    ]  # fmt: skip
