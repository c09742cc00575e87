"""The tutorial's agent: twenty lines, any number of processes."""

import asyncio
import os
import sys

from turnlog import Agent

agent = Agent(os.environ["TURNLOG_GATEWAY"], channel_secret=os.environ["AGENTS_SECRET"], group="support")


@agent.on_turn
async def answer(turn):
    for word in f"Process {os.getpid()} heard you say: {turn.text}".split(" "):
        yield word + " "
        await asyncio.sleep(0.3)


def connected():
    print(f"process {os.getpid()} is connected", file=sys.stderr)


asyncio.run(agent.run(on_ready=connected))
