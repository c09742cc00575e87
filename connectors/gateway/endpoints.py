"""The table of the HTTP API's endpoints, but for those of operators. `openapi.py` makes descriptions of it."""

from __future__ import annotations

from typing import Final

import msgspec

from connectors.gateway.shapes import (
    ACTIVITY,
    BOUND_ANSWER,
    CLAIM,
    EVENTS,
    HANDED_ANSWER,
    HANDED_BY,
    HANDED_TO,
    INVOKE,
    MESSAGE,
    ONE_CONVERSATION,
    PAGE_META,
    RECEIPT_ANSWER,
    RECORD,
    STATE,
    STATUS_ANSWER,
    TENANT_ACTIVITY,
    TENANT_CONVERSATION,
    TENANT_MESSAGE,
    TENANT_OPENING,
    TOKEN_ANSWER,
    Field,
    Fields,
    data_of,
)

CONVERSATION: Final = "/api/v1/converger/conversations/{conversation_id}"
TENANT: Final = "/api/v1/conversations/{conversation_id}"
THREAD: Final = "/v1/threads/{thread}"
INVOCATION: Final = THREAD + "/invocations/{invocation}"


class Operation(msgspec.Struct, frozen=True):
    """One endpoint. `security`: each of them alone is enough; none: it is open. `also`: other statuses of success."""

    method: str
    path: str
    summary: str
    security: tuple[str, ...] = ()
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: Fields = {}
    answer: Fields = {}
    status: int = 200
    also: dict[int, str] = {}
    media_type: str = "application/json"


TOKEN, API_KEY, SECRET = ("token",), ("apiKey",), ("channelSecret",)
KEY: Final = {"X-Idempotency-Key": "a repeat with the same key is stored once and gets the first one's answer"}
PAGED: Final = {"watermark": "show what has a higher seq; 0 shows all", "limit": "1 to 500, 50 when absent"}
REPEATED: Final = {200: "a repeat of what was stored under the same key"}
TYPING: Final = {202: "typing: shown to who is there, not stored"}

