"""The topics of one deployment: names, settings, and how they are made and checked.

Each setting that an invariant rests on is *fixed*, or has a *least* value: `ensure` repairs it, `verify` refuses to
start without it. The others are only where a new topic starts from; an operator may change them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from streams.runtime.kafka_requests import metadata

DAY_MS: Final = 24 * 60 * 60 * 1000
HOUR_MS: Final = 60 * 60 * 1000
UNLIMITED: Final = "-1"
# What is written in one batch: a record of 384 KiB, or a sequencer's batch of up to 1 MiB (`runtime.kafka`). Where a
# topic takes less, that batch is refused each time it is tried, and its partition stands still.
BATCH_BYTES: Final = 1 << 20
# A dead letter holds a whole intake record and what was wrong with it.
LETTER_BYTES: Final = 2 << 20
DEFAULT_PARTITIONS: Final = 32
# Brokers show what the controller accepted within milliseconds on an idle cluster; a minute means a fault.
VISIBLE_WITHIN_S: Final = 60.0
VISIBLE_POLL_S: Final = 0.02
_UNSIGNED: Final = (1 << 64) - 1
_DYNAMIC_TOPIC_CONFIG: Final = 1  # Kafka's ConfigSource: set on this topic, not inherited


class TopicsError(Exception):
    """Topics that are missing, or that break a rule; the message names each one, the rule, and the way out."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The names of one deployment's topics, prefixed with its namespace when it has one."""

    namespace: str = ""

    def _named(self, name: str) -> str:
        return f"{self.namespace}.{name}" if self.namespace else name

    @property
    def turns(self) -> str:
        return self._named("turns")

    @property
    def frames(self) -> str:
        return self._named("frames")

    @property
    def membership(self) -> str:
        return self._named("membership")

    @property
    def conversations(self) -> str:
        return self._named("conversations")

    @property
    def dead_letters(self) -> str:
        return self._named("dead-letters")

    @property
    def live(self) -> str:
        return self._named("live")

    @property
    def deployment(self) -> str:
        """Says which database the others belong to; it has one partition."""
        return self._named("deployment")

    @property
    def keys(self) -> str:
        """The keys that words are sealed by, themselves sealed; it has one partition."""
        return self._named("keys")

    @property
    def by_conversation(self) -> tuple[str, ...]:
        """Those whose partitions are the conversations', all alike."""
        return self.turns, self.frames, self.membership, self.conversations, self.dead_letters, self.live

    @property
    def of_record(self) -> tuple[str, ...]:
        """Those that positions and epochs are kept of."""
        return self.turns, self.frames, self.membership, self.conversations

    @property
    def all(self) -> tuple[str, ...]:
        return *self.by_conversation, self.deployment, self.keys

    def of_schema(self, name: str) -> str:
        """The topic whose records have the schema `name`, one of `schemas.NAMES`."""
        return self.conversations if name == "journal" else str(getattr(self, name))

    def transactional_id(self, partition: int) -> str:
        """The id that fences a partition's writers: the same for all workers, and for no other deployment."""
        return f"turnlog-{self.namespace or 'default'}-{partition}"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Kafka settings of one topic: `fixed` ones an invariant rests on, numbers that an operator may raise above their
    `least` value, and `initial` ones an operator may change."""

    fixed: Mapping[str, str]
    initial: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that `ensure` did, or would do."""

    topic: str
    setting: str
    """A Kafka setting, or `partitions` for a topic that was made."""
    before: str | None
    after: str
    or_more: bool = False
    """`after` is the least value of those that will do."""

    def __str__(self) -> str:
        if self.setting == "partitions":
            return f"create {self.topic} with {self.after} partitions"
        return f"set {self.setting} of {self.topic} to {self.after} (was {self.before})"


