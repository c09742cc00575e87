"""What the HTTP API's endpoints take and give: the fields of their JSON objects."""

from __future__ import annotations

from typing import Final

import msgspec


class Field(msgspec.Struct, frozen=True):
    """One field of a JSON object: its JSON type, its meaning, and what it holds where it is an object or a list."""

    kind: str
    meaning: str
    required: bool = False
    fields: dict[str, Field] = {}


Fields = dict[str, Field]


MESSAGE: Final = {
    "type": Field("string", "message (default) or typing"),
    "text": Field("string", "at most 64 KiB of UTF-8; not blank, unless there are attachments"),
    "from": Field("object", "who speaks, for a token that names no user", fields={"id": Field("string", "its id")}),
    "attachments": Field(
        "array",
        "at most 10, each at most 4 KiB",
        fields={"contentType": Field("string", "its media type", required=True)},
    ),
    "replyToId": Field("string", "the message, or open question, that it answers"),
    "channelData": Field("object", "metadata, at most 16 KiB"),
}
TENANT_MESSAGE: Final = {
    "type": Field("string", "message (default) or typing"),
    "text": MESSAGE["text"],
    "sender": Field("string", "who speaks; the conversation's participant when absent"),
    "attachments": MESSAGE["attachments"],
    "reply_to_id": MESSAGE["replyToId"],
    "source_channel_id": Field("string", "the channel that it is said in, which the conversation's is routed to"),
    "metadata": Field("object", "at most 16 KiB"),
}
TENANT_OPENING: Final = {
    "channel_id": Field(
        "string", "whose it is: a channel of people, or of agents that is routed somewhere", required=True
    ),
    "external_id": Field(
        "string", "the person, as the channel's own side calls them; nobody in particular when absent"
    ),
    "metadata": TENANT_MESSAGE["metadata"],
}

TOKEN_ANSWER: Final = {
    "token": Field("string", "the token", required=True),
    "expires_in": Field("integer", "its lifetime in seconds", required=True),
    "conversationId": Field("string", "the one conversation that it opens, if it is bound to one"),
}
BOUND_ANSWER: Final = TOKEN_ANSWER | {
    "conversationId": Field("string", "the conversation", required=True),
    "streamUrl": Field("string", "its WebSocket", required=True),
}
STATUS_ANSWER: Final = {
    "conversationId": Field("string", "the conversation", required=True),
    "status": Field("string", "active or closed", required=True),
}
RECEIPT_ANSWER: Final = {
    "id": Field("string", "the message's id", required=True),
    "seq": Field("integer", "its number in the conversation; a typing has none"),
    "duplicate": Field("boolean", "it was stored before"),
}
ACTIVITY: Final = {
    "id": Field("string", "its id", required=True),
    "type": Field("string", "message, or another kind of frame", required=True),
    "seq": Field("integer", "its number in the conversation", required=True),
    "from": Field("object", "who said it", required=True, fields={"id": Field("string", "its id", required=True)}),
    "text": Field("string", "what it says as plain text, if it does"),
    "timestamp": Field("string", "when it was committed, ISO 8601", required=True),
    "attachments": Field("array", "as they were sent", required=True),
    "conversationId": Field("string", "the conversation", required=True),
    "channelData": Field("object", "its metadata; what is no plain text is in `frame` or `data`", required=True),
    "replyToId": Field("string", "what it answers, if it says so"),
    "editedAt": Field("string", "when what it says was last edited, ISO 8601, if it was"),
}
TENANT_ACTIVITY: Final = {
    "id": ACTIVITY["id"],
    "type": ACTIVITY["type"],
    "seq": ACTIVITY["seq"],
    "sender": Field("string", "who said it", required=True),
    "text": ACTIVITY["text"],
    "attachments": ACTIVITY["attachments"],
    "metadata": ACTIVITY["channelData"],
    "reply_to_id": ACTIVITY["replyToId"],
    "conversation_id": ACTIVITY["conversationId"],
    "source_channel_id": Field("string", "the channel that it came from, where that is not the conversation's own"),
    "idempotency_key": Field("string", "the key that it was stored under, if it had one"),
    "inserted_at": ACTIVITY["timestamp"],
    "edited_at": ACTIVITY["editedAt"],
}
TENANT_CONVERSATION: Final = {
    "id": Field("string", "its id", required=True),
    "status": Field("string", "active or closed", required=True),
    "channel_id": Field("string", "where its person is", required=True),
    "origin_channel_id": Field("string", "the same", required=True),
    "tenant_id": Field("string", "default", required=True),
    "participant_id": Field("string", "the person's id, if it is known"),
    "participant": Field("object", "the person, with `external_id`"),
    "metadata": Field("object", "what it was opened with", required=True),
    "head_seq": Field("integer", "the highest seq", required=True),
    "inserted_at": Field("string", "when it was opened, ISO 8601", required=True),
    "updated_at": Field("string", "when something was last said, ISO 8601", required=True),
}
PAGE_META: Final = {
    "watermark": Field("integer", "the seq to go on after", required=True),
    "has_more": Field("boolean", "there is more after it", required=True),
    "limit": Field("integer", "the most that the page may have", required=True),
}
RUN: Final = {
    "run_id": Field("string", "its id", required=True),
    "turn_seq": Field("integer", "the turn that it answers", required=True),
    "group": Field("string", "the group that it is of", required=True),
    "member": Field("string", "who holds it, if anybody does"),
    "run_epoch": Field("integer", "how often it was given, from 1", required=True),
}
STANDING: Final = {
    "partition": Field("integer", "where it lies", required=True),
    "owners": Field("object", "group to the member that owns it there", required=True),
    "open_runs": Field("array", "the runs that are not ended", required=True, fields=RUN),
    "as_of_lsn": Field("integer", "the journal's lsn that owners and runs hold for", required=True),
}
STATE: Final = {
    "conversation": Field("string", "its id", required=True),
    "status": Field("string", "open or closed", required=True),
    "channel": Field("string", "where its person is", required=True),
    "head_seq": Field("integer", "the highest seq", required=True),
} | STANDING

