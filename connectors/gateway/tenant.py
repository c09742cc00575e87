"""The tenant API, `/api/v1`: all conversations, for the channel's own backends (`x-api-key`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4, uuid5

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.gateway import http
from connectors.gateway.activities import tenant_activity
from connectors.gateway.auth import check_user
from connectors.gateway.http import conversation_id, json_body, json_response, need_api_key, optional
from connectors.gateway.live import Speaker
from connectors.gateway.ports import ConversationInfo, ListQuery
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID
from connectors.gateway.protocol.render import iso
from connectors.gateway.protocol.session import Claims, Scope
from connectors.gateway.rest import PAGE_DEFAULT, PAGE_MAX, message_of, metadata_text
from streams.core.ids import TURNLOG_NAMESPACE_UUID
from streams.core.routing import may_write
from streams.runtime.live import Typing

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

PREFIX = "/api/v1"
STATUSES = {"active": "open", "open": "open", "closed": "closed"}
SHOWN_STATUS = {"open": "active", "closed": "closed"}


def routes(gateway: Gateway) -> list[Route]:
    """The tenant API's routes."""
    one = PREFIX + "/conversations/{conversation_id}"
    return [
        http.route(gateway, f"{PREFIX}/conversations", list_conversations),
        http.route(gateway, f"{PREFIX}/conversations", open_conversation, method="POST"),
        http.route(gateway, one, get_conversation),
        http.route(gateway, f"{one}/close", close_conversation, method="POST"),
        http.route(gateway, f"{one}/reopen", reopen_conversation, method="POST"),
        http.route(gateway, f"{one}/handover", hand_over, method="POST"),
        http.route(gateway, f"{one}/handback", hand_back, method="POST"),
        http.route(gateway, f"{one}/activities", post_activity, method="POST"),
        http.route(gateway, f"{one}/activities", list_activities),
    ]


async def list_conversations(gateway: Gateway, request: Request) -> Response:
    """A page of conversations, newest first."""
    await need_api_key(gateway, request)
    status = request.query_params.get("status")
    if status is not None and status not in STATUSES:
        raise ProtocolError("bad_request", f"status: one of {', '.join(STATUSES)}")
    query = ListQuery(
        limit=http.number(request, "limit", PAGE_DEFAULT, low=1, high=PAGE_MAX),
        cursor=request.query_params.get("cursor") or None,
        status=STATUSES[status] if status is not None else None,
        channel=_filter(request, "channel_id"),
        external_id=_filter(request, "external_id"),
    )
    found, cursor = await gateway.read_model.conversations(query)
    return json_response(
        {
            "data": [_shown(info) for info in found],
            "meta": {"next_cursor": cursor, "has_more": cursor is not None, "limit": query.limit},
        }
    )


async def open_conversation(gateway: Gateway, request: Request) -> Response:
    """A new one of any channel, an agents' channel's own too; the same one for the same key and person."""
    await need_api_key(gateway, request)
    key = http.idempotency_key(request)
    body = await json_body(request)
    channel = gateway.directory.channel(http.identifier(body, "channel_id", MAX_ID))
    external_id = optional(body, "external_id", str)
    # Whom the backend does not name is nobody in particular: no token's person, and nobody of another channel.
    person = check_user(external_id, "external_id") if external_id is not None else _guest(key)
    claims = Claims(
        channel=channel.id, scope=Scope.CONVERSATION, user=person, named=external_id is not None, expires_at=0
    )
    created = await gateway.commands.open_conversation(
        claims, key=key, metadata=metadata_text(body, "metadata"), headers=http.trace_headers(request)
    )
    return json_response({"data": _shown(await gateway.conversation(created))}, 201)


def _guest(key: str | None) -> str:
    """A person's id, the same one for the same key."""
    minted = uuid4() if key is None else uuid5(TURNLOG_NAMESPACE_UUID, key)
    return f"guest-{minted.hex}"


def _filter(request: Request, name: str) -> str | None:
    value = request.query_params.get(name) or None
    if value is not None and "\0" in value:
        raise ProtocolError("bad_request", f"{name}: a NUL character, which nothing stored has")
    return value


async def get_conversation(gateway: Gateway, request: Request) -> Response:
    """One conversation."""
    await need_api_key(gateway, request)
    return json_response({"data": _shown(await gateway.conversation(conversation_id(request)))})


async def close_conversation(gateway: Gateway, request: Request) -> Response:
    """Close it."""
    await need_api_key(gateway, request)
    info = await gateway.conversation(conversation_id(request))
    await gateway.commands.close_conversation(info.id, "tenant", http.trace_headers(request))
    return json_response({"data": {**_shown(info), "status": "closed"}})


