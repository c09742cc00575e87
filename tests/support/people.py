"""People who hold dialogues with a whole Turnlog over HTTP, and the agent processes that answer them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.program import Event, Program, program
from tests.support.up import Up
from turnlog import Client

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "tests" / "acceptance" / "programs" / "answering_agent.py"
REAL_DIALOGUES = ROOT.parent / "shared" / "data" / "dialogues.jsonl"
AT_ONCE = 50
ANSWER_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What one person says, line by line; the next one after the answer."""

    number: int
    lines: Sequence[str]


@dataclass(slots=True)
class Held:
    """A dialogue as it went."""

    dialogue: Dialogue
    conversation: str
    heard: list[tuple[int, str, str]] = field(default_factory=list)
    """(seq, role, text) of every message, as the event stream gave it."""
    ids: list[str] = field(default_factory=list)
    """Message id of each line."""
    repeated_ids: list[str] = field(default_factory=list)
    """Message ids that the repeats of lines got."""


def dialogues(count: int) -> list[Dialogue]:
    """User lines of real dialogues where they are at hand, else invented ones."""
    if not REAL_DIALOGUES.exists():
        return [Dialogue(n, [f"line {line} of dialogue {n}" for line in range(3 + n % 8)]) for n in range(count)]
    with REAL_DIALOGUES.open(encoding="utf-8") as file:
        found = [json.loads(line)["turns"] for _, line in zip(range(count), file, strict=False)]
    return [Dialogue(n, [turn["text"] for turn in turns if turn["speaker"] == "USER"]) for n, turns in enumerate(found)]


async def hold(up: Up, dialogue: Dialogue, repeat_every: int = 10) -> Held:
    """Say each line once its last one is answered; every `repeat_every`th line twice, with the same key."""
    gateway = up.gateways[dialogue.number % len(up.gateways)]
    user = f"person-{dialogue.number}"
    async with Client(gateway, channel_secret=up.secret("web"), user=user, insist=True) as client:
        conversation = await client.open()
        held = Held(dialogue, conversation.id)
        async with aclosing(conversation.messages()) as messages:
            for number, line in enumerate(dialogue.lines):
                key = f"line-{number}"
                held.ids.append((await conversation.send(line, key=key)).id)
                if (dialogue.number + number) % repeat_every == 0:
                    held.repeated_ids.append((await conversation.send(line, key=key)).id)
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    # By count, not by text: a person may say the same line twice in a row.
                    while len(held.heard) < 2 * (number + 1):
                        message = await anext(messages)
                        held.heard.append((message.seq, message.role, message.text))
        return held


async def hold_all(up: Up, all_of: Sequence[Dialogue], at_once: int = AT_ONCE) -> list[Held]:
    """All of them, `at_once` at the same time."""
    room = asyncio.Semaphore(at_once)

    async def one(dialogue: Dialogue) -> Held:
        async with room:
            return await hold(up, dialogue)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(dialogue)) for dialogue in all_of]
    return [task.result() for task in running]


@asynccontextmanager
async def agents(up: Up, group: str, count: int, *options: str) -> AsyncIterator[list[Program]]:
    """`count` agent processes of one group, spread over the gateways, ready."""
    async with AsyncExitStack() as running:
        started = [
            await running.enter_async_context(
                program(
                    *(sys.executable, str(AGENT), up.gateways[n % len(up.gateways)], up.secret("agents"), group),
                    *options,
                    environment={},
                )
            )
            for n in range(count)
        ]
        for agent in started:
            await agent.until("ready")
        yield started


def given(agents: Sequence[Program]) -> list[Event]:
    """Every turn that any of the agents was given."""
    return [event for agent in agents for event in agent.seen if event["event"] == "turn"]
