"""What all HTTP endpoints share: JSON in and out, errors as bodies, credentials, limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.contextvars import bind_contextvars

from connectors.gateway.commands import unavailable
from connectors.gateway.ports import Headers, Unavailable, traced
from connectors.gateway.protocol import limits
from connectors.gateway.protocol.errors import ProtocolError
from connectors.gateway.protocol.parse import MAX_ID, decode_object
from connectors.gateway.protocol.session import Claims, Scope
from streams.tracing import TRACEPARENT, traceparent_of

if TYPE_CHECKING:
    from connectors.gateway.gateway import Gateway

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = limits.HARD_CAP_BYTES
MAX_KEY = 255
REASON_MAX = 1_000
NUMBER_DIGITS = 18
"""Any that fit into 64 bits."""

Handler = Callable[["Gateway", Request], Awaitable[Response]]


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def request_id(request: Request) -> str:
    """The id that the client gave the request, or a new one."""
    return request.headers.get("x-request-id") or uuid4().hex


def error_response(error: ProtocolError, request_id: str, more: Mapping[str, Any] | None = None) -> Response:
    """An error as the clients read it, with `more` beside it; temporary ones say when to come back."""
    headers = {"x-request-id": request_id}
    if error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, -(-error.retry_after_ms // 1000)))
    if error.spec.status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response(error.body(request_id) | dict(more or {}), error.spec.status, headers)


def route(gateway: Gateway, path: str, handler: Handler, *, method: str = "GET", gated: bool = True) -> Route:
    """A route whose errors become bodies. `gated`: it is refused until the gateway is ready, and while it stops."""

    async def endpoint(request: Request) -> Response:
        named = request_id(request)
        if (about := request.path_params.get("conversation_id") or request.path_params.get("thread")) is not None:
            bind_contextvars(conversation=about)  # in a task of the request's own
        try:
            refusal = gateway.refusal() if gated else None
            if refusal is not None:
                raise refusal
            with gateway.answering():
                response = await handler(gateway, request)
        except ProtocolError as error:
            response = error_response(error, named)
        except Unavailable as error:
            response = error_response(unavailable(error), named)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:
            log.exception("a request failed", path=request.url.path, request_id=named)
            response = error_response(ProtocolError("internal", "internal error"), named)
        gateway.metrics.requests.labels(str(response.status_code)).inc()
        return response

    return Route(path, endpoint, methods=[method])


async def http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, wrong method) in the clients' shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request" if status < 500 else "internal")
    hint = "; GET /docs lists what there is" if status == 404 else ""
    detail = getattr(error, "detail", "internal error")
    problem = ProtocolError(code, f"{request.method} {request.url.path}: {detail}{hint}")
    return error_response(problem, request_id(request))


# ------------------------------------------------------------------------------------------------------------ input
async def json_body(request: Request) -> dict[str, Any]:
    """The body as a JSON object; {} where there is none. Raises `bad_request` or `payload_too_large`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large(int(declared))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _too_large(len(body))
    if not body.strip():
        return {}
    try:
        return decode_object(body.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError("bad_request", f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


def _too_large(size: int) -> ProtocolError:
    return ProtocolError(
        "payload_too_large",
        f"a body of {size} bytes; at most {MAX_BODY_BYTES} are taken",
        details={"limit": MAX_BODY_BYTES},
    )


def optional(body: dict[str, Any], field: str, kind: type, where: str = "") -> Any:
    """The field's value, None where it is absent or null; raises `invalid_message` for another type."""
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {str: "a string", dict: "an object", list: "an array", int: "an integer", bool: "true or false"}
        raise ProtocolError("invalid_message", f"{where}{field}: must be {names[kind]}", details={"field": field})
    return value


def identifier(body: dict[str, Any], field: str, most: int) -> str:
    """The field's value, which has to be there: a name of at most so many characters. Raises `invalid_message`."""
    value: str = optional(body, field, str) or ""
    if not 0 < len(value) <= most:
        raise ProtocolError("invalid_message", f"{field}: a string of 1 to {most} characters", details={"field": field})
    return value


def reason(body: dict[str, Any], field: str = "reason") -> str:
    """Why somebody does it, for who reads the log; empty where nothing is said. Raises `invalid_message`."""
    text: str = optional(body, field, str) or ""
    if len(text) > REASON_MAX:
        raise ProtocolError("invalid_message", f"{field}: at most {REASON_MAX} characters", details={"field": field})
    return text


def idempotency_key(request: Request) -> str | None:
    """`X-Idempotency-Key`; raises `invalid_message` for one that cannot be kept."""
    key = request.headers.get("x-idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise ProtocolError("invalid_message", f"X-Idempotency-Key: 1 to {MAX_KEY} characters")
    return key


def number(request: Request, name: str, default: int, *, low: int, high: int) -> int:
    """A number of the query string."""
    value = request.query_params.get(name)
    if value is None or value == "":
        return default
    # Of a text of thousands of digits Python makes no number.
    usable = value.isascii() and value.isdigit() and len(value) <= NUMBER_DIGITS
    if not usable or not low <= int(value) <= high:
        raise ProtocolError("bad_request", f"{name}: must be an integer from {low} to {high}")
    return int(value)


def watermark(request: Request) -> int:
    """`?watermark=`, 0 where there is none; raises `invalid_watermark`."""
    value = request.query_params.get("watermark")
    if value is None or value == "":
        return 0
    if not value.isascii() or not value.isdigit() or len(value) > NUMBER_DIGITS:
        raise ProtocolError("invalid_watermark", "watermark: must be an integer, 0 or above")
    return int(value)


def conversation_id(request: Request) -> str:
    """The path's conversation."""
    value: str = request.path_params["conversation_id"]
    if not 0 < len(value) <= MAX_ID or "\0" in value:
        raise ProtocolError("conversation_not_found", "no such conversation")
    return value


def trace_headers(request: Request) -> Headers:
    """What of the request's headers goes with the command: `traceparent`."""
    return traced(traceparent_of(request.headers.get(TRACEPARENT)))


# ------------------------------------------------------------------------------------------------------ credentials
def bearer(request: Request) -> str:
    """The bearer credential; raises `unauthorized`."""
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise ProtocolError("unauthorized", "Authorization: Bearer is missing")
    return credential.strip()


async def claims_of(gateway: Gateway, token: str) -> Claims:
    """The claims of a person's token; raises the `ProtocolError` that refuses it."""
    claims = await any_claims(gateway, token)
    if claims.scope is not Scope.CONVERSATION:
        raise ProtocolError("forbidden", "the token is an agents' channel's; this needs one of conversation scope")
    return claims


async def any_claims(gateway: Gateway, token: str) -> Claims:
    """The claims of a token of whatever scope; raises the `ProtocolError` that refuses it."""
    await gateway.tokens.prepare(token)
    return gateway.tokens.verify(token)


async def need_api_key(gateway: Gateway, request: Request) -> None:
    """Raise `unauthorized` unless the request has a key of the tenant API."""
    key = request.headers.get("x-api-key")
    if key is None:
        raise ProtocolError("unauthorized", "x-api-key is missing: `turnlog key add` makes one")
    await check_api_key(gateway, key)


async def need_operator(gateway: Gateway, request: Request) -> str:
    """The operator's name; raises `unauthorized` unless the request has the token of one."""
    name = await gateway.directory.operator_of(bearer(request))
    if name is None:
        raise ProtocolError("unauthorized", "no such operator's token: `turnlog key operator add` makes one")
    return name


async def check_api_key(gateway: Gateway, key: str) -> None:
    """Raise `unauthorized` unless it is a key of the tenant API."""
    if not await gateway.directory.is_api_key(key):
        raise ProtocolError("unauthorized", "x-api-key: no such key")
