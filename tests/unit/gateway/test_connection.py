"""A connection's tasks around a session, on a socket that does what the test says."""

from __future__ import annotations

import gc
from typing import Any, cast

from starlette.websockets import WebSocket

from connectors.gateway.connection import Connection, Submit
from connectors.gateway.protocol.actions import Action
from connectors.gateway.protocol.session import Claims, Scope
from connectors.gateway.protocol.user import UserSession

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
