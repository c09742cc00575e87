"""A program that speaks JSON lines, as an asyncio process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

PATIENCE_S = 120.0
"""How long a line that must come is waited for: a process that starts on a machine ten times overcommitted needs half a
minute. Only a failing test waits it out."""
LINE_BYTES = 1 << 22

Event = dict[str, Any]


class Program:
    """Lines out of its stdout are events; lines into its stdin are requests."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen: list[Event] = []
        """All events so far, in order."""
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            async with self._more:
                self.seen.append(json.loads(line))
                self._more.notify_all()
        async with self._more:
            self._more.notify_all()

    async def until(self, event: str, **wanted: Any) -> Event:
        """The first event of this name with these values, past or to come."""
        return (await self.count(1, event, **wanted))[0]

    async def count(self, number: int, event: str, **wanted: Any) -> list[Event]:
        """At least so many of them."""

        def found() -> list[Event]:
            return [each for each in self.seen if each["event"] == event and each.items() >= wanted.items()]

        await self._reached(lambda: len(found()) >= number, f"{number} of {event} {wanted}")
        return found()

    async def _reached(self, true: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S), self._more:
                await self._more.wait_for(lambda: true() or self._reading.done())
        except TimeoutError:
            raise AssertionError(f"did not come: {what}; seen: {self.seen[-20:]}") from None
        assert true(), f"the program ended before: {what}; seen: {self.seen[-20:]}"

    def write(self, line: str) -> None:
        """One line into its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """Ask, and wait for the answer: its value. An error is raised as `Refused`."""
        answer = await self.ask(name, **arguments)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    async def ask(self, name: str, /, **arguments: Any) -> Event:
        """Ask, and wait for the answer as it is."""
        at = len(self.seen)
        self.write(json.dumps({"call": name, "with": arguments}))
        await self._reached(lambda: len(self.seen) > at, f"the answer to {name}")
        return self.seen[at]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            code = await self.process.wait()
            await self._reading
        return code


class Refused(Exception):
    """The program answered with an error; `args[0]` is its document."""


@asynccontextmanager
async def program(*command: str, environment: Mapping[str, str]) -> AsyncIterator[Program]:
    """The program for as long as the block runs; killed if it is still there at its end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        limit=LINE_BYTES,
    )
    running = Program(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await running._reading
        if process.stdin is not None:
            process.stdin.close()
