"""What one gateway holds: agents' connections, followed conversations, idle people; and what a slow reader costs them.

Each conversation has two people's sockets (a person with two tabs). Turns come at a fixed rate, and each is felt until
its answer has reached both. First nobody is slow; then somebody floods a conversation whose viewer reads, and then one
whose viewer does not: the difference of these two is what the slow reader costs the others.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ops.bench.crowd import PING_EVERY_S, SOCKET, crowd
from ops.bench.latency import ARRIVED_WITHIN_S, quantile
from ops.bench.sequencer import BenchFailed
from ops.stack import RunningStack
from turnlog import Agent, Reply, Turn

TABS: Final = 2
AT_ONCE: Final = 32
"""Sockets and conversations that are opened at the same time."""
OPEN_ATTEMPTS: Final = 10
WATCHERS_MAX: Final = 400
"""Sockets of people that are looked at; the others are only there, in processes of their own."""
OPEN_WITHIN_S: Final = 60.0
FLOOD_BYTES: Final = 16_384
"""At 100 messages a second, a reader that takes none has 16 MiB waiting after 10 s: as much as is kept for it."""
FLOOD_MESSAGES: Final = 1_000
"""Of one run, which may have 1,024."""
FLOOD_AT_ONCE: Final = 20
"""Messages that are not acknowledged yet: one by one, a flood would be as slow as the machine's round trips."""
FLOOD_TURNS: Final = 8
CLOSED_WITHIN_S: Final = 60.0
CLOSED_POLL_S: Final = 0.5
IDLE_S: Final = 20.0
"""For how long the CPU time is taken of a gateway whose connections say nothing but that they are there."""
FLOOD: Final = "flood"
API: Final = "/api/v1/converger"
SLOW_CLOSED: Final = 'turnlog_gateway_closes_total{code="4503"}'

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsPlan:
    """How many of each. `people`: sockets, two for each conversation that anybody watches."""

    agents: int
    conversations: int
    people: int
    turns: int
    rate: float


@dataclass(frozen=True, slots=True)
class Conversation:
    """One that was opened, and the token that opens its sockets."""

    id: str
    token: str


@dataclass(slots=True)
class Watched:
    """What came at people's sockets."""

    arrived: dict[str, list[float]] = field(default_factory=dict)
    """By the text of an answer: when it came, at each socket that it came at."""
    lost: int = 0
    """Sockets that the gateway ended."""


@dataclass(frozen=True, slots=True)
class Felt:
    """Milliseconds from when a turn was due to its answer at the later of both tabs."""

    p50: float
    p99: float
    most: float

    def document(self) -> dict[str, float]:
        """As printed."""
        return {"p50": round(self.p50, 2), "p99": round(self.p99, 2), "max": round(self.most, 2)}


