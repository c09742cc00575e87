"""What one connection may have waiting at this gateway, at its real sizes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from connectors.gateway import agent_past
from connectors.gateway.protocol.actions import Close, Write
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.delivery import SAID_BYTES_MAX
from connectors.gateway.protocol.limits import RUNS_PER_MEMBER
from connectors.gateway.protocol.session import Claims, Scope
from streams.core.commands import RefuseRun
from streams.core.events import Assignment, Frame, PersonFrameCommitted, RunOpened
from tests.support.gateway_world import Served, World, bearer
from tests.support.waiting import until

NOW = 1_750_000_000_000


class Reads:
    """A history whose pages are read when the test says so; how many are asked for at the same time."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self.go_on = asyncio.Event()
        self.now = self.most = 0
        self.of: list[str] = []

    async def __call__(self, conversation: str, after: int, limit: int) -> Any:
        self.of.append(conversation)
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go_on.wait()
        self.now -= 1
        return await self._page(conversation, after, limit)


async def test_few_replays_of_one_agent_are_read_at_once_and_each_conversation_gets_its_own_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = [await served.conversation(f"user-{number}") for number in range(20)]
    async with served.agent() as agent:
        for conversation, token in conversations:
            await served.say(conversation, token, "hello")
        await agent.settled()
        reads = Reads(served.gateway.history.page)
        monkeypatch.setattr(served.gateway.history, "page", reads)
        for _ in range(3):
            for conversation, _token in conversations:
                await agent.say(conversation, {"type": "sync", "watermark": 0})
            # All of them are asked for, and as many as may be are read, before any is asked for again.
            assert await agent.settled() == []
            await until(lambda: reads.now == agent_past.REPLAYS_AT_ONCE)
        reads.go_on.set()
        # Those that are read when it is asked again are read once more; those that wait still, once.
        expected = len(conversations) + agent_past.REPLAYS_AT_ONCE
        shown = [await agent.until("text") for _ in range(expected)]
        assert await agent.settled() == []
    assert len({frame["id"] for frame in shown}) == len(conversations)
    assert reads.most == agent_past.REPLAYS_AT_ONCE
    assert len(reads.of) == expected


async def test_more_replays_than_may_wait_are_refused_for_a_retry(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_past, "REPLAYS_WAITING_MAX", 1)
    conversations = [await served.conversation(f"user-{number}") for number in range(agent_past.REPLAYS_AT_ONCE + 2)]
    async with served.agent() as agent:
        for conversation, token in conversations:
            await served.say(conversation, token, "hello")
        await agent.settled()
        reads = Reads(served.gateway.history.page)
        monkeypatch.setattr(served.gateway.history, "page", reads)
        for conversation, _token in conversations[:-2]:
            await agent.say(conversation, {"type": "sync", "watermark": 0})
            await agent.settled()
        await until(lambda: reads.now == agent_past.REPLAYS_AT_ONCE)
        for conversation, _token in conversations[-2:]:
            await agent.say(conversation, {"type": "sync", "watermark": 0})
        refused = await agent.until_refused()
        assert (refused["code"], refused["retryable"], refused["frameType"]) == ("too_many_in_flight", True, "sync")
        assert refused["retryAfterMs"] > 0
        reads.go_on.set()
        for _ in conversations[:-1]:
            await agent.until("text")


def test_an_agent_whose_turn_cannot_be_read_is_sent_elsewhere_before_people_fill_the_gateway() -> None:
    claims = Claims(channel="agents", scope=Scope.CHANNEL, user="bot", named=True, expires_at=NOW + 3_600_000)
    session = AgentSession(
        partition_of=lambda _: 0,
        new_id=lambda: "id",
        token="t",
        scope_of=lambda _: claims,
        connection_id="gw-1.1",
        mint=lambda: "r",
        now=NOW,
    )
    session.receive('{"type":"hello"}', NOW)
    session.opened(NOW)
    run = RunOpened(conversation_id="c", run_id="c/1/agents", turn_seq=1, group="agents", channel="agents", member="m")
    session.run_taken_over(run, 7, NOW)
    said = PersonFrameCommitted(
        conversation_id="c",
        frame=Frame(id="f", type="genui_event", data=json.dumps({"eventType": "e", "payload": "x" * 60_000})),
        sender="ann",
        channel="web",
        to=(given := Assignment("agents", "gw-1.1", "c/1/agents", 1),),
    )
    kept = 0
    while not (actions := session.person_frame(said, given, NOW)):
        kept += 1
    assert kept * 60_000 < SAID_BYTES_MAX < (kept + 2) * 60_000
    error, close = actions
    assert isinstance(error, Write)
    assert isinstance(close, Close)
    assert (close.code, json.loads(close.reason)["reason"]) == (1012, "unavailable")


async def test_a_member_has_two_hundred_live_runs_and_not_one_more(world: World, served: Served) -> None:
    headers = bearer(await served.token(user={"id": "ann"}))

    async def submit(number: int, **body: Any) -> dict[str, Any]:
        call = {"id": "i", "agent": "agents/bots", "input": {"text": "work"}, **body}
        answer = await served.http.post(f"/v1/threads/t{number}/invocations", headers=headers, json=call)
        assert answer.status_code in {200, 202}, answer.text
        record: dict[str, Any] = answer.json()
        return record

    async with served.agent() as agent:
        for number in range(RUNS_PER_MEMBER):
            assert (await submit(number))["state"] == "ACCEPTED"
        assert RUNS_PER_MEMBER == 200
        refused = await submit(RUNS_PER_MEMBER, wait=5_000)
        assert (refused["state"], refused["error"]["code"]) == ("FAILED", "AGENT_BUSY")
        given = [frame for frame in await agent.settled() if frame["type"] == "text"]
        assert len({turn["run"] for turn in given}) == RUNS_PER_MEMBER, "the one too many it is not told of"
        over = {"type": "run", "data": {"status": "finished"}, "run": given[0]["run"], "runEpoch": 1}
        await agent.say(given[0]["run"].split("/")[0], over)
        ended = await served.http.get("/v1/threads/t0/invocations/i", headers=headers, params={"wait": 5_000})
        assert ended.json()["state"] == "SUCCEEDED"
        assert (await submit(RUNS_PER_MEMBER + 1))["state"] == "ACCEPTED"
    assert [type(command) for command in world.commands].count(RefuseRun) == 1
