"""The protocol's error codes: one table for the socket's error frames, its close codes and the REST statuses."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from streams.core.events import RefusedReason

CLOSE_NORMAL = 1000
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011
CLOSE_RESTART = 1012
CLOSE_PROTOCOL = 4400
CLOSE_CREDENTIAL = 4401
CLOSE_CHANNEL = 4403
CLOSE_IDLE = 4408
CLOSE_SLOW = 4503


class ErrorSpec(msgspec.Struct, frozen=True):
    """One error code. `close`: the socket ends with it; `status`: its HTTP status."""

    number: int
    status: int
    retryable: bool = False
    close: int | None = None


# Numbers, retryability and close codes are the public specification's. `fenced`, `handed_over`, `pending` and
# `conflict` are ours: the specification passes codes it does not list through unchanged.
SPECS: dict[str, ErrorSpec] = {
    "bad_request": ErrorSpec(1000, 400),
    "no_session": ErrorSpec(1001, 400),
    "unsupported_protocol": ErrorSpec(1002, 400, close=CLOSE_PROTOCOL),
    "invalid_watermark": ErrorSpec(1003, 400),
    "invalid_message": ErrorSpec(1004, 422),
    "unauthorized": ErrorSpec(2000, 401, close=CLOSE_CREDENTIAL),
    "token_expired": ErrorSpec(2001, 401, close=CLOSE_CREDENTIAL),
    "forbidden": ErrorSpec(2002, 403),
    "channel_inactive": ErrorSpec(2003, 400, close=CLOSE_CHANNEL),
    "rate_limited": ErrorSpec(3000, 429, retryable=True),
    "payload_too_large": ErrorSpec(3001, 413),
    "too_many_in_flight": ErrorSpec(3002, 429, retryable=True),
    "too_many_subscriptions": ErrorSpec(3003, 429),
    "slow_consumer": ErrorSpec(3004, 503, retryable=True, close=CLOSE_SLOW),
    "conversation_closed": ErrorSpec(4000, 409),
    "conversation_not_found": ErrorSpec(4001, 404),
    "not_found": ErrorSpec(4002, 404),
    "method_not_allowed": ErrorSpec(4003, 405),
    "conflict": ErrorSpec(4004, 409),
    "busy": ErrorSpec(5000, 503, retryable=True),
    "interrupted": ErrorSpec(5001, 409),
    "not_interrupted": ErrorSpec(5002, 409),
    "incomplete_resume": ErrorSpec(5003, 409),
    "bot_unavailable": ErrorSpec(5004, 503, retryable=True),
    "fenced": ErrorSpec(5100, 409),
    "handed_over": ErrorSpec(5101, 409),
    # Of invocations; how a call ended is told in its record, by codes of the same kind.
    "INVOCATION_CONFLICT": ErrorSpec(6000, 409),
    "CONVERSATION_BUSY": ErrorSpec(6001, 409),
    "AGENT_UNAVAILABLE": ErrorSpec(6002, 503, retryable=True),
    "replay_unavailable": ErrorSpec(9002, 503, retryable=True),
    "pending": ErrorSpec(9003, 503, retryable=True),
    "internal": ErrorSpec(9000, 500, retryable=True),
    "unavailable": ErrorSpec(9001, 503, retryable=True, close=CLOSE_RESTART),
}

# What a client is told whose request may be taken when it is repeated: how long to wait, and for how long repeating
# makes sense.
RETRY_AFTER_MS = 1_000
RETRY_BUDGET_MS = 60_000

# What a refusal of the core is called on the wire.
REFUSALS: dict[RefusedReason, str] = {
    RefusedReason.FENCED: "fenced",
    RefusedReason.GATEWAY_ENDED: "fenced",
    RefusedReason.CONVERSATION_NOT_FOUND: "conversation_not_found",
    RefusedReason.CONVERSATION_CLOSED: "conversation_closed",
    RefusedReason.CONVERSATION_EXISTS: "conflict",
    # Gateways send nothing to a channel that their own document does not have as active: the partition is behind, or
    # the channel was ended just now, which the gateway says by itself once it knows.
    RefusedReason.CHANNEL_UNKNOWN: "unavailable",
    RefusedReason.TEXT_TOO_LARGE: "payload_too_large",
    RefusedReason.RECORD_TOO_LARGE: "payload_too_large",
    RefusedReason.TOO_MANY_EVENTS: "fenced",
    RefusedReason.INVALID_TEXT: "invalid_message",
    RefusedReason.NOT_INTERRUPTED: "not_interrupted",
    RefusedReason.INCOMPLETE_RESUME: "incomplete_resume",
    RefusedReason.NOT_EDITABLE: "conflict",
    RefusedReason.HANDED_OVER: "handed_over",
    RefusedReason.BUSY: "busy",
    RefusedReason.CONVERSATION_BUSY: "CONVERSATION_BUSY",
    RefusedReason.INVOCATION_CONFLICT: "INVOCATION_CONFLICT",
    RefusedReason.AGENT_UNAVAILABLE: "AGENT_UNAVAILABLE",
    RefusedReason.BOT_UNAVAILABLE: "bot_unavailable",
    RefusedReason.CHANNEL_NOT_ROUTED: "forbidden",
    RefusedReason.RUN_NOT_FOUND: "not_found",
    RefusedReason.MEMBER_LIVE: "conflict",
    RefusedReason.NOT_DUE: "conflict",
}

MESSAGES: dict[str, str] = {
    "fenced": "this connection does not hold the run that the frame belongs to; stop working on it",
    "handed_over": "a human answers in this conversation; no agent is heard until it is handed back",
    "conversation_not_found": "no such conversation",
    "conversation_closed": "the conversation is closed; reopen it to write again",
    "conflict": "a conversation of that id exists already",
    "payload_too_large": "the message is larger than a record may be (text 64 KiB, record 384 KiB)",
}


class ProtocolError(Exception):
    """A frame or request that is refused: what it says on the wire, and whether trying again can help.

    One that passes says when to try again, and for how long that makes sense.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_ms: int | None = None,
        client_id: str | None = None,
        frame_type: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.client_id = client_id
        self.frame_type = frame_type
        self.details = details
        if self.spec.retryable:
            self.retry_after_ms = RETRY_AFTER_MS if retry_after_ms is None else retry_after_ms
            self.details = {"budgetMs": RETRY_BUDGET_MS, **(details or {})}

    @property
    def spec(self) -> ErrorSpec:
        """The code's row of the table."""
        return SPECS[self.code]

    def frame(self) -> dict[str, Any]:
        """The `error` frame of the socket."""
        data: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "number": self.spec.number,
            "retryable": self.spec.retryable,
        }
        if self.retry_after_ms is not None:
            data["retryAfterMs"] = self.retry_after_ms
        if self.client_id is not None:
            data["clientId"] = self.client_id
        if self.frame_type is not None:
            data["frameType"] = self.frame_type
        if self.details is not None:
            data["details"] = self.details
        return {"type": "error", "data": data}

    def body(self, request_id: str) -> dict[str, Any]:
        """The body of a REST answer."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        details = dict(self.details or {})
        if self.retry_after_ms is not None:
            details["retryAfterMs"] = self.retry_after_ms
        if details:
            error["details"] = details
        error["request_id"] = request_id
        return {"error": error}


def refusal(reason: RefusedReason, detail: str = "", *, client_id: str | None = None) -> ProtocolError:
    """The error that a journal's `Refused` becomes."""
    code = REFUSALS[reason]
    return ProtocolError(code, detail or MESSAGES.get(code, reason.value.replace("_", " ")), client_id=client_id)


def restart_reason(base_ms: int, reason: str = "restart") -> str:
    """As `close_reason`, with `base_ms` spread from half to one and a half, so that not all come back at once."""
    return close_reason(reason, round(base_ms * random.uniform(0.5, 1.5)))  # noqa: S311 -- jitter


def close_reason(reason: str, retry_after_ms: int) -> str:
    """The JSON reason of a 1012 or 4503 close; clients wait so long before they come back."""
    return msgspec.json.encode({"reason": reason, "retryAfterMs": retry_after_ms}).decode()
