"""One agent process of the demo: answers with the dialogue's own SYSTEM lines, word by word.

    TURNLOG_DEMO_SECRET=… python -m ops.demo.agent URL --dialogues FILE.jsonl

It knows nothing of Turnlog but its SDK, and keeps nothing: what it must say follows from the turn's metadata, so that
any process of the group can answer any turn.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from ops.agents import run_as_child
from ops.demo.dialogues import read_dialogues
from ops.lifeline import hold_on_to_parent
from turnlog import Agent, Turn

GROUP = "demo"
SECRET_VARIABLE = "TURNLOG_DEMO_SECRET"  # noqa: S105 - the name of the variable that holds it
SLOWLY = 8
"""How many times slower a turn marked `slowly` is answered by its first owner: the demo kills it in the middle."""


def agent_for(url: str, secret: str, dialogues: Path, word_s: float) -> Agent:
    """The agent; `word_s` seconds lie between two words."""
    lines = {dialogue.number: dialogue.exchanges for dialogue in read_dialogues(dialogues)}
    agent = Agent(url, channel_secret=secret, group=GROUP, flush_every=0.0)

    @agent.on_turn
    async def answer(turn: Turn) -> AsyncGenerator[str, None]:
        exchange = lines[turn.metadata["dialogue"]][turn.metadata["exchange"]]
        slowly = turn.metadata.get("slowly") is True and turn.run_epoch == 1
        words = exchange.answer.split(" ")
        for number, word in enumerate(words):
            yield word if number == len(words) - 1 else f"{word} "
            await asyncio.sleep(word_s * (SLOWLY if slowly else 1))

    return agent


def main() -> None:
    """The process: says `ready` on stdout once the gateway has welcomed it; SIGTERM drains it."""
    parser = argparse.ArgumentParser(prog="python -m ops.demo.agent", description="One agent process of the demo.")
    parser.add_argument("url", help="a gateway's address")
    parser.add_argument("--dialogues", type=Path, required=True, help="JSON lines of the dialogues that it answers in")
    parser.add_argument("--word-ms", type=float, default=40.0, help="time between two words")
    arguments = parser.parse_args()
    hold_on_to_parent()
    agent = agent_for(arguments.url, os.environ[SECRET_VARIABLE], arguments.dialogues, arguments.word_ms / 1000)
    run_as_child(agent)


if __name__ == "__main__":
    main()
