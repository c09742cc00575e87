"""Agents that die in the middle of an answer, as real processes: what the person's transcript is then."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.acceptance.programs.counting_agent import LAST, WORDS
from tests.support.gateway_world import bearer
from tests.support.people import ROOT
from tests.support.program import Program, program
from tests.support.up import Up
from tests.support.waiting import until

API = "/api/v1/converger"
AGENT = ROOT / "tests" / "acceptance" / "programs" / "counting_agent.py"
CLIENT = ROOT / "tests" / "acceptance" / "clients" / "agent.py"
WHOLE = "".join(WORDS)
FRAMES = 11
"""What an agent sends for one turn: started, five words, two checkpoints, the stream's end, the message, finished."""


@pytest.fixture
def group() -> str:
    return f"g{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def http(up: Up) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=up.gateways[1], timeout=30) as client:
        yield client


def counting(up: Up, group: str, *options: str, gateway: int = 0) -> AbstractAsyncContextManager[Program]:
    command = (sys.executable, str(AGENT), up.gateways[gateway], up.secret("agents"), group, *options)
    return program(*command, environment={})


class Talk:
    """One conversation and what it holds."""

    def __init__(self, http: httpx.AsyncClient, conversation: str, token: str) -> None:
        self.id = conversation
        self._http = http
        self._headers = bearer(token)
        self._path = f"{API}/conversations/{conversation}/activities"

    async def say(self, text: str) -> None:
        answer = await self._http.post(self._path, headers=self._headers, json={"text": text})
        assert answer.status_code == 201, answer.text

    async def frames(self) -> list[dict[str, Any]]:
        """The transcript behind the turn, as a viewer gets it, without what it may hide."""
        page = (await self._http.get(self._path, headers=self._headers, params={"limit": 200})).json()
        shown = [each["channelData"].get("frame") or each for each in page["activities"][1:]]
        return [frame for frame in shown if not frame.get("superseded") and not superseded(frame)]

    async def settled(self) -> list[dict[str, Any]]:
        """As `frames`, once no run is open."""

        async def over() -> bool:
            state = await self._http.get(f"/v1/conversations/{self.id}", headers=self._headers)
            shown = state.json()
            return bool(shown["open_runs"] == [] and shown["head_seq"] > 1)

        await until(over)
        return await self.frames()


def superseded(activity: dict[str, Any]) -> bool:
    return bool((activity.get("channelData") or {}).get("superseded"))


@asynccontextmanager
async def talk(up: Up, http: httpx.AsyncClient) -> AsyncIterator[Talk]:
    made = await http.post(f"{API}/tokens/generate", headers=bearer(up.secret("web")), json={})
    opened = (await http.post(f"{API}/conversations", headers=bearer(made.json()["token"]))).json()
    yield Talk(http, opened["conversationId"], opened["token"])


