"""From a socket's text to a frame that may be stored, or to the error that names field and rule."""

from __future__ import annotations

import json
import math
import re
from base64 import urlsafe_b64decode
from itertools import chain
from typing import Any, NoReturn

import msgspec

from connectors.gateway.protocol import limits, messages
from connectors.gateway.protocol.errors import ProtocolError
from streams.core.limits import ID_MAX_BYTES
from streams.tracing import TRACEPARENT, traceparent_of

MESSAGE_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,63}")
CLIENT_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
MAX_ID = 256
# Objects and arrays within one another. A reader's parser has a bound of its own (Python's `json`: 1,000 less the depth
# of its caller), and one of the public clients ends on a frame that it cannot parse.
MAX_DEPTH = 100

# Frame types that the protocol keeps for itself: none of them may be a message, `text` apart.
RESERVED = frozenset(
    {
        "hello",
        "welcome",
        "resume",
        "genui_event",
        "client_tools",
        "client_skills",
        "abort",
        "tool_call",
        "skill",
        "skills",
        "genui",
        "genui_components",
        "interrupt",
        "interrupt_resolved",
        "run",
        "error",
        "typing",
        "survey",
        "regenerate",
        "edit",
        "ack",
        "deliveryStatus",
        "presence",
        "conversationUpdate",
        "endOfConversation",
        "event",
        "heartbeat",
        "ping",
        "read",
        "sync",
        "auth",
        "tokenRefreshed",
        "replayTruncated",
        "subscribe",
        "unsubscribe",
        "subscribed",
        "unsubscribed",
        "message",
        "activity",
        "activitySet",
        "frame",
    }
)

# What cannot be stored as text: NUL (PostgreSQL) and surrogates without their other half (UTF-8).
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPED_UNSTORABLE = re.compile(r"(?i)\\u(0000|d[89a-f])")
REPLACEMENT = "\ufffd"


class UserMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A person's message, checked. `data`, `metadata` and `meta` are JSON objects as text."""

    type: str
    text: str | None = None
    data: str | None = None
    client_id: str | None = None
    metadata: str | None = None
    meta: str | None = None
    reply_to: str | None = None
    client_at: int | None = None


def decode_object(raw: str | bytes, *, replace: bool = False) -> dict[str, Any]:
    """`raw` as a JSON object. Unstorable characters become U+FFFD (`replace`), or an error that names their field."""
    value = _decode(raw)
    if not isinstance(value, dict):
        raise ProtocolError("bad_request", "a frame must be a JSON object")
    if _brackets(raw) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise ProtocolError("bad_request", f"objects and arrays are nested deeper than {MAX_DEPTH} levels")
    # An unstorable character can only come in as an escape: most frames have none, and are not walked.
    if ("\\u" in raw) if isinstance(raw, str) else (b"\\u" in raw):
        return _cleaned(value, "") if replace else _refuse_unstorable(value)
    return value


