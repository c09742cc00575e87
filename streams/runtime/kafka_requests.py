"""Requests of the Kafka protocol that aiokafka does not have: they look at open transactions and end one, tell the
ids of topics, and who is in a group of the new protocol.

Each is written down as the protocol's public description has it (https://kafka.apache.org/protocol, and the messages'
`.json` files in Kafka's source); the names are theirs, in snake case. All of these versions are "flexible": compact
strings and arrays, and tagged fields behind every structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

TEXT = CompactString("utf-8")
TAGS = ("tags", TaggedFields)
NO_TAGS: dict[int, bytes] = {}


class Request:
    """A request in its one version, as aiokafka's connections take one: they call `prepare` with the broker's."""

    def __init__(self, kind: Any, *fields: Any) -> None:
        self.API_KEY = kind.API_KEY
        self._struct = kind(*fields, NO_TAGS)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """The structure to send. Raises `IncompatibleBrokerVersion`, a `KafkaError`."""
        lowest, highest = versions.get(self.API_KEY, (0, -1))
        if not lowest <= self._struct.API_VERSION <= highest:
            raise IncompatibleBrokerVersion(f"the broker has no {type(self._struct).__name__}")
        return self._struct


def _kind(name: str, api_key: int, version: int, request: Schema, response: Schema) -> Any:
    """A class of request structures and, as its answer's type, one of response structures."""
    about = {"API_KEY": api_key, "API_VERSION": version}
    answer = type(f"{name}Response", (Response,), {**about, "SCHEMA": response})
    return type(
        f"{name}Request",
        (RequestStruct,),
        {**about, "FLEXIBLE_VERSION": True, "SCHEMA": request, "RESPONSE_TYPE": answer},
    )


PARTITIONS = CompactArray(("name", TEXT), ("partition_indexes", CompactArray(Int32)), TAGS)

PRODUCER = (
    ("producer_id", Int64),
    ("producer_epoch", Int32),
    ("last_sequence", Int32),
    ("last_timestamp", Int64),
    ("coordinator_epoch", Int32),
    ("current_txn_start_offset", Int64),
    TAGS,
)
PRODUCERS = (
    ("partition_index", Int32),
    ("error_code", Int16),
    ("error_message", TEXT),
    ("active_producers", CompactArray(*PRODUCER)),
    TAGS,
)
DESCRIBE_PRODUCERS = _kind(
    "DescribeProducers",
    61,
    0,
    Schema(("topics", PARTITIONS), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        ("topics", CompactArray(("name", TEXT), ("partitions", CompactArray(*PRODUCERS)), TAGS)),
        TAGS,
    ),
)

MARKER = (
    ("producer_id", Int64),
    ("producer_epoch", Int16),
    ("transaction_result", Boolean),
    ("topics", PARTITIONS),
    ("coordinator_epoch", Int32),
    TAGS,
)
MARKED = CompactArray(("partition_index", Int32), ("error_code", Int16), TAGS)
WRITE_TXN_MARKERS = _kind(
    "WriteTxnMarkers",
    27,
    1,
    Schema(("markers", CompactArray(*MARKER)), TAGS),
    Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64), ("topics", CompactArray(("name", TEXT), ("partitions", MARKED), TAGS)), TAGS
            ),
        ),
        TAGS,
    ),
)

COORDINATED = (
    ("error_code", Int16),
    ("transactional_id", TEXT),
    ("transaction_state", TEXT),
    ("transaction_timeout_ms", Int32),
    ("transaction_start_time_ms", Int64),
    ("producer_id", Int64),
    ("producer_epoch", Int16),
    ("topics", CompactArray(("topic", TEXT), ("partitions", CompactArray(Int32)), TAGS)),
    TAGS,
)
DESCRIBE_TRANSACTIONS = _kind(
    "DescribeTransactions",
    65,
    0,
    Schema(("transactional_ids", CompactArray(TEXT)), TAGS),
    Schema(("throttle_time_ms", Int32), ("transaction_states", CompactArray(*COORDINATED)), TAGS),
)

