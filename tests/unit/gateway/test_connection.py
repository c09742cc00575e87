"""A connection's tasks around a session, on a socket that does what the test says."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from connectors.gateway.agent_past import _about
from connectors.gateway.connection import SUBMITS_CHARS, Connection, Submit
from connectors.gateway.protocol.actions import Action, FetchTurn
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.session import Claims, Scope, Session
from connectors.gateway.protocol.user import UserSession
from tests.support.gateway_world import Served
from tests.support.waiting import until

FAR = 10**15


class Gone:
    """A peer that left right after its hello."""

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.disconnect", "code": 1006}


class Person(Connection):
    """One whose work nobody waits for."""

    async def _do(self, action: Action) -> None:
        raise AssertionError(f"{action} was begun for a peer that is gone")

    async def _submit(self, submit: Submit) -> None:
        raise AssertionError(f"nothing was sent, but {submit}")

    async def _gone(self) -> None:
        """Nothing is left behind."""


async def test_a_peer_that_leaves_at_once_leaves_no_work_half_begun() -> None:
    claims = Claims(channel="c", scope=Scope.CONVERSATION, user="ann", named=True, expires_at=FAR)
    session = UserSession(token="t", scope_of=lambda _: claims, connection_id="conn-1", mint=lambda: "r", now=0)
    person = Person(cast(WebSocket, Gone()), session)
    await person.serve('{"type":"hello"}')
    assert person.closed.is_set()
    assert person.peer_code == 1006
    gc.collect()  # a coroutine that was never awaited is reported when it is collected, which fails the test


class Flood:
    """An agent that sends as fast as it is read, until it has sent `last`; then it leaves when it is let."""

    def __init__(self, frame: dict[str, Any], last: int) -> None:
        self._raw = json.dumps({"conversationId": "conv", "frame": frame})
        self._last = last
        self.read = 0
        self.leave = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self.read == self._last:
            await self.leave.wait()
            return {"type": "websocket.disconnect", "code": 1000}
        await asyncio.sleep(0)
        self.read += 1
        return {"type": "websocket.receive", "text": self._raw}

    async def send_text(self, data: str) -> None:
        """It reads nothing."""


class Slow(Connection):
    """One whose frames are written once `go` is set."""

    def __init__(self, websocket: WebSocket, session: Session) -> None:
        super().__init__(websocket, session)
        self.go = asyncio.Event()
        self.written = 0

    async def _do(self, action: Action) -> None:
        """It joins at once."""
        if isinstance(self._session, AgentSession):
            self.perform(self._session.opened(0))
            self.perform(self._session.joined(0, 0))

    async def _submit(self, submit: Submit) -> None:
        await self.go.wait()
        self.written += 1

    async def _gone(self) -> None:
        """Nothing is left behind."""


def flooded(flood: Flood) -> Slow:
    claims = Claims(channel="c", scope=Scope.CHANNEL, user="bot", named=True, expires_at=FAR)
    session = AgentSession(
        partition_of=lambda _: 0,
        new_id=lambda: "id",
        token="t",
        scope_of=lambda _: claims,
        connection_id="gw-1.1",
        mint=lambda: "r",
        now=0,
    )
    return Slow(cast(WebSocket, flood), session)


async def test_the_reader_stops_when_much_waits_for_the_intake_and_goes_on_when_it_is_written() -> None:
    size, count = 256 * 1024 - 2, 40
    flood = Flood({"type": "checkpoint", "data": "x" * size}, count)
    agent = flooded(flood)
    serving = asyncio.create_task(agent.serve('{"type":"hello"}'))
    most = SUBMITS_CHARS // size + 2  # one is being written, and one that is too many was read
    await until(lambda: flood.read >= most - 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert flood.read <= most < count
    agent.go.set()
    await until(lambda: agent.written == count)
    flood.leave.set()
    await serving


async def test_what_goes_wrong_is_logged_with_the_conversation_that_it_was_about(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, token = await served.conversation()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    with capture_logs(processors=[merge_contextvars]) as logged:
        async with served.socket(token, {"type": "hello"}) as person:
            await person.until("welcome")
            monkeypatch.setattr(served.gateway.commands, "turn", broken)
            await person.send({"type": "text", "clientId": "a", "data": {"text": "hi"}})
            await person.ended()
        await served.say(conversation, token, "hi")
    named = {line["event"]: line.get("conversation") for line in logged}
    assert named["a connection failed"] == named["a request failed"] == conversation


def test_what_people_answered_is_in_no_log_line() -> None:
    wanted = FetchTurn("c1", 3, "c1/3/agents", 2, 50, continued=True, answers='{"q": "the secret"}')
    assert _about(wanted) == {"conversation": "c1", "run": "c1/3/agents", "run_epoch": 2, "seq": 3}
