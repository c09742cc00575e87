"""What can go wrong, by cause: every error of this package is a `TurnlogError`.

`code` is the stable code of the wire protocol (or one of this package's own, where no server was involved), and
`retryable` says whether the same call may succeed later. The SDK has already retried what it can by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TurnlogError(Exception):
    """Base of all errors of the SDK. Raised itself for codes that have no class of their own."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "internal",
        retryable: bool = False,
        retry_after: float | None = None,
        conversation: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        """Seconds after which to try again, where the server said so."""
        self.conversation = conversation


class Unauthorized(TurnlogError):
    """The secret or token was refused, or its channel is inactive. Retrying cannot help."""


class Fenced(TurnlogError):
    """The run belongs to another agent process by now, or has ended: nothing more of it is stored or shown."""


class ConversationNotFound(TurnlogError):
    """No such conversation, or the token is not for it."""


class ConversationClosed(TurnlogError):
    """The conversation is closed; it takes messages again once it is reopened."""


class InvalidRequest(TurnlogError):
    """What was sent breaks a rule (size, text, shape). The message names the field and the rule."""


class Unavailable(TurnlogError):
    """The server could not do it for now, and the time to retry in is over."""


class AckTimeout(Unavailable):
    """No acknowledgement came in time, offline time included: the message may or may not be stored.

    Sending it again with the same key (or from the same run) is safe: it is stored once.
    """


class ProtocolViolation(TurnlogError):
    """The peer does not speak `converger/1` as this SDK knows it."""


_CLASSES: Mapping[str, type[TurnlogError]] = {
    "unauthorized": Unauthorized,
    "token_expired": Unauthorized,
    "forbidden": Unauthorized,
    "channel_inactive": Unauthorized,
    "fenced": Fenced,
    "conversation_not_found": ConversationNotFound,
    "not_found": ConversationNotFound,
    "conversation_closed": ConversationClosed,
    "bad_request": InvalidRequest,
    "invalid_message": InvalidRequest,
    "payload_too_large": InvalidRequest,
    "rate_limited": Unavailable,
    "too_many_in_flight": Unavailable,
    "unavailable": Unavailable,
    "pending": Unavailable,
    "unsupported_protocol": ProtocolViolation,
}


def error_of(data: Mapping[str, Any], *, conversation: str | None = None) -> TurnlogError:
    """The typed error for an error object of the wire: `{code, message, retryable?, retryAfterMs?, details?}`."""
    code = data.get("code")
    code = code if isinstance(code, str) else "internal"
    details = data.get("details")
    if isinstance(details, Mapping) and details.get("reason") == "fenced":
        code = "fenced"
    after = data.get("retryAfterMs")
    return _CLASSES.get(code, TurnlogError)(
        str(data.get("message") or code),
        code=code,
        retryable=data.get("retryable") is True,
        retry_after=after / 1000 if isinstance(after, int) and not isinstance(after, bool) else None,
        conversation=conversation,
    )