LISTED = CompactArray(("transactional_id", TEXT), ("producer_id", Int64), ("transaction_state", TEXT), TAGS)
LIST_TRANSACTIONS = _kind(
    "ListTransactions",
    66,
    0,
    Schema(("state_filters", CompactArray(TEXT)), ("producer_id_filters", CompactArray(Int64)), TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_state_filters", CompactArray(TEXT)),
        ("transaction_states", LISTED),
        TAGS,
    ),
)

PARTITION = (
    ("error_code", Int16),
    ("partition_index", Int32),
    ("leader_id", Int32),
    ("leader_epoch", Int32),
    ("replica_nodes", CompactArray(Int32)),
    ("isr_nodes", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    TAGS,
)
# A topic's id is a UUID of 16 bytes: two numbers of 8.
TOPIC = (
    ("error_code", Int16),
    ("name", TEXT),
    ("topic_id_high", Int64),
    ("topic_id_low", Int64),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*PARTITION)),
    ("topic_authorized_operations", Int32),
    TAGS,
)
BROKER = (("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), TAGS)
METADATA = _kind(
    "Metadata",
    3,
    12,
    Schema(
        ("topics", CompactArray(("topic_id_high", Int64), ("topic_id_low", Int64), ("name", TEXT), TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*BROKER)),
        ("cluster_id", TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(*TOPIC)),
        TAGS,
    ),
)

# A topic's id as above. An assignment is a structure, so that its fields lie in the member's.
ASSIGNED = CompactArray(
    ("topic_id_high", Int64), ("topic_id_low", Int64), ("topic_name", TEXT), ("partitions", CompactArray(Int32)), TAGS
)
GROUP_MEMBER = (
    ("member_id", TEXT),
    ("instance_id", TEXT),
    ("rack_id", TEXT),
    ("member_epoch", Int32),
    ("client_id", TEXT),
    ("client_host", TEXT),
    ("subscribed_topic_names", CompactArray(TEXT)),
    ("subscribed_topic_regex", TEXT),
    ("assignment", ASSIGNED),
    ("assignment_tags", TaggedFields),
    ("target_assignment", ASSIGNED),
    ("target_assignment_tags", TaggedFields),
    TAGS,
)
GROUP = (
    ("error_code", Int16),
    ("error_message", TEXT),
    ("group_id", TEXT),
    ("group_state", TEXT),
    ("group_epoch", Int32),
    ("assignment_epoch", Int32),
    ("assignor_name", TEXT),
    ("members", CompactArray(*GROUP_MEMBER)),
    ("authorized_operations", Int32),
    TAGS,
)
CONSUMER_GROUP_DESCRIBE = _kind(
    "ConsumerGroupDescribe",
    69,
    0,
    Schema(("group_ids", CompactArray(TEXT)), ("include_authorized_operations", Boolean), TAGS),
    Schema(("throttle_time_ms", Int32), ("groups", CompactArray(*GROUP)), TAGS),
)


def describe_consumer_group(group: str) -> Request:
    """A group of the consumer protocol (`group.protocol=consumer`, KIP-848), as its coordinator tells of it."""
    return Request(CONSUMER_GROUP_DESCRIBE, [group], False)  # noqa: FBT003


def metadata(topics: Iterable[str]) -> Request:
    """What any broker knows of these topics, with their ids (version 12: Kafka 2.8 and later)."""
    return Request(METADATA, [(0, 0, name, NO_TAGS) for name in topics], False, False)  # noqa: FBT003


def describe_producers(topic: str, partition: int) -> Request:
    """Who writes, or wrote lately, to a partition; goes to its leader."""
    return Request(DESCRIBE_PRODUCERS, [(topic, [partition], NO_TAGS)])


def end_transaction(
    topic: str, partition: int, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool
) -> Request:
    """WriteTxnMarkers with one marker; goes to the partition's leader, which asks for a right on the whole cluster."""
    topics = [(topic, [partition], NO_TAGS)]
    return Request(WRITE_TXN_MARKERS, [(producer_id, producer_epoch, commit, topics, coordinator_epoch, NO_TAGS)])


def describe_transaction(transactional_id: str) -> Request:
    """What a transactional id's coordinator knows of it; goes to that coordinator."""
    return Request(DESCRIBE_TRANSACTIONS, [transactional_id])


def list_transactions(producer_id: int) -> Request:
    """The transactions of one producer id that a broker coordinates."""
    return Request(LIST_TRANSACTIONS, [], [producer_id])