def _decode(raw: str | bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # msgspec refuses lone surrogates, which deserve an error of their own (or a replacement).
        try:
            return json.loads(raw, parse_constant=_no_constant, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise ProtocolError("bad_request", f"not valid JSON: {error}"[:200]) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    """A number that JSON can say again: infinity would be stored as null."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:12]}… is too large")
    return value


def _brackets(raw: str | bytes) -> int:
    """At least as many as there are objects and arrays: most frames have few, and their depth need not be looked at."""
    return raw.count("{") + raw.count("[") if isinstance(raw, str) else raw.count(b"{") + raw.count(b"[")


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        items = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [item for item in items if isinstance(item, dict | list)]
    return bool(level)


def _cleaned(value: Any, path: str) -> Any:
    match value:
        case str():
            return _UNSTORABLE.sub(REPLACEMENT, value)
        case dict():
            return {_UNSTORABLE.sub(REPLACEMENT, key): _cleaned(item, path) for key, item in value.items()}
        case list():
            return [_cleaned(item, path) for item in value]
        case _:
            return value


def _refuse_unstorable(frame: dict[str, Any]) -> dict[str, Any]:
    found = _find_unstorable(frame, "")
    if found is None:
        return frame
    field, character = found
    what = "a NUL character" if character == "\0" else "half of a surrogate pair"
    client_id = frame.get("clientId")
    raise ProtocolError(
        "invalid_message",
        f"{field}: {what} (U+{ord(character):04X}) cannot be stored; remove it",
        client_id=client_id if isinstance(client_id, str) and CLIENT_ID.fullmatch(client_id) else None,
        details={"field": field},
    )


def _find_unstorable(value: Any, path: str) -> tuple[str, str] | None:
    match value:
        case str():
            match = _UNSTORABLE.search(value)
            return (path, match[0]) if match else None
        case dict():
            for key, item in value.items():
                bad_key = _UNSTORABLE.search(key)
                if bad_key:
                    return (f"{path}.(key)".lstrip("."), bad_key[0])
                if found := _find_unstorable(item, f"{path}.{key}" if path else key):
                    return found
        case list():
            for index, item in enumerate(value):
                if found := _find_unstorable(item, f"{path}[{index}]"):
                    return found
        case _:
            return None
    return None


class _Verbatim(msgspec.Struct):
    frame: dict[str, msgspec.Raw]


def verbatim(raw: str | bytes) -> dict[str, str]:
    """The fields of an envelope's frame, each as the JSON text that it came as; {}: something in it cannot be stored
    so."""
    try:
        fields = msgspec.json.decode(raw, type=_Verbatim).frame
        if _ESCAPED_UNSTORABLE.search(raw if isinstance(raw, str) else raw.decode()):
            _refuse_unstorable(json.loads(raw))
    except (ValueError, RecursionError, ProtocolError):
        return {}
    return {name: bytes(text).decode() for name, text in fields.items()}


def trace_of(frame: dict[str, Any]) -> str | None:
    """The trace that a frame's sender says it is of; what is no `traceparent` is ignored."""
    return traceparent_of(frame.get(TRACEPARENT))


def client_id_of(frame: dict[str, Any]) -> str | None:
    """The frame's `clientId` when it is one, for the error that answers it."""
    value = frame.get("clientId")
    return value if isinstance(value, str) and CLIENT_ID.fullmatch(value) else None


def frame_type_of(frame: dict[str, Any]) -> str:
    """The frame's `type`; raises `bad_request` when there is none."""
    value = frame.get("type")
    if not isinstance(value, str) or not value:
        raise ProtocolError("bad_request", "type: a frame needs a type", client_id=client_id_of(frame))
    return value


def is_user_id(value: str) -> bool:
    """Whether a participant may have this id."""
    return 0 < len(value) <= MAX_ID and len(value.encode(errors="surrogatepass")) <= ID_MAX_BYTES


def capabilities_of(hello: dict[str, Any]) -> frozenset[str]:
    """What a client says in its hello that it can do; what is not known means nothing."""
    named = hello.get("capabilities")
    return frozenset(each for each in named if isinstance(each, str)) if isinstance(named, list) else frozenset()


def parse_message(frame: dict[str, Any]) -> UserMessage:
    """A person's message frame, checked; raises the error that names field and rule (without clientId)."""
    kind = frame_type_of(frame)
    if kind in RESERVED:
        raise ProtocolError("bad_request", f"type: `{kind}` is the protocol's own and cannot be a message")
    if not MESSAGE_TYPE.fullmatch(kind):
        raise ProtocolError("invalid_message", "type: lower-case letters, digits, `_` and `-`, at most 64")
    data = object_field(frame, "data", required=True)
    messages.check_data(kind, data)
    text = data.get("text")
    check_text(text, "data.text")
    return UserMessage(
        type=kind,
        text=text if isinstance(text, str) else None,
        data=None if data.keys() == {"text"} else json_text(data),
        client_id=client_id_field(frame),
        metadata=_json_object(frame, "metadata", limits.MAX_METADATA_BYTES),
        meta=_json_object(frame, "meta", limits.MAX_METADATA_BYTES),
        reply_to=_reply_to(frame),
        client_at=_client_at(frame),
    )


def check_text(text: Any, field: str) -> None:
    """Raise `payload_too_large` when `text` is over 64 KiB of UTF-8."""
    if isinstance(text, str) and len(text) > limits.MAX_TEXT_BYTES // 4:
        size = len(text.encode())
        if size > limits.MAX_TEXT_BYTES:
            raise ProtocolError(
                "payload_too_large",
                f"{field}: {size} bytes of text, at most {limits.MAX_TEXT_BYTES} are taken",
                details={"field": field, "size": size, "limit": limits.MAX_TEXT_BYTES},
            )


def client_id_field(frame: dict[str, Any]) -> str | None:
    """The frame's `clientId`, or the `id` that mekik/1 clients have in its place; raises for one that can be none."""
    value = frame.get("clientId")
    if value is None:
        # mekik/1 clients have only `id`; it serves when it fits.
        alternative = frame.get("id")
        return alternative if isinstance(alternative, str) and CLIENT_ID.fullmatch(alternative) else None
    if not isinstance(value, str) or not CLIENT_ID.fullmatch(value):
        raise ProtocolError("invalid_message", "clientId: letters, digits and `._:~-`, at most 128")
    return value


def _client_at(frame: dict[str, Any]) -> int | None:
    """The sender's clock, which decides nothing: what cannot be stored as one counts as absent."""
    value = frame.get("timestamp")
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if usable else None


def _reply_to(frame: dict[str, Any]) -> str | None:
    value = frame.get("replyTo")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ProtocolError("invalid_message", "replyTo: must be an object with the `id` of a message")
    target = value.get("id")
    if target is None:
        return None
    if not isinstance(target, str) or not 0 < len(target) <= MAX_ID:
        raise ProtocolError("invalid_message", f"replyTo.id: a string of 1 to {MAX_ID} characters")
    return target


def object_field(frame: dict[str, Any], field: str, *, required: bool = False) -> dict[str, Any]:
    """A field that is an object, {} where it may be missing and is; raises `invalid_message`."""
    value = frame.get(field)
    if value is None and not required:
        return {}
    if not isinstance(value, dict):
        raise ProtocolError("invalid_message", f"{field}: must be an object")
    return value


def _json_object(frame: dict[str, Any], field: str, limit: int) -> str | None:
    value = object_field(frame, field)
    if not value:
        return None
    text = json_text(value)
    if len(text.encode()) > limit:
        raise ProtocolError(
            "payload_too_large", f"{field}: at most {limit} bytes as JSON", details={"field": field, "limit": limit}
        )
    return text


def json_text(value: Any) -> str:
    """`value` as JSON text."""
    return msgspec.json.encode(value).decode()


def watermark_of(frame: dict[str, Any]) -> int:
    """`watermark` of read, sync and hello: a count, or one of the texts that clients from before v1 have for it, its
    decimals or base64url of `seq:<n>`; raises otherwise."""
    value = frame.get("watermark")
    if isinstance(value, str):
        value = _of_text(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ProtocolError("invalid_watermark", "watermark: must be an integer, 0 or above")
    return value


def _of_text(value: str) -> int | None:
    if not value.isdigit():
        try:
            value = urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode("ascii").removeprefix("seq:")
        except ValueError:
            return None
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 19 else None