OPERATIONS: Final = (
    Operation(
        "post",
        "/api/v1/converger/tokens/generate",
        "A token for a channel's secret",
        SECRET,
        body={
            "scope": Field("string", "conversation (default) for people, channel for agents"),
            "user": Field("object", "whom the token is for", fields={"id": Field("string", "the user's id")}),
        },
        answer=TOKEN_ANSWER,
    ),
    Operation(
        "post",
        "/api/v1/converger/tokens/refresh",
        "A fresh token for one that is still good",
        TOKEN,
        answer=TOKEN_ANSWER,
    ),
    Operation(
        "post",
        "/api/v1/converger/conversations",
        "A new conversation",
        TOKEN,
        headers=KEY,
        body={
            "user": Field(
                "object",
                "with a token of an agents' channel: the person whom it is with",
                fields={"id": Field("string", "the user's id, as the other channels' backends call them")},
            )
        },
        answer=BOUND_ANSWER,
        status=201,
    ),
    Operation(
        "get",
        CONVERSATION,
        "A fresh token for a conversation",
        TOKEN,
        query={"watermark": "refused when it is above the head"},
        answer=BOUND_ANSWER,
    ),
    Operation("post", f"{CONVERSATION}/close", "Close it", TOKEN, answer=STATUS_ANSWER),
    Operation("post", f"{CONVERSATION}/reopen", "Open it again", TOKEN, answer=STATUS_ANSWER),
    Operation(
        "post",
        f"{CONVERSATION}/activities",
        "Say something",
        TOKEN,
        headers=KEY,
        body=MESSAGE,
        answer=RECEIPT_ANSWER,
        status=201,
        also=REPEATED | TYPING,
    ),
    Operation(
        "get",
        f"{CONVERSATION}/activities",
        "What was said",
        TOKEN,
        query=PAGED,
        answer={
            "activities": Field("array", "what was said, in order", required=True, fields=ACTIVITY),
            "watermark": PAGE_META["watermark"],
            "has_more": PAGE_META["has_more"],
        },
    ),
    Operation(
        "get",
        "/api/v1/conversations",
        "Conversations, newest first",
        API_KEY,
        query={
            "limit": "1 to 500, 50 when absent",
            "cursor": "next_cursor of the page before",
            "status": "active or closed",
            "channel_id": "only of this channel",
            "external_id": "only with this id of the channel",
        },
        answer=data_of("array", "the conversations", TENANT_CONVERSATION)
        | {
            "meta": Field(
                "object",
                "the page",
                required=True,
                fields={
                    "next_cursor": Field("string", "for the next page, if there is one"),
                    "has_more": Field("boolean", "there is one", required=True),
                    "limit": PAGE_META["limit"],
                },
            )
        },
    ),
    Operation(
        "post",
        "/api/v1/conversations",
        "A new conversation of any channel; the same one for the same key and person",
        API_KEY,
        headers=KEY,
        body=TENANT_OPENING,
        answer=ONE_CONVERSATION,
        status=201,
    ),
    Operation("get", TENANT, "One conversation", API_KEY, answer=ONE_CONVERSATION),
    Operation("post", f"{TENANT}/close", "Close it", API_KEY, answer=ONE_CONVERSATION),
    Operation("post", f"{TENANT}/reopen", "Open it again", API_KEY, answer=ONE_CONVERSATION),
    Operation(
        "post",
        f"{TENANT}/handover",
        "A human answers from here on: no agent is heard until it is handed back",
        API_KEY,
        body=HANDED_TO,
        answer=HANDED_ANSWER,
    ),
    Operation(
        "post",
        f"{TENANT}/handback",
        "Agents answer what is said from here on",
        API_KEY,
        body=HANDED_BY,
        answer=HANDED_ANSWER,
    ),
    Operation(
        "post",
        f"{TENANT}/activities",
        "Say something for its person",
        API_KEY,
        headers=KEY,
        body=TENANT_MESSAGE,
        answer=data_of("object", "the message", TENANT_ACTIVITY),
        status=201,
        also=REPEATED | TYPING,
    ),
    Operation(
        "get",
        f"{TENANT}/activities",
        "What was said",
        API_KEY,
        query=PAGED,
        answer=data_of("array", "what was said, in order", TENANT_ACTIVITY)
        | {"meta": Field("object", "the page", required=True, fields=PAGE_META)},
    ),
    Operation(
        "get",
        "/v1/conversations/{conversation_id}/stream",
        "The conversation as server-sent events; an event's id is its seq",
        TOKEN,
        query={"watermark": "begin after this seq", "token": "the token, where no header can be sent"},
        headers={"Last-Event-ID": "resume after this seq"},
        media_type="text/event-stream",
    ),
    Operation(
        "get",
        "/v1/conversations/{conversation_id}",
        "Owners, head and open runs",
        TOKEN + API_KEY,
        answer=STATE,
    ),
    Operation("get", THREAD, "The thread's live call, and those in line", TOKEN + API_KEY, answer=CLAIM),
    Operation(
        "post",
        f"{THREAD}/invocations",
        "Call an agent",
        TOKEN + API_KEY,
        body=INVOKE,
        answer=RECORD,
        status=202,
        also={200: "it has ended"},
    ),
    Operation(
        "get",
        INVOCATION,
        "What became of a call",
        TOKEN + API_KEY,
        query={"wait": "answer once it has ended, or after so many ms (up to 60,000)"},
        answer=RECORD,
    ),
    Operation(
        "get",
        f"{INVOCATION}/events",
        "What its agent said, in pages",
        TOKEN + API_KEY,
        query={"after": "begin after this n", "limit": "1 to 500, 100 when absent"},
        answer=EVENTS,
    ),
    Operation(
        "get",
        f"{INVOCATION}/stream",
        "The same as server-sent events; an event's id is its n, and the last one, `end`, is the record",
        TOKEN + API_KEY,
        query={"after": "begin after this n"},
        headers={"Last-Event-ID": "resume after this n"},
        media_type="text/event-stream",
    ),
    Operation(
        "post",
        f"{INVOCATION}/cancel",
        "Ask it to stop",
        TOKEN + API_KEY,
        body={"reason": Field("string", "for whoever reads the log: at most 1,000 characters")},
        answer=RECORD,
        status=202,
    ),
    Operation(
        "post",
        f"{INVOCATION}/release",
        "End a call whose owner is gone and that waits for another",
        API_KEY,
        body={
            "proof": Field(
                "string", "how it is known that the old worker has stopped: at most 1,000 characters", required=True
            ),
            "reason": Field("string", "for whoever reads the log: at most 1,000 characters"),
        },
        answer=RECORD,
    ),
    Operation(
        "get",
        "/v1/members",
        "Members, by partition count",
        API_KEY,
        answer={
            "members": Field("array", "each with its group and gateway", required=True),
            "as_of_lsn": Field("object", "partition to the journal's lsn that this holds for", required=True),
        },
    ),
    Operation(
        "get",
        "/v1/leases",
        "Which worker may write which partition",
        API_KEY,
        answer={"leases": Field("array", "one a partition", required=True)},
    ),
    Operation("get", "/healthz", "Whether the process runs", answer={"status": Field("string", "ok", required=True)}),
    Operation(
        "get",
        "/readyz",
        "Whether it takes requests, and which servers answer",
        answer={
            "status": Field("string", "ready", required=True),
            "ready": Field("boolean", "true", required=True),
            "phase": Field("string", "ready", required=True),
            "dependencies": Field("object", "kafka and postgres: `ok`, and the `error` otherwise", required=True),
        },
    ),
    Operation("get", "/metrics", "Prometheus metrics", media_type="text/plain"),
)