async def reopen_conversation(gateway: Gateway, request: Request) -> Response:
    """Open it again."""
    await need_api_key(gateway, request)
    info = await gateway.conversation(conversation_id(request))
    await gateway.commands.reopen_conversation(info.id, "tenant", http.trace_headers(request))
    return json_response({"data": {**_shown(info), "status": "active"}})


async def hand_over(gateway: Gateway, request: Request) -> Response:
    """A human answers from here on: no agent is heard until it is handed back."""
    await need_api_key(gateway, request)
    body = await json_body(request)
    info = await gateway.conversation(conversation_id(request))
    by, reason, headers = _named(body, "by"), http.reason(body), http.trace_headers(request)
    await gateway.commands.hand_over(info.id, by=by, to=_named(body, "to", "human"), reason=reason, headers=headers)
    return json_response({"data": {**_shown(info), "handed_over": True}})


async def hand_back(gateway: Gateway, request: Request) -> Response:
    """Agents answer what is said from here on."""
    await need_api_key(gateway, request)
    body = await json_body(request)
    info = await gateway.conversation(conversation_id(request))
    headers = http.trace_headers(request)
    await gateway.commands.hand_back(info.id, by=_named(body, "by"), reason=http.reason(body), headers=headers)
    return json_response({"data": {**_shown(info), "handed_over": False}})


def _named(body: dict[str, Any], field: str, otherwise: str = "tenant") -> str:
    """Who; `otherwise` where the body does not say."""
    name = optional(body, field, str) or otherwise
    if not 0 < len(name) <= MAX_ID:
        raise ProtocolError("invalid_message", f"{field}: a string of 1 to {MAX_ID} characters")
    return name


async def post_activity(gateway: Gateway, request: Request) -> Response:
    """Store a message of the conversation's person, or show that they type."""
    await need_api_key(gateway, request)
    key = http.idempotency_key(request)
    body = await json_body(request)
    info = await gateway.conversation(conversation_id(request))
    gateway.directory.channel(info.channel)
    sender = optional(body, "sender", str) or info.participant or "tenant"
    if not 0 < len(sender) <= MAX_ID:
        raise ProtocolError("invalid_message", f"sender: a string of 1 to {MAX_ID} characters")
    channel = optional(body, "source_channel_id", str) or info.channel
    if not may_write(gateway.directory.config, info.channel, channel):
        raise ProtocolError("forbidden", f"source_channel_id: channel {info.channel} is not routed to {channel}")
    kind = optional(body, "type", str) or "message"
    if kind == "typing":
        gateway.live.announce(Speaker(sender, "user", channel), info.id, Typing(active=True), None)
        return json_response({"data": {"id": str(uuid4()), "type": kind, "sender": sender}}, 202)
    message = message_of(body, kind, key, metadata="metadata", reply_to="reply_to_id")
    claims = Claims(channel=channel, scope=Scope.CONVERSATION, user=sender, named=True, expires_at=0)
    receipt = await gateway.commands.commit_turn(
        gateway.commands.turn(info.id, claims, sender, message), http.trace_headers(request)
    )
    page = await gateway.history.page(info.id, receipt.seq - 1, 1)
    shown = [tenant_activity(stored, info.channel) for stored in page.stored]
    data = shown[0] if shown else {"id": receipt.id, "type": "message", "seq": receipt.seq}
    return json_response({"data": {**(data or {}), "idempotency_key": key}}, 200 if receipt.duplicate else 201)


async def list_activities(gateway: Gateway, request: Request) -> Response:
    """What was said after a watermark."""
    await need_api_key(gateway, request)
    info = await gateway.conversation(conversation_id(request))
    seen = http.watermark(request)
    limit = http.number(request, "limit", PAGE_DEFAULT, low=1, high=PAGE_MAX)
    page = await gateway.history.page(info.id, seen, limit)
    activities = [tenant_activity(stored, info.channel) for stored in page.stored]
    last = page.stored[-1].entry.event.seq if page.stored else seen
    return json_response(
        {
            "data": [shown for shown in activities if shown is not None],
            "meta": {"watermark": last, "has_more": last < page.head, "limit": limit},
        }
    )


def _shown(info: ConversationInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "status": SHOWN_STATUS.get(info.status, info.status),
        "channel_id": info.channel,
        "origin_channel_id": info.channel,
        "tenant_id": "default",
        "participant_id": info.participant,
        "participant": {"id": info.participant, "external_id": info.external_id} if info.participant else None,
        "metadata": msgspec.json.decode(info.metadata) if info.metadata is not None else {},
        "head_seq": info.head_seq,
        "inserted_at": iso(info.opened_at),
        "updated_at": iso(info.updated_at),
    }