def streams(frames: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Chunks by stream: texts, and True for each end."""
    found: dict[str, list[Any]] = {}
    for frame in frames:
        if frame["type"] == "genui":
            said = True if frame["done"] else frame["chunk"]["content"]
            found.setdefault(frame["streamId"], []).append(said)
    return found


def messages(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["text"] for frame in frames if frame["type"] == "message"]


def assert_whole_and_once(frames: list[dict[str, Any]]) -> None:
    (chunks,) = streams(frames).values()
    assert chunks.count(True) == 1
    assert chunks[-1] is True
    assert "".join(chunks[:-1]) == WHOLE
    assert messages(frames) == [LAST]


async def killed_in(up: Up, http: httpx.AsyncClient, doomed: Program, *heirs: Program) -> Talk:
    """A conversation whose turn `doomed` had, and died of."""
    while True:
        async with talk(up, http) as there:
            await there.say("count")
            await until(lambda: doomed.process.returncode is not None or has(there, *heirs))
            if not has(there, *heirs) or turns_in(there, *heirs)[0]["run_epoch"] > 1:
                return there
            # Its owner was another one: it has to be the next conversation's.
            assert_whole_and_once(await there.settled())


def has(there: Talk, *agents: Program) -> bool:
    return bool(turns_in(there, *agents))


def turns_in(there: Talk, *agents: Program) -> list[dict[str, Any]]:
    return [turn for agent in agents for turn in turns(agent) if turn["conversation"] == there.id]


def turns(agent: Program) -> list[dict[str, Any]]:
    return [event for event in agent.seen if event["event"] == "turn"]


@pytest.mark.parametrize("frames", range(1, FRAMES + 1))
async def test_the_answer_is_whole_and_once_wherever_its_agent_died(
    up: Up, http: httpx.AsyncClient, group: str, frames: int
) -> None:
    heir_there = frames % 2 == 0
    async with counting(up, group, "--continues", "--die-after", str(frames)) as doomed:
        await doomed.until("ready")
        if heir_there:
            async with counting(up, group, "--continues", gateway=1) as heir:
                await heir.until("ready")
                there = await killed_in(up, http, doomed, heir)
                assert_whole_and_once(await there.settled())
            return
        there = await killed_in(up, http, doomed)
        async with counting(up, group, "--continues", gateway=1) as heir:
            assert_whole_and_once(await there.settled())


@pytest.mark.parametrize("frames", [1, 2, 4, 8, 9, 10, 11])
async def test_of_one_that_cannot_continue_nothing_is_complete_twice(
    up: Up, http: httpx.AsyncClient, group: str, frames: int
) -> None:
    async with counting(up, group, "--die-after", str(frames)) as doomed, counting(up, group, gateway=1) as heir:
        await doomed.until("ready")
        await heir.until("ready")
        there = await killed_in(up, http, doomed, heir)
        shown = await there.settled()
        (chunks,) = streams(shown).values()
        assert "".join(chunk for chunk in chunks if chunk is not True) == WHOLE
        assert messages(shown) in ([LAST], [])  # a finished stream is an answer: its run is not given again
        assert all(turn["resume"] is None for turn in turns(heir))


async def test_an_agent_that_cannot_is_taken_over_by_one_that_can(up: Up, http: httpx.AsyncClient, group: str) -> None:
    async with (
        counting(up, group, "--die-after", "5") as doomed,
        counting(up, group, "--continues", gateway=1) as heir,
    ):
        await doomed.until("ready")
        await heir.until("ready")
        there = await killed_in(up, http, doomed, heir)
        assert_whole_and_once(await there.settled())


async def test_the_example_of_the_docs_finishes_what_a_killed_one_began(up: Up, http: httpx.AsyncClient) -> None:
    def example() -> AbstractAsyncContextManager[Program]:
        environment = {"TURNLOG_GATEWAY": up.gateways[0], "AGENTS_SECRET": up.secret("agents")}
        return program(sys.executable, str(ROOT / "docs" / "examples" / "continuing_agent.py"), environment=environment)

    async with talk(up, http) as there:
        await there.say("what is it")
        async with example() as first:
            await until(there.frames)
            first.kill()
            await first.process.wait()
        before = await there.frames()
        async with example():
            after = await there.settled()
        assert after[: len(before)] == before
        (chunks,) = streams(after).values()
        said = "".join(chunk for chunk in chunks if chunk is not True)
        assert said == "First, what you asked: what is it. Second, what I make of it. And third, the end. "


async def test_the_unmodified_public_agent_in_the_same_group_answers_anew(
    up: Up, http: httpx.AsyncClient, group: str, clients_python: str
) -> None:
    public = program(
        *(clients_python, str(CLIENT), up.gateways[1], "P", group), environment={"SECRET": up.secret("agents")}
    )
    async with counting(up, group, "--continues", "--die-after", "3") as doomed, public as heir:
        await doomed.until("ready")
        await heir.until("ready")
        while doomed.process.returncode is None:
            async with talk(up, http) as there:
                await there.say("count")
                shown = await there.settled()
        assert streams(shown) == {}  # what was partial is superseded
        assert messages(shown) == ["P: count"]
