"""The tutorial's agent: ten lines, any number of processes."""

import asyncio
import os

from turnlog import Agent

agent = Agent("http://127.0.0.1:8080", channel_secret=os.environ["AGENTS_SECRET"], group="support")


@agent.on_turn
async def answer(turn):
    for word in f"Process {os.getpid()} heard you say: {turn.text}".split(" "):
        yield word + " "
        await asyncio.sleep(0.3)


asyncio.run(agent.run())