INVOKE: Final = {
    "id": Field("string", "the caller's, unique in the thread: 1 to 200 characters without `/`", required=True),
    "agent": Field("string", "the group that is called: a channel, or channel/group", required=True),
    "input": Field(
        "object",
        "a text, an object, or both",
        required=True,
        fields={
            "text": Field("string", "at most 64 KiB of UTF-8"),
            "data": Field("object", "given to the agent as `data.input`"),
        },
    ),
    "deadlineMs": Field("integer", "1,000 to 3,600,000, 300,000 when absent; 0: none"),
    "streamed": Field("boolean", "its caller follows its events: the idle watchdog counts beside the deadline"),
    "policy": Field("string", "while the thread is busy: reject, enqueue or interrupt; its group's when absent"),
    "retry": Field("boolean", "it may be executed again when its owner is lost"),
    "wait": Field("integer", "answer once it has ended, or after so many ms (up to 60,000)"),
    "channel": Field("string", "with an API key: the channel that it comes from"),
    "sender": Field("string", "with an API key: who calls; `tenant` when absent"),
}
RECORD: Final = {
    "id": Field("string", "its id", required=True),
    "thread": Field("string", "the thread", required=True),
    "agent": Field("string", "the group that was called", required=True),
    "state": Field(
        "string",
        "ACCEPTED, RUNNING, CANCELLING, SUCCEEDED, FAILED, CANCELLED, TIMED_OUT or OWNER_GONE",
        required=True,
    ),
    "runId": Field("string", "its run", required=True),
    "seq": Field("integer", "of its turn in the thread's conversation", required=True),
    "member": Field("string", "who holds it, if anybody does"),
    "runEpoch": Field("integer", "how often it was given, from 1", required=True),
    "output": Field(
        "object",
        "once it has ended",
        fields={
            "text": Field("string", "all of its messages' text", required=True),
            "messages": Field("array", "each with type, text and data", required=True),
        },
    ),
    "error": Field(
        "object",
        "when it has not succeeded",
        fields={
            "code": Field("string", "AGENT_BUSY, DEADLINE_EXCEEDED, …", required=True),
            "message": Field("string", "for people", required=True),
        },
    ),
    "createdAt": Field("string", "when it was taken, ISO 8601", required=True),
    "startedAt": Field("string", "when its agent began, if it has"),
    "endedAt": Field("string", "when it ended, if it has"),
    "events": Field("integer", "how many there are so far", required=True),
}
EVENTS: Final = {
    "events": Field(
        "array",
        "in order",
        required=True,
        fields={
            "n": Field("integer", "its place, from 1, without a gap", required=True),
            "type": Field("string", "the frame's type", required=True),
            "data": Field("object", "the frame as viewers get it", required=True),
            "at": Field("string", "when it was stored, ISO 8601", required=True),
        },
    ),
    "next": Field("integer", "the n to go on after", required=True),
    "done": Field("boolean", "it has ended, and these are its last", required=True),
}
CLAIM: Final = {
    "thread": Field("string", "its id", required=True),
    "claim": Field("object", "the record of the live call, if there is one", fields=RECORD),
    "queued": Field("array", "the records of those in line", required=True, fields=RECORD),
}


def data_of(kind: str, meaning: str, fields: Fields) -> Fields:
    """The object that the tenant API has its answers in."""
    return {"data": Field(kind, meaning, required=True, fields=fields)}


ONE_CONVERSATION: Final = data_of("object", "the conversation", TENANT_CONVERSATION)
HANDED_BY: Final = {
    "by": Field("string", "who does it, for the journal; `tenant` when absent"),
    "reason": Field("string", "why, for people: at most 1,000 characters"),
}
HANDED_TO: Final = HANDED_BY | {"to": Field("string", "who answers from here on; `human` when absent")}
HANDED_ANSWER: Final = data_of(
    "object",
    "the conversation",
    TENANT_CONVERSATION | {"handed_over": Field("boolean", "whether a human answers", required=True)},
)
