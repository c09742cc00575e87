"""How a socket begins: its first message, whose token it is, and which kind of connection it becomes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.websockets import WebSocket

from connectors.gateway.agent_socket import AgentConnection
from connectors.gateway.clock import wall_ms
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.agent import AgentSession
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import decode_object
from connectors.gateway.protocol.session import SUBPROTOCOL, Claims, Scope, Verify
from connectors.gateway.protocol.user import UserSession
from connectors.gateway.user_socket import UserConnection

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

# Fields of hello that the address may have instead.
IN_QUERY = ("protocol", "userId", "conversationId", "watermark", "group", "componentsHash", "skillsHash")


async def serve_socket(gateway: Gateway, websocket: WebSocket) -> None:
    """One WebSocket from accept to close. A refusal is a close after hello: clients retry anything earlier for ever."""
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    first = await _first_message(websocket)
    if first is None:
        return
    token = _bearer(websocket) or websocket.query_params.get("token")
    named = _token_in(first) or token
    scope, verify = await _verifier(gateway, named)
    connection = _connection(gateway, websocket, token, scope, verify)
    async with gateway.serving(connection):
        await connection.serve(first)


async def _first_message(websocket: WebSocket) -> str | bytes | None:
    try:
        async with asyncio.timeout(limits.HELLO_MS / 1000):
            message = await websocket.receive()
    except TimeoutError:
        await websocket.close(4400, "no hello within 10 s")
        return None
    if message["type"] == "websocket.disconnect":
        return None
    text: str | None = message.get("text")
    data: bytes | None = message.get("bytes")
    return text if text is not None else data


def _token_in(first: str | bytes) -> str | None:
    try:
        token = decode_object(first).get("token")
    except ProtocolError:
        return None  # the session refuses the frame, and says why
    return token if isinstance(token, str) and token else None


def _bearer(websocket: WebSocket) -> str | None:
    scheme, _, token = websocket.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


async def _verifier(gateway: Gateway, token: str | None) -> tuple[Scope, Verify]:
    """The scope of the token, and what checks tokens; a refusal of the gateway itself is given as the check's error."""
    refusal = gateway.refusal()
    if refusal is None and token is not None:
        try:
            await gateway.tokens.prepare(token)
            return gateway.tokens.verify(token).scope, gateway.tokens.verify
        except ProtocolError as error:
            refusal = error
    if refusal is None:
        return Scope.CONVERSATION, gateway.tokens.verify
    return Scope.CONVERSATION, _refusing(refusal)


def _refusing(refusal: ProtocolError) -> Verify:
    def verify(_: str) -> Claims:
        raise refusal

    return verify


def _connection(
    gateway: Gateway, websocket: WebSocket, token: str | None, scope: Scope, verify: Verify
) -> UserConnection | AgentConnection:
    now = wall_ms()
    query = {name: websocket.query_params[name] for name in IN_QUERY if name in websocket.query_params}
    if scope is Scope.CHANNEL:
        session = AgentSession(
            partition_of=gateway.partition_of,
            new_id=lambda: str(uuid4()),
            runs_max=gateway.settings.runs_per_member,
            carried=gateway.carried,
            token=token,
            scope_of=verify,
            connection_id=gateway.membership.new_member_id(),
            mint=gateway.mint,
            now=now,
            query=query,
        )
        return AgentConnection(gateway, websocket, session)
    user = UserSession(
        token=token,
        scope_of=verify,
        connection_id=f"conn-{uuid4().hex}",
        mint=gateway.mint,
        now=now,
        query=query,
    )
    return UserConnection(gateway, websocket, user)
