"""A pydantic-ai agent behind a channel: its text is streamed, its tools are shown, its memory is the conversation.

    pip install 'turnlog[pydantic-ai]' 'pydantic-ai-slim[openai]'

It keeps nothing itself: what was said before is asked of the log, so that any process of the group can answer next.
"""

import asyncio
import os
from collections.abc import Sequence

from pydantic_ai import Agent as Model
from pydantic_ai import ModelMessage, ModelRequest, ModelResponse, RunContext, TextPart, UserPromptPart

from turnlog import Agent, Message, Reply, Turn

ORDERS = {"7": "on its way"}


def model_of(name: str | None) -> Model[Reply, str]:
    """A model with a tool; what it is run with (`deps`) is the reply, where the person sees the tool at work."""
    model = Model(name, deps_type=Reply, instructions="Help customers of a shop. Be brief.")

    @model.tool
    async def order_status(context: RunContext[Reply], number: str) -> str:
        """Where an order is."""
        async with context.deps.tool("order_status", {"number": number}) as call:
            if not call.done:
                call.result = ORDERS.get(number, "unknown")
        return str(call.result)

    return model


def agent_of(model: Model[Reply, str]) -> Agent:
    """The model behind a channel."""
    agent = Agent(
        os.environ.get("TURNLOG_GATEWAY", "http://127.0.0.1:8080"),
        channel_secret=os.environ.get("AGENTS_SECRET", ""),
        group="pydantic-ai",
    )

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        before = remembered(await reply.history())
        async with (
            model.run_stream(turn.text, message_history=before, deps=reply) as answering,
            reply.stream() as stream,
        ):
            async for piece in answering.stream_text(delta=True):
                await stream.write(piece)

    return agent


def remembered(messages: Sequence[Message]) -> list[ModelMessage]:
    """The conversation so far, as pydantic-ai has it."""
    return [
        ModelRequest(parts=[UserPromptPart(each.text)])
        if each.role == "user"
        else ModelResponse(parts=[TextPart(each.text)])
        for each in messages
        if each.text
    ]


if __name__ == "__main__":
    asyncio.run(agent_of(model_of("openai:gpt-5-mini")).run())
