"""The parts of Converger Protocol v1 that agents and clients share: addresses, ids, close reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from turnlog.errors import ProtocolViolation

Frame: TypeAlias = dict[str, Any]
"""One JSON object of the wire."""

PROTOCOL = "converger/1"
SUBPROTOCOL = "converger.v1"
SOCKET_PATH = "/socket/converger/v1"
API_PATH = "/api/v1/converger"

MAX_FRAME_BYTES = 1024 * 1024
"""Above this a server closes with 1009, and so do we."""

NOT_TURNS = frozenset(
    {"typing", "event", "conversationUpdate", "tool_call", "skill", "genui", "interrupt", "interrupt_resolved"}
    | {"ack", "error", "resume", "abort"}
)
"""Frame types that are never a person's turn, whatever their `from` says."""

_UNSAFE_IN_CLIENT_ID = re.compile(r"[^A-Za-z0-9._:~-]")
_CLIENT_ID_MAX = 128


def base_url(url: str) -> str:
    """The HTTP address of a gateway, from any of its addresses: `ws://h/socket/converger/v1` → `http://h`."""
    parts = urlsplit(url.rstrip("/"))
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in {"http", "https"} or not parts.netloc:
        raise ValueError(f"url: {url!r} is not an http(s) or ws(s) address of a gateway")
    return urlunsplit((scheme, parts.netloc, parts.path.removesuffix(SOCKET_PATH), "", ""))


def socket_url(url: str) -> str:
    """The WebSocket address of a gateway: `https://h` → `wss://h/socket/converger/v1`."""
    parts = urlsplit(base_url(url))
    scheme = {"http": "ws", "https": "wss"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path + SOCKET_PATH, "", ""))


def client_id(key: str, suffix: str) -> str:
    """`<key>.<suffix>` in the alphabet and length that the protocol allows; the same input gives the same id."""
    safe = _UNSAFE_IN_CLIENT_ID.sub("-", key)
    return f"{safe[: _CLIENT_ID_MAX - len(suffix) - 1]}.{suffix}"


def retry_after(reason: str) -> float | None:
    """Seconds that a close reason asks to wait: 1012 and 4503 carry `{"reason", "retryAfterMs"}`; else None."""
    try:
        value = json.loads(reason)
    except ValueError:
        return None
    ms = value.get("retryAfterMs") if isinstance(value, dict) else None
    return ms / 1000 if isinstance(ms, int) and not isinstance(ms, bool) and ms >= 0 else None


def parse(raw: str | bytes) -> Frame:
    """One frame of the socket. Raises `ProtocolViolation` on anything but a JSON object."""
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise ProtocolViolation(f"the gateway sent a frame that is not JSON: {error}", code="bad_request") from error
    if not isinstance(value, dict):
        raise ProtocolViolation("the gateway sent a frame that is not a JSON object", code="bad_request")
    return value


def dump(frame: Mapping[str, Any]) -> str:
    """Compact JSON. Lone surrogates leave as escapes, so that the gateway can name the field in its refusal."""
    return json.dumps(frame, separators=(",", ":"))
