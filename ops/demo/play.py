"""Directs the demo: a stack, two agents, people; one agent is killed in the middle of an answer; then the audit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.children import Child, ChildPlan
from ops.demo.agent import GROUP, SECRET_VARIABLE
from ops.demo.board import Board, Happening, Kind, Progress
from ops.demo.dialogues import Dialogue
from ops.demo.follow import from_now
from ops.demo.people import Slowly, Wrong, replay
from ops.demo.show import Show
from ops.stack import RunningStack, StackPlan, running
from streams.core.events import Entry, RunEnded, RunMoved
from streams.settings import load_settings
from turnlog import Client

WORD_MS = 40.0
THINK_S = 0.4
"""How long a person takes before the next line."""
AGENTS = ("agent A", "agent B")
STOP_S = 10.0
TITLE_MOST = 11
CAUGHT_UP_WITHIN_S = 5.0


@dataclass(slots=True)
class Kill:
    """What the log said of the agent that was killed."""

    who: str
    at: float
    """`time.monotonic()` of the SIGKILL; the times below are on the same clock."""
    run_id: str
    """The run in whose middle it was."""
    moved: float | None = None
    to: str | None = None
    answered: float | None = None
    answered_by: str | None = None


@dataclass(slots=True)
class Play:
    """The demo under way."""

    show: Show
    board: Board
    agents: dict[str, Child] = field(default_factory=dict)
    kill: Kill | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def took(self, entry: Entry) -> None:
        """One entry of the journal: tell it, and kill once the moment is there."""
        self.news.set()
        for happening in self.board.took(entry):
            self.show.happened(happening)
        event = entry.event
        if self.kill is None:
            self._kill_in_the_middle()
        elif isinstance(event, RunMoved) and event.run_id == self.kill.run_id and self.kill.moved is None:
            self.kill.moved = time.monotonic()
            self.kill.to = self.board.name(event.to_member)
        elif isinstance(event, RunEnded) and event.run_id == self.kill.run_id:
            self.kill.answered, self.kill.answered_by = time.monotonic(), self.board.name(event.member)

    def notify(self, who: str) -> Callable[[str], None]:
        """Where an agent's process reports to: that the killed one ended is no news."""

        def note(line: str) -> None:
            if self.kill is None or self.kill.who != who:
                self.show.note(line)

        return note

    def _kill_in_the_middle(self) -> None:
        row = self.board.answering()
        if row is None or row.owner not in self.board.names:
            return
        who = self.board.names[row.owner]
        child = self.agents[who]
        child.kill()
        self.kill = Kill(who, time.monotonic(), row.run_id)
        self.show.happened(
            Happening(Kind.MOVE, f"kill -9 {child.pid}: {who} dies in the middle of {row.title} #{row.seq}")
        )


async def play(dialogues: Sequence[Dialogue], source: Path, board: Board, show: Show) -> bool:
    """Run the demo; whether every turn was answered once, the kill's run by the other agent, and the audit is content.

    `source`: the file that the agents read the dialogues from.
    """
    begun = time.monotonic()
    show.note("starting Kafka, PostgreSQL and Turnlog's processes, for the length of the demo")
    async with running(StackPlan(port=0), show.note) as stack:
        show.note(f"the stack is up after {time.monotonic() - begun:.1f} s: {stack.gateway}")
        the_play = Play(show, board)
        settings = load_settings(kafka=stack.servers.kafka, postgres=stack.servers.postgres)
        async with from_now(settings) as entries, _agents(the_play, stack, source), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(_follow(the_play, entries()))
            wrong = await _people(the_play, stack, dialogues)
            await _caught_up(the_play)
            following.cancel()
        show.note("the audit reads the log and decides everything again: turnlog audit verify")
        report = await _audit(stack)
        claims = verdict(the_play, wrong, report, sum(len(each.exchanges) for each in dialogues))
        show.end(claims)
        return all(holds for holds, _ in claims)


def verdict(the_play: Play, wrong: Sequence[Wrong], report: dict[str, Any], turns: int) -> list[tuple[bool, str]]:
    """The claims of the demo, each with whether it holds."""
    kill = the_play.kill
    claims = [(not wrong, f"{turns - len(wrong)} of {turns} turns answered, once and in order, as the people saw it")]
    claims += [(False, f"dialogue {each.dialogue}, line {each.exchange + 1}: {each.what}") for each in wrong[:5]]
    if kill is None or kill.moved is None:
        claims.append((False, "no agent was killed in the middle of an answer"))
    else:
        finished = kill.answered is not None and kill.answered_by != kill.who
        done = f", answered by {kill.answered_by} after {kill.answered - kill.at:.1f} s" if kill.answered else ""
        claims.append(
            (
                finished,
                f"{kill.who} was killed: its turn was {kill.to}'s {(kill.moved - kill.at) * 1000:.0f} ms later{done}",
            )
        )
    violations = report.get("violations", ["the audit said nothing"])
    numbers = ", ".join(f"{report.get(name, '?')} {name}" for name in ("events", "turns", "answered", "takeovers"))
    complete = report.get("ok") is True and report.get("answered", 0) >= turns
    claims.append((complete, f"audit: {numbers}, {len(violations)} violations"))
    claims += [(False, json.dumps(each)) for each in violations[:5]]
    return claims


