"""A plain function that asks before it acts. It survives its process: the question stays, and so does the answer.

person: refund order 7
agent:  Refund 249.90 for order 7?   [Approve] [Reject]
person: Approve
agent:  Done: 249.90 is on its way back.
"""

import asyncio
import os

from turnlog import Agent, Reply, Turn

agent = Agent(
    os.environ.get("TURNLOG_GATEWAY", "http://127.0.0.1:8080"),
    channel_secret=os.environ.get("AGENTS_SECRET", ""),
    group="refunds",
    continues=True,
)

ORDERS = {"7": 249.90}


@agent.on_turn
async def answer(turn: Turn, reply: Reply) -> str:
    number = turn.text.split()[-1] if turn.text else ""
    # A tool that a lost process had completed is not used again: `call.done`, and its result is there.
    async with reply.tool("get_order", {"number": number}) as call:
        if not call.done:
            call.result = ORDERS.get(number)
    if call.result is None:
        return f"I know no order {number}."
    approved = await reply.ask(
        f"Refund {call.result:.2f} for order {number}?",
        actions=[("Approve", True), ("Reject", False)],
        id="approval",
        timeout=3600,
    )
    # Keyed by the turn: the same whichever process gets here, however often.
    return f"Done: {call.result:.2f} is on its way back. ({turn.id})" if approved is True else "Then I leave it."


if __name__ == "__main__":
    asyncio.run(agent.run())
