"""A plain function as an agent, for people and for programs.

`AGENTS_SECRET` is the secret of the agents' channel (to serve), `WEB_SECRET` that of the people's (to call):

python docs/examples/function_agent.py serve
python docs/examples/function_agent.py call 17 25
"""

import asyncio
import os
import sys

from turnlog import Agent, AgentProxy, Turn

GATEWAY = os.environ.get("TURNLOG_GATEWAY", "http://127.0.0.1:8080")

agent = Agent(GATEWAY, channel_secret=os.environ.get("AGENTS_SECRET", ""), group="sums")


@agent.on_turn
async def answer(turn: Turn) -> str:
    """What a person wrote: “17 25”."""
    return f"That makes {sum(int(word) for word in turn.text.split() if word.isdecimal())}."


@agent.on_invoke
def add(turn: Turn) -> dict[str, int]:
    """What a program sent. A plain function runs in a thread, and may take its time."""
    numbers = turn.invocation.data["numbers"] if turn.invocation is not None else []
    return {"sum": sum(numbers)}


async def call(numbers: list[int]) -> dict[str, int]:
    """Another program's side: the agent as a function."""
    async with AgentProxy(GATEWAY, "agents/sums", channel_secret=os.environ["WEB_SECRET"]) as sums:
        record = await sums.invoke(data={"numbers": numbers})
        value: dict[str, int] = record.value
        return value


if __name__ == "__main__":
    if sys.argv[1:2] == ["call"]:
        print(asyncio.run(call([int(word) for word in sys.argv[2:]])))
    else:
        asyncio.run(agent.run())
