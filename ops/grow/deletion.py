"""Deleting an old generation's topics, once nothing reads or writes them and the new one has all of it.

The topic `deployment` stays: it says where the deployment went, to a process that still has the old namespace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import (
    GroupIdNotFound,
    IncompatibleBrokerVersion,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)

from ops.grow.database import Database
from ops.grow.intake import REQUEST_LIMIT_S
from ops.grow.split import CannotGrow
from ops.provision import connected_admin
from streams.fence.topics import database_id
from streams.runtime.belonging import namespace_after, owner_in, said_when
from streams.runtime.kafka import KafkaEnds, KafkaUnavailable, asked, consumer
from streams.runtime.kafka_requests import describe_consumer_group
from streams.settings import Settings
from streams.topics import Topics, identities, require_same

GONE_WITHIN_S: Final = 60.0
GONE_POLL_S: Final = 0.05
CLASSIC: Final = "consumer"
"""`protocol_type` of a group of consumers, and the only one whose members Kafka tells of in the old way."""
UNKNOWN: Final = "Dead"
"""State under which Kafka shows, in the old way, a group whose members it tells of in another, or not at all."""


@dataclass(frozen=True, slots=True)
class OldTopic:
    """A topic that would be deleted."""

    name: str
    partitions: int
    records: int
    """Offsets that are kept; markers of transactions count."""

    def document(self) -> dict[str, Any]:
        """For people and scripts."""
        return {"topic": self.name, "partitions": self.partitions, "records": self.records}


@dataclass(frozen=True, slots=True)
class Leftover:
    """What is left of an old generation."""

    namespace: str
    target: str
    """The namespace of the generation in use."""
    topics: Sequence[OldTopic]
    standing: Sequence[str]
    """What stands in the way of deleting them, each with its way out."""


async def leftover(settings: Settings, database: Database) -> Leftover:
    """Look at the generation that `settings` name. Raises `CannotGrow` where it is none that was moved away from."""
    topics = Topics(settings.namespace)
    async with connected_admin(settings.kafka) as admin:
        there = await admin.list_topics()
        target, moved_at = await _moved(settings, database, there)
        await _require_new(admin, database, target)
        names = [name for name in topics.all if name in there and name != topics.deployment]
        parts = await _partitions(admin, names)
        standing = [*await _written(settings, parts, moved_at), *await _read(admin, set(names))]
    kept = await _kept(settings, parts)
    found = [OldTopic(name, sum(each.topic == name for each in parts), kept[name]) for name in names]
    return Leftover(settings.namespace, target, found, standing)


async def delete(settings: Settings, left: Leftover) -> None:
    """Delete them, and wait until Kafka shows none of them. Killed, the same again deletes the rest."""
    names = [topic.name for topic in left.topics]
    if not names:
        return
    async with connected_admin(settings.kafka) as admin:
        answer = await admin.delete_topics(names)
        for name, code, *_ in answer.topic_error_codes:
            if code not in {0, UnknownTopicOrPartitionError.errno}:
                raise CannotGrow(f"Kafka does not delete {name}: {for_code(code).__name__}")
        until = time.monotonic() + GONE_WITHIN_S
        while gone := set(names) & set(await admin.list_topics()):
            if time.monotonic() > until:
                raise KafkaUnavailable(f"{', '.join(sorted(gone))} are still there after {GONE_WITHIN_S:g} s")
            await asyncio.sleep(GONE_POLL_S)


async def _moved(settings: Settings, database: Database, there: Sequence[str]) -> tuple[str, int]:
    """The namespace of the generation in use, and when the deployment was moved out of this one, in ms."""
    topics, limit_s = Topics(settings.namespace), settings.request_timeout_ms / 1000
    if topics.deployment not in there:
        raise CannotGrow(f"there is no topic {topics.deployment}: --namespace is to be that of the old generation")
    records = await said_when(settings.kafka, topics.deployment, limit_s)
    mine = await asyncio.to_thread(database_id, database.dsn)
    owner = owner_in(record for _, record in records)
    if owner != mine:
        raise CannotGrow(f"the topics belong to another database, {owner}; this one is {mine}")
    moved = next(((at, record.moved_to) for at, record in records if record.moved_to is not None), None)
    if moved is None or moved[1] is None:
        raise CannotGrow(
            "the deployment was not moved from there, or not to the end: nothing is to be deleted. (--namespace is to "
            "be that of the old generation; a move that was interrupted goes on by the same `turnlog topic grow`)"
        )
    moved_at, target = moved
    while (deployment := Topics(target).deployment) in there:
        later = namespace_after(record for _, record in await said_when(settings.kafka, deployment, limit_s))
        if later is None:
            break
        target = later
    return target, moved_at


async def _require_new(admin: AIOKafkaAdminClient, database: Database, target: str) -> None:
    """The database belongs to the generation in use, and that one is there."""
    topics, kept = Topics(target), await database.kept_topics()
    if set(kept) != set(topics.of_record):
        raise CannotGrow(
            f"the database does not belong to the namespace {target!r}: it was restored from before the move. The same "
            "`turnlog topic grow --partitions …` again puts it right first"
        )
    require_same(kept, await identities(admin, topics))


async def _partitions(admin: AIOKafkaAdminClient, names: Sequence[str]) -> list[TopicPartition]:
    if not names:
        return []
    described = await admin.describe_topics(list(names))
    return [TopicPartition(each["topic"], part["partition"]) for each in described for part in each["partitions"]]


async def _kept(settings: Settings, parts: Sequence[TopicPartition]) -> dict[str, int]:
    """How many offsets each topic keeps."""
    ends = KafkaEnds(settings.kafka, REQUEST_LIMIT_S)
    counts: dict[str, int] = {}
    try:
        for name, kept in (await ends.bounds(parts)).items():
            counts[name.topic] = counts.get(name.topic, 0) + kept.end - kept.start
    finally:
        await ends.close()
    return counts


async def _written(settings: Settings, parts: Sequence[TopicPartition], moved_at: int) -> list[str]:
    """Who still writes: a transaction that is open, and what came to the intake after the move, which nobody takes."""
    topics = Topics(settings.namespace)
    logs = [part for part in parts if part.topic in topics.of_record]
    if not logs:
        return []
    ends = KafkaEnds(settings.kafka, REQUEST_LIMIT_S)
    reader = consumer(settings.kafka, REQUEST_LIMIT_S)
    try:
        stable, high = await ends.stable(logs), await ends.high(logs)
        await asked(reader.start(), REQUEST_LIMIT_S)
        since = await asked(reader.offsets_for_times(dict.fromkeys(logs, moved_at + 1)), REQUEST_LIMIT_S)
    finally:
        await reader.stop()
        await ends.close()
    open_ = [log for log in logs if stable[log] < high[log]]
    when = f"{datetime.fromtimestamp(moved_at / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return [
        *(f"a transaction is open in {log.topic}[{log.partition}]: let it end" for log in open_),
        *(
            f"{high[log] - after.offset} records came to {log.topic}[{log.partition}] since the move ({when}), and "
            "nobody took them: stop what writes there. The new generation does not have them: write them again there, "
            "and delete this topic with Kafka's tools"
            for log, after in since.items()
            if after is not None and log.topic != topics.conversations
        ),
    ]


async def _read(admin: AIOKafkaAdminClient, names: set[str]) -> list[str]:
    """Which groups of consumers still read; whoever reads without a group, nobody knows."""
    told = []
    for name, _kind in await admin.list_consumer_groups():
        # One at a time: of several in one answer aiokafka 0.14 misreads the second, for it passes over a field of each.
        [answer] = await admin.describe_consumer_groups([name])
        error, group, state, kind, _, members = answer.groups[0][:6]
        if error:
            raise for_code(error)(f"the group {name} cannot be described")
        read = {topic for member in members if kind == CLASSIC for topic in _assigned(member)} & names
        if read:
            told.append(f"the group {group} reads {', '.join(sorted(read))}: stop its {len(members)} member(s)")
        elif state == UNKNOWN:
            told += await _read_anew(admin, group, names)
    return told


async def _read_anew(admin: AIOKafkaAdminClient, group: str, names: set[str]) -> list[str]:
    """The same of a group that Kafka does not tell of in the old way: one of the consumer protocol, whose members need
    no position to be reading, or of another kind."""
    coordinator = await admin.find_coordinator(group)
    try:
        answer = await admin._send_request(describe_consumer_group(group), coordinator)  # aiokafka 0.14 has none
    except IncompatibleBrokerVersion:
        members = None
    else:
        [described] = answer.to_object()["groups"]
        if described["error_code"] not in {0, GroupIdNotFound.errno, UnsupportedVersionError.errno}:
            raise for_code(described["error_code"])(f"the group {group} cannot be described")
        members = None if described["error_code"] else described["members"]
    if members is not None:
        read = {topic for member in members for topic in _wanted(member)} & names
        return [f"the group {group} reads {', '.join(sorted(read))}: stop its {len(members)} member(s)"] if read else []
    if not names & {each.topic for each in await admin.list_consumer_group_offsets(group)}:
        return []
    way_out = "stop it, and delete the group (kafka-consumer-groups.sh --delete)"
    return [f"the group {group} has positions there, and may be reading: {way_out}"]


def _wanted(member: Any) -> Iterator[str]:
    """The topics that a member of the consumer protocol subscribes to, has, or is to have."""
    yield from member["subscribed_topic_names"]
    for assigned in (*member["assignment"], *member["target_assignment"]):
        yield assigned["topic_name"]


def _assigned(member: Any) -> Iterator[str]:
    """The topics of one member of a group, as Kafka describes it."""
    assignment = member[4]
    if assignment:
        for topic, _ in ConsumerProtocolMemberAssignment.decode(assignment).assignment:
            yield topic
