"""A LangGraph graph as an agent: its tokens are streamed, its interrupts are questions to the person.

    pip install 'turnlog[langgraph]' langchain-openai

The thread of the graph is the conversation. With a checkpointer that outlives the process (Postgres, say), a graph that
waits for an answer is gone on with by whichever process gets it.
"""

import asyncio
import os
from typing import Any

from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from turnlog import Agent, Reply, Turn


def graph_of(model: Any) -> Any:
    """Ask the person before the model is asked about a refund."""

    def gate(state: MessagesState) -> Command[str]:
        if "refund" in str(state["messages"][-1].content) and not interrupt("Shall I look into a refund?"):
            return Command(goto=END)
        return Command(goto="model")

    async def call_model(state: MessagesState) -> MessagesState:
        return MessagesState(messages=[await model.ainvoke(state["messages"])])

    builder = StateGraph(MessagesState)
    builder.add_node("gate", gate, destinations=("model", END))
    builder.add_node("model", call_model)
    builder.add_edge(START, "gate")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=InMemorySaver())


def agent_of(graph: Any) -> Agent:
    """The graph behind a channel."""
    agent = Agent(
        os.environ.get("TURNLOG_GATEWAY", "http://127.0.0.1:8080"),
        channel_secret=os.environ.get("AGENTS_SECRET", ""),
        group="langgraph",
    )

    @agent.on_turn
    async def answer(turn: Turn, reply: Reply) -> None:
        config: RunnableConfig = {"configurable": {"thread_id": turn.conversation}}
        given: Any = {"messages": [HumanMessage(turn.text, id=turn.id)]}
        while given is not None:
            async with reply.stream() as stream:
                async for chunk, _ in graph.astream(given, config, stream_mode="messages"):
                    if isinstance(chunk, AIMessageChunk):
                        await stream.write(chunk.text)
            given = await answers_to((await graph.aget_state(config)).interrupts, reply)

    return agent


async def answers_to(interrupts: Any, reply: Reply) -> Any:
    """What the graph is resumed with, once the person has answered; None: it asked nothing."""
    yes_or_no = [("Yes", True), ("No", False)]
    answers = {each.id: await reply.ask(each.value, actions=yes_or_no, id=each.id) for each in interrupts}
    return Command(resume=answers) if answers else None


if __name__ == "__main__":
    from langchain_openai import ChatOpenAI

    asyncio.run(agent_of(graph_of(ChatOpenAI(model="gpt-5-mini"))).run())
