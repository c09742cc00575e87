"""Calling agents on a whole Turnlog: by two gateways, Kafka, PostgreSQL and the SDK's agent."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.command import turnlog_async
from tests.support.up import Up
from tests.support.waiting import until
from turnlog import Agent, Reply, Turn

LIMIT_S = 30.0


class Desk:
    """What an agent's handler is told to do, and what it was given."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.given: list[Turn] = []
        self.stopped: list[str] = []

    async def answer(self, turn: Turn, reply: Reply) -> None:
        self.given.append(turn)
        try:
            await reply.text(f"begun {turn.text}")
            await self.go_on.wait()
            await reply.text(f"done {turn.text}")
        except asyncio.CancelledError:
            self.stopped.append(turn.text)
            raise


class Caller:
    """A program that calls one group's agents at a gateway, with a thread of its own."""

    def __init__(self, http: httpx.AsyncClient, group: str, token: str) -> None:
        self.http = http
        self.agent = f"agents/{group}"
        self.thread = f"t-{group}"
        self.headers = {"authorization": f"Bearer {token}"}

    def path(self, id_: str = "i", more: str = "") -> str:
        return f"/v1/threads/{self.thread}/invocations/{id_}{more}"

    async def submit(self, id_: str = "i", text: str = "it", **body: Any) -> httpx.Response:
        given = {"id": id_, "agent": self.agent, "input": {"text": text}, **body}
        return await self.http.post(
            f"/v1/threads/{self.thread}/invocations", headers=self.headers, json=given, timeout=LIMIT_S
        )

    async def record(self, id_: str = "i", **query: Any) -> dict[str, Any]:
        answer = await self.http.get(self.path(id_), headers=self.headers, params=query, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def running(self, id_: str = "i") -> dict[str, Any]:
        """Its record, once its agent has begun."""

        async def begun() -> dict[str, Any] | None:
            record = await self.record(id_)
            return record if record["events"] else None

        found: dict[str, Any] = await until(begun)
        return found

    async def cancel(self, id_: str = "i") -> httpx.Response:
        return await self.http.post(self.path(id_, "/cancel"), headers=self.headers, json={})


@pytest.fixture
def group() -> str:
    return f"g{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def serving(up: Up, group: str, desk: Desk, gateway: int = 0) -> AsyncIterator[Agent]:
    agent = Agent(up.gateways[gateway], channel_secret=up.secret("agents"), group=group)
    agent.on_turn(desk.answer)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop(budget=0)


@pytest.fixture
async def caller(up: Up, group: str) -> AsyncIterator[Caller]:
    async with httpx.AsyncClient(base_url=up.gateways[0]) as http:
        login = await http.post(
            "/api/v1/converger/tokens/generate",
            headers={"authorization": f"Bearer {up.secret('web')}"},
            json={"user": {"id": f"caller-{group}"}},
        )
        yield Caller(http, group, login.json()["token"])


async def events_of(caller: Caller, url: str, last: int | None = None) -> list[dict[str, Any]]:
    """All that the stream at this gateway tells, to its end."""
    headers = caller.headers | ({} if last is None else {"last-event-id": str(last)})
    async with (
        httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as http,
        http.stream("GET", caller.path(more="/stream"), headers=headers) as answer,
    ):
        lines = [line async for line in answer.aiter_lines()]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def audited(up: Up, caller: Caller) -> None:
    """The log itself proves what became of the thread."""
    verdict = await turnlog_async("audit", "verify", "--conversation", caller.thread, environment=up.environment)
    assert verdict.code == 0, verdict.out + verdict.err


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_call_is_followed_at_both_gateways_and_its_record_stays(up: Up, group: str, caller: Caller) -> None:
    desk = Desk()
    async with serving(up, group, desk, gateway=1):
        accepted = await caller.submit(text="sum", streamed=True)
        assert (accepted.status_code, accepted.json()["state"]) == (202, "ACCEPTED")
        await caller.running()
        following = [asyncio.create_task(events_of(caller, url)) for url in up.gateways]
        desk.go_on.set()
        first, second = await asyncio.gather(*following)
    assert first[:-1] == second[:-1]
    assert [event["n"] for event in first[:-1]] == [1, 2]
    assert (first[-1]["state"], first[-1]["output"]["text"]) == ("SUCCEEDED", "begun sum\n\ndone sum")
    assert [event.get("n") for event in await events_of(caller, up.gateways[1], last=1)] == [2, None]
    assert await caller.record() == first[-1]
    repeated = await caller.submit(text="sum", streamed=True)
    assert (repeated.status_code, repeated.json()) == (200, first[-1]), "an id is created once"
    assert code(await caller.submit(text="other")) == (409, "INVOCATION_CONFLICT")


async def test_a_thread_has_one_claim_and_who_waits_in_line_comes_after_it(up: Up, group: str, caller: Caller) -> None:
    desk = Desk()
    async with serving(up, group, desk):
        await caller.submit("i")
        await caller.running()
        assert code(await caller.submit("j")) == (409, "CONVERSATION_BUSY")
        assert (await caller.submit("j", policy="enqueue")).json()["state"] == "ACCEPTED"
        claim = (await caller.http.get(f"/v1/threads/{caller.thread}", headers=caller.headers)).json()
        assert (claim["claim"]["id"], [call["id"] for call in claim["queued"]]) == ("i", ["j"])
        desk.go_on.set()
        assert (await caller.record("j", wait=20_000))["state"] == "SUCCEEDED"
    assert [turn.invocation.id for turn in desk.given if turn.invocation is not None] == ["i", "j"]
    await audited(up, caller)


async def test_cancelling_waits_for_the_agents_real_end(up: Up, group: str, caller: Caller) -> None:
    desk = Desk()
    async with serving(up, group, desk):
        await caller.submit()
        await caller.running()
        assert (await caller.cancel()).status_code == 202
        assert (await caller.record(wait=20_000))["state"] == "CANCELLED"
        assert desk.stopped == ["it"]


async def test_a_deadline_ends_it_and_its_agent_is_told(up: Up, group: str, caller: Caller) -> None:
    desk = Desk()
    async with serving(up, group, desk):
        await caller.submit(deadlineMs=1_000)
        record = await caller.record(wait=20_000)
        assert (record["state"], record["error"]["code"]) == ("TIMED_OUT", "DEADLINE_EXCEEDED")
        await until(lambda: desk.stopped)


async def test_a_lost_owner_is_its_end_unless_its_caller_lets_it_be_done_again(
    up: Up, group: str, caller: Caller
) -> None:
    first, second = Desk(), Desk()
    async with serving(up, group, first) as agent:
        await caller.submit("once")
        await caller.running("once")
        await agent.stop(budget=0)
        record = await caller.record("once", wait=20_000)
        assert (record["state"], record["error"]["code"]) == ("OWNER_GONE", "OWNER_GONE")
        assert code(await caller.submit("none")) == (503, "AGENT_UNAVAILABLE")
    async with serving(up, group, first) as agent:
        await caller.submit("again", retry=True)
        await caller.running("again")
        async with serving(up, group, second):
            await agent.stop(budget=0)
            second.go_on.set()
            record = await caller.record("again", wait=20_000)
    assert (record["state"], record["runEpoch"], record["output"]["text"]) == ("SUCCEEDED", 2, "begun it\n\ndone it")


async def test_a_lost_connection_keeps_the_claim_for_the_process_that_comes_back(
    up: Up, group: str, caller: Caller
) -> None:
    desk, other = Desk(), Desk()
    async with serving(up, group, desk) as agent:
        await caller.submit()
        await caller.running()
        async with serving(up, group, other):
            socket = agent._link._socket
            assert socket is not None
            socket.transport.abort()
            desk.go_on.set()
            record = await caller.record(wait=20_000)
    assert (record["state"], record["output"]["text"]) == ("SUCCEEDED", "begun it\n\ndone it")
    assert (len(desk.given), other.given) == (1, []), "nobody did it again"
    await audited(up, caller)


async def test_fifty_pollers_of_one_caller_are_looked_up_once_in_five_seconds(
    up: Up, group: str, caller: Caller
) -> None:
    async def looked_up() -> float:
        page = (await caller.http.get("/metrics")).text
        [line] = [line for line in page.splitlines() if line.startswith("turnlog_gateway_authorizations_total")]
        return float(line.split()[1])

    async with serving(up, group, Desk()):
        await caller.submit()
        before = await looked_up()
        answers = await asyncio.gather(*(caller.record() for _ in range(50)))
        assert len(answers) == 50
        assert await looked_up() - before <= 2, "one, and one more where five seconds ended in between"


async def test_an_operator_lists_shows_cancels_and_releases_them(up: Up, group: str, caller: Caller) -> None:
    async def command(*arguments: str) -> tuple[int, Any]:
        ran = await turnlog_async("invocation", *arguments, "-o", "json", environment=up.environment)
        return ran.code, json.loads(ran.out) if ran.out else ran.err

    async def listed(*options: str) -> list[dict[str, Any]]:
        _, rows = await command("list", *options)
        return [row for row in rows if row["thread"] == caller.thread]

    async with serving(up, group, Desk()) as agent:
        await caller.submit("i")
        await caller.running("i")
        assert [(row["id"], row["state"]) for row in await listed()] == [("i", "RUNNING")]
        assert (await command("show", caller.thread, "i"))[1]["member"] == agent.member
        told = ["release", caller.thread, "i", "--proof", "I looked", "--yes"]
        refused, why = await command(*told)
        assert (refused, "member_live" in why) == (1, True), why
        assert await command("cancel", caller.thread, "i") == (
            0,
            {"thread": caller.thread, "id": "i", "state": "CANCELLING", "already": False},
        )
        assert (await caller.record("i", wait=20_000))["state"] == "CANCELLED"
        assert (await command("cancel", caller.thread, "i"))[1]["already"] is True
        await caller.submit("j", retry=True)
        await caller.running("j")
        assert await listed("--orphaned") == []
    await until(lambda: listed("--orphaned"))
    assert (await command("release", caller.thread, "j", "--proof", " ", "--yes"))[0] == 64
    released, said = await command("release", caller.thread, "j", "--proof", "its host is off", "--yes")
    assert (released, said["state"]) == (0, "OWNER_GONE")
    assert (await listed(), [row["id"] for row in await listed("--thread", caller.thread)]) == ([], ["j", "i"])
    assert "its host is off" in (await command("show", caller.thread, "j"))[1]["error"]
    assert (await command("show", caller.thread, "none"))[0] == 1
