"""An agent process on the SDK that writes down each turn before it answers it.

    TURNLOG_CHAOS_SECRET=… python -m ops.chaos.agent NOTES GROUP [--continues] URL …

How it answers, the turn says by its last word: `text` at once; `stream` in pieces; `slow` in pieces that take so long
that something may happen in the middle.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from ops.agents import run_as_child
from ops.chaos.notes import SECRET_VARIABLE, Notebook, answer_to
from ops.lifeline import hold_on_to_parent
from turnlog import Agent, Reply, Turn

PIECE_S = {"stream": 0.02, "slow": 0.25}
PIECES = 6


def agent_for(arguments: argparse.Namespace, notebook: Notebook) -> Agent:
    """The agent of this process."""
    agent = Agent(
        arguments.urls,
        channel_secret=os.environ[SECRET_VARIABLE],
        group=arguments.group,
        flush_every=0.0,
        continues=arguments.continues,
    )

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        said = turn.resume.text if turn.resume is not None else ""
        notebook.note(
            note="turn",
            conversation=turn.conversation,
            seq=turn.seq,
            text=turn.text,
            run=turn.run,
            run_epoch=turn.run_epoch,
            said=said if turn.resume is not None else None,
        )
        whole, pace_s = answer_to(turn.text), PIECE_S.get(turn.text.rpartition("-")[2])
        if pace_s is None:
            if turn.resume is None or not turn.resume.messages:
                await reply.text(whole)
            return
        rest = whole.removeprefix(said)
        size = -(-len(whole) // PIECES)
        async with reply.stream() as stream:
            for start in range(0, len(rest), size):
                await stream.write(rest[start : start + size])
                await asyncio.sleep(pace_s)

    return agent


def main() -> None:
    """The process: says `ready` on stdout once a gateway has welcomed it; SIGTERM drains it."""
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.agent", description="One agent process under test.")
    parser.add_argument("notes", type=Path, help="file that each turn is written to")
    parser.add_argument("group", help="group that shares the turns")
    parser.add_argument("urls", nargs="+", help="the gateways")
    parser.add_argument("--continues", action="store_true", help="go on where another one was lost")
    arguments = parser.parse_args()
    hold_on_to_parent()
    agent = agent_for(arguments, Notebook(arguments.notes))
    run_as_child(agent)


if __name__ == "__main__":
    main()
