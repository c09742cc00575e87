"""A run that goes on with another member: what that one is told of it, and what its process is told that comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from connectors.gateway.protocol import resume as resume_module
from streams.core.events import FrameCommitted, RunMoved
from tests.support.gateway_world import Peer, Served, World, bearer, serve

ABLE: dict[str, Any] = {"capabilities": ["continue", "unheard of"]}


async def chunk(agent: Peer, conversation: str, turn: dict[str, Any], text: str, stream: str = "s1") -> None:
    said = {"type": "text", "content": text, "id": 1}
    frame = {"type": "genui", "streamId": stream, "done": False, "chunk": said}
    await agent.say(conversation, frame | {"run": turn["run"], "runEpoch": turn["runEpoch"]})


async def checkpoint(
    agent: Peer, conversation: str, turn: dict[str, Any], data: Any, name: str = "c1"
) -> dict[str, Any]:
    frame = {"type": "checkpoint", "clientId": name, "data": data, "run": turn["run"], "runEpoch": turn["runEpoch"]}
    await agent.say(conversation, frame)
    return await agent.until("ack")


async def begun(agent: Peer, conversation: str, turn: dict[str, Any]) -> None:
    frame = {"type": "run", "data": {"status": "started"}, "run": turn["run"], "runEpoch": turn["runEpoch"]}
    await agent.say(conversation, frame)


async def ended(agent: Peer, conversation: str, turn: dict[str, Any], stream: str = "s1") -> None:
    named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
    end = {"type": "event", "name": "stream_done", "id": 2}
    await agent.say(conversation, {"type": "genui", "streamId": stream, "done": True, "chunk": end} | named)
    await agent.say(conversation, {"type": "run", "data": {"status": "finished"}} | named)


def texts(frames: list[dict[str, Any]]) -> list[Any]:
    return [frame["chunk"].get("content") if frame["type"] == "genui" else frame["type"] for frame in frames]


async def transcript(served: Served, conversation: str, token: str) -> list[dict[str, Any]]:
    path = f"/api/v1/converger/conversations/{conversation}/activities"
    answer = await served.http.get(path, headers=bearer(token))
    return [activity["channelData"].get("frame", {}) | activity for activity in answer.json()["activities"]]


async def test_the_next_owner_is_told_what_was_stored_and_goes_on_behind_it(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "count")
        turn = await first.until("text")
        assert "resume" not in turn
        await chunk(first, conversation, turn, "one ")
        await checkpoint(first, conversation, turn, {"step": 1})
        await chunk(first, conversation, turn, "two ")
        ack = await checkpoint(first, conversation, turn, {"step": 2}, "c2")
        assert (ack["clientId"], "seq" in ack) == ("c2", False)
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            moved = await second.until("text")
            assert (moved["seq"], moved["runEpoch"]) == (1, 2)
            known = moved["resume"]
            assert texts(known["frames"]) == ["one ", "two "]
            assert [frame["seq"] for frame in known["frames"]] == [2, 3]
            assert (known["checkpoint"], known["interrupts"]) == ({"step": 2}, [])
            await begun(second, conversation, moved)
            await chunk(second, conversation, moved, "three")
            await ended(second, conversation, moved)
            await second.settled()
    stored = await transcript(served, conversation, token)
    assert [(frame["seq"], frame.get("streamId")) for frame in stored[1:]] == [
        (2, "s1"),
        (3, "s1"),
        (4, "s1"),
        (5, "s1"),
    ]
    assert not any(frame.get("superseded") for frame in stored)
    assert "RunEnded" in world.kinds(conversation)


async def test_a_run_that_waited_without_a_member_is_continued_too(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "count")
        await chunk(first, conversation, await first.until("text"), "one ")
        await first.settled()
    async with served.agent(**ABLE) as second:
        moved = await second.until("text")
        assert (texts(moved["resume"]["frames"]), moved["runEpoch"]) == (["one "], 3)


async def test_one_that_cannot_begins_anew_and_is_told_nothing_new(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "count")
        await chunk(first, conversation, await first.until("text"), "one ")
        async with served.agent() as second:
            await first.raw.close()
            assert "resume" not in await second.until("text")
    stored = await transcript(served, conversation, token)
    assert [frame.get("superseded", False) for frame in stored] == [False, True, True]


@pytest.mark.parametrize("behind", [0, 1_000], ids=["read model", "journal"])
async def test_what_memory_does_not_hold_is_read_elsewhere(world: World, behind: int) -> None:
    async with serve(world) as served:
        conversation, token = await served.conversation()
        async with served.agent(**ABLE) as first:
            await served.say(conversation, token, "count")
            turn = await first.until("text")
            await chunk(first, conversation, turn, "one ")
            await checkpoint(first, conversation, turn, ["kept"])
    async with serve(world) as other:
        other.gateway.recent._conversations.clear()
        for partition in other.gateway.recent._partitions:
            partition.kept.clear()
            partition.floor = partition.last + 1
        other.gateway.history._lag_wait_s = 0.01
        other.read_model.behind = behind
        async with other.agent(**ABLE) as second:
            known = (await second.until("text"))["resume"]
            assert (texts(known["frames"]), known["checkpoint"]) == (["one "], ["kept"])


async def test_what_was_superseded_is_no_part_of_a_later_resume(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "count")
        await chunk(first, conversation, await first.until("text"), "superseded ")
        async with served.agent() as second:
            await first.raw.close()
            turn = await second.until("text")
            await chunk(second, conversation, turn, "one ")
            async with served.agent(**ABLE) as third:
                await second.raw.close()
                moved = await third.until("text")
                assert texts(moved["resume"]["frames"]) == ["one "]
                assert moved["resume"]["frames"][0]["streamId"] == "s1#1"
                await begun(third, conversation, moved)
                await chunk(third, conversation, moved, "two", "s1#1")
                await ended(third, conversation, moved, "s1#1")
                await third.settled()
    stored = await transcript(served, conversation, token)
    assert [frame["streamId"] for frame in stored if frame.get("streamId") and not frame.get("superseded")] == [
        "s1#1"
    ] * 3


async def test_an_open_question_is_named_and_an_answered_one_comes_with_its_answer(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "order")
        turn = await first.until("text")
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        for ask in ("size", "colour"):
            await first.say(conversation, {"type": "interrupt", "id": ask, "data": {"payload": {"q": ask}}} | named)
        await first.settled()
        await served.say(conversation, token, "large")
        await first.until("text")
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            known = (await second.until("text"))["resume"]
            assert texts(known["frames"]) == ["interrupt", "interrupt", "text"]
            assert (known["frames"][2]["data"]["text"], known["frames"][2]["answers"]) == ("large", "size")
            assert known["interrupts"] == ["colour"]
            await served.say(conversation, token, "blue")
            assert (await second.until("text"))["data"]["text"] == "blue"


async def test_an_answer_given_after_the_move_comes_once_behind_the_resume(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, token = await served.conversation()
    history, moved, may_read = served.gateway.history, asyncio.Event(), asyncio.Event()
    turn_of = history.turn

    async def read_late(conversation_id: str, seq: int) -> Any:
        moved.set()
        await may_read.wait()
        return await turn_of(conversation_id, seq)

    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "order")
        turn = await first.until("text")
        named = {"run": turn["run"], "runEpoch": turn["runEpoch"]}
        await first.say(conversation, {"type": "interrupt", "id": "size", "data": {"payload": 1}} | named)
        await first.settled()
        monkeypatch.setattr(history, "turn", read_late)
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            await moved.wait()
            await served.say(conversation, token, "large")
            may_read.set()
            known = (await second.until("text"))["resume"]
            assert (texts(known["frames"]), known["interrupts"]) == (["interrupt"], ["size"])
            assert (await second.until("text"))["data"]["text"] == "large"


async def test_a_long_resume_comes_in_parts_ahead_of_its_turn(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume_module, "PART_BYTES", 300)
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "count")
        turn = await first.until("text")
        for number in range(7):
            await chunk(first, conversation, turn, f"{number} ")
        await first.settled()
        async with served.agent(**ABLE) as second:
            await first.raw.close()
            frames: list[dict[str, Any]] = []
            while (inner := (await second.frame())["frame"])["type"] == "resume_part":
                assert (inner["run"], inner["runEpoch"]) == (turn["run"], 2)
                assert inner["frames"]
                frames += inner["frames"]
            assert frames
            assert texts(frames + inner["resume"]["frames"]) == [f"{number} " for number in range(7)]


async def test_a_process_that_comes_back_is_told_what_is_stored_of_what_it_had(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as first:
        await served.say(conversation, token, "count")
        await chunk(first, conversation, await first.until("text"), "one ")
        await first.settled()
        await first.raw.close()
        async with served.agent(watermarks={conversation: 1}, **ABLE) as again:
            told = await again.until("adopted")
            assert (told["run"], texts(told["resume"]["frames"])) == (f"{conversation}/1/agents/bots", ["one "])
            await begun(again, conversation, told)
            await chunk(again, conversation, told, "two")
            await ended(again, conversation, told)
            await again.settled()
    assert world.kinds(conversation).count("RunEnded") == 1
    assert [frame.get("superseded", False) for frame in await transcript(served, conversation, token)] == [False] * 4


async def test_one_that_does_not_continue_is_told_nothing_when_it_comes_back(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "count")
        await first.until("text")
        await first.raw.close()
        async with served.agent(watermarks={conversation: 1}) as again:
            assert await again.settled() == []


@pytest.mark.parametrize("able", [{"capabilities": ["adopt"]}, {}], ids=["told by name", "told by abort"])
async def test_a_process_whose_turn_others_had_meanwhile_is_stopped_before_it_begins_anew(
    served: Served, able: dict[str, Any]
) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**able) as first:
        await served.say(conversation, token, "count")
        await first.until("text")
        await first.raw.close()
    async with served.agent() as second:
        await chunk(second, conversation, await second.until("text"), "another's ")
        await second.settled()
        await second.raw.close()
    async with served.agent(watermarks={conversation: 1}, **able) as again:
        stop, turn = (await again.frame())["frame"], (await again.frame())["frame"]
        assert (turn["type"], "seq" in turn, turn["runEpoch"]) == ("text", False, 5)
        if able:
            assert (stop["type"], stop["data"]["code"], stop["run"]) == ("error", "fenced", turn["run"])
            assert stop["runEpoch"] < turn["runEpoch"]
        else:
            assert stop["type"] == "abort"
        await again.say(conversation, {"type": "text", "data": {"text": "mine"}, "clientId": "m1"})
        await again.until("ack")
    stored = await transcript(served, conversation, token)
    shown = [frame for frame in stored if not frame.get("superseded")]
    assert [frame["text"] for frame in shown] == ["count", "mine"]


async def test_a_process_that_goes_on_with_a_stream_over_another_connection_is_stopped_and_begins_anew(
    served: Served,
) -> None:
    """It names no epoch, so it was not told what of it was stored."""
    conversation, token = await served.conversation()

    def piece(stream: str, text: str, *, done: bool) -> dict[str, Any]:
        said = {"type": "text", "content": text, "id": 1}
        return {"type": "genui", "streamId": stream, "done": done, "chunk": said}

    def run(status: str) -> dict[str, Any]:
        return {"type": "run", "data": {"status": status}}

    async with served.agent() as first:
        await served.say(conversation, token, "count")
        await first.until("text")
        await first.say(conversation, run("started"))
        await first.say(conversation, piece("s1", "one ", done=False))
        await first.settled()
        await first.raw.close()
    async with served.agent(watermarks={conversation: 1}) as again:
        await again.say(conversation, piece("s1", "three", done=True))
        refused, stop, turn = [(await again.frame())["frame"] for _ in range(3)]
        assert (refused["type"], refused["data"]["code"], stop["type"]) == ("error", "fenced", "abort")
        assert (turn["type"], "seq" in turn) == ("text", False)
        await again.say(conversation, piece("s1", "more of it", done=True))  # it was on its way
        for frame in (run("aborted"), run("started"), piece("s2", "one two three", done=True), run("finished")):
            await again.say(conversation, frame)
        await again.settled()
    stored = await transcript(served, conversation, token)
    shown = [frame for frame in stored if not frame.get("superseded")]
    assert [frame.get("text") or frame["chunk"]["content"] for frame in shown] == ["count", "one two three"]


async def test_the_welcome_says_what_this_gateway_can(served: Served) -> None:
    token = await served.token("agents-secret", scope="channel")
    for hello, able in ((ABLE, True), ({"capabilities": "continue"}, False), ({}, False)):
        async with served.socket(token, dict(hello)) as peer:
            data = (await peer.frame())["data"]
            assert data["capabilities"] == {"drain": True, "continue": able, "adopt": able}
            assert data["limits"]["maxCheckpointBytes"] == 262_144


async def test_a_checkpoint_has_no_viewer_and_no_seq(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as agent, served.socket(token, {"watermark": 0}) as person:
        await person.until("welcome")
        await served.say(conversation, token, "count")
        turn = await agent.until("text")
        first = await checkpoint(agent, conversation, turn, {"secret": 1})
        again = await checkpoint(agent, conversation, turn, {"secret": 1})
        assert (again["id"], again["duplicate"]) == (first["id"], True)
        assert [frame["type"] for frame in await person.settled()] == ["text"]
    assert [e.event.seq for e in world.journal_of(conversation) if isinstance(e.event, FrameCommitted)] == [0]


async def test_a_checkpoint_of_256_kib_is_taken_and_a_longer_one_refused_by_field_and_rule(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent(**ABLE) as agent:
        await served.say(conversation, token, "count")
        turn = await agent.until("text")
        await checkpoint(agent, conversation, turn, "ü" * (131_072 - 1))
        await agent.say(conversation, {"type": "checkpoint", "clientId": "c2", "data": "x" * 262_143})
        data = (await agent.frame())["frame"]["data"]
        assert (data["code"], data["clientId"]) == ("payload_too_large", "c2")
        assert data["message"] == "data: 262145 bytes as JSON, at most 262144 are taken of a checkpoint"
        assert data["details"] == {"field": "data", "size": 262_145, "limit": 262_144}
        await agent.say(conversation, {"type": "checkpoint", "clientId": "c3"})
        assert (await agent.frame())["frame"]["data"]["message"] == "data: what is to be kept, any JSON value"
        await agent.say(conversation, {"type": "text", "clientId": "c4", "data": {"text": "x" * 140_000}})
        assert (await agent.frame())["data"]["code"] == "payload_too_large"


async def test_a_checkpoint_of_a_run_that_is_held_by_another_is_fenced(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent("a", **ABLE) as owner, served.agent("b", **ABLE) as stranger:
        await served.say(conversation, token, "count")
        turn = await owner.until("text")
        await stranger.until("text")
        frame = {"type": "checkpoint", "clientId": "c1", "data": 1, "run": turn["run"], "runEpoch": 1}
        await stranger.say(conversation, frame)
        assert (await stranger.frame())["frame"]["data"]["code"] == "fenced"


async def test_viewers_that_ask_for_it_are_told_what_was_superseded(world: World, served: Served) -> None:
    conversation, token = await served.conversation()
    async with (
        served.socket(token, {"watermark": 0, "capabilities": ["superseded"]}) as asking,
        served.socket(token, {"watermark": 0}) as other,
        served.agent() as first,
    ):
        await asking.until("welcome")
        await other.until("welcome")
        await served.say(conversation, token, "count")
        await chunk(first, conversation, await first.until("text"), "one ")
        async with served.agent() as second:
            await first.raw.close()
            await second.until("text")
        told = [frame for frame in await asking.settled() if frame["type"] == "superseded"]
        (move,) = [
            e.event for e in world.journal_of(conversation) if isinstance(e.event, RunMoved) and e.event.superseded
        ]
        assert [frame["data"] for frame in told] == [{"run": move.run_id, "runEpoch": 2, "seqs": [2, 3]}]
        assert not [frame for frame in await other.settled() if frame["type"] == "superseded"]


async def test_event_streams_are_told_what_was_superseded(served: Served) -> None:
    conversation, token = await served.conversation()
    async with served.agent() as first:
        await served.say(conversation, token, "count")
        await chunk(first, conversation, await first.until("text"), "one ")
        await first.settled()
        path = f"/v1/conversations/{conversation}/stream"
        async with served.http.stream("GET", path, headers=bearer(token)) as events:
            lines = events.aiter_lines()
            while await anext(lines) != "id: 2":
                pass
            async with served.agent() as second:
                await first.raw.close()
                await second.until("text")
                while await anext(lines) != "event: superseded":
                    pass
                assert json.loads((await anext(lines)).removeprefix("data: "))["data"]["seqs"] == [2, 3]


@pytest.mark.parametrize("behind", [0, 1_000], ids=["read model", "journal"])
async def test_viewers_that_come_back_are_told_what_was_superseded_meanwhile(world: World, behind: int) -> None:
    async with serve(world) as served:
        conversation, token = await served.conversation()
        async with served.agent() as first:
            await served.say(conversation, token, "count")
            await chunk(first, conversation, await first.until("text"), "one ")
            async with served.agent() as second:
                await first.raw.close()
                await second.until("text")
    async with serve(world) as served:
        served.gateway.recent._conversations.clear()
        for partition in served.gateway.recent._partitions:
            partition.kept.clear()
            partition.floor = partition.last + 1
        served.gateway.history._lag_wait_s = 0.01
        served.read_model.behind = behind
        async with served.socket(token, {"watermark": 2, "capabilities": ["superseded"]}) as asking:
            await asking.until("welcome")
            assert (await asking.until("superseded"))["data"] == {"seqs": [2]}
        path = f"/v1/conversations/{conversation}/stream"
        headers = bearer(token) | {"last-event-id": "3"}
        async with served.http.stream("GET", path, headers=headers) as events:
            lines = events.aiter_lines()
            while await anext(lines) != "event: superseded":
                pass
            assert json.loads((await anext(lines)).removeprefix("data: "))["data"] == {"seqs": [2, 3]}
        async with served.socket(token, {"watermark": 1, "capabilities": ["superseded"]}) as early:
            await early.until("welcome")
            shown = [await early.frame() for _ in range(2)]
            assert [(frame["type"], frame["superseded"]) for frame in shown] == [("genui", True)] * 2
