"""An agent process on the SDK that answers `answer to <text>`, and says on stdout what it was given.

python tests/acceptance/programs/answering_agent.py URL[,URL…] SECRET GROUP [--delay-ms N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from turnlog import Agent, Turn


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("secret")
    parser.add_argument("group")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    agent = Agent(arguments.url.split(","), channel_secret=arguments.secret, group=arguments.group)

    @agent.on_turn
    async def answer(turn: Turn) -> str:
        waited_ms = time.time() * 1000 - turn.raw["timestamp"]  # since the broker took it in
        known = {"conversation": turn.conversation, "seq": turn.seq, "run": turn.run, "run_epoch": turn.run_epoch}
        say(event="turn", waited_ms=waited_ms, **known)
        await asyncio.sleep(arguments.delay_ms / 1000)
        return f"answer to {turn.text}"

    await agent.run(on_ready=lambda: say(event="ready", pid=os.getpid(), member=agent.member))


if __name__ == "__main__":
    asyncio.run(main())
