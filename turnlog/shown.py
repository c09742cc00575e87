"""What a handler shows beside its words: the tools that it uses, and components.

Each is stored once under an id that follows from the turn and the order of use, so that a handler that runs again, or
goes on with what another process began, updates what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from turnlog.errors import TurnlogError
from turnlog.outbox import Ack, Outbox
from turnlog.run import Run
from turnlog.wire import Frame, client_id

COMPONENT_CHUNK_ID = 1
DONE_CHUNK_ID = 2


class ToolCall:
    """One use of a tool: ``async with reply.tool("get_order", {"id": 7}) as call: call.result = await get_order(7)``.

    It is shown as running, then as completed with `result`, or as failed when the block raises. `done` is true from the
    start, and `result` known, when an earlier owner of the run had completed the same call.
    """

    def __init__(self, run: Run, outbox: Outbox, number: int, name: str, params: Mapping[str, Any] | None) -> None:
        self._run = run
        self._outbox = outbox
        self._number = number
        self.name = name
        self.id = client_id(run.turn.id, f"t{number}")
        self._params = dict(params) if params is not None else None
        self.result: Any = None
        self.done = False
        self._learn()

    def _learn(self) -> None:
        resume = self._run.turn.resume
        for viewed in resume.frames if resume is not None else ():
            data = viewed.frame.get("data")
            if viewed.type == "tool_call" and isinstance(data, dict) and data.get("id") == self.id:
                self.done = data.get("status") == "completed"
                self.result = data.get("result")

    async def __aenter__(self) -> ToolCall:
        if not self.done:
            await self._tell("running")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.done:
            return
        if error is None:
            self.done = True
            await self._tell("completed", **({} if self.result is None else {"result": self.result}))
        elif isinstance(error, Exception) and not isinstance(error, TurnlogError):
            # Of what went wrong inside, the person gets the kind: the message may hold what is not theirs.
            await self._tell("error", error=type(error).__name__)

    async def _tell(self, status: str, **more: Any) -> None:
        data: Frame = {"id": self.id, "name": self.name, "status": status, **more}
        if self._params is not None:
            data["params"] = self._params
        key = client_id(self._run.turn.id, f"t{self._number}.{status}")
        await self._outbox.structured(self._run, {"type": "tool_call", "clientId": key, "data": data})


class Component:
    """A component on the person's screen. `update` changes its props in place; `end` says that it stays as it is."""

    def __init__(self, run: Run, outbox: Outbox, number: int, name: str) -> None:
        self._run = run
        self._outbox = outbox
        self._number = number
        self._sent = 0
        self._ended = False
        self.name = name
        self.stream_id = client_id(run.turn.id, f"g{number}")

    async def update(self, props: Mapping[str, Any]) -> Ack | None:
        """Show it with `props`; returns once that is stored."""
        if self._ended:
            raise RuntimeError("the component has ended")
        chunk = {"type": "ui", "component": self.name, "props": dict(props), "id": COMPONENT_CHUNK_ID}
        return await self._chunk(chunk, done=False)

    async def end(self) -> None:
        """No more updates. What a handler leaves open is ended for it."""
        if not self._ended:
            self._ended = True
            await self._chunk({"type": "event", "name": "stream_done", "id": DONE_CHUNK_ID}, done=True)

    async def _chunk(self, chunk: Frame, *, done: bool) -> Ack | None:
        self._sent += 1
        key = client_id(self._run.turn.id, f"g{self._number}.{'end' if done else self._sent}")
        frame = {"type": "genui", "clientId": key, "streamId": self.stream_id, "done": done, "chunk": chunk}
        return await self._outbox.structured(self._run, frame)
