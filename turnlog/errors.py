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
        self.retry_budget: float | None = None
        """Seconds for which trying again makes sense, where the server said so."""
        self.conversation = conversation


class Unauthorized(TurnlogError):
    """The secret or token was refused, or its channel is inactive. Retrying cannot help."""


class Fenced(TurnlogError):
    """The run belongs to another agent process by now, or has ended: nothing more of it is stored or shown."""


class HandedOver(TurnlogError):
    """A human speaks in the conversation now: nothing of a bot is stored until it is given back."""


class ConversationNotFound(TurnlogError):
    """No such conversation, or the token is not for it."""


class ConversationClosed(TurnlogError):
    """The conversation is closed; it takes messages again once it is reopened."""


class InvalidRequest(TurnlogError):
    """What was sent breaks a rule (size, text, shape). The message names the field and the rule."""


class Conflict(TurnlogError):
    """What was sent contradicts what is stored under the same key."""


class NotInterrupted(TurnlogError):
    """An answer came, but none of its questions is open (any more)."""


class IncompleteResume(TurnlogError):
    """Answers came that leave out another open question of the same run: answer all of them together."""


class Interrupted(TurnlogError):
    """The run waits for an answer to its question; what was sent is not one."""


class Unavailable(TurnlogError):
    """The server could not do it for now, and the time to retry in is over."""


class Busy(Unavailable):
    """A run of the conversation is under way, and its group takes no second one meanwhile."""


class BotUnavailable(Unavailable):
    """No agent process is there to answer."""


class RateLimited(Unavailable):
    """More was sent than the gateway takes, at once or in a second."""


class TooManyConversations(TurnlogError):
    """The connection follows as many conversations as a gateway allows."""


class AckTimeout(Unavailable):
    """No acknowledgement came in time, offline time included: the message may or may not be stored.

    Sending it again with the same key (or from the same run) is safe: it is stored once.
    """


class AskTimeout(TurnlogError):
    """Nobody answered a question in the time that `reply.ask(…, timeout=…)` gave."""


class ProtocolViolation(TurnlogError):
    """The peer does not speak `converger/1` as this SDK knows it."""


class InvocationConflict(Conflict):
    """The thread has an invocation of this id, with another input."""


class ConversationBusy(Busy):
    """The thread's one claim is taken: an invocation of it is under way."""


class AgentBusy(Unavailable):
    """Every member of the group has as many live runs as it takes."""


class AgentUnavailable(BotUnavailable):
    """The agent has no member that could take the invocation."""


class InvocationNotFound(TurnlogError):
    """The thread has no invocation of this id."""


class SubmissionUncertain(TurnlogError):
    """A submit was sent, and no answer came: the invocation may or may not have been accepted.

    It was not sent again. `status(thread, id)` says what became of it; submitting the same input under the same id is
    safe, for an id is accepted once.
    """

    def __init__(self, message: str, *, thread: str, id: str, **more: Any) -> None:  # noqa: A002 - its name everywhere
        super().__init__(message, code="submission_uncertain", retryable=True, conversation=thread, **more)
        self.thread = thread
        self.id = id


class InvocationFailed(TurnlogError):
    """The agent's handler failed, or the run was ended for what it did. `record`: all that is known of it."""

    record: Any = None


class InvocationCancelled(InvocationFailed):
    """It was cancelled before it ended."""


class InvocationTimedOut(InvocationFailed):
    """Its deadline passed, or nothing came of it for as long as the watchdog waits."""


class OwnerGone(InvocationFailed):
    """The process that worked on it is gone; it is not executed again."""


class TooManyEvents(InvocationFailed):
    """It said more than a run may: events, or bytes of one of them."""


_CLASSES: Mapping[str, type[TurnlogError]] = {
    "bad_request": InvalidRequest,
    "no_session": ProtocolViolation,
    "unsupported_protocol": ProtocolViolation,
    "invalid_watermark": InvalidRequest,
    "invalid_message": InvalidRequest,
    "method_not_allowed": InvalidRequest,
    "unauthorized": Unauthorized,
    "token_expired": Unauthorized,
    "forbidden": Unauthorized,
    "channel_inactive": Unauthorized,
    "rate_limited": RateLimited,
    "payload_too_large": InvalidRequest,
    "too_many_in_flight": RateLimited,
    "too_many_subscriptions": TooManyConversations,
    "slow_consumer": Unavailable,
    "conversation_closed": ConversationClosed,
    "conversation_not_found": ConversationNotFound,
    "not_found": ConversationNotFound,
    "conflict": Conflict,
    "busy": Busy,
    "interrupted": Interrupted,
    "not_interrupted": NotInterrupted,
    "incomplete_resume": IncompleteResume,
    "bot_unavailable": BotUnavailable,
    "fenced": Fenced,
    "handed_over": HandedOver,
    "replay_unavailable": Unavailable,
    "pending": Unavailable,
    "unavailable": Unavailable,
    "INVOCATION_CONFLICT": InvocationConflict,
    "CONVERSATION_BUSY": ConversationBusy,
    "AGENT_BUSY": AgentBusy,
    "AGENT_UNAVAILABLE": AgentUnavailable,
    "AGENT_ERROR": InvocationFailed,
    "CANCELLED": InvocationCancelled,
    "OWNER_GONE": OwnerGone,
    "DEADLINE_EXCEEDED": InvocationTimedOut,
    "IDLE_TIMEOUT": InvocationTimedOut,
    "TOO_MANY_EVENTS": TooManyEvents,
}
"""By code of the wire. `internal`, and what a later server may add, is a plain `TurnlogError`."""


def error_of(data: Mapping[str, Any], *, conversation: str | None = None) -> TurnlogError:
    """The typed error for an error object of the wire: `{code, message, retryable?, retryAfterMs?, details?}`."""
    code = data.get("code")
    code = code if isinstance(code, str) else "internal"
    details = data.get("details")
    if isinstance(details, Mapping) and details.get("reason") == "fenced":
        code = "fenced"
    error = _CLASSES.get(code, TurnlogError)(
        str(data.get("message") or code),
        code=code,
        retryable=data.get("retryable") is True,
        retry_after=_seconds(data.get("retryAfterMs")),
        conversation=conversation,
    )
    error.retry_budget = _seconds(details.get("budgetMs")) if isinstance(details, Mapping) else None
    return error


def _seconds(ms: object) -> float | None:
    return ms / 1000 if isinstance(ms, int) and not isinstance(ms, bool) else None
