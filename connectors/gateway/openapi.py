"""The HTTP API's OpenAPI description, from the table of its endpoints, and a page that shows it."""

from __future__ import annotations

import re
from html import escape
from importlib.metadata import version
from typing import Any, Final

from connectors.gateway.endpoints import OPERATIONS, Operation
from connectors.gateway.operator_endpoints import FOR_OPERATORS
from connectors.gateway.protocol.errors import SPECS
from connectors.gateway.shapes import Field, Fields

ALL: Final = (*OPERATIONS, *FOR_OPERATORS)
SECURITY: Final = {
    "channelSecret": {"type": "http", "scheme": "bearer", "description": "a channel's login secret"},
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "a token of /tokens"},
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "a key of the tenant API: `turnlog key add` makes one",
    },
    "operatorToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "an operator's token: `turnlog key operator add` makes one",
    },
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
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    for place, named in (("query", operation.query), ("header", operation.headers)):
        parameters += [
            {"name": name, "in": place, "description": meaning, "schema": {"type": "string"}}
            for name, meaning in named.items()
        ]
    return parameters


def _schema(kind: str, fields: Fields) -> dict[str, Any]:
    """The JSON schema of an object with these fields, or of a list of them; what is not required may be null."""
    if kind == "array":
        return {"type": "array", "items": _schema("object", fields)}
    if kind != "object":
        return {"type": kind}
    schema: dict[str, Any] = {"type": "object"}
    if fields:
        schema["properties"] = {name: _property(field) for name, field in fields.items()}
    if required := [name for name, field in fields.items() if field.required]:
        schema["required"] = required
    return schema


def _property(field: Field) -> dict[str, Any]:
    schema = _schema(field.kind, field.fields) | {"description": field.meaning}
    return schema if field.required else schema | {"type": [field.kind, "null"]}


def _success(operation: Operation, meaning: str) -> dict[str, Any]:
    if operation.answer:
        content: dict[str, Any] = {"schema": _schema("object", operation.answer)}
    else:
        content = {"schema": {"type": "string"}}
    return {"description": meaning, "content": {operation.media_type: content}}


def _described(operation: Operation) -> dict[str, Any]:
    failure = {
        "description": "Error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    successes = {operation.status: operation.summary} | operation.also
    described: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {str(status): _success(operation, meaning) for status, meaning in successes.items()}
        | {"default": failure},
    }
    if operation.security:
        described["security"] = [{name: []} for name in operation.security]
    if operation.body:
        described["requestBody"] = {"content": {"application/json": {"schema": _schema("object", operation.body)}}}
    return described


def _document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in ALL:
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


def _rows(where: str, named: dict[str, str]) -> str:
    return "".join(
        f"<tr><td>{where}</td><td><code>{escape(name)}</code></td><td>{escape(meaning)}</td></tr>"
        for name, meaning in named.items()
    )


def _flat(fields: Fields, before: str = "") -> dict[str, str]:
    """Every field by its path, with its type and meaning."""
    flat: dict[str, str] = {}
    for name, field in fields.items():
        path = f"{before}{name}"
        flat[path] = f"{field.kind}: {field.meaning}"
        flat |= _flat(field.fields, f"{path}[]." if field.kind == "array" else f"{path}.")
    return flat


def _shown(operation: Operation) -> str:
    """One endpoint on the page: a line that opens to what it takes and gives."""
    rows = (
        _rows("query", operation.query)
        + _rows("header", operation.headers)
        + _rows("body", _flat(operation.body))
        + _rows("answer", _flat(operation.answer))
    )
    statuses = {operation.status: operation.summary} | operation.also
    told = "".join(f"<li>{status}: {escape(meaning)}</li>" for status, meaning in statuses.items())
    credential = " or ".join(operation.security) or "none"
    return (
        f"<details><summary><b>{operation.method.upper()}</b> <code>{escape(operation.path)}</code> "
        f"{escape(operation.summary)}</summary><p>Credential: {escape(credential)}.</p>"
        f"<ul>{told}</ul><table>{rows}</table></details>"
    )


def _page() -> str:
    style = (
        "body{font:16px system-ui;margin:2rem;max-width:70rem}td{padding:.2rem .8rem;vertical-align:top}"
        "code{font-size:.95em}details{margin:.6rem 0}summary{cursor:pointer}"
    )
    credentials = "".join(
        f"<li><b>{name}</b>: <code>{scheme.get('name', 'Authorization: Bearer')}</code>, "
        f"{escape(scheme['description'])}</li>"
        for name, scheme in SECURITY.items()
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Turnlog gateway</title><style>{style}</style><h1>Turnlog gateway</h1>"
        "<p>WebSocket: <code>/socket/converger/v1</code>. Machine-readable: <a href=/openapi.json>openapi.json</a>, "
        "the socket: <a href=/asyncapi.json>asyncapi.json</a>. "
        "Bodies are JSON objects; an error is <code>{&quot;error&quot;: {code, message, request_id}}</code>.</p>"
        f"<ul>{credentials}</ul>{''.join(map(_shown, ALL))}"
    )


DOCUMENT: Final = _document()
PAGE: Final = _page()
