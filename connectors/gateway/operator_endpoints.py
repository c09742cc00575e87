"""The table of the endpoints that operators look and act by; see `endpoints`."""

from __future__ import annotations

from typing import Final

from connectors.gateway.endpoints import Operation
from connectors.gateway.shapes import STANDING, Field

OPERATOR: Final = ("operatorToken",)
OPERATED: Final = "/v1/operator/conversations/{conversation_id}"

GLANCE: Final = {
    "id": Field("string", "its id", required=True),
    "status": Field("string", "open or closed", required=True),
    "channel": Field("string", "where its person is", required=True),
    "participant": Field("string", "the person's id, if it is known"),
    "external_id": Field("string", "its backend's own id for the person, if there is one"),
    "head_seq": Field("integer", "the highest seq", required=True),
    "opened_at": Field("string", "when it was opened, ISO 8601", required=True),
    "updated_at": Field("string", "when something was last said, ISO 8601", required=True),
}
EVENT: Final = {
    "offset": Field("integer", "where it lies in Kafka", required=True),
    "lsn": Field("integer", "its number in the partition", required=True),
    "seq": Field("integer", "its number in the conversation; 0: it has none", required=True),
    "at": Field("string", "the broker's append time of its command, ISO 8601", required=True),
    "writer_epoch": Field("integer", "of who wrote it", required=True),
    "type": Field("string", "TurnCommitted, RunMoved, … as in the schemas", required=True),
    "fields": Field("object", "its fields by the names of the schemas; what is empty is left out", required=True),
    "masked": Field("object", "fields with words, which are left out: name to characters", required=True),
}
MEMBER: Final = {
    "member": Field("string", "its id", required=True),
    "group": Field("string", "`channel/group`", required=True),
    "channel": Field("string", "its channel", required=True),
    "gateway": Field("string", "the gateway that it is connected to", required=True),
    "since": Field("integer", "log time from which turns count it, ms", required=True),
    "partitions": Field("integer", "how many partitions know it", required=True),
    "draining": Field("integer", "how many of them give it nothing new", required=True),
}
PARTITION: Final = {
    "partition": Field("integer", "its number", required=True),
    "worker": Field("string", "who holds its lease, or held it last; null: nobody ever did"),
    "writer_epoch": Field("integer", "the lease's fencing token", required=True),
    "live": Field("boolean", "the lease has not ended", required=True),
    "expires_in_ms": Field("integer", "when it ends, unless it is renewed", required=True),
    "head_lsn": Field("integer", "the newest lsn that this gateway saw", required=True),
    "read_model_lsn": Field("integer", "the lsn that the read model has reached", required=True),
    "lag": Field("integer", "events that the read model is behind", required=True),
}
PAGED: Final = {"limit": "1 to 1,000, 500 when absent", "offset": "go on at this offset, the last page's `next`"}
SHOWN: Final = {
    "showText": "1: with what was said, which the journal notes (`OperatorActed`)",
    "why": "with showText: why, for the journal",
}
FILTERS: Final = {
    "q": "the beginning of an id, or an external id or participant's id",
    "channel": "only those of this channel",
    "status": "only those that are open, or closed",
    "limit": "1 to 200, 50 when absent",
    "cursor": "the last page's `next`",
}
WHY: Final = {"why": Field("string", "why, for the journal: 1 to 1,000 characters", required=True)}
BY: Final = {"by": Field("string", "the operator whose token it was", required=True)}
MOVED_ANSWER: Final = {
    "conversation": Field("string", "the conversation", required=True),
    "to": Field("string", "the member that it was given to; null: it was released"),
} | BY
CLOSED_BY_ANSWER: Final = {
    "conversation": Field("string", "the conversation", required=True),
    "status": Field("string", "closed", required=True),
} | BY
RELEASED_ANSWER: Final = {
    "partition": Field("integer", "the partition", required=True),
    "worker": Field("string", "the worker that it was taken from", required=True),
    "writer_epoch": Field("integer", "that worker's writer epoch", required=True),
    "released": Field("boolean", "false: the worker did not hold it any more", required=True),
} | BY

FOR_OPERATORS: Final = (
    Operation(
        "post",
        f"{OPERATED}/move",
        "Give a conversation to a member: its open runs now, its turns while it is there",
        OPERATOR,
        body={"to": Field("string", "the member's id", required=True)} | WHY,
        answer=MOVED_ANSWER,
    ),
    Operation(
        "post",
        f"{OPERATED}/release",
        "Take a conversation from who has it: its open runs go to the next in rank, and a move is undone",
        OPERATOR,
        body={"group": Field("string", "only in this group, `channel/group`; in all when absent")} | WHY,
        answer=MOVED_ANSWER,
    ),
    Operation("post", f"{OPERATED}/close", "Close a conversation", OPERATOR, body=WHY, answer=CLOSED_BY_ANSWER),
    Operation(
        "post",
        "/v1/operator/members/{member}/drain",
        "Give a member nothing new, let it finish what it has, and send it away",
        OPERATOR,
        body=WHY,
        answer={"member": Field("string", "the member", required=True)} | BY,
        status=202,
    ),
    Operation(
        "post",
        "/v1/operator/leases/{partition}/release",
        "Take a partition's lease from its worker; whoever is due claims it anew",
        OPERATOR,
        body=WHY,
        answer=RELEASED_ANSWER,
        status=202,
    ),
    Operation(
        "get",
        "/v1/operator/me",
        "Whose token it is",
        OPERATOR,
        answer={"name": Field("string", "the operator's name", required=True)},
    ),
    Operation(
        "get",
        "/v1/operator/conversations",
        "A page of conversations, the latest activity first",
        OPERATOR,
        query=FILTERS,
        answer={
            "conversations": Field("array", "the page", required=True, fields=GLANCE),
            "next": Field("string", "the next page's cursor; null: there is none"),
        },
    ),
    Operation(
        "get",
        OPERATED,
        "Where a conversation lies, who owns it, and what runs",
        OPERATOR,
        answer=GLANCE | STANDING,
    ),
    Operation(
        "get",
        f"{OPERATED}/events",
        "A page of a conversation's journal, and the changes of its partition's writer between, in order",
        OPERATOR,
        query=PAGED | SHOWN,
        answer={
            "conversation": Field("string", "its id", required=True),
            "partition": Field("integer", "where it lies", required=True),
            "events": Field("array", "the page; it may be empty, and not the last", required=True, fields=EVENT),
            "next": Field("integer", "the offset to go on at", required=True),
            "first": Field("integer", "the first offset that Kafka still has", required=True),
            "end": Field("integer", "the offset after the last one committed", required=True),
            "done": Field("boolean", "there is no more now", required=True),
        },
    ),
    Operation(
        "get",
        "/v1/operator/members",
        "Members that some partition knows",
        OPERATOR,
        answer={
            "members": Field("array", "all of them", required=True, fields=MEMBER),
            "partitions": Field("integer", "how many partitions there are", required=True),
        },
    ),
    Operation(
        "get",
        "/v1/operator/partitions",
        "Who writes each partition, and how far it and the read model are",
        OPERATOR,
        answer={"partitions": Field("array", "one a partition", required=True, fields=PARTITION)},
    ),
)