@asynccontextmanager
async def _agents(the_play: Play, stack: RunningStack, source: Path) -> AsyncIterator[None]:
    """Two agent processes, named in the order in which they are ready; drained at the end, the killed one buried."""
    secret = next(channel.secret for channel in stack.channels if channel.kind == "websocket")
    with tempfile.TemporaryDirectory(prefix="turnlog-demo-") as logs:
        try:
            for name in AGENTS:
                child = Child(_agent_plan(name, stack, source, secret, Path(logs)), the_play.notify(name))
                the_play.agents[name] = child
                await child.start()
                the_play.board.names[str(child.ready["member"])] = name
                the_play.show.note(f"{name} is process {child.pid}, in group {GROUP}")
            yield
        finally:
            await asyncio.gather(*(child.stop(STOP_S) for child in the_play.agents.values()))


def _agent_plan(name: str, stack: RunningStack, source: Path, secret: str, logs: Path) -> ChildPlan:
    return ChildPlan(
        name=name,
        command=[
            *(sys.executable, "-m", "ops.demo.agent", stack.gateway),
            *("--dialogues", str(source), "--word-ms", str(WORD_MS)),
        ],
        environment={SECRET_VARIABLE: secret},
        log=logs / f"{name.replace(' ', '-')}.log",
    )


async def _people(the_play: Play, stack: RunningStack, dialogues: Sequence[Dialogue]) -> list[Wrong]:
    secret = next(channel.secret for channel in stack.channels if channel.kind == "web")
    slowly = longest_answer(dialogues)
    performance = uuid.uuid4().hex[:8]
    titles = _titles(dialogues)

    def opened(conversation: str, dialogue: Dialogue) -> None:
        the_play.board.titled(conversation, titles[dialogue.number])

    async def one(dialogue: Dialogue, after_s: float) -> list[Wrong]:
        await asyncio.sleep(after_s)
        user = f"person-{dialogue.number}"
        async with Client(stack.gateway, channel_secret=secret, user=user, insist=True) as client:
            return await replay(
                client, dialogue, performance=performance, opened=opened, slowly=slowly, think_s=THINK_S
            )

    # People do not all begin in the same instant: a fifth of a second between two, three seconds at most in all.
    apart = min(0.2, 3.0 / len(dialogues))
    outcomes = await asyncio.gather(*(one(dialogue, n * apart) for n, dialogue in enumerate(dialogues)))
    return [wrong for outcome in outcomes for wrong in outcome]


def _titles(dialogues: Sequence[Dialogue]) -> dict[int, str]:
    """The topic of each dialogue, numbered where several have the same."""
    times = Counter(dialogue.topic for dialogue in dialogues)
    seen: Counter[str] = Counter()
    titles: dict[int, str] = {}
    for dialogue in dialogues:
        seen[dialogue.topic] += 1
        number = f" {seen[dialogue.topic]}" if times[dialogue.topic] > 1 else ""
        titles[dialogue.number] = f"{dialogue.topic[:TITLE_MOST]}{number}"
    return titles


def longest_answer(dialogues: Sequence[Dialogue]) -> Slowly:
    """The exchange with the most words in its answer, not a first one where it can be: time to kill its owner."""
    places = [
        (number > 0, exchange.answer.count(" "), dialogue.number, number)
        for dialogue in dialogues
        for number, exchange in enumerate(dialogue.exchanges)
    ]
    _, _, dialogue, exchange = max(places)
    return Slowly(dialogue, exchange)


async def _follow(the_play: Play, entries: AsyncIterator[Entry]) -> None:
    async for entry in entries:
        the_play.took(entry)


async def _caught_up(the_play: Play) -> None:
    """The people saw the last answers a moment before this process reads the end of their runs."""
    try:
        async with asyncio.timeout(CAUGHT_UP_WITHIN_S):
            while any(row.progress is not Progress.ANSWERED for row in the_play.board.rows.values()):
                the_play.news.clear()
                await the_play.news.wait()
    except TimeoutError:
        the_play.show.note(
            f"the log tells of no end of some runs, {CAUGHT_UP_WITHIN_S:g} s after the people's last words"
        )


async def _audit(stack: RunningStack) -> dict[str, Any]:
    """The same command that anyone can run, against the same servers."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", "audit", "verify", "-o", "json"),
        env={**os.environ, "TURNLOG_KAFKA": stack.servers.kafka, "TURNLOG_POSTGRES": stack.servers.postgres},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, problem = await process.communicate()
    try:
        report = json.loads(said)
    except ValueError:
        return {
            "ok": False,
            "violations": [problem.decode(errors="replace").strip() or f"exit code {process.returncode}"],
        }
    return report if isinstance(report, dict) else {}
