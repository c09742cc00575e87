"""The HTTP API's OpenAPI description, from one table of its operations, and a page that shows it."""

from __future__ import annotations

from html import escape
from importlib.metadata import version
from typing import Any, Final

import msgspec

from connectors.gateway.protocol.errors import SPECS

CONVERSATION: Final = "/api/v1/converger/conversations/{conversation_id}"
TENANT: Final = "/api/v1/conversations/{conversation_id}"


class Operation(msgspec.Struct, frozen=True):
    """One endpoint. `query` and `body`: name to JSON type and meaning."""

    method: str
    path: str
    summary: str
    security: str | None
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: dict[str, tuple[str, str]] = {}
    status: int = 200


KEY: Final = {"X-Idempotency-Key": "a repeat with the same key is stored once and gets the first one's answer"}
PAGED: Final = {"watermark": "show what has a higher seq; 0 shows all", "limit": "1 to 500, 50 when absent"}
MESSAGE: Final = {
    "type": ("string", "message (default) or typing"),
    "text": ("string", "at most 64 KiB of UTF-8"),
    "from": ("object", "{id}: who speaks, for a token that names no user"),
    "attachments": ("array", "at most 10 objects with contentType"),
    "replyToId": ("string", "the message, or open question, that it answers"),
    "channelData": ("object", "metadata, at most 16 KiB"),
}
TENANT_MESSAGE: Final = {
    "type": ("string", "message"),
    "text": ("string", "at most 64 KiB of UTF-8"),
    "sender": ("string", "who speaks; the conversation's participant when absent"),
    "attachments": ("array", "at most 10 objects with contentType"),
    "reply_to_id": ("string", "the message, or open question, that it answers"),
    "metadata": ("object", "at most 16 KiB"),
}

OPERATIONS: Final = (
    Operation(
        "post",
        "/api/v1/converger/tokens/generate",
        "A token for a channel's secret",
        "channelSecret",
        body={
            "scope": ("string", "conversation (default) for people, channel for agents"),
            "user": ("object", "{id}: whom the token is for"),
        },
    ),
    Operation("post", "/api/v1/converger/tokens/refresh", "A fresh token for one that is still good", "token"),
    Operation("post", "/api/v1/converger/conversations", "A new conversation", "token", headers=KEY, status=201),
    Operation(
        "get",
        CONVERSATION,
        "A fresh token for a conversation",
        "token",
        query={"watermark": "refused when it is above the head"},
    ),
    Operation("post", f"{CONVERSATION}/close", "Close it", "token"),
    Operation("post", f"{CONVERSATION}/reopen", "Open it again", "token"),
    Operation("post", f"{CONVERSATION}/activities", "Say something", "token", headers=KEY, body=MESSAGE, status=201),
    Operation("get", f"{CONVERSATION}/activities", "What was said", "token", query=PAGED),
    Operation(
        "get",
        "/api/v1/conversations",
        "Conversations, newest first",
        "apiKey",
        query={
            "limit": "1 to 500, 50 when absent",
            "cursor": "next_cursor of the page before",
            "status": "active or closed",
            "channel_id": "only of this channel",
            "external_id": "only with this id of the channel",
        },
    ),
    Operation("get", TENANT, "One conversation", "apiKey"),
    Operation("post", f"{TENANT}/close", "Close it", "apiKey"),
    Operation("post", f"{TENANT}/reopen", "Open it again", "apiKey"),
    Operation(
        "post",
        f"{TENANT}/activities",
        "Say something for its person",
        "apiKey",
        headers=KEY,
        body=TENANT_MESSAGE,
        status=201,
    ),
    Operation("get", f"{TENANT}/activities", "What was said", "apiKey", query=PAGED),
    Operation(
        "get",
        "/v1/conversations/{conversation_id}/stream",
        "The conversation as server-sent events; an event's id is its seq",
        "token",
        query={"watermark": "begin after this seq", "token": "the token, where no header can be sent"},
        headers={"Last-Event-ID": "resume after this seq"},
    ),
    Operation("get", "/v1/conversations/{conversation_id}", "Owners, head and open runs", "apiKey"),
    Operation("get", "/v1/members", "Members, by partition count", "apiKey"),
    Operation("get", "/v1/leases", "Which worker may write which partition", "apiKey"),
    Operation("get", "/healthz", "Whether the process runs", None),
    Operation("get", "/readyz", "Whether it takes requests", None),
    Operation("get", "/metrics", "Prometheus metrics", None),
)

SECURITY: Final = {
    "channelSecret": {"type": "http", "scheme": "bearer", "description": "a channel's login secret"},
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "a token of /tokens"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "request_id"],
            "properties": {
                "code": {"type": "string", "enum": sorted(SPECS)},
                "message": {"type": "string"},
                "details": {"type": "object"},
                "request_id": {"type": "string"},
            },
        }
    },
}


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    if "{conversation_id}" in operation.path:
        parameters.append({"name": "conversation_id", "in": "path", "required": True, "schema": {"type": "string"}})
    for place, named in (("query", operation.query), ("header", operation.headers)):
        parameters += [
            {"name": name, "in": place, "description": meaning, "schema": {"type": "string"}}
            for name, meaning in named.items()
        ]
    return parameters


def _described(operation: Operation) -> dict[str, Any]:
    failure = {
        "description": "Error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    described: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {str(operation.status): {"description": operation.summary}, "default": failure},
    }
    if operation.security is not None:
        described["security"] = [{operation.security: []}]
    if operation.body:
        properties = {name: {"type": kind, "description": what} for name, (kind, what) in operation.body.items()}
        schema = {"type": "object", "properties": properties}
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return described


def _document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnlog gateway",
            "version": version("turnlog"),
            "description": "The WebSocket protocol is at /socket/converger/v1 (subprotocol converger.v1).",
        },
        "paths": paths,
        "components": {"securitySchemes": SECURITY, "schemas": {"Error": ERROR}},
    }


def _page() -> str:
    rows = "".join(
        f"<tr><td>{operation.method.upper()}</td><td><code>{escape(operation.path)}</code></td>"
        f"<td>{escape(operation.summary)}</td><td>{escape(operation.security or 'none')}</td></tr>"
        for operation in OPERATIONS
    )
    style = "body{font:16px system-ui;margin:2rem}td,th{padding:.3rem .8rem;text-align:left}code{font-size:.95em}"
    return (
        f"<!doctype html><meta charset=utf-8><title>Turnlog gateway</title><style>{style}</style>"
        "<h1>Turnlog gateway</h1><p>WebSocket: <code>/socket/converger/v1</code>. "
        "Machine-readable: <a href=/openapi.json>openapi.json</a>.</p>"
        f"<table><tr><th>Method<th>Path<th>What it does<th>Credential</tr>{rows}</table>"
    )


DOCUMENT: Final = _document()
PAGE: Final = _page()
