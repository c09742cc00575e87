"""An agent process on the SDK that counts to five in a stream, keeps checkpoints, and ends with a message.

python tests/acceptance/programs/counting_agent.py URL SECRET GROUP [--continues] [--die-after N]

`--die-after`: it kills itself (SIGKILL) as soon as it has sent the N-th frame of a run that it begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from turnlog import Agent, Reply, Turn

WORDS = ("one ", "two ", "three ", "four ", "five")
LAST = "that was all"


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def die_after(agent: Agent, frames: int) -> None:
    """Count the conversations' frames that leave this process."""
    send, left = agent._link.send, frames

    async def counting(frame: Mapping[str, object]) -> bool:
        nonlocal left
        sent = await send(frame)
        if sent and "conversationId" in frame:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return sent

    agent._link.send = counting  # type: ignore[method-assign]


async def answer(turn: Turn, reply: Reply) -> None:
    before = turn.resume
    known = None if before is None else {"text": before.text, "checkpoint": before.checkpoint}
    say(event="turn", conversation=turn.conversation, seq=turn.seq, run_epoch=turn.run_epoch, resume=known)
    said = before.text if before is not None else ""
    words = "".join(WORDS).removeprefix(said).split(" ")
    async with reply.stream() as stream:
        for number, word in enumerate(words):
            await stream.write(word if number == len(words) - 1 else f"{word} ")
            if word in {"two", "four"}:
                await reply.checkpoint({"after": word})
    if before is None or all(frame.frame["data"].get("text") != LAST for frame in before.messages):
        await reply.text(LAST)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("secret")
    parser.add_argument("group")
    parser.add_argument("--continues", action="store_true")
    parser.add_argument("--die-after", type=int, default=0)
    arguments = parser.parse_args()
    agent = Agent(
        arguments.url,
        channel_secret=arguments.secret,
        group=arguments.group,
        continues=arguments.continues,
        flush_every=0.0,
    )
    agent.on_turn(answer)
    if arguments.die_after:
        die_after(agent, arguments.die_after)
    await agent.run(on_ready=lambda: say(event="ready", pid=os.getpid(), member=agent.member))


if __name__ == "__main__":
    asyncio.run(main())
