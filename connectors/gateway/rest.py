"""The client API, `/api/v1/converger`: tokens, conversations and activities of people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.activities import activity
from connectors.gateway.auth import check_user
from connectors.gateway.http import any_claims, claims_of, conversation_id, json_body, json_response, optional
from connectors.gateway.live import Speaker
from connectors.gateway.ports import ConversationInfo
from connectors.gateway.protocol import limits, messages
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID, UserMessage, check_text, json_text
from connectors.gateway.protocol.session import Claims, Scope
from streams.runtime.live import Typing

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

PREFIX = "/api/v1/converger"
PAGE_DEFAULT, PAGE_MAX = 50, 500
ATTACHMENTS_MAX = 10
ATTACHMENT_BYTES = 4 * 1024


def routes(gateway: Gateway) -> list[Route]:
    """The client API's routes."""
    one = PREFIX + "/conversations/{conversation_id}"
    return [
        http.route(gateway, f"{PREFIX}/tokens/generate", generate_token, method="POST"),
        http.route(gateway, f"{PREFIX}/tokens/refresh", refresh_token, method="POST"),
        http.route(gateway, f"{PREFIX}/conversations", create_conversation, method="POST"),
        http.route(gateway, one, get_conversation),
        http.route(gateway, f"{one}/close", close_conversation, method="POST"),
        http.route(gateway, f"{one}/reopen", reopen_conversation, method="POST"),
        http.route(gateway, f"{one}/activities", post_activity, method="POST"),
        http.route(gateway, f"{one}/activities", list_activities),
    ]


async def generate_token(gateway: Gateway, request: Request) -> Response:
    """A token for a channel's secret."""
    secret = http.bearer(request)
    body = await json_body(request)
    named = optional(body, "scope", str)
    if named is not None and named not in set(Scope):
        raise ProtocolError("bad_request", f"scope: one of {', '.join(Scope)}")
    user = optional(body, "user", dict) or {}
    claims = await gateway.tokens.login(
        secret, scope=Scope(named) if named is not None else Scope.CONVERSATION, user=optional(user, "id", str, "user.")
    )
    return json_response(_token(gateway, claims))


async def refresh_token(gateway: Gateway, request: Request) -> Response:
    """A fresh token for one that is still good."""
    token = http.bearer(request)
    await gateway.tokens.prepare(token)
    return json_response(_token(gateway, gateway.tokens.verify(token)))


def _token(gateway: Gateway, claims: Claims) -> dict[str, Any]:
    body: dict[str, Any] = {"token": gateway.tokens.issue(claims), "expires_in": gateway.tokens.ttl_s}
    if claims.conversation_id is not None:
        body["conversationId"] = claims.conversation_id
    return body


async def create_conversation(gateway: Gateway, request: Request) -> Response:
    """A new conversation of the token's person; a token that is for one already gets that one. Of an agents' channel's
    token, one of its own, with the person that it names."""
    claims = await any_claims(gateway, http.bearer(request))
    if claims.scope is Scope.CHANNEL:
        return await _create_owned(gateway, request, claims)
    created = claims.conversation_id
    if created is None:
        created = await gateway.commands.open_conversation(
            claims, key=http.idempotency_key(request), headers=http.trace_headers(request)
        )
    return json_response(_bound(gateway, request, claims, created), 201)


async def _create_owned(gateway: Gateway, request: Request, claims: Claims) -> Response:
    user = optional(optional(await json_body(request), "user", dict) or {}, "id", str, "user.")
    # Without a person it is nobody's elsewhere but of those channels that see all.
    named = {"user": check_user(user), "named": True} if user is not None else {"named": False}
    opener = msgspec.structs.replace(claims, **named)
    created = await gateway.commands.open_conversation(
        opener, key=http.idempotency_key(request), headers=http.trace_headers(request)
    )
    return json_response({**_token(gateway, claims), "conversationId": created, "streamUrl": _socket(request)}, 201)


Find = Callable[[Claims, str], Awaitable[ConversationInfo]]


async def _seen(gateway: Gateway, request: Request) -> tuple[Claims, ConversationInfo]:
    """Whoever asks, and the conversation: its person, or its own channel of agents."""
    return await _found(gateway, request, gateway.conversation_for)


async def _own(gateway: Gateway, request: Request) -> tuple[Claims, ConversationInfo]:
    """As `_seen`, for what only those of its own channel may do."""
    return await _found(gateway, request, gateway.own_conversation)


async def _found(gateway: Gateway, request: Request, for_person: Find) -> tuple[Claims, ConversationInfo]:
    claims = await any_claims(gateway, http.bearer(request))
    wanted = conversation_id(request)
    if claims.scope is not Scope.CHANNEL:
        return claims, await for_person(claims, wanted)
    info = await gateway.conversation(wanted)
    if info.channel != claims.channel:
        raise ProtocolError("conversation_not_found", "no such conversation of this channel's own")
    return claims, info


async def get_conversation(gateway: Gateway, request: Request) -> Response:
    """A fresh token for a conversation."""
    claims = await claims_of(gateway, http.bearer(request))
    info = await gateway.conversation_for(claims, conversation_id(request))
    await gateway.check_watermark(info, http.watermark(request))
    return json_response(_bound(gateway, request, claims, info.id))


