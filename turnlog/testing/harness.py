"""An agent, served without a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from turnlog.agent import Agent
from turnlog.process import Process
from turnlog.testing.clock import Clock
from turnlog.testing.gateway import Gateway
from turnlog.testing.own import OwnConversation
from turnlog.testing.person import Person
from turnlog.testing.wire import Wire

PATIENCE_S = 10.0


@dataclass(slots=True)
class _Served:
    wire: Wire
    process: Process
    task: asyncio.Task[None]


class AgentHarness:
    """``async with AgentHarness(agent) as person: answer = await person.say("hi")``.

    `copies`: processes of the agent, which share its conversations as in production. `patience`: real seconds that a
    person waits for an agent that says nothing, before the test fails.
    """

    def __init__(self, agent: Agent, *, copies: int = 1, patience: float = PATIENCE_S) -> None:
        if not agent.handlers.bound:
            raise ValueError(
                "agent: register a handler with @agent.on_turn, @agent.on_invoke or @agent.on_activity first"
            )
        if copies < 1:
            raise ValueError("copies: at least 1")
        self._agent = agent
        self._copies = copies
        self._patience = patience
        self._gateway = Gateway(continues=agent.settings.continues)
        self._served: list[_Served] = []
        self._persons = 0
        self._outside = agent.process
        self._followed = agent.process.followed.watermarks
        """What the program follows from its start on: so does each process that begins anew."""
        self.clock = Clock()

    async def __aenter__(self) -> Person:
        self.clock.__enter__()
        for _ in range(self._copies):
            await self._serve()
        return self.person()

    async def __aexit__(self, *error: object) -> None:
        try:
            for served in list(self._served):
                served.wire.drop()
                await self._end(served)
        finally:
            self._agent.process = self._outside
            self.clock.__exit__(*error)

    def person(self, name: str = "person") -> Person:
        """Another person, in a conversation of their own."""
        self._persons += 1
        conversation = self._gateway.conversation(f"conversation-{self._persons}")
        return Person(self._gateway, conversation, name, self._patience)

    def conversation(self, name: str = "conversation") -> OwnConversation:
        """A conversation of the agent's own channel, which it may `follow`, and `say` something in."""
        if name in self._gateway.own or name in self._gateway.conversations:
            raise ValueError(f"name: there is a conversation {name!r} already")
        heard = self._all_heard
        return self._gateway.own.setdefault(name, OwnConversation(name, heard, self._patience))

    def _all_heard(self) -> bool:
        return all(served.process.followed.idle for served in self._served)

    async def advance(self, seconds: float) -> None:
        """Let time pass: for time-outs, deadlines and what sleeps."""
        await self.clock.advance(seconds)

    async def kill(self) -> None:
        """The process that answers (else the first) dies in the middle of what it does: nothing of it is sent any more.

        Its runs go to another copy, or to a new one: to be continued (`Agent(continues=True)`), else begun anew. In the
        test the handler is cancelled; of a process that really dies, no `finally` runs.
        """
        served = self._answering()
        served.wire.drop()
        await self._end(served)
        self._gateway.leave(served.wire)
        if not self._served:
            await self._serve()

    async def cut(self) -> None:
        """The connection of the process that answers is lost, and comes back: it goes on with what it has."""
        served = self._answering()
        served.wire.drop()
        await asyncio.sleep(0)
        await served.wire.connect()
        self._gateway.came_back(served.wire)

    async def drain(self, budget: float = 10.0) -> None:
        """The process that answers stops as on SIGTERM: it ends what it has, within `budget` seconds, and leaves."""
        served = self._answering()
        if len(self._served) == 1:
            await self._serve()
        await served.process.drain(budget)
        await served.wire.close()
        await self._end(served)

    async def start(self) -> None:
        """One more copy."""
        await self._serve()

    def _answering(self) -> _Served:
        if not self._served:
            raise RuntimeError("the harness is not entered")
        held = {run.member for c in self._gateway.conversations.values() for run in c.open_runs()}
        return next((served for served in self._served if served.wire in held), self._served[0])

    async def _serve(self) -> None:
        wire = Wire(self._gateway)
        process = Process(self._agent.settings, self._agent.handlers, wire, answering=self._agent.answering)
        for conversation, after in self._followed.items():
            process.followed.follow(conversation, after)
        task = asyncio.create_task(wire.run(process))
        self._served.append(_Served(wire, process, task))
        self._lead()
        await wire.wait_up(None)

    async def _end(self, served: _Served) -> None:
        await served.process.abandon()
        await served.wire.close()
        await served.task
        self._served.remove(served)
        self._lead()

    def _lead(self) -> None:
        """What the program says to its agent is for the first of its processes."""
        if self._served:
            self._agent.process = self._served[0].process
