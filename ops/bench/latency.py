"""How long a turn takes from the HTTP request that brings it in to the agent's socket."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from ops.bench.sequencer import BenchFailed
from ops.stack import RunningStack
from turnlog import Agent, Client, Conversation, Turn

CONVERSATIONS: Final = 200
"""At 100 turns/s each conversation gets one every 2 s: its last answer is in by then, as with people."""
OPENED_AT_ONCE: Final = 20
WARM_UP: Final = 4_000
"""Turns before the first that counts, 40 s at 100 a second. Connections and caches are warm long before; the broker's
compiler takes 35 s at that rate, and half of a core until then (seen in its CPU time: 95 %, then 36 %)."""
ARRIVED_WITHIN_S: Final = 10.0

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Latency:
    """What was measured, ms, from when a request was due (a late sender counts) to the agent's handler."""

    turns: int
    p50_ms: float
    p99_ms: float
    most_ms: float


async def measure_latency(stack: RunningStack, turns: int, rate: float, notify: Notify) -> Latency:
    """Send turns at `rate` a second, at even distances whatever their answers take, to one agent that answers each."""
    secret = {channel.id: channel.secret for channel in stack.channels}
    arrived: dict[str, float] = {}
    agent = Agent(stack.gateway, channel_secret=secret["agents"], group="bench")

    @agent.on_turn
    async def _answer(turn: Turn) -> str:
        arrived[turn.text or ""] = time.perf_counter()
        return "noted"

    async with AsyncExitStack() as undo:
        await agent.start()
        undo.push_async_callback(agent.stop)
        client = await undo.enter_async_context(Client(stack.gateway, channel_secret=secret["web"], user="bench"))
        notify(f"opening {CONVERSATIONS} conversations")
        conversations = [c for _ in range(CONVERSATIONS // OPENED_AT_ONCE) for c in await _opened(client)]
        notify(f"sending {turns:,} turns, {rate:g} a second")
        sent = await _send(conversations, WARM_UP + turns, rate)
        await _all_arrived(sent, arrived)
    return _summary([(arrived[text] - at) * 1000 for text, at in list(sent.items())[WARM_UP:]])


async def _opened(client: Client) -> list[Conversation]:
    return await asyncio.gather(*(client.open() for _ in range(OPENED_AT_ONCE)))


async def _send(conversations: Sequence[Conversation], turns: int, rate: float) -> dict[str, float]:
    """Text of each turn -> when its request was due."""
    sent: dict[str, float] = {}
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as requests:
        for n in range(turns):
            text, due = f"turn {n}", begun + n / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent[text] = due
            requests.create_task(conversations[n % len(conversations)].send(text))
    return sent


async def _all_arrived(sent: dict[str, float], arrived: dict[str, float]) -> None:
    deadline = time.perf_counter() + ARRIVED_WITHIN_S
    while len(arrived) < len(sent):
        if time.perf_counter() > deadline:
            raise BenchFailed(f"{len(sent) - len(arrived)} of {len(sent)} turns never reached the agent")
        await asyncio.sleep(0.01)


def _summary(times_ms: Sequence[float]) -> Latency:
    ordered = sorted(times_ms)
    return Latency(len(ordered), quantile(ordered, 0.50), quantile(ordered, 0.99), ordered[-1])


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest of the ordered values that at least `q` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]
