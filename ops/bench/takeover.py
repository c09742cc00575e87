"""How long a fault is felt: from the moment that a process is killed, stopped or drained to the next committed event of
the conversations that it had.

Each fault is made on a whole stack under light load, with many known conversations. What counts is what a reader of the
journal sees: a turn that was written just after the fault is committed (workers), a run that its owner has lost moves
on (agents, gateways). After each round everything that was ended is started again and has its share before the next.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import psycopg

from ops.bench.fill import Filler, producer_to
from ops.bench.holder import HOLD, SECRET_VARIABLE
from ops.bench.latency import quantile
from ops.bench.sequencer import BenchFailed
from ops.bench.tail import Seen, Tail, tail_of
from ops.children import Child, ChildPlan
from ops.stack import RunningStack
from streams.core.events import Entry, MemberJoined, RunMoved, TurnCommitted
from streams.fence.lease import LeaseTable
from streams.runtime.partitioning import partition_of
from streams.runtime.registry import open_codec
from streams.settings import Settings
from streams.topics import Topics
from turnlog import Client, Conversation, TurnlogError

GROUP: Final = "bench"
PEOPLE: Final = 4
"""Clients that talk over HTTP all through a drain; each failure of theirs counts."""
SAID_EVERY_S: Final = 0.1
HELD_AT_ONCE: Final = 16
"""Conversations of a round whose turns agents are given to keep."""
LOOK_EVERY_S: Final = 0.1
PATIENCE_S: Final = 60.0
"""Longer than any lease, TTL and backoff: what has not happened by then does not happen."""

Notify = Callable[[str], None]


class Fault(StrEnum):
    """What is done to a process."""

    KILL_WORKER = "kill_worker"
    STOP_WORKER = "stop_worker"
    KILL_AGENT = "kill_agent"
    KILL_GATEWAY = "kill_gateway"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Felt:
    """What one fault came to, over all of its rounds. `errors`: requests of people that failed meanwhile (drain)."""

    times_ms: Sequence[float]
    errors: int = 0

    def document(self) -> dict[str, float]:
        """p50, p99 and the longest, ms, and of how many conversations."""
        ordered = sorted(self.times_ms)
        return {
            "p50": round(quantile(ordered, 0.50), 1),
            "p99": round(quantile(ordered, 0.99), 1),
            "max": round(ordered[-1], 1),
            "samples": len(ordered),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverPlan:
    """What is measured, on how much, how often (a stopped worker once: its lease has to end each time). `load`: turns a
    second, all through the faults."""

    faults: Sequence[Fault]
    partitions: int
    conversations: int
    rounds: int
    load: float


@dataclass(slots=True)
class TakeoverBench:
    """The stack under test, and the means to load, hurt and watch it."""

    stack: RunningStack
    settings: Settings
    partitions: int
    notify: Notify
    filler: Filler
    tail: Tail
    leases: LeaseTable
    probes: dict[int, str] = field(default_factory=dict)
    """One conversation of each partition, in which a turn is said to see that the partition runs."""
    known: list[str] = field(default_factory=list)
    """The other conversations."""
    agents: list[Child] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------- furnishing
    async def furnish(self, conversations: int) -> None:
        """Agents in every partition, `conversations` known conversations, of which all are committed and projected."""
        self.probes = _one_of_each(self.partitions)
        await self.fresh_agents()
        self.notify(f"opening {conversations:,} conversations")
        self.known = await self.filler.conversations(max(0, conversations - self.partitions))
        await self.filler.open(self.probes.values())
        await self._projected(max(conversations, self.partitions))
        await self._probed(self.probes)

    async def load(self, per_s: float) -> None:
        """So many turns a second over the known conversations, without end; the agents answer them."""
        talked_in = self.known or list(self.probes.values())
        number = 0
        while True:
            await self.filler.turn(talked_in[number % len(talked_in)], uuid.uuid4().hex, "hello")
            number += 1
            await asyncio.sleep(1 / per_s)

    async def fresh_agents(self) -> None:
        """Two agents of one group, new as members, each at a gateway of its own; known in every partition."""
        for agent in self.agents:
            agent.kill()
            await agent.stop(0.0)
        self.agents.clear()
        joined = self.tail.expect(None, _nth_join(2 * self.partitions))
        secret = self._secret("agents")
        urls = [str(gateway.ready["url"]) for gateway in self.stack.children.gateways]
        for n in range(2):
            command = [sys.executable, "-m", "ops.bench.holder", "--group", GROUP, *urls[n:], *urls[:n]]
            log = self.stack.children.logs / f"agent-{n + 1}.log"
            plan = ChildPlan(name=f"agent-{n + 1}", command=command, environment={SECRET_VARIABLE: secret}, log=log)
            agent = Child(plan, _unsaid)  # its end is made on purpose
            self.agents.append(agent)
            await agent.start()
        await self._seen([joined], "agents that are members in every partition")

    def _secret(self, channel: str) -> str:
        return next(each.secret for each in self.stack.channels if each.id == channel)

    async def _projected(self, conversations: int) -> None:
        """Until the read model has so many: what is projected still would take CPU from what is measured."""
        connection = await psycopg.AsyncConnection.connect(self.settings.postgres, autocommit=True)
        async with connection:
            found, changed = -1, time.perf_counter()
            while found < conversations:
                row = await (await connection.execute("SELECT count(*) FROM conversations")).fetchone()
                now_found = int(row[0]) if row else 0
                if now_found != found:
                    found, changed = now_found, time.perf_counter()
                elif time.perf_counter() - changed > PATIENCE_S:
                    raise BenchFailed(f"{found:,} of {conversations:,} conversations came to the read model")
                await asyncio.sleep(LOOK_EVERY_S)

    # ----------------------------------------------------------------------------------------------------- rounds
    async def kill_worker(self, round_: int) -> Felt:
        """SIGKILL to a worker."""
        victim = self._worker(round_)
        restarts = victim.restarts
        felt = await self._without(victim, signal.SIGKILL)
        await self._until(lambda: victim.restarts > restarts, f"{victim.plan.name} is started again")
        await self.balanced()
        return felt

    async def stop_worker(self, round_: int) -> Felt:
        """SIGSTOP to a worker, and SIGCONT once others have its partitions."""
        victim = self._worker(round_)
        try:
            felt = await self._without(victim, signal.SIGSTOP)
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        await self.balanced()
        return felt

    async def drain(self, round_: int) -> Felt:
        """SIGTERM to a worker while people talk over HTTP, whose requests may not fail."""
        victim = self._worker(round_)
        restarts = victim.restarts
        async with self._people() as failures:
            felt = await self._without(victim, signal.SIGTERM)
            await self._until(lambda: victim.restarts > restarts, f"{victim.plan.name} is started again")
            await self.balanced()
        for failure in failures:
            self.notify(f"a request failed: {failure}")
        return Felt(felt.times_ms, len(failures))

    async def kill_agent(self, _: int) -> Felt:
        """SIGKILL to an agent that holds runs."""
        await self.fresh_agents()
        victim = self.agents[0]
        member = str(victim.ready["member"])
        return await self._moved(victim.pid, lambda holder: holder == member)

    async def kill_gateway(self, round_: int) -> Felt:
        """SIGKILL to a gateway whose agent holds runs."""
        await self.fresh_agents()
        gateways = self.stack.children.gateways
        victim = gateways[round_ % len(gateways)]
        restarts, prefix = victim.restarts, f"{victim.ready['id']}."
        felt = await self._moved(victim.pid, lambda holder: holder.startswith(prefix))
        await self._until(lambda: victim.restarts > restarts, f"{victim.plan.name} is started again")
        return felt

    def _worker(self, round_: int) -> Child:
        workers = self.stack.children.workers
        return workers[round_ % len(workers)]

    async def _without(self, victim: Child, how: signal.Signals) -> Felt:
        """Signal a worker, say something in each of its partitions, and time until it is committed."""
        held = [row.partition for row in await self.leases.rows() if row.worker == victim.ready["id"]]
        if not held:
            raise BenchFailed(f"{victim.plan.name} held no partition")
        begun = time.perf_counter()
        os.kill(victim.pid, how)
        committed = [await self._say(self.probes[partition]) for partition in held]
        await self.filler.producer.flush()
        await self._seen(committed, f"turns committed after {how.name} to {victim.plan.name}")
        return Felt([(future.result().at - begun) * 1000 for future in committed])

    async def _moved(self, pid: int, lost: Callable[[str], bool]) -> Felt:
        """Have runs held by who is about to be lost, kill `pid`, and time until each of them has moved."""
        affected: list[str] = []
        deadline = time.perf_counter() + PATIENCE_S
        while len(affected) < HELD_AT_ONCE:
            if time.perf_counter() > deadline:
                raise BenchFailed("no run was given to the process that is to be killed")
            affected += await self._held(lost)
        moved = [self.tail.expect(conversation, _is(RunMoved)) for conversation in affected]
        begun = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        await self._seen(moved, "runs moved")
        return Felt([(future.result().at - begun) * 1000 for future in moved])

    async def _held(self, lost: Callable[[str], bool]) -> list[str]:
        """Turns to keep in new conversations; those whose run is held by whom `lost` names."""
        ids = [str(uuid.uuid4()) for _ in range(HELD_AT_ONCE)]
        await self.filler.open(ids)
        committed = [await self._say(conversation, HOLD) for conversation in ids]
        await self.filler.producer.flush()
        await self._seen(committed, "turns committed")
        return [
            conversation
            for conversation, future in zip(ids, committed, strict=True)
            if any(lost(given.member or "") for given in _turn_in(future.result().entry).assigned)
        ]

    # -------------------------------------------------------------------------------------------------- the means
    async def _say(self, conversation: str, text: str = "hello") -> asyncio.Future[Seen]:
        ref = await self.filler.turn(conversation, uuid.uuid4().hex, text)
        return self.tail.expect(conversation, lambda entry: getattr(entry.event, "ref", None) == ref)

    async def _probed(self, partitions: Collection[int]) -> None:
        committed = [await self._say(self.probes[partition]) for partition in partitions]
        await self.filler.producer.flush()
        await self._seen(committed, "turns committed")

    async def balanced(self) -> None:
        """Until each worker has its share, and every partition runs."""
        names = {str(worker.ready["id"]) for worker in self.stack.children.workers}
        least = self.partitions // len(names)

        async def shared() -> bool:
            held = [row.worker for row in await self.leases.rows() if row.live]
            return len(held) == self.partitions and all(held.count(name) >= least for name in names)

        deadline = time.perf_counter() + PATIENCE_S
        while not await shared():
            if time.perf_counter() > deadline:
                raise BenchFailed("the workers do not share the partitions again")
            await asyncio.sleep(LOOK_EVERY_S)
        await self._probed(self.probes)

    async def _until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.perf_counter() + PATIENCE_S
        while not happened():
            if time.perf_counter() > deadline:
                raise BenchFailed(f"did not happen within {PATIENCE_S:g} s: {what}")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _seen(self, futures: Sequence[asyncio.Future[Seen]], what: str) -> None:
        missing = await self.tail.gathered(futures, PATIENCE_S)
        if missing:
            raise BenchFailed(f"{missing} of {len(futures)} {what} were not seen within {PATIENCE_S:g} s")

    @asynccontextmanager
    async def _people(self) -> AsyncIterator[list[str]]:
        """People who talk for as long as the block runs, without ever trying again; what failed of it."""
        failures: list[str] = []
        async with AsyncExitStack() as undo:
            for n in range(PEOPLE):
                client = Client(self.stack.gateway, channel_secret=self._secret("web"), user=f"p{n}", budget=0.0)
                await undo.enter_async_context(client)
                talking = asyncio.create_task(_talk(await client.open(), failures))
                undo.push_async_callback(_ended, talking)
            yield failures

    async def close(self) -> None:
        """End the agents."""
        for agent in self.agents:
            agent.kill()
            await agent.stop(0.0)


def _unsaid(_: str) -> None:
    """For what nobody needs to hear."""


async def _talk(conversation: Conversation, failures: list[str]) -> None:
    number = 0
    while True:
        number += 1
        try:
            await conversation.send(f"line {number}")
        except TurnlogError as error:
            failures.append(f"{type(error).__name__}: {error}")
        await asyncio.sleep(SAID_EVERY_S)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel it; an error that it ended with before is raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _is(kind: type[object]) -> Callable[[Entry], bool]:
    return lambda entry: isinstance(entry.event, kind)


def _nth_join(number: int) -> Callable[[Entry], bool]:
    """Matches the `number`th join of the group from now on, over all partitions."""
    seen = 0

    def match(entry: Entry) -> bool:
        nonlocal seen
        seen += isinstance(entry.event, MemberJoined) and entry.event.group == f"agents/{GROUP}"
        return seen >= number

    return match


def _turn_in(entry: Entry) -> TurnCommitted:
    if not isinstance(entry.event, TurnCommitted):
        raise BenchFailed(f"a turn was not committed: {entry.event}")
    return entry.event


def _one_of_each(partitions: int) -> dict[int, str]:
    """A conversation id of each partition."""
    found: dict[int, str] = {}
    while len(found) < partitions:
        id_ = str(uuid.uuid4())
        found.setdefault(partition_of(id_, partitions), id_)
    return found


async def measure_takeover(
    stack: RunningStack, settings: Settings, plan: TakeoverPlan, notify: Notify
) -> dict[Fault, Felt]:
    """Each fault of the plan, on `stack`, which has the plan's partitions."""
    async with AsyncExitStack() as undo:
        producer = producer_to(settings.kafka)
        await producer.start()
        undo.push_async_callback(producer.stop)
        topics = Topics(settings.namespace)
        partitions = plan.partitions
        tail = await undo.enter_async_context(tail_of(settings, partitions))
        leases = LeaseTable(settings.postgres)
        undo.push_async_callback(leases.close)
        filler = Filler(producer, topics, partitions, open_codec(settings.schema_registry, topics))
        bench = TakeoverBench(stack, settings, partitions, notify, filler, tail, leases)
        undo.push_async_callback(bench.close)
        await bench.furnish(plan.conversations)
        undo.push_async_callback(_ended, asyncio.create_task(bench.load(plan.load)))
        return {fault: await _rounds(bench, fault, plan.rounds) for fault in plan.faults}


async def _rounds(bench: TakeoverBench, fault: Fault, rounds: int) -> Felt:
    make = {
        Fault.KILL_WORKER: bench.kill_worker,
        Fault.STOP_WORKER: bench.stop_worker,
        Fault.KILL_AGENT: bench.kill_agent,
        Fault.KILL_GATEWAY: bench.kill_gateway,
        Fault.DRAIN: bench.drain,
    }[fault]
    felt: list[Felt] = []
    for round_ in range(1 if fault is Fault.STOP_WORKER else rounds):
        felt.append(await make(round_))
        slowest = max(felt[-1].times_ms)
        bench.notify(f"{fault.value}, round {round_ + 1}: {len(felt[-1].times_ms)} felt it, at most {slowest:,.0f} ms")
    return Felt([time_ms for each in felt for time_ms in each.times_ms], sum(each.errors for each in felt))
