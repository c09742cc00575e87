"""Gateways and agents are replaced one after another while people talk: no turn an error, none kept waiting."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing

import httpx

from tests.support.command import turnlog_async
from tests.support.gateway_world import bearer
from tests.support.people import AGENT, given
from tests.support.program import Program, program
from tests.support.up import Up
from turnlog import Client

PEOPLE = 12
PACE_S = 0.2
"""Between an answer and the person's next line."""
WAIT_MAX_MS = 1_000
BEAT_S = 0.01
API = "/api/v1/converger"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Fleet:
    """Two gateways on fixed ports and three agents that know both; each can be replaced."""

    def __init__(self, up: Up, stack: AsyncExitStack) -> None:
        self._up = up
        self._stack = stack
        self._group = f"g{uuid.uuid4().hex[:8]}"
        self.ports = [free_port(), free_port()]
        self.gateways: list[Program] = []
        self.agents: list[Program] = []
        self.gone: list[Program] = []
        """Agents that were replaced."""

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def start(self) -> None:
        for number in range(2):
            self.gateways.append(await self._gateway(number))
        for number in range(3):
            self.agents.append(await self._agent(number))

    async def replace_gateway(self, number: int) -> None:
        assert await self.gateways[number].stop() == 0
        self.gateways[number] = await self._gateway(number)

    async def replace_agent(self, number: int) -> None:
        """The new one first, as deployments do."""
        old, self.agents[number] = self.agents[number], await self._agent(number)
        self.gone.append(old)
        assert await old.stop() == 0

    async def _gateway(self, number: int) -> Program:
        command = (sys.executable, "-m", "ops.cli", "gateway", "--port", str(self.ports[number]), "-o", "json")
        running = await self._stack.enter_async_context(program(*command, environment=self._up.environment))
        await running.until("ready")
        return running

    async def _agent(self, number: int) -> Program:
        urls = ",".join(self.urls[number % 2 :] + self.urls[: number % 2])
        command = (sys.executable, str(AGENT), urls, self._up.secret("agents"), self._group, "--delay-ms", "50")
        running = await self._stack.enter_async_context(program(*command, environment={}))
        await running.until("ready")
        return running


class Person:
    """Says a line, waits for its answer, says the next. Posts to any gateway that takes it, as behind a balancer."""

    def __init__(self, up: Up, fleet: Fleet, number: int) -> None:
        self._up = up
        self._fleet = fleet
        self._number = number
        self.said = 0
        self.turned_away = 0
        self.heard: list[tuple[str, str]] = []

    async def talk(self, enough: asyncio.Event) -> None:
        user = f"person-{self._number}"
        client = Client(self._up.gateways[0], channel_secret=self._up.secret("web"), user=user, insist=True)
        async with client, httpx.AsyncClient(timeout=10) as http:
            conversation = await client.open()
            async with aclosing(conversation.messages()) as messages:
                while not enough.is_set():
                    line = f"line {self.said}"
                    await self._post(http, conversation.id, (await conversation._good_token()).value, line)
                    self.said += 1
                    async with asyncio.timeout(60):
                        while self.heard[-1:] != [("bot", f"answer to {line}")]:
                            message = await anext(messages)
                            self.heard.append((message.role, message.text))
                    await asyncio.sleep(PACE_S)

    async def _post(self, http: httpx.AsyncClient, conversation: str, token: str, line: str) -> None:
        headers = bearer(token) | {"x-idempotency-key": line}
        for attempt in range(100):
            url = self._fleet.urls[(self._number + self.said + attempt) % 2]
            try:
                answer = await http.post(
                    f"{url}{API}/conversations/{conversation}/activities", headers=headers, json={"text": line}
                )
            except httpx.TransportError:  # it is not there, or went away: the repeat is safe by its key
                self.turned_away += 1
                await asyncio.sleep(0.02)
                continue
            if answer.status_code in {200, 201}:
                return
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["details"]["retryAfterMs"] >= 0
            self.turned_away += 1
        raise AssertionError(f"no gateway took {line!r}")


def waits_ms(agents: Sequence[Program]) -> list[float]:
    """How long each turn waited for an agent to have it, in ms; of a turn that moved, the first one."""
    first: dict[tuple[str, int], float] = {}
    for turn in given(agents):
        key = (turn["conversation"], turn["seq"])
        first[key] = min(first.get(key, turn["waited_ms"]), turn["waited_ms"])
    return sorted(first.values())


class Metronome:
    """How late this process's own timers were at worst: what a busy machine adds to anything that is timed here."""

    def __init__(self) -> None:
        self.late_ms = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.late_ms = max(self.late_ms, (loop.time() - due) * 1000)


async def test_replacing_every_gateway_and_agent_costs_no_turn_an_error_or_a_second(up: Up) -> None:
    async with AsyncExitStack() as stack:
        fleet = Fleet(up, stack)
        await fleet.start()
        people = [Person(up, fleet, number) for number in range(PEOPLE)]
        enough = asyncio.Event()
        metronome = Metronome()
        beating = asyncio.create_task(metronome.run())
        async with asyncio.TaskGroup() as tasks:
            for person in people:
                tasks.create_task(person.talk(enough))
            for number in range(3):
                await fleet.replace_agent(number)
                if number < 2:
                    await fleet.replace_gateway(number)
            enough.set()
        beating.cancel()
        agents = [*fleet.gone, *fleet.agents]
        for agent in fleet.agents:
            assert await agent.stop() == 0
    for person in people:
        lines = [
            spoken for n in range(person.said) for spoken in (("user", f"line {n}"), ("bot", f"answer to line {n}"))
        ]
        assert person.heard == lines
    said = sum(person.said for person in people)
    waits = waits_ms(agents)
    assert len(waits) == said
    figures = {
        "turns": said,
        "p50_ms": round(waits[said // 2], 1),
        "p99_ms": round(waits[said * 99 // 100], 1),
        "max_ms": round(waits[-1], 1),
        "given_twice": sum(
            count - 1 for count in Counter((t["conversation"], t["seq"]) for t in given(agents)).values()
        ),
        "turned_away": sum(person.turned_away for person in people),
        "timers_late_ms": round(metronome.late_ms, 1),
        "load": os.getloadavg()[0],
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    assert waits[-1] <= WAIT_MAX_MS + metronome.late_ms, figures
    verdict = await turnlog_async("audit", "verify", "-o", "json", environment=up.environment)
    assert (verdict.code, verdict.document["violations"]) == (0, [])