async def measure_connections(stack: RunningStack, plan: ConnectionsPlan, notify: Notify) -> dict[str, Any]:
    """Connect all of them to the stack's first gateway, and measure. Raises `BenchFailed` when something is lost."""
    secret = {channel.id: channel.secret for channel in stack.channels}
    gateway = psutil.Process(stack.children.gateways[0].pid)
    watched, flooding = Watched(), asyncio.Event()
    limits = httpx.Limits(max_connections=AT_ONCE)
    async with AsyncExitStack() as undo:
        http = await undo.enter_async_context(httpx.AsyncClient(base_url=stack.gateway, timeout=30, limits=limits))
        alone_cpu = await _cpu_percent(gateway)
        before = gateway.memory_info().rss
        notify(f"opening {plan.conversations:,} conversations")
        conversations = await _opened(http, secret["web"], plan.conversations)
        notify(f"connecting {plan.agents:,} agents")
        started = time.perf_counter()
        await undo.enter_async_context(_agents(stack.gateway, secret["agents"], plan.agents, flooding))
        agents_s = time.perf_counter() - started
        with_agents = gateway.memory_info().rss
        agents_cpu = await _cpu_percent(gateway)
        notify(f"connecting {plan.people:,} people")
        started = time.perf_counter()
        watchers = min(plan.people, WATCHERS_MAX)
        await undo.enter_async_context(_people(stack.gateway, conversations, watchers, watched))
        idle = await undo.enter_async_context(crowd(stack.gateway, _idle_places(conversations, watchers, plan.people)))
        people_s = time.perf_counter() - started
        with_people = gateway.memory_info().rss
        people_cpu = await _cpu_percent(gateway)
        bench = _Bench(http, conversations[: watchers // TABS], watched, flooding, plan)
        notify(f"every conversation is spoken in once: {plan.conversations:,} turns to their owners")
        await bench.everywhere(conversations)
        notify(f"three times {plan.turns:,} turns, {plan.rate:g} a second")
        alone = await bench.turns("alone")
        beside_reader = await bench.flooded("reading", await _opened(http, secret["web"], 1), stack.gateway, reads=True)
        beside_slow = await bench.flooded("slow", await _opened(http, secret["web"], 1), stack.gateway, reads=False)
        if lost := watched.lost + idle():
            raise BenchFailed(f"the gateway ended {lost} of {plan.people} people's sockets")
        return {
            "agents": plan.agents,
            "conversations": plan.conversations,
            "people": plan.people,
            "agents_connected_s": round(agents_s, 1),
            "people_connected_s": round(people_s, 1),
            "gateway_rss_mib": round(gateway.memory_info().rss / 2**20),
            "kib_an_agent": round((with_agents - before) / 1024 / max(1, plan.agents), 1),
            "kib_a_person": round((with_people - with_agents) / 1024 / plan.people, 1),
            "gateway_cpu_idle_percent": {"nobody": alone_cpu, "agents": agents_cpu, "agents_and_people": people_cpu},
            "alone_ms": alone.document(),
            "beside_a_flood_that_is_read_ms": beside_reader.document(),
            "beside_a_flood_that_is_not_read_ms": beside_slow.document(),
            "slow_reader_closed_s": None if bench.closed_s is None else round(bench.closed_s, 1),
        }


async def _cpu_percent(process: psutil.Process) -> float:
    """Of one core, while nothing is asked of it."""
    before, begun = process.cpu_times(), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    after, seconds = process.cpu_times(), time.perf_counter() - begun
    return round(100 * (after.user + after.system - before.user - before.system) / seconds, 1)


async def _opened(http: httpx.AsyncClient, secret: str, count: int) -> list[Conversation]:
    answer = await http.post(
        f"{API}/tokens/generate", headers={"Authorization": f"Bearer {secret}"}, json={"user": {"id": "bench"}}
    )
    answer.raise_for_status()
    bearer = {"Authorization": f"Bearer {answer.json()['token']}"}

    async def one(_: int) -> Conversation:
        key = {"X-Idempotency-Key": uuid4().hex}
        for _attempt in range(OPEN_ATTEMPTS):
            opened = await http.post(f"{API}/conversations", headers=bearer | key)
            if opened.status_code != 503:  # the gateway's own word for: repeat it, with the key
                break
            await asyncio.sleep(int(opened.headers["retry-after"]))
        opened.raise_for_status()
        return Conversation(opened.json()["conversationId"], opened.json()["token"])

    return await _some_at_once(one, range(count))


async def _some_at_once(one: Callable[[Any], Any], of: Sequence[Any]) -> list[Any]:
    """`one` of each, `AT_ONCE` at the same time; the results in their order."""
    places = asyncio.Semaphore(AT_ONCE)

    async def placed(item: Any) -> Any:
        async with places:
            return await one(item)

    return await asyncio.gather(*(placed(item) for item in of))


@asynccontextmanager
async def _agents(gateway: str, secret: str, count: int, flooding: asyncio.Event) -> AsyncIterator[None]:
    """That many processes' worth of agents in one group, on the SDK. Who is asked to flood does so while `flooding`."""

    async def answer(turn: Turn, reply: Reply) -> None:
        if (turn.text or "").startswith(FLOOD):
            for _ in range(FLOOD_MESSAGES // FLOOD_AT_ONCE):
                if flooding.is_set():
                    await asyncio.gather(*(reply.text("x" * FLOOD_BYTES) for _ in range(FLOOD_AT_ONCE)))
        else:
            await reply.text(f"answer to {turn.text}")

    def made() -> Agent:
        agent = Agent(gateway, channel_secret=secret, group="bench")
        agent.on_turn(answer)
        return agent

    agents = [made() for _ in range(count)]
    try:
        await _some_at_once(lambda agent: agent.start(), agents)
        yield
    finally:
        await asyncio.gather(*(agent.stop(budget=0) for agent in agents))


def _idle_places(conversations: Sequence[Conversation], watchers: int, people: int) -> list[tuple[str, str]]:
    """Of those who are not looked at: two tabs each."""
    return [(each.id, each.token) for each in conversations[watchers // TABS : people // TABS] for _ in range(TABS)]


@asynccontextmanager
async def _people(
    gateway: str, conversations: Sequence[Conversation], count: int, watched: Watched
) -> AsyncIterator[None]:
    """Two sockets each in as many conversations as `count` fills; they read, and say that they are there."""
    places = [conversation for conversation in conversations[: count // TABS] for _ in range(TABS)]
    sockets: list[ClientConnection] = await _some_at_once(lambda place: _socket(gateway, place), places)
    readers = [asyncio.create_task(_read(each, watched)) for each in sockets]
    pinging = asyncio.create_task(_ping(sockets))
    try:
        yield
    finally:
        pinging.cancel()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(pinging, *readers, return_exceptions=True)
        await _some_at_once(lambda each: each.close(), sockets)


async def _socket(gateway: str, conversation: Conversation, **options: Any) -> ClientConnection:
    opened = await connect(
        gateway.replace("http", "ws", 1) + SOCKET,
        subprotocols=["converger.v1"],  # type: ignore[list-item]  # a NewType of str
        additional_headers={"Authorization": f"Bearer {conversation.token}"},
        compression=None,
        ping_interval=None,
        open_timeout=OPEN_WITHIN_S,
        **options,
    )
    hello = {"type": "hello", "protocol": "converger/1", "conversationId": conversation.id, "watermark": 0}
    await opened.send(json.dumps(hello))
    welcome = json.loads(await opened.recv())
    if welcome["type"] != "welcome":
        raise BenchFailed(f"a person's socket was refused: {welcome}")
    return opened


async def _read(opened: ClientConnection, watched: Watched) -> None:
    try:
        async for raw in opened:
            if '"answer to ' in str(raw):
                text = json.loads(raw)["data"]["text"]
                watched.arrived.setdefault(text, []).append(time.perf_counter())
    except ConnectionClosed:
        watched.lost += 1


async def _ping(sockets: Sequence[ClientConnection]) -> None:
    """Spread over the whole time, as people's clients do it."""
    while sockets:
        for opened in sockets:
            await asyncio.sleep(PING_EVERY_S / len(sockets))
            await opened.send('{"type":"ping"}')


@dataclass(slots=True)
class _Bench:
    """Speaks in the watched conversations, and sees when the answers come."""

    http: httpx.AsyncClient
    conversations: Sequence[Conversation]
    watched: Watched
    flooding: asyncio.Event
    plan: ConnectionsPlan
    closed_s: float | None = None
    """How long after the flood began its slow reader was closed; None: not within `CLOSED_WITHIN_S`."""

    async def everywhere(self, conversations: Sequence[Conversation]) -> None:
        """One turn in each conversation: from then on each one has an owner among the agents."""
        await _some_at_once(lambda each: self._say(each, f"first {each.id}"), conversations)
        await self._heard([f"first {each.id}" for each in self.conversations])

    async def turns(self, name: str) -> Felt:
        """`plan.turns` turns at even distances, in conversations chosen by a fixed seed."""
        chance = random.Random(name)  # noqa: S311 -- which conversation speaks is no secret
        due: dict[str, float] = {}
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as requests:
            for n in range(self.plan.turns):
                text, at = f"{name} {n}", begun + n / self.plan.rate
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                due[text] = at
                requests.create_task(self._say(chance.choice(self.conversations), text))
        await self._heard(due)
        felt = sorted((max(self.watched.arrived[f"answer to {text}"]) - at) * 1000 for text, at in due.items())
        return Felt(quantile(felt, 0.50), quantile(felt, 0.99), felt[-1])

    async def flooded(self, name: str, spare: Sequence[Conversation], gateway: str, *, reads: bool) -> Felt:
        """The same while an agent floods a conversation beside them, whose viewer reads, or never does."""
        narrow = {} if reads else {"sock": await _narrow(gateway), "max_queue": 1}
        viewer = await _socket(gateway, spare[0], **narrow)
        reading = asyncio.create_task(_read(viewer, Watched())) if reads else None
        closing: asyncio.Task[float | None] | None = None
        self.flooding.set()
        try:
            for n in range(FLOOD_TURNS):
                await self._say(spare[0], f"{FLOOD} {name} {n}")
            closing = None if reads else asyncio.create_task(self._closed_after_s())
            felt = await self.turns(name)
            self.closed_s = None if closing is None else await closing
            return felt
        finally:
            self.flooding.clear()
            for task in (reading, closing):
                if task is not None:
                    task.cancel()
            viewer.transport.abort()

    async def _closed_after_s(self) -> float | None:
        begun = time.perf_counter()
        while not await _metric(self.http, SLOW_CLOSED):
            if time.perf_counter() - begun > CLOSED_WITHIN_S:
                return None
            await asyncio.sleep(CLOSED_POLL_S)
        return time.perf_counter() - begun

    async def _say(self, conversation: Conversation, text: str) -> None:
        answer = await self.http.post(
            f"{API}/conversations/{conversation.id}/activities",
            headers={"Authorization": f"Bearer {conversation.token}", "X-Idempotency-Key": text[:64]},
            json={"type": "message", "text": text},
        )
        answer.raise_for_status()

    async def _heard(self, texts: Any) -> None:
        """Wait until the answers to `texts` are at both tabs."""
        missing = {f"answer to {text}" for text in texts}
        deadline = time.perf_counter() + ARRIVED_WITHIN_S
        while missing := {text for text in missing if len(self.watched.arrived.get(text, ())) < TABS}:
            if time.perf_counter() > deadline:
                raise BenchFailed(f"{len(missing)} answers did not reach both sockets within {ARRIVED_WITHIN_S:g} s")
            await asyncio.sleep(0.01)


async def _narrow(gateway: str) -> socket.socket:
    """A connection whose kernel takes little: who does not read it is soon known as slow."""
    parts = urlsplit(gateway)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    narrow.setblocking(False)  # noqa: FBT003 -- the only way to say it
    await asyncio.get_running_loop().sock_connect(narrow, (parts.hostname, parts.port))
    return narrow


async def _metric(http: httpx.AsyncClient, name: str) -> float:
    page = (await http.get("/metrics")).text
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(name)), 0.0)
