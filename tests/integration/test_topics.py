"""Topics on a real broker: made once, checked at every start, repaired only where nothing can be lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from ops.embedded import EmbeddedStack
from streams.topics import Topics, TopicsError, ensure, verify


@pytest_asyncio.fixture
async def admin(stack: EmbeddedStack) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=stack.kafka)
    await client.start()
    yield client
    await client.close()


@pytest.fixture
def topics(fresh_namespace: str) -> Topics:
    return Topics(fresh_namespace)


async def setting(admin: AIOKafkaAdminClient, topic: str, name: str) -> str:
    [response] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: ""})])
    [(_, _, _, _, [entry])] = response.resources
    return str(entry[1])


async def eventually(seen: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what the controller accepted to be seen by the broker; the test's own time limit ends a wait in vain."""
    while not await seen():  # noqa: ASYNC110  a broker tells nobody
        await asyncio.sleep(0.01)


async def make(admin: AIOKafkaAdminClient, topic: str, configs: dict[str, str] | None = None) -> None:
    await admin.create_topics([NewTopic(topic, 2, 1, topic_configs=configs)])

    async def made() -> bool:
        return len((await admin.describe_topics([topic]))[0]["partitions"]) == 2

    await eventually(made)


async def test_what_is_ensured_is_there_and_verified(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    changes = await ensure(admin, topics, partitions=3)
    assert [change.topic for change in changes] == list(topics.all)
    assert await verify(admin, topics) == 3
    assert await setting(admin, topics.turns, "message.timestamp.type") == "LogAppendTime"
    assert await setting(admin, topics.turns, "retention.ms") == str(7 * 24 * 3600 * 1000)
    assert await setting(admin, topics.conversations, "retention.ms") == "-1"
    assert await setting(admin, topics.dead_letters, "max.message.bytes") == str(2 * 1024 * 1024)


async def test_ensuring_again_changes_nothing(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    await ensure(admin, topics, partitions=2)
    assert await ensure(admin, topics, partitions=2) == []
    assert await ensure(admin, topics) == []


async def test_two_at_once_make_each_topic_once(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    await asyncio.gather(*(ensure(admin, topics, partitions=2) for _ in range(3)))
    assert await verify(admin, topics) == 2


async def test_a_dry_run_says_what_it_would_do_and_does_nothing(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    changes = await ensure(admin, topics, partitions=4, dry_run=True)
    assert str(changes[0]) == f"create {topics.turns} with 4 partitions"
    assert len(changes) == len(topics.all)
    assert not set(topics.all) & set(await admin.list_topics())


async def test_missing_topics_are_named_with_the_way_out(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    await make(admin, topics.turns)
    with pytest.raises(TopicsError, match=rf"no topic {topics.frames}, .*turnlog topic ensure"):
        await verify(admin, topics)


async def test_another_partition_count_is_refused_and_nothing_is_made(
    admin: AIOKafkaAdminClient, topics: Topics
) -> None:
    await make(admin, topics.turns)
    with pytest.raises(TopicsError, match=f"{topics.turns} 2"):
        await ensure(admin, topics, partitions=3)
    assert set(topics.all) & set(await admin.list_topics()) == {topics.turns}


async def test_a_topic_that_someone_grew_is_refused_at_start(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    await ensure(admin, topics, partitions=2)
    await admin.create_partitions({topics.frames: NewPartitions(5)})

    async def grown() -> bool:
        return len((await admin.describe_topics([topics.frames]))[0]["partitions"]) == 5

    await eventually(grown)
    with pytest.raises(TopicsError, match=f"{topics.frames} 5"):
        await verify(admin, topics)


async def test_a_compacted_journal_is_refused_and_never_repaired_in_silence(
    admin: AIOKafkaAdminClient, topics: Topics
) -> None:
    await make(admin, topics.conversations, {"cleanup.policy": "compact"})
    with pytest.raises(TopicsError, match=f"{topics.conversations} has cleanup.policy=compact"):
        await ensure(admin, topics, partitions=2)
    assert await setting(admin, topics.conversations, "cleanup.policy") == "compact"


async def test_fixed_settings_are_repaired_and_an_operators_own_are_kept(
    admin: AIOKafkaAdminClient, topics: Topics
) -> None:
    await ensure(admin, topics, partitions=1)
    wrong = {"message.timestamp.type": "CreateTime", "retention.ms": "12345", "segment.bytes": "1048576"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topics.turns, configs=wrong)])

    async def changed() -> bool:
        return await setting(admin, topics.turns, "retention.ms") == "12345"

    await eventually(changed)
    with pytest.raises(TopicsError, match=f"{topics.turns} has message.timestamp.type=CreateTime, it must be LogApp"):
        await verify(admin, topics)
    [repair] = await ensure(admin, topics)
    assert str(repair) == f"set message.timestamp.type of {topics.turns} to LogAppendTime (was CreateTime)"
    assert await verify(admin, topics) == 1
    assert await setting(admin, topics.turns, "retention.ms") == "12345"
    assert await setting(admin, topics.turns, "segment.bytes") == "1048576"


async def test_a_namespace_has_topics_and_transactional_ids_of_its_own() -> None:
    assert Topics("staging").turns == "staging.turns"
    assert Topics().turns == "turns"
    assert Topics("staging").transactional_id(3) == "turnlog-staging-3"
    assert Topics().transactional_id(3) == "turnlog-default-3"
