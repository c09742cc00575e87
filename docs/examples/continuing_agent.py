"""An agent that goes on where another process of its group was lost in the middle of an answer.

Start it twice, ask it something, and kill the process that answers (`kill -9`): the other one finishes the answer, and
the person sees it whole, no word twice.
"""

import asyncio
import os
import sys

from turnlog import Agent

gateway, secret = os.environ["TURNLOG_GATEWAY"], os.environ["AGENTS_SECRET"]
agent = Agent(gateway, channel_secret=secret, group="support", continues=True)

SECTIONS = ("First, what you asked: {text}. ", "Second, what I make of it. ", "And third, the end. ")


def tell(what: str) -> None:
    print(f"process {os.getpid()} {what}", file=sys.stderr)


@agent.on_turn
async def answer(turn, reply):
    # What another process stored of this run; None: this is the first one that has it.
    before = turn.resume
    # What was expensive to find out is kept with the run, and not found out twice.
    plan = before.checkpoint if before is not None and before.checkpoint is not None else None
    if plan is None:
        plan = [section.format(text=turn.text) for section in SECTIONS]
        await reply.checkpoint(plan)
    # What the person has seen counts, not what this process remembers: the rest of it follows, in the same stream.
    said = before.text if before is not None else ""
    tell(f"goes on behind “{said.strip()}”" if said else "begins an answer")
    async with reply.stream() as stream:
        for word in "".join(plan).removeprefix(said).split():
            await stream.write(word + " ")
            await asyncio.sleep(0.3)


asyncio.run(agent.run(on_ready=lambda: tell("is connected")))
