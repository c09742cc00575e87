"""`turnlog topic grow` on real Kafka and Postgres: what was said goes on in more partitions as if nothing had been."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer

from ops.audit.verify import Scope, verify_cluster
from ops.grow.database import Database
from ops.grow.deletion import Leftover, leftover
from ops.grow.plan import planned
from ops.grow.run import grow
from ops.grow.split import CannotGrow
from ops.history import open_history
from streams.core.events import Duplicate, Entry, TurnCommitted
from streams.core.fold import evolve
from streams.core.state import Conversation, Partition
from streams.deployment import joined
from streams.runtime.belonging import moved_to
from streams.sealing.copies import KeyTopic
from streams.sealing.store import WrappedKey
from streams.settings import Settings
from streams.topics import TopicsError
from tests.support.command import turnlog_async
from tests.support.deployment import MEMBER, Deployment, Talk, deployment
from tests.support.waiting import until

BEFORE, AFTER = 2, 4


def quiet(_: str) -> None:
    """No progress wanted."""


def grown(place: Deployment, producer: AIOKafkaProducer) -> Deployment:
    """The same deployment in its new generation."""
    settings = place.settings.model_copy(update={"namespace": f"{place.settings.namespace}.g2"})
    return Deployment(settings, AFTER, producer)


async def talked(place: Deployment) -> Mapping[str, list[str]]:
    """Some conversations, all taken, and the worker stopped."""
    async with place.worker() as (running, _):
        talk = Talk(place)
        await talk.some(5)
        said = await talk.end()
        await place.all_taken(said)
        assert await running.stop() == 0
    return said


def folded(journal: Mapping[int, Sequence[Entry]]) -> dict[str, Conversation]:
    found: dict[str, Conversation] = {}
    for partition, entries in journal.items():
        state = Partition(partition)
        for entry in entries:
            evolve(state, entry)
        assert not found.keys() & state.conversations.keys(), "a conversation lies in two partitions"
        found |= state.conversations
    return found


async def test_a_grown_deployment_goes_on_where_it_was(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        said = await talked(place)
        before = folded(await place.journal())
        await sealed_by(place.settings, WrappedKey("k1", "c1", b"sealed"), WrappedKey("k2", "c2", b"sealed"))
        await sealed_by(place.settings, WrappedKey("k2", "c2", None), WrappedKey("k3", "c3", b"sealed"))
        await asyncio.to_thread(destroy, settings, "k3")
        environment = place.environment
        looked = await turnlog_async(
            "topic", "grow", "--partitions", "4", "--dry-run", "-o", "json", environment=environment
        )
        assert looked.code == 0, looked.err
        assert looked.document["standing"] == []
        assert sum(part["conversations"] for part in looked.document["parts"]) == len(said)
        done = await turnlog_async("topic", "grow", "--partitions", "4", "--yes", "-o", "json", environment=environment)
        assert done.code == 0, done.err
        assert [part["events"] for part in done.document["parts"]] == [
            part["events"] for part in looked.document["parts"]
        ]
        refused = await turnlog_async("worker", environment=environment)
        assert refused.code == 2
        assert f"TURNLOG_NAMESPACE={settings.namespace}.g2" in refused.err
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True) as producer:
            new = grown(place, producer)
            rebuilt = await turnlog_async("rebuild", "--yes", "-o", "json", environment=new.environment)
            assert rebuilt.code == 0, rebuilt.err
            transcript = rebuilt.document["tables"]["transcript"]
            assert transcript == {"before": 0, "after": sum(map(len, said.values()))}
            await goes_on(new, said, before)
        assert await sealed_by(new.settings) == [WrappedKey("k1", "c1", b"sealed")]
        assert await sealed_by(place.settings) == [], "an erasure after the move would leave this copy"


def destroy(settings: Settings, key: str) -> None:
    """As an erasure does whose tombstone came before the copy."""
    with psycopg.connect(settings.postgres) as connection:
        connection.execute(
            "INSERT INTO data_keys (key_id, conversation_id, wrapped, current, copied, erased_at)"
            " VALUES (%s, 'c3', NULL, false, true, now())",
            (key,),
        )


async def sealed_by(settings: Settings, *keys: WrappedKey) -> list[WrappedKey]:
    """Write keys into their topic, or take them out of it; those that are there then."""
    found: list[WrappedKey] = []

    async def seen(some: Sequence[WrappedKey]) -> None:
        found.extend(some)

    topic = KeyTopic(settings)
    try:
        await topic.put(keys)
        await topic.all(seen)
    finally:
        await topic.close()
    return found


def kept(conversations: Mapping[str, Conversation]) -> dict[str, object]:
    """What must be the same in both generations: all of it but what counts by `lsn`."""
    return {
        name: (c.head, c.owners, c.open, [(id_, r.member, r.epoch, r.turn_seq) for id_, r in c.runs.items()])
        for name, c in conversations.items()
    }


async def goes_on(place: Deployment, said: Mapping[str, list[str]], before: Mapping[str, Conversation]) -> None:
    """Numbers, owners and keys of the new generation are those of the old one, and it passes every check."""
    journal = await place.journal()
    duplicates = sum(isinstance(entry.event, Duplicate) for entries in journal.values() for entry in entries)
    after = folded(journal)
    assert kept(after) == kept(before)
    assert sum(len(conversation.runs) for conversation in after.values()) >= len(said), "no run was open"
    async with place.worker() as (running, _):
        for conversation, texts in said.items():
            await place.turn(conversation, texts[0], key=texts[0])
            await place.turn(conversation, "after", key="after")
        await place.all_taken({name: [*texts, "after"] for name, texts in said.items()})
        assert await running.stop() == 0
    journal = await place.journal()
    events = [entry.event for entries in journal.values() for entry in entries]
    last = {e.conversation_id: e.seq for e in events if isinstance(e, TurnCommitted)}
    assert last == {name: before[name].head + 1 for name in said}
    assert sum(isinstance(event, Duplicate) for event in events) == duplicates + len(said)
    assert {place.home(name) for name in said} == set(range(AFTER))
    verdict = await verify_cluster(place.settings, Scope(), quiet)
    assert verdict.ok, verdict.findings.shown


async def moved(place: Deployment) -> None:
    """Grow it, in this process."""
    database = await Database.connect(place.settings.postgres)
    try:
        async with open_history(place.settings) as history:
            plan = await planned(place.settings, history, database, AFTER, None)
            await grow(plan, history, database, "ann", quiet)
    finally:
        await database.close()


KILLED_AT = (
    "_new_topics",
    "_copy_keys",
    "start",
    "append",
    "commit",  # a transaction stays open
    "commit*2",
    "append*4",
    "start*3",  # of the second old partition's
    "commit*3",
    "switch",
    "execute*25",  # in the middle of the database's transaction
    "_forget_keys",  # the database belongs to the new topics, and the old ones do not say so
    "_mark",
)


async def test_real_processes_that_are_killed_anywhere_lose_nothing_and_double_nothing(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        said = await talked(place)
        before = folded(await place.journal())
        seed = str(random.randrange(1 << 32))
        killed = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.killed_growth",
            str(AFTER),
            seed,
            *KILLED_AT,
            env=dict(place.environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await killed.communicate()
        assert killed.returncode == 0, f"seed {seed}: {err.decode()}"
        assert len(out.split()) == len(KILLED_AT) > 10
        done = await turnlog_async(
            "topic", "grow", "--partitions", str(AFTER), "--yes", "-o", "json", environment=place.environment
        )
        assert (done.code, done.document["applied"]) == (0, True), done.err
        assert await moved_to(settings.kafka, place.topics.deployment, 5.0) == f"{settings.namespace}.g2"
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True) as producer:
            await goes_on(grown(place, producer), said, before)


async def looked_at(settings: Settings) -> Leftover:
    """What is left of the generation that these settings name."""
    database = await Database.connect(settings.postgres)
    try:
        return await leftover(settings, database)
    finally:
        await database.close()


@asynccontextmanager
async def reading_anew(settings: Settings, group: str, topic: str) -> AsyncIterator[None]:
    """A member of a group of the consumer protocol (KIP-848) that has no position yet."""
    reader = Consumer(
        {
            "bootstrap.servers": settings.kafka,
            "group.id": group,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
    )
    reader.subscribe([topic])
    try:
        async with asyncio.timeout(30):
            while not reader.assignment():
                await asyncio.to_thread(reader.poll, 0.1)
        yield
    finally:
        await asyncio.to_thread(reader.close)


async def test_the_old_generation_is_deleted_once_nothing_reads_or_writes_it(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        await talked(place)
        with pytest.raises(CannotGrow, match="was not moved from there"):
            await looked_at(settings)
        await moved(place)
        group, journal, target = f"{settings.namespace}.data", place.topics.conversations, f"{settings.namespace}.g2"
        groups = [f"{group}-1", f"{group}-2"]  # of several that Kafka tells of at once none is missed
        async with AsyncExitStack() as reading:
            for name in groups:
                consumer = AIOKafkaConsumer(journal, bootstrap_servers=settings.kafka, group_id=name)
                await until((await reading.enter_async_context(consumer)).assignment)
            groups.append(f"{group}-new")  # of the new protocol, of whose members the old requests know nothing
            await reading.enter_async_context(reading_anew(settings, groups[-1], journal))
            told = sorted((await looked_at(settings)).standing)
            assert told == [f"the group {name} reads {journal}: stop its 1 member(s)" for name in groups]
        with pytest.raises(CannotGrow, match="was not moved from there"):
            await looked_at(settings.model_copy(update={"namespace": target}))
        delete = ("topic", "grow", "--delete-old", "-o", "json")
        assert (await turnlog_async(*delete, environment=place.environment)).code == 1, "nobody was asked"
        deleted = await turnlog_async(*delete, "--yes", environment=place.environment)
        assert (deleted.code, deleted.document["applied"], deleted.document["to"]) == (0, True, target), deleted.err
        assert {each["topic"]: each["partitions"] for each in deleted.document["topics"]} == {
            **dict.fromkeys(place.topics.by_conversation, BEFORE),
            place.topics.keys: 1,
        }
        assert (await looked_at(settings)).topics == []
        with pytest.raises(TopicsError, match=f"set TURNLOG_NAMESPACE={target}"):
            await joined(settings)
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka, enable_idempotence=True) as producer:
            verdict = await verify_cluster(grown(place, producer).settings, Scope(), quiet)
        assert verdict.ok, verdict.findings.shown


async def test_what_came_after_the_move_is_not_deleted_unread(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        await talked(place)
        await moved(place)
        await place.turn("c0", "lost", key="lost")
        [standing] = (await looked_at(settings)).standing
        assert standing.startswith(f"1 records came to {place.topics.turns}[{place.home('c0')}] since the move")
        refused = await turnlog_async("topic", "grow", "--delete-old", "--yes", environment=place.environment)
        assert (refused.code, refused.out) == (2, "")
        assert standing in refused.err


async def test_what_is_not_taken_or_runs_stands_in_the_way(settings: Settings) -> None:
    async with deployment(settings, BEFORE) as place:
        environment = place.environment
        async with place.worker() as (running, worker):
            await place.furnish(MEMBER)
            await place.furnished(MEMBER)
            refused = await turnlog_async("topic", "grow", "--partitions", "4", "--yes", environment=environment)
            assert (refused.code, refused.out) == (2, "")
            assert worker in refused.err
            assert await running.stop() == 0
        await place.open("late")
        refused = await turnlog_async("topic", "grow", "--partitions", "4", "--yes", environment=environment)
        assert refused.code == 2
        assert f"1 records of {place.topics.turns}[{place.home('late')}] were not taken yet" in refused.err
        odd = await turnlog_async("topic", "grow", "--partitions", "5", "--yes", environment=environment)
        assert "must be a multiple" in odd.err
        async with place.worker() as (running, _):
            await place.turn("late", "one")
            await place.all_taken({"late": ["one"]})
            assert await running.stop() == 0
        database = await Database.connect(settings.postgres)
        try:
            async with open_history(settings) as history:
                plan = await planned(settings, history, database, AFTER, None)
                await place.open("later")
                with pytest.raises(CannotGrow, match="has grown meanwhile"):
                    await grow(plan, history, database, "ann", quiet)
                assert set(await database.kept_topics()) == set(place.topics.of_record)
        finally:
            await database.close()