def _bound(gateway: Gateway, request: Request, claims: Claims, conversation: str) -> dict[str, Any]:
    bound = msgspec.structs.replace(claims, conversation_id=conversation)
    return {**_token(gateway, bound), "conversationId": conversation, "streamUrl": _socket(request)}


def _socket(request: Request) -> str:
    scheme = "wss" if request.url.scheme == "https" else "ws"
    return f"{scheme}://{request.url.netloc}/socket/converger/v1"


async def close_conversation(gateway: Gateway, request: Request) -> Response:
    """Close it."""
    claims, info = await _own(gateway, request)
    await gateway.commands.close_conversation(info.id, claims.user, http.trace_headers(request))
    return json_response({"conversationId": info.id, "status": "closed"})


async def reopen_conversation(gateway: Gateway, request: Request) -> Response:
    """Open it again."""
    claims, info = await _own(gateway, request)
    await gateway.commands.reopen_conversation(info.id, claims.user, http.trace_headers(request))
    return json_response({"conversationId": info.id, "status": "active"})


async def post_activity(gateway: Gateway, request: Request) -> Response:
    """Store a message, or show that somebody types."""
    claims = await claims_of(gateway, http.bearer(request))
    key = http.idempotency_key(request)
    body = await json_body(request)
    info = await gateway.conversation_for(claims, conversation_id(request))
    named = optional(optional(body, "from", dict) or {}, "id", str, "from.")
    sender = sender_of(claims, named)
    kind = optional(body, "type", str) or "message"
    if kind == "typing":
        gateway.live.announce(Speaker(sender, "user", claims.channel), info.id, Typing(active=True), None)
        return json_response({"id": str(uuid4())}, 202)
    message = message_of(body, kind, key, metadata="channelData", reply_to="replyToId")
    command = gateway.commands.turn(info.id, claims, sender, message)
    receipt = await gateway.commands.commit_turn(command, http.trace_headers(request))
    return json_response(
        {"id": receipt.id, "seq": receipt.seq, "duplicate": receipt.duplicate}, 200 if receipt.duplicate else 201
    )


def sender_of(claims: Claims, named: str | None) -> str:
    """Who speaks: the user that the token names; a token for a guest may say who in `from`."""
    if named is not None and not 0 < len(named) <= MAX_ID:
        raise ProtocolError("invalid_message", f"from.id: a string of 1 to {MAX_ID} characters")
    return claims.user if claims.named or not named else named


def message_of(body: dict[str, Any], kind: str, key: str | None, *, metadata: str, reply_to: str) -> UserMessage:
    """The message in a REST body; `metadata` and `reply_to` are the API's names for these fields."""
    if kind != "message":
        raise ProtocolError("invalid_message", f"type: `{kind}` is not served; `message` and `typing` are")
    text = optional(body, "text", str)
    attachments = optional(body, "attachments", list) or []
    if not (text or "").strip() and not attachments:
        raise ProtocolError(
            "invalid_message",
            "text: a message needs a text that is not blank, or attachments",
            details={"field": "text"},
        )
    check_text(text, "text")
    _check_attachments(attachments)
    target = optional(body, reply_to, str)
    if target is not None and not 0 < len(target) <= MAX_ID:
        raise ProtocolError("invalid_message", f"{reply_to}: a string of 1 to {MAX_ID} characters")
    shown = metadata_text(body, metadata)
    data = {"text": text or "", "attachments": attachments}
    return UserMessage(
        type="text",
        text=text or "",
        data=json_text(data) if attachments else None,
        client_id=key,
        metadata=shown,
        reply_to=target,
    )


def metadata_text(body: dict[str, Any], field: str) -> str | None:
    """The metadata in a REST body, as JSON; None: there is none. Raises `ProtocolError`."""
    given = optional(body, field, dict)
    text = json_text(given) if given else None
    if text is not None and len(text.encode()) > limits.MAX_METADATA_BYTES:
        raise ProtocolError("payload_too_large", f"{field}: at most {limits.MAX_METADATA_BYTES} bytes as JSON")
    return text


def _check_attachments(attachments: list[Any]) -> None:
    if len(attachments) > ATTACHMENTS_MAX:
        raise ProtocolError("invalid_message", f"attachments: at most {ATTACHMENTS_MAX}")
    messages.check(list[dict[str, Any]], attachments, "attachments")
    for index, attachment in enumerate(attachments):
        if not isinstance(attachment.get("contentType"), str):
            raise ProtocolError("invalid_message", f"attachments[{index}].contentType: must be a string")
        if len(msgspec.json.encode(attachment)) > ATTACHMENT_BYTES:
            raise ProtocolError("payload_too_large", f"attachments[{index}]: at most {ATTACHMENT_BYTES} bytes as JSON")


async def list_activities(gateway: Gateway, request: Request) -> Response:
    """What was said after a watermark."""
    claims, info = await _seen(gateway, request)
    seen = http.watermark(request)
    limit = http.number(request, "limit", PAGE_DEFAULT, low=1, high=PAGE_MAX)
    await gateway.check_watermark(info, seen)
    page = await gateway.history.page(info.id, seen, limit)
    shown = await gateway.shown(claims.channel, info, seen, page.stored)
    activities = [activity(stored) for stored in shown]
    last = page.stored[-1].entry.event.seq if page.stored else seen
    return json_response(
        {
            "activities": [each for each in activities if each is not None],
            "watermark": last,
            "has_more": last < page.head,
        }
    )
