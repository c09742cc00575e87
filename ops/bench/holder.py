"""One agent process of the takeover bench: it answers at once, but keeps a turn that says so until it is taken away.

TURNLOG_BENCH_SECRET=… python -m ops.bench.holder --group GROUP URL [URL …]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Final

from ops.agents import run_as_child
from ops.lifeline import hold_on_to_parent
from turnlog import Agent, Turn

SECRET_VARIABLE: Final = "TURNLOG_BENCH_SECRET"  # noqa: S105 -- the name of the variable that holds it
HOLD: Final = "hold"
"""The text of a turn that its first owner keeps."""
HOLD_S: Final = 60.0
"""Longer than a round of the bench; then it is answered after all."""


def agent_for(urls: list[str], secret: str, group: str) -> Agent:
    """The agent."""
    agent = Agent(urls, channel_secret=secret, group=group)

    @agent.on_turn
    async def _answer(turn: Turn) -> str:
        if turn.text == HOLD and turn.run_epoch == 1:
            await asyncio.sleep(HOLD_S)
        return "noted"

    return agent


def main() -> None:
    """The process: says `ready` on stdout once a gateway has welcomed it; SIGTERM drains it."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.holder", description="An agent of the takeover bench.")
    parser.add_argument("urls", nargs="+", help="addresses of gateways, in the order to try them")
    parser.add_argument("--group", required=True, help="the group that it joins")
    arguments = parser.parse_args()
    hold_on_to_parent()
    agent = agent_for(arguments.urls, os.environ[SECRET_VARIABLE], arguments.group)
    run_as_child(agent)


if __name__ == "__main__":
    main()
