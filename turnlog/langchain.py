"""An agent as a LangChain tool; needs the extra `langchain` (langchain-core)."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from turnlog.proxy import AgentProxy

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class Question(BaseModel):
    """What the tool is called with."""

    text: str = Field(description="What to ask or tell the agent, in full: it sees nothing else.")


def tool_of(proxy: AgentProxy, *, name: str | None, description: str | None, thread: str | None) -> StructuredTool:
    """See `AgentProxy.as_tools`."""
    name = name or _UNSAFE.sub("_", proxy.agent)
    own = thread or uuid.uuid4().hex

    def thread_of(config: RunnableConfig | None) -> str:
        if thread is not None or config is None:
            return own
        callers = config.get("configurable", {}).get("thread_id")
        # Not the caller's own thread: that may be a conversation of Turnlog's too, in which a person listens.
        return own if callers is None else f"{callers}~{name}"

    async def call(text: str, config: RunnableConfig) -> Any:
        return (await proxy.invoke(text, thread=thread_of(config))).value

    def call_sync(text: str, config: RunnableConfig) -> Any:
        return proxy.invoke_sync(text, thread=thread_of(config)).value

    return StructuredTool.from_function(
        func=call_sync,
        coroutine=call,
        name=name,
        description=description or f"Ask the agent {proxy.agent}. It remembers what was said before.",
        args_schema=Question,
    )