def settings_of(topics: Topics, replication: int) -> dict[str, TopicSettings]:
    """Topic name to its settings, for topics with `replication` replicas.

    Intake has the broker's time (log time is built on it), and no topic but that of keys is compacted: each is a log,
    not a table. The journal is kept for ever. A key that was destroyed is gone from its topic once Kafka has cleaned
    it: its log is rolled after a day, and cleaned within a week. Each topic takes the largest batch that is written to
    it, whatever the broker's default is.
    """
    never_compacted = {"cleanup.policy": "delete", "unclean.leader.election.enable": "false"}
    intake = {**never_compacted, "message.timestamp.type": "LogAppendTime"}
    kept = {**never_compacted, "retention.ms": UNLIMITED, "retention.bytes": UNLIMITED}
    durable = {"min.insync.replicas": "2" if replication >= 3 else "1"}
    week = {**durable, "retention.ms": str(7 * DAY_MS)}
    batch, letter = {"max.message.bytes": BATCH_BYTES}, {"max.message.bytes": LETTER_BYTES}
    return {
        topics.turns: TopicSettings(intake, week, batch),
        topics.frames: TopicSettings(intake, week, batch),
        topics.membership: TopicSettings(intake, week, batch),
        topics.conversations: TopicSettings(kept, durable, batch),
        topics.dead_letters: TopicSettings(
            never_compacted,
            {**durable, "retention.ms": str(30 * DAY_MS), "max.message.bytes": str(LETTER_BYTES)},
            letter,
        ),
        topics.live: TopicSettings(never_compacted, {**durable, "retention.ms": str(HOUR_MS)}),
        topics.deployment: TopicSettings(kept, durable),
        topics.keys: TopicSettings(
            {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
            {
                **durable,
                "segment.ms": str(DAY_MS),
                "max.compaction.lag.ms": str(7 * DAY_MS),
                "min.cleanable.dirty.ratio": "0.1",
            },
        ),
    }


async def ensure(
    admin: AIOKafkaAdminClient,
    topics: Topics,
    *,
    partitions: int | None = None,
    replication: int = 1,
    dry_run: bool = False,
) -> list[Change]:
    """Make the topics that are missing and repair fixed settings; return what was, or in a dry run would be, changed.

    `partitions` None takes the existing topics' count, or `DEFAULT_PARTITIONS` where there is none. Running it twice,
    or at two places at once, does no harm. Raises `TopicsError`, before any change, for what must not be repaired in
    silence: partition counts that differ, and a compacted topic, which may have lost records.
    """
    settings = settings_of(topics, replication)
    counts = await _partition_counts(admin, topics)
    wanted = _one_count(_by_conversation(counts, topics), partitions)
    repairs = await _repairs(admin, list(counts), settings)
    missing = [name for name in topics.all if name not in counts]
    counted = {name: wanted if name in topics.by_conversation else 1 for name in missing}
    made = [Change(name, "partitions", None, str(count)) for name, count in counted.items()]
    if dry_run:
        return made + repairs
    if missing:
        await _create(admin, counted, settings, replication)
        await _visible("a leader of every partition was", lambda: _leaders_known(admin, topics))
        # Someone else may have made some of them just now, in another way.
        _one_count(_by_conversation(await _partition_counts(admin, topics), topics), wanted)
        repairs = await _repairs(admin, list(topics.all), settings)
    repaired = sorted({change.topic for change in repairs})
    for name in repaired:
        await _repair(admin, name, {change.setting: change.after for change in repairs if change.topic == name})
    await _visible("the settings were", lambda: _none_to_repair(admin, repaired, settings))
    return made + repairs


async def verify(admin: AIOKafkaAdminClient, topics: Topics) -> int:
    """The partition count, once every topic is there, with one count for all and the fixed settings.

    Raises `TopicsError` that names every topic and rule broken. Changes nothing.
    """
    counts = await _partition_counts(admin, topics)
    missing = [name for name in topics.all if name not in counts]
    if missing:
        raise TopicsError(f"no topic {', '.join(missing)}: run `turnlog topic ensure`")
    count = _one_count(_by_conversation(counts, topics), None)
    broken = await _repairs(admin, list(topics.all), settings_of(topics, replication=1))
    if broken:
        rules = "; ".join(
            f"{c.topic} has {c.setting}={c.before}, it must be {c.after}{' or more' if c.or_more else ''}"
            for c in broken
        )
        raise TopicsError(f"{rules}: run `turnlog topic ensure`")
    return count


async def identities(admin: AIOKafkaAdminClient, topics: Topics) -> dict[str, str]:
    """Kafka's id of each topic that positions are kept of: one that is made anew under its name has another.

    Raises `TopicsError` when the broker that is asked does not know one of them.
    """
    answer = await admin._send_request(metadata(topics.of_record))
    found = {}
    for code, name, high, low, *_ in answer.topics:
        if code:
            raise TopicsError(f"Kafka does not tell the id of {name}: {for_code(code).__name__}")
        found[name] = f"{high & _UNSIGNED:016x}{low & _UNSIGNED:016x}"
    return {name: found[name] for name in topics.of_record}


def require_same(kept: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise `TopicsError` unless the topics `found` are those that the database belongs to."""
    if set(kept) != set(found):
        namespace = next(
            (name.removesuffix("conversations")[:-1] for name in kept if name.endswith("conversations")), ""
        )
        raise TopicsError(
            f"the database belongs to another deployment, whose topics are {', '.join(sorted(kept))}: each namespace "
            "needs a database of its own (TURNLOG_NAMESPACE, TURNLOG_POSTGRES). Where this deployment was moved there, "
            f"by `turnlog topic grow`, set TURNLOG_NAMESPACE={namespace}"
        )
    anew = [name for name, topic_id in found.items() if kept[name] != topic_id]
    if anew:
        raise TopicsError(
            f"{', '.join(anew)} is not the topic that the database belongs to: it was made anew, or this is another "
            "cluster. Going on would skip or repeat what lies in it: use the cluster that the database belongs to, or "
            "a new TURNLOG_NAMESPACE with a new database"
        )


def _by_conversation(counts: Mapping[str, int], topics: Topics) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name in topics.by_conversation}


def _one_count(counts: Mapping[str, int], wanted: int | None) -> int:
    if wanted is None:
        wanted = next(iter(counts.values()), DEFAULT_PARTITIONS)
    if wanted < 1:
        raise TopicsError(f"a topic must have at least 1 partition, not {wanted}")
    if any(count != wanted for count in counts.values()):
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise TopicsError(
            f"every topic must have {wanted} partitions, but there are: {listed}. A conversation's partition is "
            "computed from the count, so that it is fixed when the topics are made: ask for the count that they have, "
            "move the deployment to more (`turnlog topic grow`), or make a new one under another TURNLOG_NAMESPACE"
        )
    return wanted


async def _repairs(admin: AIOKafkaAdminClient, names: list[str], settings: Mapping[str, TopicSettings]) -> list[Change]:
    """What the settings of `names` that are checked need; raises `TopicsError` for a compacted topic, which nothing
    mends."""
    changes = []
    for name, config in (await _configs(admin, names)).items():
        policy = config["cleanup.policy"].value
        if "compact" in policy and settings[name].fixed["cleanup.policy"] != policy:
            raise TopicsError(
                f"{name} has cleanup.policy={policy}, so that Kafka keeps only the last record of each key: records "
                "may be lost already. Set cleanup.policy=delete with Kafka's own tools, then run `turnlog audit verify`"
            )
        changes += [
            Change(name, setting, config[setting].value, value)
            for setting, value in settings[name].fixed.items()
            if config[setting].value != value
        ]
        changes += [
            Change(name, setting, config[setting].value, str(value), or_more=True)
            for setting, value in settings[name].least.items()
            if int(config[setting].value) < value
        ]
    return changes


async def _none_to_repair(admin: AIOKafkaAdminClient, names: list[str], settings: Mapping[str, TopicSettings]) -> bool:
    return not await _repairs(admin, names, settings)


# ------------------------------------------------------------------------------------------------- Kafka's answers
@dataclass(frozen=True, slots=True)
class _Setting:
    value: str
    of_the_topic: bool
    """Set on this topic rather than inherited from the broker."""


async def _partition_counts(admin: AIOKafkaAdminClient, topics: Topics) -> dict[str, int]:
    """Partition count of each of the topics that exists."""
    described = await admin.describe_topics(list(topics.all))
    counts = {}
    for topic in described:
        error = for_code(topic["error_code"])
        if error is UnknownTopicOrPartitionError:
            continue
        if topic["error_code"]:
            raise TopicsError(f"Kafka does not describe {topic['topic']}: {error.__name__}: {error.description}")
        counts[topic["topic"]] = len(topic["partitions"])
    return {name: counts[name] for name in topics.all if name in counts}


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, _Setting]]:
    if not names:
        return {}
    configs = {}
    for response in await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names]):
        for code, message, _, name, entries in response.resources:
            if code:
                raise TopicsError(f"Kafka does not tell the settings of {name}: {message or for_code(code).__name__}")
            configs[name] = {
                key: _Setting(value, source == _DYNAMIC_TOPIC_CONFIG) for key, value, _, source, *_ in entries
            }
    return configs


async def _create(
    admin: AIOKafkaAdminClient,
    counted: Mapping[str, int],
    settings: Mapping[str, TopicSettings],
    replication: int,
) -> None:
    new = [
        NewTopic(name, count, replication, topic_configs={**settings[name].initial, **settings[name].fixed})
        for name, count in counted.items()
    ]
    response = await admin.create_topics(new)
    for name, code, *rest in response.topic_errors:
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise TopicsError(f"Kafka does not make {name}: {rest[0] if rest and rest[0] else for_code(code).__name__}")


async def _leaders_known(admin: AIOKafkaAdminClient, topics: Topics) -> bool:
    """Whether every partition has a leader: before that a client may be told that the topic does not exist."""
    described: list[dict[str, Any]] = await admin.describe_topics(list(topics.all))
    return all(
        not topic["error_code"] and all(not p["error_code"] and p["leader"] >= 0 for p in topic["partitions"])
        for topic in described
    )


async def _visible(what: str, seen: Callable[[], Awaitable[bool]]) -> None:
    """Wait until brokers show a change that the controller has accepted: Kafka has nothing to be told by, so ask."""
    try:
        async with asyncio.timeout(VISIBLE_WITHIN_S):
            while not await seen():  # noqa: ASYNC110
                await asyncio.sleep(VISIBLE_POLL_S)
    except TimeoutError:
        raise TopicsError(f"{what} not seen {VISIBLE_WITHIN_S:.0f} s after Kafka agreed: are brokers down?") from None


async def _repair(admin: AIOKafkaAdminClient, name: str, repairs: Mapping[str, str]) -> None:
    # This request replaces all that is set on the topic, so what an operator set there goes with it.
    config = (await _configs(admin, [name]))[name]
    kept = {key: setting.value for key, setting in config.items() if setting.of_the_topic}
    resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={**kept, **repairs})
    for response in await admin.alter_configs([resource]):
        for code, message, *_ in response.resources:
            if code:
                raise TopicsError(f"Kafka does not change {name}: {message or for_code(code).__name__}")
